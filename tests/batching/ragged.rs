//! Requests of different shapes in one batch, and what a model is told of the batch.

use serde_json::{Value, json};

use crate::support::{
    Model, Repository, Server, at_once, gate::Gate, http, http::input, native, until,
};

/// A native identity of a ragged input; `more` says what else it reads and writes.
fn ragged(output: &str, more: &str) -> Model {
    Model::of(format!(
        "backend: \"native\"
         max_batch_size: 16
         input {{ name: \"x\" data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: true }}
         output {{ name: \"y\" data_type: TYPE_FP32 {output} }}
         {more}\n"
    ))
    .parameter("op", "identity")
}

/// A batch input, and an output that shows each request its row of it.
fn shown(kind: &str, name: &str, dtype: &str) -> String {
    format!(
        "batch_input {{ kind: {kind} target_name: \"{name}\" data_type: {dtype} source_input: \"x\" }}
         output {{ name: \"{name}\" data_type: {dtype} dims: [1] reshape {{ shape: [] }} }}\n"
    )
}

const SCATTERED: &str = "batch_output { target_name: \"y\" source_input: \"x\" }";
/// So many requests run together, however long the first of them has to wait.
const IN_THREES: &str = "dynamic_batching { preferred_batch_size: [3] \
                         max_queue_delay_microseconds: 3600000000 }";

fn request(rows: usize, columns: usize, first: usize) -> Value {
    let values: Vec<f64> = (0..rows * columns).map(|it| (first + it) as f64).collect();
    json!({"inputs": [input("x", "FP32", &[rows as i64, columns as i64], values)]})
}

fn values(count: usize, first: usize) -> Vec<f64> {
    (0..count).map(|it| (first + it) as f64).collect()
}

fn waits(server: &Server, model: &str, count: usize) {
    let label = format!("model=\"{model}\"");
    until("the request to queue", || {
        server.metric("nv_inference_pending_request_count", &[&label]) == Some(count as f64)
    });
}

#[test]
fn three_clients_of_different_lengths_are_one_batch() {
    let more = shown("BATCH_ACCUMULATED_ELEMENT_COUNT", "ends", "TYPE_INT32")
        + &shown("BATCH_ELEMENT_COUNT", "counts", "TYPE_FP32")
        + SCATTERED;
    let model = ragged("dims: [-1]", &more).with(IN_THREES);
    let server = Server::start(Repository::of([("m", model)]));
    let mut open = Vec::new();
    for (index, columns) in [3, 4, 5].into_iter().enumerate() {
        open.push(server.http.start("m", &request(1, columns, index * 10)));
        if index < 2 {
            waits(&server, "m", index + 1);
        }
    }
    let expected = [(3, 3.0), (4, 7.0), (5, 12.0)];
    for (index, ((columns, end), open)) in expected.into_iter().zip(open).enumerate() {
        let answer = http::finish(open);
        assert_eq!(answer.shape("y"), json!([1, columns]));
        assert_eq!(answer.numbers("y"), values(columns, index * 10));
        assert_eq!((answer.numbers("ends"), answer.shape("ends")), (vec![end], json!([1, 1])));
        assert_eq!(answer.numbers("counts"), [columns as f64]);
    }
    let stats = server.stats("m");
    assert_eq!((&stats["execution_count"], &stats["inference_count"]), (&json!(1), &json!(3)));
}

#[test]
fn a_single_request_is_flat_too() {
    let shapes = "batch_input { kind: BATCH_ITEM_SHAPE target_name: \"shapes\" \
                  data_type: TYPE_INT32 source_input: \"x\" }
                  output { name: \"shapes\" data_type: TYPE_INT32 dims: [1] }";
    let server = Server::start(Repository::of([
        ("flat", ragged("dims: [-1]", shapes)),
        ("scattered", ragged("dims: [-1]", SCATTERED)),
    ]));
    let answer = server.infer("flat", &request(2, 3, 0));
    assert_eq!((answer.shape("y"), answer.numbers("y")), (json!([6]), values(6, 0)));
    assert_eq!((answer.shape("shapes"), answer.numbers("shapes")), (json!([2, 1]), vec![3.0; 2]));
    let answer = server.infer("scattered", &request(2, 3, 0));
    assert_eq!((answer.shape("y"), answer.numbers("y")), (json!([2, 3]), values(6, 0)));
}

#[test]
fn an_output_that_is_not_scattered_must_have_a_row_for_each_request() {
    let model = ragged("dims: [-1]", IN_THREES);
    let server = Server::start(Repository::of([("m", model)]));
    let mut open = Vec::new();
    for index in 0..3 {
        open.push(server.http.start("m", &request(1, index + 1, 0)));
        if index < 2 {
            waits(&server, "m", index + 1);
        }
    }
    for open in open {
        let text = "output 'y' of model 'm' has shape [6], expected 3 rows";
        http::finish(open).refuses(500, text);
    }
    server.is_well();
}

#[test]
fn a_python_model_sees_the_shape_of_each_request() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let mut model = gate.model("FP32[-1]").batch(8).with("dynamic_batching {}");
    model.config =
        model.config.replacen("dims: [-1] }", "dims: [-1] allow_ragged_batch: true }", 1);
    let server = Server::start(repository.with("m", model));
    let first = server.http.start("m", &request(1, 1, 0));
    gate.is_reached();
    let mut open = vec![first];
    for (index, columns) in [2, 3, 4].into_iter().enumerate() {
        open.push(server.http.start("m", &request(1, columns, 0)));
        waits(&server, "m", index + 1);
    }
    gate.let_through(2);
    let shapes = open.into_iter().map(|it| http::finish(it).shape("y"));
    let expected = [json!([1, 1]), json!([1, 2]), json!([1, 3]), json!([1, 4])];
    assert_eq!(shapes.collect::<Vec<_>>(), expected);
    assert_eq!(server.executions("m"), 2);
}

#[test]
fn a_python_model_is_told_of_its_batch_with_each_request() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let told = |kind: &str, name: &str, dtype: &str| {
        format!(
            "batch_input {{ kind: {kind} target_name: \"{name}\" data_type: {dtype} \
             source_input: \"x\" }}\n"
        )
    };
    let kinds = [
        ("BATCH_ELEMENT_COUNT", "TYPE_FP32"),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", "TYPE_INT32"),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "TYPE_INT32"),
        ("BATCH_ITEM_SHAPE", "TYPE_INT32"),
        ("BATCH_ITEM_SHAPE_FLATTEN", "TYPE_INT32"),
    ];
    let numbered = kinds.iter().enumerate();
    let inputs = numbered.map(|(index, (kind, dtype))| told(kind, &format!("b{index}"), dtype));
    let most = told("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", "most", "TYPE_INT32");
    let mut model = gate
        .guard(
            "x:FP32[-1] -> y:FP32[-1] told:BYTES[1]",
            "
            pass_gate()
            get = pb_utils.get_input_tensor_by_name
            answers = []
            for it in requests:
                told = [get(it, f'b{index}').as_numpy() for index in range(5)]
                told = [[str(of.dtype), of.shape, of.tolist()] for of in told]
                told.append(get(it, 'most').as_numpy().shape)
                told = np.array([[json.dumps(told)]], dtype=np.object_)
                y = pb_utils.Tensor('y', get(it, 'x').as_numpy())
                answers.append(pb_utils.InferenceResponse([y, pb_utils.Tensor('told', told)]))
            return answers",
        )
        .batch(8)
        .with("dynamic_batching {}")
        .with(SCATTERED)
        .with(inputs.collect::<String>() + &most);
    model.config =
        model.config.replacen("dims: [-1] }", "dims: [-1] allow_ragged_batch: true }", 1);
    let server = Server::start(repository.with("m", model));
    let first = server.http.start("m", &request(1, 1, 0));
    gate.is_reached();
    let mut open = Vec::new();
    for (index, columns) in [3, 4, 5].into_iter().enumerate() {
        open.push(server.http.start("m", &request(1, columns, 0)));
        waits(&server, "m", index + 1);
    }
    gate.let_through(2);
    let expected = json!([
        ["float32", [3], [3.0, 4.0, 5.0]],
        ["int32", [3], [3, 7, 12]],
        ["int32", [4], [0, 3, 7, 12]],
        ["int32", [3, 1], [[3], [4], [5]]],
        ["int32", [3], [3, 4, 5]],
        [5],
    ]);
    let told = |answer: &http::Answer| -> Value {
        serde_json::from_str(answer.output("told")[0].as_str().unwrap()).unwrap()
    };
    for (answer, columns) in open.into_iter().map(http::finish).zip([3, 4, 5]) {
        assert_eq!(told(&answer), expected);
        assert_eq!(answer.numbers("y"), values(columns, 0));
    }
    let alone = http::finish(first);
    assert_eq!(told(&alone)[1], json!(["int32", [1], [1]]));
    assert_eq!(server.executions("m"), 2);
    // A client may not say what the server computes.
    let mut forged = request(1, 2, 0);
    forged["inputs"].as_array_mut().unwrap().push(input("b0", "FP32", &[1], [7.0].to_vec()));
    assert_eq!(server.infer("m", &forged).status, 400);
}

#[test]
fn who_cannot_be_told_of_a_batch_is_refused_at_load() {
    let told = shown("BATCH_ELEMENT_COUNT", "n", "TYPE_INT32");
    let scattered = "batch_output { target_name: \"y\" source_input: \"x\" }";
    let io = "x:FP32[4] -> y:FP32[4]";
    let sums = "x:FP32[4] z:FP32[4] -> y:FP32[4] w:FP32[4]";
    let server = Server::explicit(Repository::of([
        ("sum", native("add_sub", sums).batch(8).with(scattered)),
        ("unsound", native("identity", io).batch(8).with(told.replace("INT32", "INT64"))),
    ]));
    for (model, status, text) in [
        ("sum", 400, "expected no ragged input, batch_input or batch_output for this op"),
        ("unsound", 400, "batch input data type must be TYPE_INT32 or TYPE_FP32 for unsound"),
    ] {
        server.load(model).refuses(status, text);
    }
}

#[test]
fn an_onnx_model_gets_its_ragged_batch_flat_with_the_bounds_of_its_requests() {
    let config = format!(
        "backend: \"onnxruntime\"
         max_batch_size: 16
         input {{ name: \"INPUT\" data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: true }}
         output {{ name: \"OUTPUT\" data_type: TYPE_FP32 dims: [1] reshape {{ shape: [] }} }}
         batch_input {{ kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: \"BOUNDS\"
                        data_type: TYPE_INT32 source_input: \"INPUT\" }}
         instance_group {{ count: 1 }}
         {IN_THREES}"
    );
    let repository = Repository::new().with_onnx_as("m", "ragged_sums", &config);
    let server = Server::start(repository);
    let sums = |columns: usize| {
        let values: Vec<f64> = (1..=columns).map(|it| it as f64).collect();
        let inputs = [input("INPUT", "FP32", &[1, columns as i64], values)];
        server.infer("m", &json!({ "inputs": inputs })).ok().numbers("OUTPUT")
    };
    let answers = at_once(3, |caller| (caller, sums(caller + 3)));
    for (caller, sum) in answers {
        let columns = caller + 3;
        assert_eq!(sum, [(columns * (columns + 1) / 2) as f64]);
    }
    let stats = server.stats("m");
    assert_eq!((&stats["inference_count"], &stats["execution_count"]), (&json!(3), &json!(1)));
}
