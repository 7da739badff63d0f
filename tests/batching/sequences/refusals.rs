//! What is no request of a sequence, over HTTP and gRPC, in Triton's words.

use serde_json::json;
use troupe_proto::inference::{InferParameter, infer_parameter::ParameterChoice};

use super::models::{ask, direct, request, sum};
use crate::support::{Repository, Server, ensemble, grpc::Grpc, models::execute};

const BATCH: &str = "inference request to model 'm' must specify batch-size 1 due to requirements of \
                     sequence batcher";
const NO_ID: &str =
    "inference request to model 'm' must specify a non-zero or non-empty correlation ID";
const NO_START: &str = "inference request for sequence 7 to model 'm' must specify the START flag on \
                        the first request of the sequence";

#[test]
fn requests_without_a_sequence_are_refused_and_count_as_no_failures() {
    let steps = ["m: INPUT=IN -> OUTPUT=OUT"];
    let repository = Repository::of([("m", direct(4))])
        .with("e", ensemble("IN:INT32[1] -> OUT:INT32[1]", &steps).batch(4));
    let server = Server::start(repository);
    let mut two = request(7, "+", 1);
    two["inputs"][0] =
        json!({"name": "INPUT", "datatype": "INT32", "shape": [2, 1], "data": [1, 2]});
    let exactly = |answer: crate::support::Answer, text: &str| {
        assert_eq!((answer.status, answer.error().as_str()), (400, text));
    };
    exactly(server.infer("m", &two), BATCH);
    let mut no_id = request(0, "+", 1);
    exactly(server.infer("m", &no_id), NO_ID);
    no_id["parameters"] = json!({});
    exactly(server.infer("m", &no_id), NO_ID);
    exactly(ask(&server, "m", "", ("+", 1)), NO_ID);
    exactly(ask(&server, "m", 7, ("", 1)), NO_START);
    exactly(ask(&server, "m", 7, ("!", 1)), NO_START);
    let named = NO_START.replace("sequence 7", "sequence seven");
    exactly(ask(&server, "m", "seven", ("", 1)), &named);
    let mut step = request(7, "", 1);
    step["inputs"][0]["name"] = "IN".into();
    let text = format!("in ensemble 'e', step 0 (model 'm' version 1): {NO_START}");
    exactly(server.infer("e", &step), &text);

    let stats = server.stats("m");
    assert_eq!(stats["inference_stats"]["fail"]["count"], 0, "{stats}");
    assert_eq!(stats["inference_stats"]["success"]["count"], 0, "{stats}");
    server.is_well();
}

#[test]
fn a_sequence_that_begins_twice_goes_on_from_its_second_beginning() {
    let server = Server::start(Repository::of([("m", direct(4))]));
    assert_eq!(sum(&server, "m", 7, ("+", 1)), 1.);
    assert_eq!(sum(&server, "m", 7, ("", 2)), 3.);
    assert_eq!(sum(&server, "m", 7, ("+", 10)), 10.);
    assert_eq!(sum(&server, "m", 7, ("!", 2)), 12.);
    server.logged(
        "sequence 7 for model 'm' has a conflict. The previous sequence did not end before this \
         sequence start. Previous sequence will be terminated early.",
    );
}

/// As many numbers as the second input says are in a row; the answer is how many there are.
const COUNTS: &str = "
    count = lambda it: pb_utils.get_input_tensor_by_name(it, 'INPUT').as_numpy().size
    answer = lambda it: pb_utils.Tensor('OUTPUT', np.array([[count(it)]], np.int32))
    return [pb_utils.InferenceResponse([answer(it)]) for it in requests]";

#[test]
fn rows_of_zeros_that_are_more_than_the_memory_are_refused_with_the_request_whose_shape_they_have()
{
    let sequences = "sequence_batching { direct { } max_sequence_idle_microseconds: 60000000 }";
    let model = execute("INPUT:INT32[-1] -> OUTPUT:INT32[1]", COUNTS).batch(64).with(sequences);
    let repository = Repository::of([("m", model)]);
    let server = Server::with(repository, &["--max-inflight-bytes=33554432"]);
    let asked = |id: u64, numbers: usize| {
        let mut asked = request(id, "+", 0);
        asked["inputs"][0]["shape"] = json!([1, numbers]);
        asked["inputs"][0]["data"] = vec![0; numbers].into();
        server.infer("m", &asked)
    };
    for id in 1..64 {
        assert_eq!(asked(id, 1).json()["outputs"][0]["data"], json!([1]));
    }
    // The first row is that of the first sequence, so that 63 of 800 kB are zeros.
    let large = 200_000;
    let refused = asked(64, large);
    let text = "model 'm' would execute this request beside 63 rows of zeros in its shape, for \
                sequences without a request: ";
    refused.refuses(503, text);
    assert_eq!(asked(64, 2).json()["outputs"][0]["data"], json!([2]), "its row is free");
    assert_eq!(asked(1, 3).json()["outputs"][0]["data"], json!([3]));
    server.is_well();
}

#[test]
fn control_inputs_are_the_servers() {
    let server = Server::start(Repository::of([("m", direct(4))]));
    let mut asked = request(7, "+", 1);
    let start = json!({"name": "START", "datatype": "INT32", "shape": [1, 1], "data": [1]});
    asked["inputs"].as_array_mut().unwrap().push(start);
    server.infer("m", &asked).refuses(400, "unexpected inference input 'START' for model 'm'");
    let metadata = server.http.get("/v2/models/m").json();
    assert_eq!(metadata["inputs"].as_array().unwrap().len(), 1, "{metadata}");
}

#[test]
fn grpc_says_the_same() {
    let server = Server::start(Repository::of([("m", direct(4))]));
    let mut grpc = Grpc::connect(server.grpc);
    let error = grpc.infer(super::streams::message("m", None, "", 1)).unwrap_err();
    assert_eq!((error.code(), error.message()), (tonic::Code::InvalidArgument, NO_ID));
    let mut asked = super::streams::message("m", Some(7), "", 1);
    let error = grpc.infer(asked.clone()).unwrap_err();
    assert_eq!((error.code(), error.message()), (tonic::Code::InvalidArgument, NO_START));
    let parameter_choice = Some(ParameterChoice::BoolParam(true));
    asked.parameters.insert("sequence_start".to_owned(), InferParameter { parameter_choice });
    grpc.infer(asked).unwrap();
}
