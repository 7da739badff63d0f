//! Ensembles of decoupled models: every response is an iteration of the steps behind it.

use std::{collections::HashMap, sync::LazyLock};

use serde_json::{Value, json};
use troupe_proto::inference::{
    InferParameter, ModelInferRequest, ModelStreamInferResponse, infer_parameter::ParameterChoice,
};

use crate::support::{
    Model, Repository, Server, at_once, ensemble,
    grpc::{Grpc, floats, floats_of},
    http,
    models::execute,
    native, troupe,
};

pub(crate) const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";
pub(crate) const ENSEMBLE: &str = "IN:FP32[-1] -> OUT:FP32[-1]";
pub(crate) const CHAIN: [&str; 2] = ["repeats: x=IN -> y=mid", "square: X=mid Y=mid -> XY=OUT"];

pub(crate) fn decoupled(model: Model) -> Model {
    model.with("model_transaction_policy { decoupled: true }")
}

/// One response per element, then the end.
pub(crate) fn repeats() -> Model {
    decoupled(execute(
        FLOATS,
        "
        for it in requests:
            sender = it.get_response_sender()
            for value in pb_utils.get_input_tensor_by_name(it, 'x').as_numpy():
                y = pb_utils.Tensor('y', np.array([value], np.float32))
                sender.send(pb_utils.InferenceResponse([y]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)",
    ))
}

/// A value and its half behind it, the end with the last of them.
fn halves() -> Model {
    decoupled(execute(
        FLOATS,
        "
        for it in requests:
            sender = it.get_response_sender()
            values = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
            for last, y in enumerate([values, values / 2]):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('y', y)]), last)",
    ))
}

fn square() -> Model {
    native("mul", "X:FP32[-1] Y:FP32[-1] -> XY:FP32[-1]")
}

pub(crate) fn limited(mut model: Model, limit: u32) -> Model {
    let with = format!("ensemble_scheduling {{ max_inflight_requests: {limit}");
    model.config = model.config.replace("ensemble_scheduling {", &with);
    model
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let row = [CHAIN[0], "halves: x=mid -> y=half", "square: X=half Y=half -> XY=OUT"];
    let branches = [
        "square: X=IN Y=IN -> XY=squares",
        "repeats: x=squares -> y=one",
        "square: X=one Y=one -> XY=fourth",
        "add_sub: A=one B=fourth -> SUM=OUT DIFF=LESS",
    ];
    let inner = "square: X=IN Y=IN -> XY=s";
    let repository = Repository::new()
        .with("repeats", repeats())
        .with("halves", halves())
        .with("square", square())
        .with("add_sub", native("add_sub", "A:FP32[-1] B:FP32[-1] -> SUM:FP32[-1] DIFF:FP32[-1]"))
        .with("breaks_on_9", execute(FLOATS, BREAKS_ON_9))
        .with("chain", ensemble(ENSEMBLE, &CHAIN))
        .with("row", ensemble(ENSEMBLE, &row))
        .with("twice", ensemble(ENSEMBLE, &[CHAIN[0], "repeats: x=mid -> y=OUT"]))
        .with(
            "nested",
            ensemble(ENSEMBLE, &[inner, "chain: IN=s -> OUT=c", "halves: x=c -> y=OUT"]),
        )
        .with("branches", ensemble("IN:FP32[-1] -> OUT:FP32[-1] LESS:FP32[-1]", &branches))
        .with("breaks", ensemble(ENSEMBLE, &[CHAIN[0], "breaks_on_9: x=mid -> y=OUT"]))
        .with("plain", decoupled(ensemble(ENSEMBLE, &["square: X=IN Y=IN -> XY=OUT"])))
        .with("limited", limited(ensemble(ENSEMBLE, &CHAIN), 2));
    Server::start(repository)
});

const BREAKS_ON_9: &str = "
    x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
    if x[0] == 9:
        error = pb_utils.TritonError('nine', pb_utils.TritonError.INVALID_ARG)
        return [pb_utils.InferenceResponse(error=error)]
    return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]";

pub(crate) fn ask(model: &str, values: &[f32]) -> ModelInferRequest {
    let mut request = floats(model, &[("IN", values)]);
    let choice = Some(ParameterChoice::BoolParam(true));
    let wish = InferParameter { parameter_choice: choice };
    let name = "triton_enable_empty_final_response".to_owned();
    request.parameters = HashMap::from([(name, wish)]);
    request
}

/// What came: values or an error, a full stop behind the last.
pub(crate) fn summary(answer: &ModelStreamInferResponse) -> String {
    let response = answer.infer_response.as_ref().unwrap();
    let last = &response.parameters["triton_final_response"].parameter_choice;
    let stop = if *last == Some(ParameterChoice::BoolParam(true)) { "." } else { "" };
    let values = response.raw_output_contents.iter().flat_map(|it| floats_of(it));
    let values: Vec<String> = values.map(|it| it.to_string()).collect();
    format!("{}{}{stop}", answer.error_message, values.join(" "))
}

pub(crate) fn stream(server: &Server, model: &str, values: &[f32]) -> Vec<String> {
    let mut grpc = Grpc::connect(server.grpc);
    grpc.stream(vec![ask(model, values)]).unwrap().iter().map(summary).collect()
}

#[track_caller]
fn check(model: &str, values: &[f32], expected: &[&str]) {
    assert_eq!(stream(&SERVER, model, values), expected, "{model} of {values:?}");
}

#[test]
fn each_response_runs_through_the_steps_behind() {
    check("chain", &[], &["."]);
    check("chain", &[3.0], &["9", "."]);
    check("chain", &[1.0, 2.0, 3.0, 4.0], &["1", "4", "9", "16", "."]);
    let many: Vec<f32> = (0..500).map(|it| it as f32).collect();
    let mut expected: Vec<String> = many.iter().map(|it| (it * it).to_string()).collect();
    expected.push(".".to_owned());
    assert_eq!(stream(&SERVER, "chain", &many), expected);
}

#[test]
fn decoupled_steps_follow_each_other() {
    check("row", &[2.0, 4.0, 6.0], &["4", "1", "16", "4", "36", "9", "."]);
    check("row", &[], &["."]);
    check("twice", &[1.0, 2.0, 3.0], &["1", "2", "3", "."]);
}

#[test]
fn decoupled_ensembles_are_steps_of_others() {
    check("nested", &[1.0, 2.0], &["1", "0.5", "16", "8", "."]);
}

#[test]
fn steps_before_beside_and_behind_a_decoupled_one() {
    check("branches", &[1.0, 2.0], &["2 0", "20 -12", "."]);
    let mut request = ask("branches", &[3.0]);
    let less = troupe_proto::inference::model_infer_request::InferRequestedOutputTensor {
        name: "LESS".to_owned(),
        ..Default::default()
    };
    request.outputs.push(less);
    let answers = Grpc::connect(SERVER.grpc).stream(vec![request]).unwrap();
    assert_eq!(answers.iter().map(summary).collect::<Vec<_>>(), ["-72", "."]);
}

#[test]
fn an_error_ends_the_request_behind_the_responses_before_it() {
    let error = "in ensemble 'breaks', step 1 (model 'breaks_on_9' version 1, instance 'breaks_on_9_0'): nine.";
    check("breaks", &[1.0, 2.0, 9.0, 4.0, 5.0], &["1", "2", error]);
    check("breaks", &[1.0, 2.0], &["1", "2", "."]);
}

#[test]
fn an_ensemble_says_that_it_is_decoupled() {
    let mut grpc = Grpc::connect(SERVER.grpc);
    for (model, is_decoupled) in [("chain", true), ("nested", true), ("plain", false)] {
        let config = SERVER.http.get(&format!("/v2/models/{model}/config")).ok().json();
        assert_eq!(config["model_transaction_policy"], json!({ "decoupled": is_decoupled }));
        let answer = SERVER.infer(model, &http::floats(&[("IN", &[2.0])]));
        let single = grpc.infer(floats(model, &[("IN", &[2.0])]));
        if is_decoupled {
            let text = "doesn't support models with decoupled transaction policy";
            answer.refuses(501, &format!("HTTP end point {text}"));
            let refused = single.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unimplemented);
            let told = refused.message();
            assert!(told.starts_with(&format!("ModelInfer RPC {text}: ")), "{told}");
        } else {
            assert_eq!(answer.numbers("OUT"), [4.0]);
            single.unwrap();
        }
    }
}

#[test]
fn tensors_of_different_decoupled_models_do_not_meet() {
    let two = ["repeats: x=IN -> y=a", "repeats: x=IN -> y=b", "square: X=a Y=b -> XY=OUT"];
    let repository = || {
        Repository::new()
            .with("repeats", repeats())
            .with("square", square())
            .with("good", ensemble(ENSEMBLE, &CHAIN))
            .with("mixed", ensemble(ENSEMBLE, &[CHAIN[0], "square: X=mid Y=IN -> XY=OUT"]))
            .with("two", ensemble(ENSEMBLE, &two))
            .with(
                "outer",
                ensemble(ENSEMBLE, &["good: IN=IN -> OUT=a", "square: X=a Y=IN -> XY=OUT"]),
            )
            .with(
                "ends",
                ensemble("IN:FP32[-1] -> OUT:FP32[-1] mid:FP32[-1]", &{
                    ["repeats: x=mid -> y=OUT", "square: X=IN Y=IN -> XY=mid"]
                }),
            )
    };
    let text = |ensemble: &str, model: &str| {
        format!(
            "in ensemble {ensemble}, step of model '{model}' receives inputs originated from \
             different decoupled models"
        )
    };
    let wrong = [("mixed", "square"), ("two", "square"), ("outer", "square"), ("ends", "ends")];
    let server = Server::lenient(repository());
    for (ensemble, model) in wrong {
        let state = server.state(ensemble);
        assert!(state.contains(&text(ensemble, model)), "{ensemble} is {state}");
    }
    assert_eq!(server.state("good"), "READY");
    let on_disk = repository();
    let folder = on_disk.models().display().to_string();
    let ended = troupe(&["check", &folder]);
    assert_ne!(ended.code, Some(0));
    for (ensemble, model) in wrong {
        assert!(ended.output.contains(&text(ensemble, model)), "{}", ended.output);
    }
    assert!(!ended.output.contains("in ensemble good"), "{}", ended.output);
}

#[test]
fn a_limited_ensemble_serves_request_after_request() {
    let values: Vec<f32> = (0..16).map(|it| it as f32).collect();
    let mut expected: Vec<String> = values.iter().map(|it| (it * it).to_string()).collect();
    expected.push(".".to_owned());
    for _ in 0..10 {
        assert_eq!(stream(&SERVER, "limited", &values), expected);
    }
    at_once(8, |_| assert_eq!(stream(&SERVER, "limited", &values), expected));
    for step in ["step=\"0\"", "step=\"1\""] {
        let labels = ["ensemble=\"limited\"", step];
        let value = |name: &str| SERVER.metric(&format!("troupe_ensemble_step_{name}"), &labels);
        assert_eq!(value("in_flight"), Some(0.0));
        // A decoupled step counts its requests, not its responses.
        let requests = if step.contains('0') { 18.0 } else { 18.0 * 16.0 };
        assert_eq!(value("duration_seconds_count"), Some(requests));
    }
    assert_eq!((SERVER.successes("limited"), SERVER.executions("limited")), (18, 18));
}

#[test]
fn statistics_count_requests() {
    let steps = [CHAIN[0], CHAIN[1]];
    let server = Server::start(
        Repository::new()
            .with("repeats", repeats())
            .with("square", square())
            .with("e", ensemble(ENSEMBLE, &steps)),
    );
    assert_eq!(stream(&server, "e", &[1.0, 2.0, 3.0]).len(), 4);
    let stats = |model: &str| -> [Value; 3] {
        let stats = server.stats(model);
        let success = stats["inference_stats"]["success"]["count"].clone();
        [success, stats["inference_count"].clone(), stats["execution_count"].clone()]
    };
    assert_eq!(stats("e"), [1, 1, 1]);
    assert_eq!(stats("repeats"), [1, 1, 1]);
    assert_eq!(stats("square"), [3, 3, 3]);
    let spent = &server.stats("e")["inference_stats"];
    assert!(spent["compute_infer"]["ns"].as_u64().unwrap() > 0, "{spent}");
}
