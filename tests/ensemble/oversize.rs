//! Batches that do not fit a step's model: more rows than it takes at once, or none.

use serde_json::{Value, json};

use crate::support::{
    Model, Repository, Server, at_once, ensemble,
    gate::Gate,
    grpc::{self, Grpc},
    http::{self, floats, input, rows},
    models::{delay, execute},
    native, until,
};

/// One row of one element, in and out.
const ROW: &str = "x:FP32[1] -> y:FP32[1]";
/// The same for an ensemble that does not batch: any number of rows.
const ROWS: &str = "A:FP32[-1,1] -> Z:FP32[-1,1]";

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|it| it as f32).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|it| f64::from(*it)).collect()
}

/// Requests, executions and rows of a model.
fn counts(server: &Server, model: &str) -> (u64, u64, u64) {
    let stats = server.stats(model);
    let number = |it: &Value| it.as_u64().unwrap();
    (
        number(&stats["inference_stats"]["success"]["count"]),
        number(&stats["execution_count"]),
        number(&stats["inference_count"]),
    )
}

#[test]
fn any_number_of_rows_goes_through_in_order() {
    let four = "instance_group { count: 4 kind: KIND_CPU }";
    let server = Server::start(
        Repository::new()
            .with("shared", native("identity", ROW).batch(16))
            .with("own", delay(1, ROW).batch(16).with(four))
            .with("joining", delay(1, ROW).batch(16).with("dynamic_batching {}").with(four))
            .with("e_shared", ensemble(ROWS, &["shared: x=A -> y=Z"]))
            .with("e_own", ensemble(ROWS, &["own: x=A -> y=Z"]))
            .with("e_joining", ensemble(ROWS, &["joining: x=A -> y=Z"])),
    );
    for model in ["shared", "own", "joining"] {
        let ensemble = format!("e_{model}");
        for count in [0, 1, 7, 300] {
            let values = numbers(count);
            let answer = server.infer(&ensemble, &rows(&[("A", &values)]));
            assert_eq!(answer.shape("Z"), json!([count, 1]), "{model}");
            assert_eq!(answer.numbers("Z"), wide(&values), "{model}");
        }
        // 0, 1, 1 and 19 requests of at most 16 rows.
        assert_eq!(counts(&server, model), (21, 21, 308), "{model}");
        let labels = [format!("model=\"{model}\"")];
        let of = |name: &str| server.metric(name, &[&labels[0]]);
        assert_eq!(of("troupe_ensemble_step_duration_seconds_count"), Some(3.0));
        assert_eq!(of("troupe_ensemble_step_in_flight"), Some(0.0));
        assert_eq!(counts(&server, &ensemble).0, 4);
    }
    server.is_well();
}

#[test]
fn an_ensemble_may_take_larger_batches_than_its_steps() {
    let server = Server::start(
        Repository::new()
            .with("small", native("identity", ROW).batch(16))
            .with("inner", ensemble("I:FP32[1] -> O:FP32[1]", &["small: x=I -> y=O"]).batch(4))
            .with("batching", ensemble("A:FP32[1] -> Z:FP32[1]", &["small: x=A -> y=Z"]).batch(64))
            .with("nested", ensemble(ROWS, &["inner: I=A -> O=Z"])),
    );
    let values = numbers(40);
    for (model, of) in [("batching", "small"), ("nested", "inner")] {
        let answer = server.infer(model, &rows(&[("A", &values)]));
        assert_eq!((answer.numbers("Z"), answer.shape("Z")), (wide(&values), json!([40, 1])));
        let parts = if of == "small" { 3 } else { 10 };
        assert_eq!(counts(&server, of), (parts, parts, 40));
    }
    assert_eq!(counts(&server, "batching"), (1, 1, 40));
    let text = "inference request batch-size must be <= 64 for 'batching'";
    server.infer("batching", &rows(&[("A", &numbers(65))])).refuses(400, text);
}

#[test]
fn parts_of_several_callers_run_together() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let server = Server::start(
        repository
            .with("slow", gate.model("FP32[1]").batch(8).with("dynamic_batching {}"))
            .with("e", ensemble(ROWS, &["slow: x=A -> y=Z"])),
    );
    let send = |count: usize| server.http.start("e", &rows(&[("A", &numbers(count))]));
    let mut open = vec![(1, send(1))];
    gate.is_reached();
    for (count, waiting) in [(10, 2.0), (3, 3.0), (3, 4.0)] {
        open.push((count, send(count)));
        until("the parts to queue", || {
            let name = "nv_inference_pending_request_count";
            server.metric(name, &["model=\"slow\""]) == Some(waiting)
        });
    }
    gate.let_through(3);
    for (count, connection) in open {
        assert_eq!(http::finish(connection).numbers("Z"), wide(&numbers(count)));
    }
    // The first row, eight rows of the first caller, and the rest of it with the other two.
    assert_eq!(counts(&server, "slow"), (5, 3, 17));
}

#[test]
fn the_first_failing_part_is_the_answer_and_the_others_are_not_run() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let body = "
        pass_gate()
        answers = []
        for it in requests:
            x = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
            if 13 in x:
                error = pb_utils.TritonError('unlucky', pb_utils.TritonError.UNAVAILABLE)
                answers.append(pb_utils.InferenceResponse(error=error))
            else:
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor('y', x)]))
        return answers";
    let server = Server::start(
        repository
            .with("picky", gate.guard(ROW, body).batch(16))
            .with("e", ensemble(ROWS, &["picky: x=A -> y=Z"])),
    );
    let connection = server.http.start("e", &rows(&[("A", &numbers(60))]));
    gate.is_reached();
    gate.let_through(1);
    let text = "in ensemble 'e', step 0 (model 'picky' version 1, instance 'picky_0'): unlucky";
    let answer = http::finish(connection);
    assert_eq!((answer.status, answer.error().as_str()), (503, text));
    let failures = |reason: &str| {
        let reason = format!("reason=\"{reason}\"");
        server.metric("nv_inference_request_failure", &["model=\"picky\"", &reason])
    };
    // Nobody is at the gate to let them through: they were never handed to the model.
    until("the other parts to be given up", || failures("CANCELED") == Some(3.0));
    assert_eq!(failures("REJECTED"), Some(1.0));
    let step = |name: &str| server.metric(name, &["step=\"0\""]);
    assert_eq!(step("troupe_ensemble_step_failures_total"), Some(1.0));
    assert_eq!(step("troupe_ensemble_step_in_flight"), Some(0.0));
    assert_eq!(server.stats("e")["inference_stats"]["fail"]["count"], 1);
    gate.let_through(1);
    assert_eq!(server.infer("e", &rows(&[("A", &[1.0])])).numbers("Z"), [1.0]);
    server.is_well();
}

#[test]
fn a_batch_no_part_of_which_fits_fails_once() {
    let server = Server::start(
        Repository::new()
            .with("two", native("identity", "x:FP32[2] -> y:FP32[2]").batch(4))
            .with("one", native("identity", "x:FP32[-1] -> y:FP32[-1]").batch(1))
            .with("wild", ensemble("A:FP32[-1,-1] -> Z:FP32[-1,-1]", &["two: x=A -> y=Z"]))
            .with("many", ensemble("A:FP32[-1,-1] -> Z:FP32[-1,-1]", &["one: x=A -> y=Z"])),
    );
    let text = "in ensemble 'wild', step 0 (model 'two' version 1): [request id: <id_unknown>] \
                unexpected shape for input 'x' for model 'two'. Expected [-1,2], got [4,1].";
    server.infer("wild", &rows(&[("A", &numbers(10))])).refuses(400, text);
    assert_eq!(server.stats("two")["inference_stats"]["fail"]["count"], 1);
    // No bytes at all, but more rows than anybody could hold.
    let rows = 1_i64 << 40;
    let request = json!({"inputs": [input("A", "FP32", &[rows, 0], Vec::<f32>::new())]});
    let text = format!("a batch of {rows} rows would take {rows} executions of model 'one'");
    server.infer("many", &request).refuses(400, &text);
    server.is_well();
}

#[test]
fn only_the_outputs_asked_for_are_gathered() {
    let sums = "a:FP32[1] b:FP32[1] -> sum:FP32[1] difference:FP32[1]";
    let server = Server::start(
        Repository::new().with("add_sub", native("add_sub", sums).batch(4)).with("e", {
            let io = "A:FP32[-1,1] B:FP32[-1,1] -> S:FP32[-1,1] D:FP32[-1,1]";
            ensemble(io, &["add_sub: a=A b=B -> sum=S difference=D"])
        }),
    );
    let values = numbers(10);
    let mut request = rows(&[("A", &values), ("B", &values)]);
    request["outputs"] = json!([{"name": "D"}]);
    let answer = server.infer("e", &request);
    assert_eq!((answer.outputs(), answer.numbers("D")), (vec!["D".to_owned()], vec![0.0; 10]));
    assert_eq!(counts(&server, "add_sub"), (3, 3, 10));
}

#[test]
fn the_parts_of_a_step_are_one_in_its_window() {
    let mut limited = ensemble(ROWS, &["first: x=A -> y=m", "second: x=m -> y=Z"]);
    limited.config = limited
        .config
        .replace("ensemble_scheduling {", "ensemble_scheduling { max_inflight_requests: 1");
    let server = Server::start(
        Repository::new()
            .with("first", native("identity", ROW).batch(4))
            .with("second", delay(1, ROW).batch(4).with("dynamic_batching {}"))
            .with("e", limited),
    );
    at_once(6, |caller| {
        let values: Vec<f32> = numbers(10 * (caller % 3)).iter().map(|it| it + 100.0).collect();
        let answer = server.infer("e", &rows(&[("A", &values)]));
        assert_eq!(answer.numbers("Z"), wide(&values));
    });
    server.is_well();
}

/// A batching step, one that does not batch, and a batching one again.
fn there_and_back() -> Repository {
    let halved = execute(
        "x:FP32[-1,1] -> y:FP32[-1,1]",
        "
        x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x / 2)])]",
    );
    let steps = ["small: x=A -> y=m", "half: x=m -> y=n", "small: x=n -> y=Z"];
    Repository::new()
        .with("small", native("identity", ROW).batch(4))
        .with("half", halved)
        .with("e", ensemble(ROWS, &steps))
}

#[test]
fn no_rows_go_through_every_door() {
    let server = Server::start(there_and_back());
    let asked = json!({"inputs": [input("A", "FP32", &[0, 1], Vec::<f32>::new())]});
    let answer = server.infer("e", &asked);
    assert_eq!((answer.shape("Z"), answer.output("Z")), (json!([0, 1]), json!([])));

    let binary = json!({
        "inputs": [{"name": "A", "datatype": "FP32", "shape": [0, 1],
                    "parameters": {"binary_data_size": 0}}],
        "parameters": {"binary_data_output": true},
    });
    let answer = server.http.infer_binary("e", &binary, &[]);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(
        answer.header("inference-header-content-length"),
        Some(&*answer.body.len().to_string())
    );
    let output = &answer.json()["outputs"][0];
    assert_eq!(
        (&output["shape"], &output["parameters"]),
        (&json!([0, 1]), &json!({"binary_data_size": 0}))
    );

    let mut grpc = Grpc::connect(server.grpc);
    let mut request = grpc::floats("e", &[("A", &[])]);
    request.inputs[0].shape = vec![0, 1];
    let mut explicit = request.clone();
    explicit.raw_input_contents.clear();
    explicit.inputs[0].contents = Some(Default::default());
    for request in [request, explicit] {
        let answer = grpc.infer(request).unwrap();
        assert_eq!((&answer.outputs[0].shape, answer.raw_output_contents.len()), (&vec![0, 1], 1));
        assert!(answer.raw_output_contents[0].is_empty());
    }
    // Only the step that does not batch was ever executed.
    assert_eq!((counts(&server, "small"), counts(&server, "half")), ((0, 0, 0), (4, 4, 4)));
    let text = "inference request batch-size must be >= 1 for 'small'";
    let request = json!({"inputs": [input("x", "FP32", &[0, 1], Vec::<f32>::new())]});
    server.infer("small", &request).refuses(400, text);
    assert_eq!(
        server.infer("e", &rows(&[("A", &numbers(6))])).numbers("Z"),
        [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    );
}

#[test]
fn outputs_of_no_rows_have_the_types_of_the_model_and_no_other_size() {
    let names = Model::of(
        "backend: \"native\"
         max_batch_size: 4
         input { name: \"x\" data_type: TYPE_STRING dims: [-1] }
         output { name: \"y\" data_type: TYPE_STRING dims: [-1] }\n",
    )
    .parameter("op", "identity");
    let server = Server::start(
        Repository::new()
            .with("names", names)
            .with("e", ensemble("A:BYTES[-1,-1] -> Z:BYTES[-1,-1]", &["names: x=A -> y=Z"])),
    );
    let request = json!({"inputs": [input("A", "BYTES", &[0, 3], Vec::<String>::new())]});
    let answer = server.infer("e", &request);
    assert_eq!((answer.shape("Z"), answer.output("Z")), (json!([0, 0]), json!([])));
    assert_eq!(answer.json()["outputs"][0]["datatype"], "BYTES");
    let many: Vec<String> = (0..20).map(|it| "x".repeat(it)).collect();
    let request = json!({"inputs": [input("A", "BYTES", &[10, 2], many.clone())]});
    assert_eq!(server.infer("e", &request).output("Z"), json!(many));
}

#[test]
fn a_picture_is_a_batch_of_one_with_or_without_its_batch_dimension() {
    let picture = "x:FP32[-1,-1,3] -> y:FP32[-1,-1,3]";
    let server = Server::start(
        Repository::new()
            .with("detect", native("identity", picture).batch(4))
            .with(
                "plain",
                ensemble("A:FP32[-1,-1,3] -> Z:FP32[-1,-1,-1,3]", &["detect: x=A -> y=Z"]),
            )
            .with(
                "batched",
                ensemble("A:FP32[-1,-1,-1,3] -> Z:FP32[-1,-1,-1,3]", &["detect: x=A -> y=Z"]),
            ),
    );
    for (model, shape) in [("plain", &[2, 1, 3][..]), ("batched", &[1, 2, 1, 3])] {
        let mut request = floats(&[("A", &numbers(6))]);
        request["inputs"][0]["shape"] = json!(shape);
        let answer = server.infer(model, &request);
        assert_eq!((answer.numbers("Z").len(), answer.shape("Z")), (6, json!([1, 2, 1, 3])));
    }
    assert_eq!(counts(&server, "detect"), (2, 2, 2));
}
