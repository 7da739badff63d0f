//! Large tensors go through Python steps without a copy, and their memory is given back or limited.

use serde_json::json;
use troupe_proto::inference::{ModelInferRequest, model_infer_request::InferInputTensor};

use crate::support::{
    Answer, Model, Repository, Server,
    grpc::Grpc,
    models::{ensemble, execute},
    until,
};

const MIB: usize = 1 << 20;
const SIZE: usize = 16 * MIB;
const STEPS: usize = 8;

/// Answers with what it got.
fn identity(dtype: &str) -> Model {
    execute(
        &format!("x:{dtype}[-1] -> y:{dtype}[-1]"),
        "
        get = pb_utils.get_input_tensor_by_name
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor('y', get(it, 'x').as_numpy())])
            for it in requests
        ]",
    )
}

/// `chain`, of so many steps, each another model and so another process.
fn chain(dtype: &str) -> Repository {
    let steps: Vec<String> =
        (0..STEPS).map(|it| format!("m{it}: x=t{it} -> y=t{}", it + 1)).collect();
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let signature = format!("t0:{dtype}[-1] -> t{STEPS}:{dtype}[-1]");
    let models = (0..STEPS).map(|it| (format!("m{it}"), identity(dtype)));
    models.fold(Repository::new().with("chain", ensemble(&signature, &steps)), |all, (name, it)| {
        all.with(&name, it)
    })
}

fn infer(server: &Server, model: &str, input: (&str, &str, usize), data: &[u8]) -> Answer {
    let (name, dtype, elements) = input;
    let request = json!({
        "inputs": [{"name": name, "datatype": dtype, "shape": [elements],
                    "parameters": {"binary_data_size": data.len()}}],
        "parameters": {"binary_data_output": true},
    });
    server.http.infer_binary(model, &request, &[data])
}

/// The bytes of the only output.
fn output(answer: &Answer) -> &[u8] {
    let length = answer.ok().header("inference-header-content-length").unwrap();
    &answer.body[length.parse().unwrap()..]
}

fn copied(server: &Server, model: &str) -> [usize; 2] {
    ["to_worker", "from_worker"].map(|direction| {
        let labels = [&*format!("direction=\"{direction}\""), &*format!("model=\"{model}\"")];
        server.metric("troupe_python_bytes_copied_total", &labels).unwrap() as usize
    })
}

fn shared_memory(server: &Server) -> usize {
    let page = server.metrics.get("/metrics").ok().text();
    let mut lines = page.lines();
    let value = lines.find_map(|it| it.strip_prefix("troupe_python_shared_memory_bytes "));
    value.unwrap().parse().unwrap()
}

fn some_bytes(size: usize) -> Vec<u8> {
    (0..size).map(|it| (it * 7 % 251) as u8).collect()
}

#[test]
fn a_chain_of_python_steps_copies_nothing_and_gives_its_memory_back() {
    let server = Server::start(chain("FP32"));
    let data = some_bytes(SIZE);
    for _ in 0..3 {
        let answer = infer(&server, "chain", ("t0", "FP32", SIZE / 4), &data);
        assert!(output(&answer) == data);
    }
    for step in 0..STEPS {
        assert_eq!(copied(&server, &format!("m{step}")), [0, 0], "step {step}");
    }
    assert!(SIZE <= shared_memory(&server));
    until("the memory to be given back", || shared_memory(&server) == 0);
    // And it is there again when it is needed.
    assert!(output(&infer(&server, "chain", ("t0", "FP32", SIZE / 4), &data)) == data);
    server.is_well();
}

#[test]
fn strings_that_pass_through_are_not_copied_either() {
    let server = Server::start(chain("BYTES"));
    let mut data = Vec::new();
    for number in 0..20_000u32 {
        let text = "word ".repeat(number as usize % 4) + &number.to_string();
        data.extend_from_slice(&(text.len() as u32).to_le_bytes());
        data.extend_from_slice(text.as_bytes());
    }
    for _ in 0..2 {
        let answer = infer(&server, "chain", ("t0", "BYTES", 20_000), &data);
        assert!(output(&answer) == data);
    }
    for step in 0..STEPS {
        assert_eq!(copied(&server, &format!("m{step}")), [0, 0], "step {step}");
    }
}

fn packed<'a>(elements: impl Iterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let with_length = |it: &Vec<u8>| [&(it.len() as u32).to_le_bytes()[..], it].concat();
    elements.flat_map(with_length).collect()
}

#[test]
fn strings_of_all_lengths_are_read_and_written() {
    let reverses = execute(
        "x:BYTES[-1] -> y:BYTES[-1]",
        "
        x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
        assert all(type(it) is bytes for it in x), x
        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x[::-1].copy())])]",
    );
    let server = Server::start(Repository::of([("m", reverses)]));
    let bytes = |length: usize, seed: usize| some_bytes(length + seed)[seed..].to_vec();
    for lengths in [
        // Few and small, which travel in the frame, and none.
        vec![0, 1, 2, 255, 256, 3],
        vec![],
        // Many, of one length, of many lengths, with empty ones; and in odd numbers.
        vec![8; 20_000],
        (0..10_001).map(|it| it % 23).collect(),
        vec![0; 5_000],
        // Long ones, and one.
        (0..63).map(|it| 1000 * it).collect(),
        (0..200).map(|it| 2 * it).collect(),
        vec![MIB],
    ] {
        let strings: Vec<Vec<u8>> =
            lengths.iter().enumerate().map(|(seed, length)| bytes(*length, seed % 7)).collect();
        let data = packed(strings.iter());
        let answer = infer(&server, "m", ("x", "BYTES", strings.len()), &data);
        let expected = packed(strings.iter().rev());
        assert!(output(&answer) == expected, "{} strings", strings.len());
    }
    server.is_well();
}

#[test]
fn what_is_copied_is_counted_once() {
    let doubles = execute(
        "x:FP32[-1] -> y:FP32[-1]",
        "
        x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x * 2)])]",
    );
    let both = ["a: x=t0 -> y=t1", "b: x=t0 -> y=t2"];
    let repository = Repository::new()
        .with("a", doubles.clone())
        .with("b", doubles)
        .with("both", ensemble("t0:FP32[-1] -> t1:FP32[-1] t2:FP32[-1]", &both));
    let server = Server::start(repository);
    // A small tensor travels in the frames.
    infer(&server, "a", ("x", "FP32", 4), &[0; 16]).ok();
    assert_eq!(copied(&server, "a"), [16, 16]);
    // A large one is read where it lies, and what is new is written once.
    infer(&server, "a", ("x", "FP32", MIB / 4), &vec![0; MIB]).ok();
    assert_eq!(copied(&server, "a"), [16, 16 + MIB]);
    // gRPC receives it where workers see it, as HTTP does.
    let request = ModelInferRequest {
        model_name: "a".into(),
        inputs: vec![InferInputTensor {
            name: "x".into(),
            datatype: "FP32".into(),
            shape: vec![MIB as i64 / 4],
            ..Default::default()
        }],
        raw_input_contents: vec![vec![0; MIB].into()],
        ..Default::default()
    };
    Grpc::connect(server.grpc).infer(request).unwrap();
    assert_eq!(copied(&server, "a"), [16, 16 + 2 * MIB]);
    // Two readers: whoever may write to its input gets its own.
    infer(&server, "both", ("t0", "FP32", MIB / 4), &vec![0; MIB]).ok();
    assert_eq!(copied(&server, "b"), [MIB, MIB]);
}

#[test]
fn shared_memory_stays_below_its_limit() {
    let grows = execute(
        "x:FP32[-1] -> y:FP32[-1]",
        "
        x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
        y = np.zeros(int(x[0]), np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', y)])]",
    );
    let repository = Repository::of([("m", identity("FP32")), ("grows", grows)]);
    let most = (8 * MIB).to_string();
    let server = Server::with(
        repository,
        &[
            &format!("--backend-config=python,shm-max-byte-size={most}"),
            "--backend-config=python,shm-growth-byte-size=1048576",
            "--backend-config=python,shm-default-byte-size=2097152",
        ],
    );
    let small = vec![0; 4 * MIB];
    infer(&server, "m", ("x", "FP32", MIB), &small).ok();
    let answer = infer(&server, "m", ("x", "FP32", 3 * MIB), &vec![0; 12 * MIB]);
    answer.refuses(503, "more would exceed shm-max-byte-size, which is 8388608");
    // What a model makes counts as well.
    let of = |mib: usize| ((mib * MIB / 4) as f32).to_le_bytes();
    let answer = infer(&server, "grows", ("x", "FP32", 1), &of(12));
    answer.refuses(503, "bytes are in use, and shm-max-byte-size is 8388608");
    until("the model's memory to be given back", || {
        infer(&server, "grows", ("x", "FP32", 1), &of(2)).status == 200
    });
    infer(&server, "m", ("x", "FP32", MIB), &small).ok();
    assert_eq!(shared_memory(&server) % MIB, 0);
    assert!(!server.log().contains("has no effect"), "{}", server.log());
    // The worker of `grows` and the server keep what they may.
    until("only what is kept to be left", || shared_memory(&server) <= 2 * 2 * MIB);
    server.is_well();
}

#[test]
fn wrong_limits_end_the_server_at_once() {
    for (setting, expected) in [
        ("shm-default-byte-size=1000", "shm-default-byte-size can't be smaller than 4 MiBs"),
        ("shm-growth-byte-size=0", "shm-growth-byte-size can't be smaller than or equal to zero."),
        ("shm-growth-byte-size=x", "shm-growth-byte-size: expected a number of bytes, got 'x'"),
        ("shm-max-byte-size=0", "shm-max-byte-size can't be smaller than"),
    ] {
        let flag = format!("--backend-config=python,{setting}");
        let ended = Server::fails(&Repository::new(), &[&flag]);
        assert_eq!(ended.code, Some(1), "{}", ended.output);
        assert!(ended.output.contains(expected), "{}", ended.output);
    }
}
