//! Calls of shared memory in any order, over HTTP and gRPC, while the objects behind the regions are
//! cut, grown, removed and made anew.

use std::{fs, thread};

use serde_json::{Value, json};
use tonic::{Code, Status};
use troupe_proto::inference::{
    SystemSharedMemoryRegisterRequest, SystemSharedMemoryStatusRequest,
    SystemSharedMemoryUnregisterRequest,
};

use super::{
    attempts::{attacked, fuzz_server},
    mutate::Random,
};
use crate::support::{
    Answer, Repository, Server,
    grpc::Grpc,
    models::{native, same},
    regions::{Object, over_grpc, path, place, register, request, unregister},
};

const NAMES: &[&str] = &["a", "b", "c", "d"];
const OBJECT_BYTES: usize = 8192;

/// Sizes and offsets, most of them possible.
fn number(random: &mut Random) -> u64 {
    let edge = OBJECT_BYTES as u64;
    match random.below(4) {
        0 => *random.pick(&[1 << 31, 1 << 32, 1 << 62, 1 << 63, u64::MAX - 7, u64::MAX]),
        1 => *random.pick(&[0, 1, 4, 4095, 4096, 4097, edge - 4, edge - 1, edge, edge + 1]),
        _ => random.below(OBJECT_BYTES) as u64,
    }
}

/// The objects that clients have made, some of which are gone.
struct Objects(Vec<Object>);

impl Objects {
    fn new() -> Objects {
        Objects((0..3).map(|it| Object::new(OBJECT_BYTES, it)).collect())
    }

    fn key(&self, random: &mut Random) -> String {
        match random.below(8) {
            0 => {
                let odd = ["", "/", "..", "../etc/passwd", "none", "sem.x", "\0", "a/b", "💥"];
                (*random.pick(&odd)).to_owned()
            }
            1 => format!("///{}", random.pick(&self.0).key),
            2 => format!("triton_python_backend_shm_region_{}", random.below(3)),
            _ => random.pick(&self.0).key.clone(),
        }
    }

    /// Changes one of them behind the server's back.
    fn change(&mut self, random: &mut Random) {
        let at = random.below(self.0.len());
        let object = &self.0[at];
        match random.below(6) {
            0 => object.resize(0),
            1 => object.resize(random.below(OBJECT_BYTES) as u64),
            2 => object.resize(*random.pick(&[OBJECT_BYTES as u64, 1 << 20, 1 << 40])),
            3 => drop(fs::remove_file(path(&object.key))),
            // Something else of this name.
            4 => {
                let _ = fs::remove_file(path(&object.key));
                let _ = std::os::unix::fs::symlink("/etc/hostname", path(&object.key));
            }
            _ => self.0[at] = Object::new(OBJECT_BYTES, 7),
        }
    }
}

/// Triton calls these its own faults, too: an object that cannot be opened, an output without room.
fn is_of_triton(error: &str) -> bool {
    error.contains("Unable to open shared memory region")
        || error.contains("shared memory size specified with the request for output")
}

#[track_caller]
fn is_sound(answer: &Answer, what: &str) {
    let is_fault = answer.status >= 500 && ![501, 503].contains(&answer.status);
    assert!(!is_fault || is_of_triton(&answer.error()), "{what}: {}", answer.text());
}

#[track_caller]
fn is_sound_status(status: Option<Status>, what: &str) {
    let Some(status) = status else { return };
    let is_fault = matches!(status.code(), Code::Internal | Code::Unknown | Code::DataLoss);
    assert!(!is_fault || is_of_triton(status.message()), "{what}: {status}");
}

fn over_http(server: &Server, objects: &Objects, random: &mut Random) -> String {
    let name = *random.pick(NAMES);
    let (path, body) = match random.below(8) {
        0 => (format!("region/{name}/unregister"), Value::Null),
        1 if random.once_in(4) => ("unregister".to_owned(), Value::Null),
        2 => {
            let path = if random.once_in(2) { "status" } else { &format!("region/{name}/status") };
            let answer = server.http.get(&format!("/v2/systemsharedmemory/{path}"));
            is_sound(&answer, path);
            return format!("GET {path}");
        }
        _ => {
            let (offset, size) = (number(random), number(random));
            let body = json!({"key": objects.key(random), "offset": offset, "byte_size": size});
            (format!("region/{name}/register"), body)
        }
    };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = server.http.post(&format!("/v2/systemsharedmemory/{path}"), &body);
    is_sound(&answer, &body);
    format!("POST {path} {body}")
}

fn grpc_call(client: &mut Grpc, objects: &Objects, random: &mut Random) -> String {
    let name = (*random.pick(NAMES)).to_owned();
    let (text, status) = match random.below(6) {
        0 => {
            let it = SystemSharedMemoryUnregisterRequest { name };
            (
                format!("{it:?}"),
                client.call(async |c| c.system_shared_memory_unregister(it).await).err(),
            )
        }
        1 => {
            let it = SystemSharedMemoryStatusRequest { name };
            (
                format!("{it:?}"),
                client.call(async |c| c.system_shared_memory_status(it).await).err(),
            )
        }
        _ => {
            let it = SystemSharedMemoryRegisterRequest {
                name,
                key: objects.key(random),
                offset: number(random),
                byte_size: number(random),
            };
            (
                format!("{it:?}"),
                client.call(async |c| c.system_shared_memory_register(it).await).err(),
            )
        }
    };
    is_sound_status(status, &text);
    text
}

/// An inference from one region to another; the object may change meanwhile.
fn infer(server: &Server, objects: &mut Objects, random: &mut Random) -> String {
    let model = *random.pick(&["native", "native", "python", "strings"]);
    let (from, to) = (*random.pick(NAMES), *random.pick(NAMES));
    let size = number(random);
    let shape = if random.once_in(4) { number(random) } else { size };
    let (input, output) = ((number(random), size), (number(random), number(random)));
    let body = request(shape, place(from, input.0, input.1), place(to, output.0, output.1));
    let http = server.http;
    let is_grpc = random.once_in(2);
    let mut message = over_grpc(from, [input.0, input.1], [output.0, output.1]);
    message.model_name = model.to_owned();
    message.inputs[0].shape = vec![shape as i64];
    let address = server.grpc;
    let text = format!("infer {model} gRPC={is_grpc} {body}");
    thread::scope(|scope| {
        let asked = scope.spawn(move || {
            if is_grpc {
                is_sound_status(Grpc::connect(address).infer(message).err(), "infer");
            } else {
                is_sound(&http.infer(model, &body), "infer");
            }
        });
        if random.once_in(2) {
            objects.change(random);
        }
        asked.join().unwrap_or_else(|_| panic!("{text}"));
    });
    text
}

/// Regions of a client that does as it should.
fn works(server: &Server) {
    server.http.post("/v2/systemsharedmemory/unregister", "").ok();
    let (input, output) = (Object::new(64, 5), Object::new(64, 0));
    let (input, output) = (input.registered(server), output.registered(server));
    for model in ["native", "python"] {
        output.put(&[0; 64]);
        let body = request(16, place(&input.key, 8, 16), place(&output.key, 4, 16));
        server.infer(model, &body).ok();
        assert_eq!(output.bytes(), [&[0; 4][..], &[5; 16], &[0; 44]].concat());
    }
    unregister(server, &input.key);
    unregister(server, &output.key);
}

#[test]
fn shared_memory_may_be_called_in_any_order() {
    let bytes = "x:UINT8[-1] -> y:UINT8[-1]";
    let models = [
        ("native", native("identity", bytes)),
        ("strings", native("identity", "x:BYTES[-1] -> y:BYTES[-1]")),
        ("python", same(bytes)),
    ];
    let subject = attacked(Repository::of(models), &["--allow-client-shm=true"], works);
    let server = &subject.server;
    let mut client = Grpc::connect(server.grpc);
    fuzz_server("shared memory", &subject, |random| {
        let mut objects = Objects::new();
        // So that some of what follows finds regions.
        for (name, object) in NAMES.iter().zip(&objects.0) {
            register(server, name, &json!({"key": object.key, "byte_size": OBJECT_BYTES}));
        }
        for _ in 0..1 + random.below(12) {
            let step = match random.below(5) {
                0 => over_http(server, &objects, random),
                1 => grpc_call(&mut client, &objects, random),
                2 => {
                    objects.change(random);
                    "change".to_owned()
                }
                _ => infer(server, &mut objects, random),
            };
            random.keep(format!("{step}\n").as_bytes());
        }
        server.http.post("/v2/systemsharedmemory/unregister", "").ok();
    });
}
