//! Implicit state: the server keeps what a sequence's next request needs, for every backend.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::support::{
    Answer, Model, Repository, Server, at_once, ensemble, http::input, models::execute, native,
    python,
};

/// A state of the same shape as `y`, which the client sees too.
const SEEN: &str = "sequence_batching { state { input_name: \"sum\" output_name: \"y\" \
                    data_type: TYPE_FP32 dims: [1] } }";
/// Two of which the client sees nothing; the first one grows, and the second begins with a file.
const UNSEEN: &str = "sequence_batching { oldest { } \
    control_input { name: \"START\" control { kind: CONTROL_SEQUENCE_START \
        int32_false_true: [0, 1] } } \
    state { input_name: \"all\" output_name: \"all_out\" data_type: TYPE_FP32 dims: [-1] \
        initial_state { name: \"none\" data_type: TYPE_FP32 dims: [0] zero_data: true } } \
    state { input_name: \"name\" output_name: \"name_out\" data_type: TYPE_STRING dims: [1] \
        initial_state { name: \"file\" data_type: TYPE_STRING dims: [1] data_file: \"name\" } } }";

/// Its state is all that it was sent, and a text with a letter more for each request.
const REMEMBERS: &str = "
    get = pb_utils.get_input_tensor_by_name
    answers = []
    for it in requests:
        x, all, name = (get(it, name).as_numpy() for name in ('x', 'all', 'name'))
        assert get(it, 'START').as_numpy().tolist() == [[it.flags() & 1]]
        if x[0, 0] < 0:
            os.kill(os.getpid(), 9)
        all = np.concatenate([all, x], axis=1)
        name = name.reshape(-1)[0].decode()
        told = json.dumps([it.correlation_id(), it.flags(), name, all[0].tolist()])
        answers.append(pb_utils.InferenceResponse([
            pb_utils.Tensor('told', np.array([[told]], dtype=object)),
            pb_utils.Tensor('all_out', all),
            pb_utils.Tensor('name_out', np.array([[name + '!']], dtype=object)),
        ]))
    return answers";

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let remembers = execute("x:FP32[1] -> told:BYTES[1]", REMEMBERS).batch(4).with(UNSEEN);
    let chain =
        ensemble("x:FP32[1] -> y:FP32[1]", &["native: x=x -> y=s", "python: x=s -> y=y"]).batch(4);
    let onnx = "name: \"onnx\"\nplatform: \"onnxruntime_onnx\"\nmax_batch_size: 8
        input { name: \"INPUT0\" data_type: TYPE_FP32 dims: [16] }
        output { name: \"OUTPUT1\" data_type: TYPE_FP32 dims: [16] }
        sequence_batching { state { input_name: \"INPUT1\" output_name: \"OUTPUT0\" \
        data_type: TYPE_FP32 dims: [16] } }\n";
    let repository = Repository::new()
        .with("native", summing())
        .with("python", sums())
        .with("chain", chain)
        .with("remembers", remembers)
        .with_onnx_as("onnx", "add_sub_fp32", onnx);
    // The length of the text comes first.
    repository.write_file("remembers/initial_state/name", b"\x02\0\0\0it");
    Server::start(repository)
});

/// Its state is the sum `y`, of which clients see a difference too.
fn summing() -> Model {
    let state = SEEN.replace("[1] }", "[1] use_same_buffer_for_input_output: true }");
    native("add_sub", "x:FP32[1] -> y:FP32[1] d:FP32[1]").batch(4).with(state)
}

fn sums() -> Model {
    let body = "
        get = pb_utils.get_input_tensor_by_name
        sums = [get(it, 'x').as_numpy() + get(it, 'sum').as_numpy() for it in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', it)]) for it in sums]";
    execute("x:FP32[1] -> y:FP32[1]", body).batch(4).with(SEEN)
}

/// `+` begins the sequence and `!` ends it.
fn ask(server: &Server, model: &str, id: impl Into<Value>, flags: &str, x: f32) -> Answer {
    let width = if model == "onnx" { 16 } else { 1 };
    let name = if model == "onnx" { "INPUT0" } else { "x" };
    let parameters = json!({"sequence_id": id.into(), "sequence_start": flags.contains('+'),
                            "sequence_end": flags.contains('!')});
    let values = vec![f64::from(x); width];
    let inputs = [input(name, "FP32", &[1, width as i64], values)];
    server.infer(model, &json!({"parameters": parameters, "inputs": inputs}))
}

/// What `remembers` says of a request.
fn told(answer: &Answer) -> Value {
    serde_json::from_str(answer.ok().output("told")[0].as_str().unwrap()).unwrap()
}

#[test]
fn sums_go_on_from_request_to_request_whatever_runs_the_model() {
    for (model, output) in [("native", "y"), ("python", "y"), ("onnx", "OUTPUT1")] {
        let ask = |id: u64, flags: &str, x: f32| {
            ask(&SERVER, model, id, flags, x).ok().numbers(output)[0]
        };
        // The difference to the sum that was there before, where the sum is not to be seen.
        let seen = |sum: f64, before: f64, x: f64| if model == "onnx" { x - before } else { sum };
        assert_eq!(ask(1, "+", 5.), seen(5., 0., 5.), "{model}");
        assert_eq!(ask(2, "+", 100.), seen(100., 0., 100.), "{model}");
        assert_eq!(ask(1, "", 2.), seen(7., 5., 2.), "{model}");
        assert_eq!(ask(2, "!", 1.), seen(101., 100., 1.), "{model}");
        assert_eq!(ask(1, "+", 3.), seen(3., 0., 3.), "{model}: a start begins anew");
        assert_eq!(ask(1, "!", 1.), seen(4., 3., 1.), "{model}");
    }
}

#[test]
fn clients_see_no_state_and_send_none() {
    let answer = ask(&SERVER, "remembers", 7, "+!", 1.);
    assert_eq!(answer.ok().outputs(), ["told"]);
    let answer = ask(&SERVER, "onnx", 7, "+!", 1.);
    assert_eq!(answer.ok().outputs(), ["OUTPUT1"]);
    let inputs = [input("x", "FP32", &[1, 1], [1.]), input("sum", "FP32", &[1, 1], [1.])];
    let parameters = json!({"sequence_id": 1, "sequence_start": true});
    let answer = SERVER.infer("python", &json!({"parameters": parameters, "inputs": inputs}));
    assert!(answer.error().contains("unexpected inference input 'sum'"), "{}", answer.error());
    let metadata = SERVER.http.get("/v2/models/remembers").ok().json();
    assert_eq!(metadata["inputs"].as_array().unwrap().len(), 1, "{metadata}");
}

#[test]
fn states_grow_and_begin_with_what_a_file_says() {
    let ask = |flags: &str, x: f32| told(&ask(&SERVER, "remembers", "a", flags, x));
    assert_eq!(ask("+", 1.), json!(["a", 1, "it", [1.0]]));
    assert_eq!(ask("", 2.), json!(["a", 0, "it!", [1.0, 2.0]]));
    assert_eq!(ask("!", 3.), json!(["a", 2, "it!!", [1.0, 2.0, 3.0]]));
    assert_eq!(ask("+!", 4.), json!(["a", 3, "it", [4.0]]));
}

#[test]
fn a_worker_that_dies_takes_no_state_with_it() {
    let model = || execute("x:FP32[1] -> told:BYTES[1]", REMEMBERS).batch(4).with(UNSEEN);
    let repository = Repository::new().with("remembers", model());
    repository.write_file("remembers/initial_state/name", b"\x02\0\0\0it");
    let server = Server::start(repository);
    let ask = |flags: &str, x: f32| ask(&server, "remembers", 4, flags, x);
    assert_eq!(told(&ask("+", 1.)), json!([4, 1, "it", [1.0]]));
    assert_eq!(ask("", -1.).status, 503);
    assert_eq!(told(&ask("", 2.)), json!([4, 0, "it!", [1.0, 2.0]]));
    assert_eq!(ask("", -1.).status, 503);
    assert_eq!(told(&ask("!", 3.)), json!([4, 2, "it!!", [1.0, 2.0, 3.0]]));
}

#[test]
fn a_state_that_is_not_written_stays_and_is_told_once() {
    let body = "
        get = pb_utils.get_input_tensor_by_name
        answers = []
        for it in requests:
            x, sum = get(it, 'x').as_numpy(), get(it, 'sum').as_numpy()
            tensors = [pb_utils.Tensor('y', x + sum)]
            if x[0, 0] < 100:
                tensors.append(pb_utils.Tensor('sum_out', x + sum))
            answers.append(pb_utils.InferenceResponse(tensors))
        return answers";
    let state = SEEN.replace("output_name: \"y\"", "output_name: \"sum_out\"");
    let model = execute("x:FP32[1] -> y:FP32[1]", body).batch(4).with(state);
    let server = Server::start(Repository::of([("m", model)]));
    let ask = |flags: &str, x: f32| ask(&server, "m", 1, flags, x).ok().numbers("y")[0];
    assert_eq!([ask("+", 1.), ask("", 100.), ask("", 200.), ask("!", 2.)], [1., 101., 201., 3.]);
    let line = server.logged("a response lacks 'sum_out', which is a state: it stays as it was");
    assert!(line.starts_with('W') && line.contains("model=m version=1"), "{line}");
    assert_eq!(server.log().matches("a response lacks").count(), 1);
    assert_eq!(server.metric("troupe_missing_outputs_total", &["model=\"m\""]), Some(0.));
}

#[test]
fn steps_of_an_ensemble_have_states_too() {
    let ask = |flags: &str, x: f32| ask(&SERVER, "chain", 11, flags, x).ok().numbers("y")[0];
    // Sums of sums.
    assert_eq!([ask("+", 1.), ask("", 2.), ask("!", 3.)], [1., 4., 10.]);
    let answer = super::implicit_state::ask(&SERVER, "chain", 11, "+!", 1.).json();
    let expected = json!({"sequence_id": 11, "sequence_start": true, "sequence_end": true});
    assert_eq!(answer["parameters"], expected);
}

#[test]
fn a_decoupled_model_leaves_states_with_its_responses() {
    let source = "
        class TritonPythonModel:
            def execute(self, requests):
                for it in requests:
                    sender = it.get_response_sender()
                    get = pb_utils.get_input_tensor_by_name
                    total = get(it, 'x').as_numpy() + get(it, 'sum').as_numpy()
                    sender.send(
                        pb_utils.InferenceResponse([pb_utils.Tensor('y', total)]),
                        flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
                    )
                return None";
    let model = python("x:FP32[1] -> y:FP32[1]", source)
        .with("model_transaction_policy { decoupled: true }")
        .with(SEEN);
    let server = Server::start(Repository::of([("m", model)]));
    let ask = |flags: &str, x: f32| {
        let body = json!({"x": [x], "sequence_id": 3, "sequence_start": flags == "+"});
        server.http.post("/v2/models/m/generate", body).ok().json()["y"].as_f64().unwrap()
    };
    assert_eq!([ask("+", 5.), ask("", 6.), ask("", 7.)], [5., 11., 18.]);
}

/// Both wait for each other, and meet in one batch whose states cannot be joined.
#[test]
fn states_of_other_shapes_are_executed_apart() {
    let model = native("concat", "x:FP32[-1] -> y:FP32[-1]").batch(2).with(
        "sequence_batching { \
         direct { max_queue_delay_microseconds: 1000000 minimum_slot_utilization: 1 } \
         state { input_name: \"all\" output_name: \"y\" data_type: TYPE_FP32 dims: [-1] \
         initial_state { name: \"none\" data_type: TYPE_FP32 dims: [0] zero_data: true } } }",
    );
    let server = Server::start(Repository::of([("m", model)]));
    let ask = |id: u64, flags: &str, x: f32| ask(&server, "m", id, flags, x).ok().numbers("y");
    // The newest comes first.
    assert_eq!(ask(1, "+", 1.), [1.]);
    assert_eq!(ask(1, "", 2.), [2., 1.]);
    let answers = at_once(2, |it| match it {
        0 => ask(1, "!", 3.),
        _ => ask(2, "+!", 4.),
    });
    assert_eq!(answers, [vec![3., 2., 1.], vec![4.]]);
}

/// Whatever the sample does not say of states and control inputs is zero.
#[test]
fn models_with_states_are_warmed_up() {
    let warmup = "model_warmup { name: \"w\" batch_size: 2 inputs { key: \"x\" value { \
                  data_type: TYPE_FP32 dims: [1] zero_data: true } } }";
    let remembers = execute("x:FP32[1] -> told:BYTES[1]", &REMEMBERS.replace("assert", "pass #"));
    let repository = Repository::new()
        .with("native", summing().with(warmup))
        .with("remembers", remembers.batch(4).with(UNSEEN).with(warmup));
    repository.write_file("remembers/initial_state/name", b"\x02\0\0\0it");
    let server = Server::start(repository);
    assert_eq!(ask(&server, "native", 1, "+", 5.).ok().numbers("y"), [5.]);
    assert_eq!(told(&ask(&server, "remembers", 1, "+", 5.)), json!([1, 1, "it", [5.0]]));
}

#[test]
fn a_file_that_is_too_short_keeps_the_model_from_loading() {
    let model = sums().with("").config.replace(
        "dims: [1] } }",
        "dims: [1] initial_state { name: \"f\" data_type: TYPE_FP32 dims: [1] \
         data_file: \"f\" } } }",
    );
    let repository = Repository::new().with("m", Model { config: model, ..sums() });
    repository.write_file("m/initial_state/f", b"abc");
    let text =
        "initial_state setting expects 4 bytes, but the data provided from fonly has 3 bytes.";
    let server = Server::lenient(repository);
    let index = server.http.post("/v2/repository/index", "{}").text();
    assert!(index.contains(text), "{index}");
}
