//! Sequences over gRPC streams, and with decoupled models.

use troupe_proto::inference::{
    InferParameter, InferTensorContents, ModelInferRequest, ModelStreamInferResponse,
    infer_parameter::ParameterChoice, model_infer_request::InferInputTensor,
};

use super::models::{direct, oldest};
use crate::{
    decoupled::models::decoupled,
    support::{Repository, Server, grpc::Grpc, models::python},
};

/// A request as gRPC has it.
pub(super) fn message(model: &str, id: Option<i64>, flags: &str, number: i32) -> ModelInferRequest {
    let of = |choice| InferParameter { parameter_choice: Some(choice) };
    let mut message = ModelInferRequest {
        model_name: model.to_owned(),
        inputs: vec![InferInputTensor {
            name: "INPUT".to_owned(),
            datatype: "INT32".to_owned(),
            shape: vec![1, 1],
            ..Default::default()
        }],
        raw_input_contents: vec![number.to_le_bytes().to_vec().into()],
        ..Default::default()
    };
    let id = id.map(|it| ("sequence_id", ParameterChoice::Int64Param(it)));
    let flag =
        |sign, name| flags.contains(sign).then_some((name, ParameterChoice::BoolParam(true)));
    let all = [id, flag('+', "sequence_start"), flag('!', "sequence_end")];
    let all = all.into_iter().flatten().map(|(name, it)| (name.to_owned(), of(it)));
    message.parameters.extend(all);
    message
}

fn numbers(answers: &[ModelStreamInferResponse]) -> Vec<i32> {
    let number = |it: &ModelStreamInferResponse| {
        assert_eq!(it.error_message, "");
        let response = it.infer_response.as_ref().unwrap();
        let bytes = response.raw_output_contents.first()?;
        Some(i32::from_le_bytes(bytes[..4].try_into().unwrap()))
    };
    answers.iter().filter_map(number).collect()
}

#[test]
fn a_stream_carries_many_sequences() {
    let repository = Repository::of([("direct", direct(4)), ("oldest", oldest(4, "UINT64"))]);
    let server = Server::start(repository);
    for (model, ids) in [("direct", 0), ("oldest", 1)] {
        let mut requests = Vec::new();
        // More sequences than there are slots: the last ones wait.
        for (flags, number) in [("+", 1), ("", 2), ("", 3), ("!", 4)] {
            requests.extend((1..=10).map(|id| message(model, Some(id), flags, 10 * number)));
        }
        let answers = Grpc::connect(server.grpc).stream(requests).unwrap();
        let mut sums = numbers(&answers);
        sums.sort();
        let expected = |id: i32| [10, 30, 60, 100 + ids * id];
        let mut expected: Vec<i32> = (1..=10).flat_map(expected).collect();
        expected.sort();
        assert_eq!(sums, expected, "{model}");
    }
    server.is_well();
}

#[test]
fn decoupled_models_have_sequences() {
    let source = "
        class TritonPythonModel:
            def initialize(self, args):
                self.sums = {}

            def execute(self, requests):
                for it in requests:
                    sender = it.get_response_sender()
                    if it.correlation_id() != 0:
                        start = pb_utils.get_input_tensor_by_name(it, 'START').as_numpy().item()
                        number = pb_utils.get_input_tensor_by_name(it, 'INPUT').as_numpy().item()
                        key = it.correlation_id()
                        self.sums[key] = number + (0 if start else self.sums[key])
                        for more in range(2):
                            y = np.full((1, 1), self.sums[key] + more, np.int32)
                            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT', y)]))
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)";
    let sequences = "sequence_batching { direct { } control_input { name: 'START' control { kind: \
                     CONTROL_SEQUENCE_START int32_false_true: [0, 1] } } }";
    let model = python("INPUT:INT32[1] -> OUTPUT:INT32[1]", source).batch(4).with(sequences);
    let server = Server::start(Repository::of([("m", decoupled(model))]));
    let mut grpc = Grpc::connect(server.grpc);
    let requests = vec![
        message("m", Some(1), "+", 10),
        message("m", Some(2), "+", 100),
        message("m", Some(2), "", 100),
        message("m", Some(1), "!", 10),
        message("m", Some(2), "!", 100),
    ];
    let mut sums = numbers(&grpc.stream(requests).unwrap());
    sums.sort();
    assert_eq!(sums, [10, 11, 20, 21, 100, 101, 200, 201, 300, 301]);
    server.is_well();
}

#[test]
fn requests_of_a_stream_that_take_long_to_decode_keep_their_order() {
    let source = "
        class TritonPythonModel:
            def execute(self, requests):
                answers = []
                for it in requests:
                    x = pb_utils.get_input_tensor_by_name(it, 'INPUT').as_numpy()
                    y = pb_utils.Tensor('OUTPUT', np.full((1, 1), x.ravel()[-1], np.int32))
                    answers.append(pb_utils.InferenceResponse([y]))
                return answers";
    let model = python("INPUT:INT32[-1] -> OUTPUT:INT32[1]", source).batch(4);
    let model = model.with("sequence_batching { oldest { } }");
    let server = Server::start(Repository::of([("m", model)]));
    // Typed contents take long to decode: the later ones take less time than the first.
    let long = |flags, number, length: usize| {
        let mut message = message("m", Some(1), flags, 0);
        message.inputs[0].shape = vec![1, length as i64];
        let int_contents = vec![number; length];
        message.inputs[0].contents =
            Some(InferTensorContents { int_contents, ..Default::default() });
        message.raw_input_contents.clear();
        message
    };
    let mut grpc = Grpc::connect(server.grpc);
    for _ in 0..5 {
        let requests =
            vec![long("+", 1, 900_000), long("", 2, 100_000), long("", 3, 1), long("!", 4, 1)];
        assert_eq!(numbers(&grpc.stream(requests).unwrap()), [1, 2, 3, 4]);
    }
    server.is_well();
}
