//! What one inference answers, and what each mistake in a request is told.

use tonic::Code::{
    self, Cancelled, DeadlineExceeded, Internal, InvalidArgument, NotFound, Unimplemented,
};

use super::*;
use troupe_proto::inference::{
    InferTensorContents, model_infer_request::InferRequestedOutputTensor,
};

const AB: [u8; 8] = [0, 0, 128, 63, 0, 0, 0, 64];

fn good() -> ModelInferRequest {
    raw("echo", &[("a", "FP32", &[1, 2], &AB)])
}

fn with(change: impl FnOnce(&mut ModelInferRequest)) -> ModelInferRequest {
    let mut request = good();
    change(&mut request);
    request
}

fn output(name: &str) -> InferRequestedOutputTensor {
    InferRequestedOutputTensor { name: name.into(), parameters: HashMap::new() }
}

fn fp32(values: &[f32]) -> Option<InferTensorContents> {
    Some(InferTensorContents { fp32_contents: values.to_vec(), ..InferTensorContents::default() })
}

#[actix_web::test]
async fn raw_and_typed_contents_give_the_same_answer() {
    let mut server = Server::start().await;
    let typed = with(|it| {
        it.raw_input_contents.clear();
        it.inputs[0].contents = fp32(&[1.0, 2.0]);
    });
    for mut request in [good(), typed] {
        request.id = "7".into();
        request.model_version = "3".into();
        let answer = server.client.model_infer(request).await.unwrap().into_inner();
        assert_eq!((&*answer.model_name, &*answer.model_version, &*answer.id), ("echo", "3", "7"));
        assert_eq!(answer.outputs.len(), 1);
        let output = &answer.outputs[0];
        assert_eq!((&*output.name, &*output.datatype, &*output.shape), ("x", "FP32", &[1, 2][..]));
        assert!(output.contents.is_none());
        assert_eq!(answer.raw_output_contents, [&AB[..]]);
        let made_by = ParameterChoice::StringParam("echo".into());
        assert_eq!(answer.parameters, parameters([("made_by", made_by)]));
    }
}

#[actix_web::test]
async fn only_wanted_outputs_come_in_the_order_of_the_config() {
    let mut server = Server::start().await;
    let both = raw("echo", &[("b", "BYTES", &[1, 1], b"\x01\0\0\0z"), ("a", "FP32", &[1, 2], &AB)]);
    let only = |names: &[&str]| ModelInferRequest {
        outputs: names.iter().map(|it| output(it)).collect(),
        ..both.clone()
    };
    for (request, expected) in [(only(&[]), "x y"), (only(&["y"]), "y"), (only(&["y", "x"]), "x y")]
    {
        let answer = server.client.model_infer(request).await.unwrap().into_inner();
        let names: Vec<_> = answer.outputs.iter().map(|it| &*it.name).collect();
        assert_eq!(names.join(" "), expected);
    }
}

#[actix_web::test]
async fn the_model_sees_parameters_priority_and_sequence() {
    let mut server = Server::start().await;
    let mut client = server.client.clone();
    let mut request = one("hold", "7");
    request.parameters = parameters([
        ("priority", ParameterChoice::Uint64Param(2)),
        ("timeout", ParameterChoice::Int64Param(50)),
        ("sequence_id", ParameterChoice::Int64Param(9)),
        ("sequence_start", ParameterChoice::BoolParam(true)),
        ("triton_enable_empty_final_response", ParameterChoice::BoolParam(true)),
        ("mine", ParameterChoice::DoubleParam(0.5)),
    ]);
    let answer = actix_rt::spawn(async move { client.model_infer(request).await });
    let Pending { request, reply } = server.held().await;
    let context = request.context.clone();
    assert_eq!((&*context.id, context.priority, context.timeout_us), ("7", 2, 50));
    assert_eq!(
        (context.correlation.clone(), context.flags),
        (troupe_base::request::Correlation::Number(9), 1)
    );
    assert_eq!(context.parameters, [("mine".into(), Parameter::Double(0.5))]);
    reply.answer(Ok(echo(request)));
    answer.await.unwrap().unwrap();
}

#[actix_web::test]
async fn a_caller_that_goes_away_cancels_its_request() {
    let mut server = Server::start().await;
    let mut client = server.client.clone();
    let call = actix_rt::spawn(async move { client.model_infer(one("hold", "")).await });
    let pending = server.held().await;
    let context = &pending.request.context;
    assert_eq!((context.is_stopped(), context.deadline), (false, None));
    call.abort();
    cancelled(&pending).await;
    // Its deadline does the same.
    let mut request = tonic::Request::new(one("hold", ""));
    request.set_timeout(std::time::Duration::from_millis(20));
    let error = server.client.model_infer(request).await.unwrap_err();
    assert!(matches!(error.code(), Cancelled | DeadlineExceeded), "{error}");
    let pending = server.held().await;
    assert!(pending.request.context.deadline.is_some());
    cancelled(&pending).await;
}

#[actix_web::test]
async fn every_mistake_is_told_in_tritons_words() {
    let mut server = Server::start().await;
    for (request, code, text) in mistakes() {
        let error = server.client.model_infer(request).await.unwrap_err();
        // Hints follow.
        let words = error.message().get(..text.len());
        assert_eq!((error.code(), words), (code, Some(text)), "{}", error.message());
    }
    server.client.model_infer(good()).await.unwrap();
}

fn mistakes() -> Vec<(ModelInferRequest, Code, &'static str)> {
    let model = |name: &str, version: &str| {
        with(|it| {
            it.model_name = name.into();
            it.model_version = version.into();
        })
    };
    let many = [
        (model("nope", ""), NotFound, "Request for unknown model: 'nope' is not found"),
        (model("off", ""), NotFound, "Request for unknown model: 'off' has no available versions"),
        (model("echo", "9"), NotFound, "Request for unknown model: 'echo' version 9 is not found"),
        (
            model("echo", "abc"),
            InvalidArgument,
            "failed to get model version from specified version string 'abc' (details: stol), \
             version should be an integral value > 0",
        ),
        (
            one("many", ""),
            Unimplemented,
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ),
        (one("fail", ""), Internal, "it broke"),
    ];
    many.into_iter().chain(mistakes_with_data()).chain(mistakes_with_names()).collect()
}

fn mistakes_with_data() -> Vec<(ModelInferRequest, Code, &'static str)> {
    let input = |change: fn(&mut InferInputTensor)| with(|it| change(&mut it.inputs[0]));
    vec![
        (
            with(|it| it.inputs[0].contents = fp32(&[1.0])),
            InvalidArgument,
            "contents field must not be specified when using raw_input_contents for 'a' for model \
             'echo'",
        ),
        (
            with(|it| it.raw_input_contents.clear()),
            InvalidArgument,
            "unable to find data for input tensor 'a' for model 'echo' in request.",
        ),
        (
            with(|it| it.raw_input_contents.push("x".into())),
            InvalidArgument,
            "unexpected additional input data for model 'echo'",
        ),
        (
            with(|it| it.raw_input_contents[0] = "x".into()),
            InvalidArgument,
            "[request id: <id_unknown>] input byte size mismatch for input 'a' for model 'echo'. \
             Expected 8, got 1",
        ),
        (
            with(|it| {
                it.raw_input_contents.clear();
                it.inputs[0].contents = fp32(&[1.0]);
            }),
            InvalidArgument,
            "[request id: <id_unknown>] input byte size mismatch for input 'a' for model 'echo'. \
             Expected 8, got 4",
        ),
        (
            input(|it| it.datatype = "FP33".into()),
            InvalidArgument,
            "[request id: <id_unknown>] inference input 'a' data-type is '<invalid>', but model \
             'echo' expects 'FP32'",
        ),
        (
            input(|it| it.shape = vec![2]),
            InvalidArgument,
            "[request id: <id_unknown>] unexpected shape for input 'a' for model 'echo'. Expected \
             [-1,2], got [2]. NOTE: Setting a non-zero max_batch_size in the model config requires \
             a batch dimension to be prepended to each input shape. If you want to specify the \
             full shape including the batch dim in your input dims config, try setting \
             max_batch_size to zero. See the model configuration docs for more info on \
             max_batch_size.",
        ),
        (
            input(|it| it.shape = vec![-1, 2]),
            InvalidArgument,
            "[request id: <id_unknown>] invalid shape for input 'a': shape [-1,2] contains one or \
             more invalid dimensions",
        ),
    ]
}

fn mistakes_with_names() -> Vec<(ModelInferRequest, Code, &'static str)> {
    let outputs =
        |names: &[&str]| with(|it| it.outputs = names.iter().map(|name| output(name)).collect());
    let keyed = |key, choice| with(|it| it.parameters = parameters([(key, choice)]));
    vec![
        (
            with(|it| it.inputs[0].name = "z".into()),
            InvalidArgument,
            "[request id: <id_unknown>] unexpected inference input 'z' for model 'echo'",
        ),
        (
            raw("echo", &[("a", "FP32", &[1, 2], &AB), ("a", "FP32", &[1, 2], &AB)]),
            InvalidArgument,
            "[request id: <id_unknown>] input 'a' already exists in request",
        ),
        (
            raw("echo", &[]),
            InvalidArgument,
            "[request id: <id_unknown>] expected number of inputs between 1 and 2 but got 0 inputs \
             for model 'echo'. Got input(s) [], but missing required input(s) ['a']. Please \
             provide all required input(s).",
        ),
        (
            outputs(&["z"]),
            InvalidArgument,
            "[request id: <id_unknown>] unexpected inference output 'z' for model 'echo'",
        ),
        (
            outputs(&["x", "x"]),
            InvalidArgument,
            "[request id: <id_unknown>] output 'x' already exists in request",
        ),
        (
            keyed("sequence_id", ParameterChoice::BoolParam(true)),
            InvalidArgument,
            "invalid value type for 'sequence_id' parameter, expected int64_param or string_param.",
        ),
        (
            keyed("triton_x", ParameterChoice::BoolParam(true)),
            InvalidArgument,
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not \
             be specified.",
        ),
    ]
}
