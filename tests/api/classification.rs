//! Classes instead of outputs, and the labels they get: from a file, and through ensembles.

use std::{collections::HashMap, sync::LazyLock};

use serde_json::{Value, json};
use tonic::Code;
use troupe_proto::inference::{
    InferParameter, ModelInferRequest, infer_parameter::ParameterChoice,
    model_infer_request::InferRequestedOutputTensor,
};

use crate::{
    api::grpc::refused,
    support::{
        Answer, Model, Repository, Server, ensemble,
        grpc::{Grpc, floats},
        http::input,
        native, troupe,
    },
};

const PETS: &str = "cat\nCOFFEE MUG\n\nfish\n";

/// Classifiers that say what they are told.
static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let id = |dtype: &str| native("identity", &format!("x:{dtype}[-1] -> y:{dtype}[-1]"));
    let mut repository = Repository::new()
        .with("pets", labelled(id("FP32"), "labels/pets.txt"))
        .with("ints", id("INT32"))
        .with("words", id("BYTES"))
        .with("halves", id("FP16"))
        .with("inherits", runs("pets"))
        .with("nested", runs("inherits"))
        .with("own", labelled(runs("pets"), "own.txt"))
        .with("nested_own", runs("own"));
    for (name, batch) in [("rows", 8), ("row_steps", 4)] {
        let model = if name == "rows" { labelled(id("FP32"), "pets.txt") } else { runs("rows") };
        repository.write(name, &model.batch(batch));
    }
    repository.write_file("pets/labels/pets.txt", PETS);
    repository.write_file("rows/pets.txt", PETS);
    repository.write_file("own/own.txt", "Katze\r\nTasse\r\n");
    Server::start(repository)
});

/// An ensemble of one step.
fn runs(model: &str) -> Model {
    ensemble("x:FP32[-1] -> y:FP32[-1]", &[&format!("{model}: x=x -> y=y")])
}

/// The model with a file of labels for its last output.
fn labelled(mut model: Model, file: &str) -> Model {
    let line = model.config.lines().rfind(|it| it.starts_with("output")).unwrap().to_owned();
    let more = line.replace(" }", &format!(" label_filename: \"{file}\" }}"));
    model.config = model.config.replace(&line, &more);
    model
}

fn classify(server: &Server, model: &str, input: Value, parameters: Value) -> Answer {
    let outputs = json!([{"name": "y", "parameters": parameters}]);
    server.infer(model, &json!({"inputs": [input], "outputs": outputs}))
}

/// The three largest of four.
fn top(server: &Server, model: &str) -> Value {
    let input = input("x", "FP32", &[4], json!([0.5, 15.34623, 2, -1e-7]));
    classify(server, model, input, json!({"classification": 3})).output("y")
}

#[test]
fn classes_come_with_value_index_and_label() {
    let expected = json!(["15.346230:1:COFFEE MUG", "2.000000:2", "0.500000:0:cat"]);
    assert_eq!(top(&SERVER, "pets"), expected);
    let ints = input("x", "INT32", &[3], json!([7, -7, 9]));
    let answer = classify(&SERVER, "ints", ints, json!({"classification": 99}));
    assert_eq!(answer.output("y"), json!(["9:2", "7:0", "-7:1"]));
    assert_eq!(answer.shape("y"), json!([3]));
    assert_eq!(answer.json()["outputs"][0]["datatype"], "BYTES");
}

#[test]
fn no_classes_are_the_output_itself() {
    let floats = || input("x", "FP32", &[2], json!([1, 2]));
    let answer = classify(&SERVER, "pets", floats(), json!({"classification": 0}));
    assert_eq!(answer.output("y"), json!([1.0, 2.0]));
    let nothing = input("x", "FP32", &[0], json!([]));
    let answer = classify(&SERVER, "pets", nothing, json!({"classification": 3}));
    assert_eq!((answer.output("y"), answer.shape("y")), (json!([]), json!([0])));
}

#[test]
fn rows_are_classified_one_by_one() {
    for model in ["rows", "row_steps"] {
        let data = input("x", "FP32", &[2, 3], json!([1, 2, 3, 6, 5, 4]));
        let answer = classify(&SERVER, model, data, json!({"classification": 2}));
        assert_eq!(answer.shape("y"), json!([2, 2]));
        let expected = json!([
            "3.000000:2",
            "2.000000:1:COFFEE MUG",
            "6.000000:0:cat",
            "5.000000:1:COFFEE MUG"
        ]);
        assert_eq!(answer.output("y"), expected);
    }
}

#[test]
fn classes_come_as_bytes_too() {
    let request = json!({
        "inputs": [input("x", "FP32", &[2], json!([1, 2]))],
        "outputs": [{"name": "y", "parameters": {"classification": 1, "binary_data": true}}],
    });
    let answer = SERVER.infer("pets", &request);
    let header = answer.header("inference-header-content-length").unwrap();
    let tensor = &answer.ok().body[header.parse::<usize>().unwrap()..];
    assert_eq!(tensor, b"\x15\0\0\x002.000000:1:COFFEE MUG");
}

#[test]
fn ensembles_inherit_labels_unless_they_have_their_own() {
    let inherited = json!(["15.346230:1:COFFEE MUG", "2.000000:2", "0.500000:0:cat"]);
    let own = json!(["15.346230:1:Tasse", "2.000000:2", "0.500000:0:Katze"]);
    for (model, expected) in
        [("inherits", &inherited), ("nested", &inherited), ("own", &own), ("nested_own", &own)]
    {
        assert_eq!(top(&SERVER, model), *expected, "{model}");
    }
}

#[test]
fn what_has_no_classes_is_refused() {
    let unsupported = "class result not available for output due to unsupported type";
    let words = input("x", "BYTES", &[1], json!(["a"]));
    classify(&SERVER, "words", words, json!({"classification": 1}))
        .refuses(400, &format!("{unsupported} 'BYTES'"));
    let request = json!({
        "inputs": [{"name": "x", "datatype": "FP16", "shape": [1],
            "parameters": {"binary_data_size": 2}}],
        "outputs": [{"name": "y", "parameters": {"classification": 1}}],
    });
    SERVER
        .http
        .infer_binary("halves", &request, &[&[0, 0]])
        .refuses(400, &format!("{unsupported} 'FP16'"));
    SERVER.is_well();
}

/// One element more than is allowed, and then just as many.
#[test]
fn a_big_output_is_classified_up_to_a_million_elements() {
    for (elements, is_allowed) in [(1_000_001, false), (1_000_000, true)] {
        let data: Vec<u8> = (0..elements).flat_map(|it| (it as f32).to_le_bytes()).collect();
        let request = json!({
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [elements],
                "parameters": {"binary_data_size": data.len()}}],
            "outputs": [{"name": "y", "parameters": {"classification": 2}}],
        });
        let answer = SERVER.http.infer_binary("pets", &request, &[&data]);
        if is_allowed {
            assert_eq!(answer.output("y"), json!(["999999.000000:999999", "999998.000000:999998"]));
        } else {
            answer.refuses(400, "classification output tensor too large");
        }
    }
}

fn over_grpc(
    model: &str,
    data: &[f32],
    parameters: &[(&str, ParameterChoice)],
) -> ModelInferRequest {
    let parameters: HashMap<_, _> = parameters
        .iter()
        .map(|(key, it)| ((*key).to_owned(), InferParameter { parameter_choice: Some(it.clone()) }))
        .collect();
    ModelInferRequest {
        outputs: vec![InferRequestedOutputTensor { name: "y".to_owned(), parameters }],
        ..floats(model, &[("x", data)])
    }
}

#[test]
fn the_same_over_grpc_and_its_streams() {
    use ParameterChoice::{BoolParam, Int64Param, StringParam};
    let mut grpc = Grpc::connect(SERVER.grpc);
    let expected = "\x15\0\0\x002.000000:1:COFFEE MUG\x0e\0\0\x001.000000:0:cat";
    let request = over_grpc("nested", &[1.0, 2.0], &[("classification", Int64Param(5))]);
    let answer = grpc.infer(request.clone()).unwrap();
    let streamed = grpc.stream(vec![request]).unwrap().remove(0).infer_response.unwrap();
    for answer in [answer, streamed] {
        assert_eq!(answer.outputs[0].datatype, "BYTES");
        assert_eq!(answer.outputs[0].shape, [2]);
        assert_eq!(answer.raw_output_contents[0], expected);
    }
    let big = vec![0.5; 500_000];
    let request = over_grpc("pets", &big, &[("classification", Int64Param(1))]);
    let answer = grpc.infer(request).unwrap();
    assert_eq!(answer.raw_output_contents[0], "\x0e\0\0\x000.500000:0:cat");
    for (parameters, text) in [
        (
            vec![("classification", BoolParam(true))],
            "invalid value type for 'classification' parameter, expected int64_param",
        ),
        (
            vec![("classification", Int64Param(-1))],
            "invalid value for 'classification' parameter, expected >= 0",
        ),
        (
            vec![
                ("classification", Int64Param(1)),
                ("shared_memory_region", StringParam("r".to_owned())),
                ("shared_memory_byte_size", Int64Param(4)),
            ],
            "output can't set both 'shared_memory_region' and 'classification'",
        ),
    ] {
        let answer = grpc.infer(over_grpc("pets", &[1.0], &parameters));
        refused(answer, Code::InvalidArgument, text);
    }
}

fn pets() -> Repository {
    let pets = labelled(native("identity", "x:FP32[-1] -> y:FP32[-1]"), "pets.txt");
    Repository::new().with("pets", pets).with("e", runs("pets"))
}

#[test]
fn a_reload_reads_the_labels_again_also_for_ensembles() {
    let repository = pets();
    repository.write_file("pets/pets.txt", PETS);
    let server = Server::with(repository, &["--model-control-mode=explicit", "--load-model=*"]);
    server.repository.write_file("pets/pets.txt", "\nbecher\n");
    assert_eq!(top(&server, "e")[0], "15.346230:1:COFFEE MUG");
    assert_eq!(server.load("pets").status, 200);
    for model in ["pets", "e"] {
        let expected = json!(["15.346230:1:becher", "2.000000:2", "0.500000:0"]);
        assert_eq!(top(&server, model), expected, "{model}");
    }
}

#[test]
fn labels_that_cannot_be_read_fail_the_load_and_the_check() {
    let id = || native("identity", "x:FP32[-1] -> y:FP32[-1]");
    let repository = Repository::new()
        .with("id", id())
        .with("lost", labelled(id(), "1/labels.txt"))
        .with("lost_steps", labelled(runs("id"), "labels.txt"))
        .with("out", labelled(id(), "link.txt"))
        .with("folder", labelled(id(), "1"));
    repository.write_file("elsewhere.txt", PETS);
    let link = repository.models().join("out/link.txt");
    std::os::unix::fs::symlink("../elsewhere.txt", link).unwrap();
    let home = repository.models().display().to_string();
    let missing = |path: &str| {
        format!("failed to open text file for read {home}/{path}: No such file or directory")
    };
    let outside =
        "label file path 'link.txt' for output 'y' in model 'out' is outside model directory";
    let cases = [
        ("lost", missing("lost/1/labels.txt")),
        ("lost_steps", missing("lost_steps/labels.txt")),
        ("out", outside.to_owned()),
        ("folder", format!("failed to read '{home}/folder/1': not a regular file")),
    ];
    let checked = troupe(&["check", &home]);
    assert_eq!(checked.code, Some(1));
    for (model, text) in &cases {
        let place = format!("{home}/{model}/config.pbtxt:3:");
        let is_said = checked.output.lines().any(|it| it.starts_with(&place) && it.contains(text));
        assert!(is_said, "no {text} at {place} in\n{}", checked.output);
    }
    let server = Server::lenient(repository);
    for (model, text) in &cases {
        let state = server.state(model);
        assert!(state.starts_with("UNAVAILABLE: ") && state.contains(text), "{model}: {state}");
    }
    assert_eq!(server.state("id"), "READY");
}
