//! System shared memory in the hands of an attacker: keys, offsets, objects that shrink.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

use serde_json::json;
use tonic::Code;
use troupe_proto::inference::{
    SystemSharedMemoryRegisterRequest, SystemSharedMemoryUnregisterRequest,
};

use crate::{
    decoupled::models::decoupled,
    support::{
        Model, Repository, Server, at_once,
        gate::Gate,
        grpc::Grpc,
        http,
        models::{ensemble, execute, same},
        native, process,
        regions::{Object, over_grpc, place, register, request, unregister},
    },
};

const FLAG: &[&str] = &["--allow-client-shm=true"];

/// Decoupled; answers with its first byte alone.
fn first() -> Model {
    let body = "
        get = pb_utils.get_input_tensor_by_name
        for it in requests:
            y = pb_utils.Tensor('y', get(it, 'x').as_numpy()[:1])
            it.get_response_sender().send(pb_utils.InferenceResponse([y]), 1)";
    decoupled(execute("x:UINT8[-1] -> y:UINT8[-1]", body))
}

fn models() -> Repository {
    let bytes = "x:UINT8[-1] -> y:UINT8[-1]";
    Repository::of([
        ("native", native("identity", bytes)),
        ("python", same(bytes)),
        ("first", first()),
        ("chain", ensemble(bytes, &["python: x=x -> y=t", "native: x=t -> y=y"])),
        ("strings", native("identity", "x:BYTES[-1] -> y:BYTES[-1]")),
    ])
}

static SERVER: LazyLock<Server> = LazyLock::new(|| Server::with(models(), FLAG));

#[test]
fn a_large_region_is_copied_once_on_its_way_to_a_worker() {
    const SIZE: u64 = 4 << 20;
    let server = Server::with(models(), FLAG);
    let (input, output) = (Object::new(SIZE as usize, 7), Object::new(SIZE as usize, 0));
    let (input, output) = (input.registered(&server), output.registered(&server));
    let (from, to) = (place(&input.key, 0, SIZE), place(&output.key, 0, SIZE));
    server.infer("python", &request(SIZE, from, to)).ok();
    assert_eq!(output.bytes(), vec![7; SIZE as usize]);
    // That copy was the kernel's: nobody had to copy it for the worker, or out of it.
    for direction in ["to_worker", "from_worker"] {
        let labels = [&*format!("direction=\"{direction}\""), "model=\"python\""];
        let copied = server.metric("troupe_python_bytes_copied_total", &labels);
        assert_eq!(copied, Some(0.), "{direction}");
    }
    for direction in ["read", "written"] {
        let labels = [&*format!("direction=\"{direction}\"")];
        let copied = server.metric("troupe_client_shm_copied_bytes_total", &labels);
        assert_eq!(copied, Some(SIZE as f64), "{direction}");
    }
    let mut message = over_grpc(&input.key, [0, SIZE], [0, 1]);
    message.model_name = "first".to_owned();
    message.inputs[0].shape = vec![SIZE as i64];
    let answers = Grpc::connect(server.grpc).stream(vec![message; 2]).unwrap();
    let responses = answers.iter().map(|it| it.infer_response.as_ref().expect(&it.error_message));
    let contents: Vec<_> = responses.map(|it| it.raw_output_contents.clone()).collect();
    assert_eq!(contents, [[bytes::Bytes::new()], [bytes::Bytes::new()]]);
    assert_eq!(input.bytes()[0], 7);
    server.is_well();
}

#[test]
fn without_the_flag_every_refusal_names_it() {
    let server =
        Server::start(Repository::of([("m", native("identity", "x:UINT8[4] -> y:UINT8[4]"))]));
    let text = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' \
                to enable.";
    let object = Object::new(64, 1);
    let body = json!({"key": object.key, "byte_size": 64});
    register(&server, "r", &body).refuses(501, text);
    for path in ["systemsharedmemory/region/r/unregister", "systemsharedmemory/unregister"] {
        server.http.post(&format!("/v2/{path}"), "").refuses(501, text);
    }
    let inline = json!({"name": "x", "datatype": "UINT8", "shape": [4], "data": [1, 2, 3, 4]});
    let to_region = json!({
        "inputs": [inline], "outputs": [{"name": "y", "parameters": place("r", 0, 4)}],
    });
    server.infer("m", &to_region).refuses(501, text);
    server.infer("m", &request(4, place("r", 0, 4), json!({}))).refuses(501, text);
    assert_eq!(server.http.get("/v2/systemsharedmemory/status").ok().json(), json!([]));
    assert_eq!(server.http.get("/v2/cudasharedmemory/status").ok().json(), json!([]));
    server.is_well();
}

#[test]
fn cve_2025_23329_no_slashes_hide_a_reserved_key() {
    let invalid = "invalid shm key";
    let reserved = "contains the reserved prefix 'triton_python_backend_shm_region_'";
    for slashes in ["", "/", "///"] {
        let key = format!("{slashes}triton_python_backend_shm_region_1");
        register(&SERVER, "r", &json!({"key": key, "byte_size": 1})).refuses(400, reserved);
        for name in ["", "..", "../../etc/passwd", "a/b", "nul\0", "."] {
            let body = json!({"key": format!("{slashes}{name}"), "byte_size": 1});
            register(&SERVER, "r", &body).refuses(400, invalid);
        }
    }
    for (body, text) in [
        (json!({"byte_size": 1}), "Shared memory register request has no 'key' field"),
        (json!({"key": "k"}), "Shared memory register request has no 'byte_size' field"),
        (json!({"key": 5, "byte_size": 1}), "Unable to parse 'key'"),
        (json!({"key": "k", "byte_size": -1}), "Unable to parse 'byte_size'"),
        (json!({"key": "k", "byte_size": 1, "offset": -1}), "Unable to parse 'offset'"),
    ] {
        register(&SERVER, "r", &body).refuses(400, text);
    }
    let nameless =
        SERVER.http.post("/v2/systemsharedmemory/register", r#"{"key":"k","byte_size":1}"#);
    nameless.refuses(400, "'region name' is necessary to register system shared memory region");
    SERVER.http.get("/v2/systemsharedmemory/region/r/register").refuses(405, "Method Not Allowed");
    SERVER.http.post("/v2/systemsharedmemory/status", "").refuses(405, "Method Not Allowed");
    SERVER.is_well();
}

#[test]
fn cve_2024_0088_nothing_reaches_behind_an_object_or_a_region() {
    let object = Object::new(100, 1);
    let invalid = "invalid args";
    for (offset, size) in [(0, 101), (100, 1), (99, 2), (u64::MAX, 2), (1, u64::MAX), (0, 0)] {
        let body = json!({"key": object.key, "offset": offset, "byte_size": size});
        register(&SERVER, "beyond", &body).refuses(400, invalid);
    }
    let body = json!({"key": object.key, "offset": 10, "byte_size": 20});
    register(&SERVER, "beyond", &body).ok();
    let good = || place("beyond", 0, 4);
    for (offset, size, text) in [
        (20, 4, "Invalid offset for shared memory region: 'beyond'"),
        (u64::MAX, 4, "Invalid offset for shared memory region: 'beyond'"),
        (17, 4, "Invalid offset + byte size for shared memory region: 'beyond'"),
        (
            4,
            u64::MAX - 3,
            "Integer overflow detected: byte_size (18446744073709551612) + offset (4)",
        ),
    ] {
        let wrong = || place("beyond", offset, size);
        for model in ["native", "python", "chain"] {
            SERVER.infer(model, &request(4, wrong(), good())).refuses(400, text);
            SERVER.infer(model, &request(4, good(), wrong())).refuses(400, text);
        }
        let mut grpc = Grpc::connect(SERVER.grpc);
        for (input, output) in [([offset, size], [0, 4]), ([0, 4], [offset, size])] {
            let refused = grpc.infer(over_grpc("beyond", input, output)).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().contains(text), "{refused:?}");
        }
    }
    for (shape, size) in [(5, 4), (3, 4)] {
        let text = format!("Expected {shape}, got {size}");
        let wrong = request(shape, place("beyond", 0, size), good());
        SERVER.infer("native", &wrong).refuses(400, &text);
    }
    assert_eq!(object.bytes(), [1; 100]);
    unregister(&SERVER, "beyond");
    SERVER.is_well();
}

#[test]
fn cve_2025_23319_memory_of_workers_has_no_name() {
    let before = process::shared_memory_files();
    let server = Server::with(models(), FLAG);
    let object = Object::new(1 << 20, 7).registered(&server);
    let all = || place(&object.key, 0, 1 << 20);
    server.infer("python", &request(1 << 20, all(), all())).ok();
    process::no_file_is_left(&before);
    // No text of a refusal names what is inside.
    for key in ["memfd:troupe", "/proc/self/fd/3", "troupe"] {
        let answer = register(&server, "r", &json!({"key": key, "byte_size": 1}));
        assert!([400, 500].contains(&answer.status), "{}", answer.text());
        assert!(answer.error().ends_with(&format!("'{key}'")), "{}", answer.text());
    }
    server.is_well();
}

#[test]
fn cve_2024_0116_a_region_that_is_unregistered_in_use_serves_until_then() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let server = Server::with(repository.with("waits", gate.model("UINT8[-1]")), FLAG);
    let (input, output) = (Object::new(64, 7), Object::new(64, 0));
    let (input, output) = (input.registered(&server), output.registered(&server));
    let body = request(64, place(&input.key, 0, 64), place(&output.key, 0, 64));
    let listed = || {
        let status = server.http.get("/v2/systemsharedmemory/status").ok().json();
        status.as_array().unwrap().len()
    };
    for over_grpc in [false, true] {
        let running = server.http.start("waits", &body);
        gate.is_reached();
        if over_grpc {
            let all = SystemSharedMemoryUnregisterRequest::default();
            let mut grpc = Grpc::connect(server.grpc);
            grpc.call(async |it| it.system_shared_memory_unregister(all).await).unwrap();
        } else {
            server.http.post("/v2/systemsharedmemory/unregister", "").ok();
        }
        assert_eq!(listed(), 2);
        let again = json!({"key": input.key, "byte_size": 64});
        let text = format!("shared memory region '{}' already in manager", input.key);
        register(&server, &input.key, &again).refuses(409, &text);
        gate.let_through(1);
        http::finish(running).ok();
        assert_eq!((listed(), output.bytes()), (0, vec![7; 64]));
        output.put(&[0; 64]);
        for object in [&input, &output] {
            register(&server, &object.key, &json!({"key": object.key, "byte_size": 64})).ok();
        }
    }
    // A client that goes away lets go of its regions.
    drop(server.http.start("waits", &body));
    gate.is_reached();
    server.http.post("/v2/systemsharedmemory/unregister", "").ok();
    crate::support::until("regions without a client to be forgotten", || listed() == 0);
    gate.let_through(1);
    server.is_well();
}

#[test]
fn a_client_that_shrinks_its_object_in_the_middle_harms_only_itself() {
    const SIZE: u64 = 1 << 20;
    let evil = Object::new(SIZE as usize, 1).registered(&SERVER);
    let good = Object::new(SIZE as usize, 2).registered(&SERVER);
    let goods: Vec<Object> =
        (0..3).map(|_| Object::new(SIZE as usize, 0).registered(&SERVER)).collect();
    let is_over = AtomicBool::new(false);
    let all = |object: &Object| place(&object.key, 0, SIZE);
    let answered = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                evil.resize(0);
                evil.resize(SIZE / 2 + 1);
                evil.resize(SIZE);
            }
        });
        let answers = at_once(6, |caller| {
            let models = ["native", "python", "chain"];
            let (model, mine) = (models[caller % 3], caller < 3);
            let body = match mine {
                true => request(SIZE, all(&evil), all(&evil)),
                false => request(SIZE, all(&good), all(&goods[caller - 3])),
            };
            let answers: Vec<_> = (0..25).map(|_| SERVER.infer(model, &body)).collect();
            (mine, answers)
        });
        is_over.store(true, SeqCst);
        answers
    });
    for (mine, answers) in answered {
        for answer in answers {
            if mine && answer.status != 200 {
                answer.refuses(400, "is shorter than when it was registered");
            } else {
                answer.ok();
            }
        }
    }
    goods.iter().for_each(|it| assert_eq!(it.bytes(), good.bytes()));
    // What is removed is still there for whoever has it open, and for nobody else.
    good.remove();
    SERVER.infer("chain", &request(SIZE, all(&good), all(&goods[0]))).ok();
    let unable = format!("Unable to open shared memory region: '{}'", good.key);
    register(&SERVER, "new", &json!({"key": good.key, "byte_size": 1})).refuses(500, &unable);
    for object in [&evil, &good].into_iter().chain(&goods) {
        unregister(&SERVER, &object.key);
    }
    SERVER.is_well();
}

#[test]
fn strings_that_change_after_they_were_checked_are_those_that_were_checked() {
    // One string of 60 bytes, over and over turned into one without end.
    let object = Object::new(64, 0);
    let strings = Object::new(64, 0).registered(&SERVER);
    let put = |length: u32| object.put(&length.to_le_bytes());
    put(60);
    let object_key = object.key.clone();
    register(&SERVER, &object_key, &json!({"key": object_key, "byte_size": 64})).ok();
    let body = json!({
        "inputs": [{"name": "x", "datatype": "BYTES", "shape": [1],
                    "parameters": place(&object_key, 0, 64)}],
        "outputs": [{"name": "y", "parameters": place(&strings.key, 0, 64)}],
    });
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                put(u32::MAX);
                put(60);
            }
        });
        for _ in 0..200 {
            let answer = SERVER.infer("strings", &body);
            if answer.status != 200 {
                answer.refuses(400, "expecting string of length");
            } else {
                assert_eq!(strings.bytes()[..4], 60_u32.to_le_bytes());
            }
        }
        is_over.store(true, SeqCst);
    });
    unregister(&SERVER, &object_key);
    unregister(&SERVER, &strings.key);
    SERVER.is_well();
}

#[test]
fn ten_thousand_regions_are_too_many() {
    let server = Server::with(models(), FLAG);
    let object = Object::new(64, 1);
    let mut grpc = Grpc::connect(server.grpc);
    let mut refused = 0;
    for number in 0..10_000 {
        let region = SystemSharedMemoryRegisterRequest {
            name: number.to_string(),
            key: object.key.clone(),
            offset: 0,
            byte_size: 64,
        };
        let registered = grpc.call(async |it| it.system_shared_memory_register(region).await);
        if let Err(status) = registered {
            assert_eq!(status.code(), Code::Unavailable);
            assert!(status.message().contains("there may be no more"), "{status:?}");
            refused += 1;
        }
    }
    assert!((5_904..10_000).contains(&refused), "{refused} refused");
    // Whoever has one still works, and there are descriptors for everything else.
    server.infer("python", &request(64, place("0", 0, 64), place("1", 0, 64))).ok();
    let all = SystemSharedMemoryUnregisterRequest::default();
    grpc.call(async |it| it.system_shared_memory_unregister(all).await).unwrap();
    let status = server.http.get("/v2/systemsharedmemory/status").ok().json();
    assert_eq!(status, json!([]));
    server.is_well();
}

#[test]
fn an_object_of_nothing_but_holes_takes_no_more_memory_than_there_may_be() {
    let server = Server::with(models(), &[FLAG[0], "--max-inflight-bytes=67108864"]);
    const HUGE: u64 = 1 << 36;
    let object = Object::new(0, 0);
    object.resize(HUGE);
    let object = object.registered(&server);
    for model in ["native", "python", "chain"] {
        let all = || place(&object.key, 0, HUGE);
        let answer = server.infer(model, &request(HUGE, all(), all()));
        answer.refuses(503, "no memory for this request");
    }
    let resident = process::resident_mib(server.pid);
    assert!(resident < 512, "{resident} MiB");
    let small = || place(&object.key, HUGE - 4, 4);
    server.infer("chain", &request(4, small(), small())).ok();
    server.is_well();
}
