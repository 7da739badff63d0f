//! Error details: every error of an ensemble says where it happened, in text, JSON and gRPC.

use std::{collections::HashMap, sync::LazyLock};

use serde_json::{Value, json};
use tonic::Code;
use tonic_types::StatusExt;
use troupe_proto::inference::{
    InferParameter, ModelInferRequest, infer_parameter::ParameterChoice,
};

use crate::support::{
    Model, Repository, Server, ensemble,
    grpc::{self, Grpc},
    http::{Answer, floats},
    native, python, until,
};

const FLOATS: &str = "x:FP32[1] -> y:FP32[1]";
const STEPS: usize = 5;

/// Dies as the request's parameters say: `STEP HOW`.
fn mortal(step: usize) -> Model {
    let source = format!(
        "
        import signal

        class TritonPythonModel:
            def execute(self, requests):
                return [self.answer(it) for it in requests]

            def answer(self, request):
                x = pb_utils.get_input_tensor_by_name(request, 'x').as_numpy()
                how = json.loads(request.parameters()).get('kill', '')
                how = how.removeprefix('{step} ') if how.startswith('{step} ') else ''
                if how == 'raise':
                    raise ValueError('no luck')
                if how == 'wrong shape':
                    x = np.zeros([3, 3], np.float32)
                if how == 'wrong dtype':
                    x = x.astype(np.int64)
                if how == 'missing output':
                    return pb_utils.InferenceResponse([])
                if how == 'timeout':
                    while True:
                        pass
                if how == 'SIGKILL':
                    os.kill(os.getpid(), signal.SIGKILL)
                return pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])
        "
    );
    python(FLOATS, &source).parameter("EXECUTE_TIMEOUT_MS", "1000")
}

/// How a step dies, and what is said then: HTTP status, gRPC code, reason, part of the text.
type Death = (&'static str, u16, Code, &'static str, &'static str);

const DEATHS: [Death; 6] = [
    ("raise", 500, Code::Internal, "INTERNAL", "no luck"),
    (
        "wrong shape",
        500,
        Code::Internal,
        "INTERNAL",
        "output 'y' of model 'MODEL' has shape [3,3], expected [1]",
    ),
    (
        "wrong dtype",
        500,
        Code::Internal,
        "INTERNAL",
        "output 'y' of model 'MODEL' has data-type 'INT64', expected 'FP32'",
    ),
    ("missing output", 400, Code::InvalidArgument, "INVALID_ARG", "output 'y' is missing, "),
    (
        "timeout",
        503,
        Code::Unavailable,
        "UNAVAILABLE",
        "execute took longer than the 1000 ms of EXECUTE_TIMEOUT_MS",
    ),
    ("SIGKILL", 503, Code::Unavailable, "UNAVAILABLE", "signal"),
];

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let name = |step: usize| format!("step_{step}");
    let steps: Vec<String> =
        (0..STEPS).map(|step| format!("{}: x=t{step} -> y=t{}", name(step), step + 1)).collect();
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let whole = format!("t0:FP32[1] -> t{STEPS}:FP32[1]");
    let models: Vec<(String, Model)> = (0..STEPS).map(|it| (name(it), mortal(it))).collect();
    let repository = models
        .into_iter()
        .fold(Repository::new(), |repository, (name, model)| repository.with(&name, model));
    let outer = ["id: x=A -> y=a", "five: t0=a -> t5=B"];
    Server::start(
        repository
            .with("five", ensemble(&whole, &steps))
            .with("id", native("identity", FLOATS))
            .with("outer", ensemble("A:FP32[1] -> B:FP32[1]", &outer)),
    )
});

fn over_http(model: &str, id: &str, kill: &str) -> Answer {
    let input = if model == "outer" { "A" } else { "t0" };
    let mut request = floats(&[(input, &[1.0])]);
    request["parameters"] = json!({"kill": kill});
    request["id"] = json!(id);
    SERVER.infer(model, &request)
}

fn over_grpc(id: &str, kill: &str) -> ModelInferRequest {
    let choice = Some(ParameterChoice::StringParam(kill.to_owned()));
    let kill = InferParameter { parameter_choice: choice };
    let mut request = grpc::floats("five", &[("t0", &[1.0])]);
    request.parameters.insert("kill".to_owned(), kill);
    request.id = id.to_owned();
    request
}

/// The text of the error, but for how it goes on.
fn beginning(step: usize, id: &str) -> String {
    format!(
        "in ensemble 'five', step {step} (model 'step_{step}' version 1, instance 'step_{step}_0', \
         request '{id}'): "
    )
}

fn fields(step: usize, id: &str) -> Value {
    let (model, instance) = (format!("step_{step}"), format!("step_{step}_0"));
    let place = json!({"ensemble": "five", "step": step, "model": model, "version": "1"});
    let mut fields = place.clone();
    fields["instance"] = json!(instance);
    fields["request_id"] = json!(id);
    fields["path"] = json!([place]);
    fields
}

#[test]
fn each_of_five_steps_killed_in_six_ways_is_named_over_http_and_grpc() {
    let mut client = Grpc::connect(SERVER.grpc);
    for step in 0..STEPS {
        for (how, status, code, reason, text) in DEATHS {
            let (id, kill) = (format!("{step}-{how}"), format!("{step} {how}"));
            // The last step's output is nobody's input: there is nothing to answer with.
            let is_last = how == "missing output" && step == STEPS - 1;
            let (status, code, reason) =
                if is_last { (500, Code::Internal, "INTERNAL") } else { (status, code, reason) };
            let text = text.replace("MODEL", &format!("step_{step}"));
            let answer = over_http("five", &id, &kill);
            answer.refuses(status, &text);
            assert!(answer.error().starts_with(&beginning(step, &id)), "{}", answer.error());
            assert_eq!(answer.provenance(), fields(step, &id), "{kill}");
            is_there_again();

            let error = client.infer(over_grpc(&id, &kill)).unwrap_err();
            assert_eq!(error.code(), code, "{kill}: {error}");
            assert!(error.message().starts_with(&beginning(step, &id)), "{error}");
            assert!(error.message().contains(&text), "no `{text}` in {error}");
            let details = error.get_details_error_info().expect("the error has details");
            assert_eq!((&*details.domain, &*details.reason), ("troupe", reason), "{kill}");
            let expected = [
                ("ensemble", "five"),
                ("step", &step.to_string()),
                ("model", &format!("step_{step}")),
                ("version", "1"),
                ("instance", &format!("step_{step}_0")),
                ("request_id", &id),
                ("path", &format!("five[{step}]")),
            ];
            let expected = expected.map(|(name, it)| (name.to_owned(), it.to_owned()));
            assert_eq!(details.metadata, HashMap::from(expected), "{kill}");
            is_there_again();
        }
    }
    SERVER.is_well();
}

/// Workers that were ended have successors.
fn is_there_again() {
    until("all steps to answer", || over_http("five", "", "").status == 200);
}

#[test]
fn every_level_of_nested_ensembles_is_told() {
    let answer = over_http("outer", "7", "2 raise");
    answer.refuses(500, "no luck");
    let outer = "in ensemble 'outer', step 1 (model 'five' version 1, request '7'): in ensemble \
                 'five', step 2 (model 'step_2' version 1, instance 'step_2_0'): ";
    assert!(answer.error().starts_with(outer), "{}", answer.error());
    let mut expected = fields(2, "7");
    let place = json!({"ensemble": "outer", "step": 1, "model": "five", "version": "1"});
    expected["path"].as_array_mut().unwrap().insert(0, place);
    assert_eq!(answer.provenance(), expected);
}

#[test]
fn generate_tells_it_too_and_what_is_not_known_is_left_out() {
    let mut expected = fields(0, "");
    expected.as_object_mut().unwrap().remove("request_id");
    let body = json!({"t0": 1.0, "kill": "0 raise"});
    let answer = SERVER.http.post("/v2/models/five/generate", &body);
    answer.refuses(500, "(model 'step_0' version 1, instance 'step_0_0'): ");
    assert_eq!(answer.provenance(), expected);
    let answer = SERVER.http.post("/v2/models/five/generate_stream", &body);
    assert_eq!(answer.status, 500);
    let event = &answer.events()[0];
    assert_eq!(event["troupe"], expected, "{event}");
    // Not an ensemble: nothing but Triton's body.
    let request = floats(&[("x", &[1.0, 2.0])]);
    let body = SERVER.infer("id", &request).json();
    assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
}

#[test]
fn streams_tell_it_in_parameters_or_at_their_end() {
    let mut client = Grpc::connect(SERVER.grpc);
    let answers = client.stream(vec![over_grpc("s", "3 raise"), over_grpc("t", "")]).unwrap();
    let failed = &answers[0];
    assert!(failed.error_message.starts_with(&beginning(3, "s")), "{}", failed.error_message);
    let said = &failed.infer_response.as_ref().unwrap().parameters;
    let text = |name: &str| match &said[name].parameter_choice {
        Some(ParameterChoice::StringParam(text)) => text.clone(),
        other => panic!("{name} is {other:?}"),
    };
    for (name, expected) in [
        ("troupe_ensemble", "five"),
        ("troupe_step", "3"),
        ("troupe_model", "step_3"),
        ("troupe_version", "1"),
        ("troupe_instance", "step_3_0"),
        ("troupe_request_id", "s"),
        ("troupe_path", "five[3]"),
    ] {
        assert_eq!(text(name), expected);
    }
    assert_eq!(answers[1].error_message, "");

    let status = client.call(async |it| {
        let mut request = tonic::Request::new(tokio_stream::iter([over_grpc("s", "3 raise")]));
        request.metadata_mut().insert("triton_grpc_error", "true".parse().unwrap());
        let mut stream = it.model_stream_infer(request).await?.into_inner();
        stream.message().await.map(tonic::Response::new)
    });
    let details = status.unwrap_err().get_details_error_info().expect("the error has details");
    assert_eq!(details.metadata["path"], "five[3]");
}

#[test]
fn an_ensemble_whose_last_step_gives_some_of_its_outputs_answers_with_those() {
    let model = python(
        "x:FP32[1] -> y:FP32[1] z:FP32[1]",
        "
        class TritonPythonModel:
            def execute(self, requests):
                answer = lambda it: pb_utils.InferenceResponse(
                    [pb_utils.Tensor('y', pb_utils.get_input_tensor_by_name(it, 'x').as_numpy())]
                )
                return [answer(it) for it in requests]
        ",
    );
    let server = Server::start(
        Repository::of([("some", model)])
            .with("id", native("identity", FLOATS))
            .with("e", ensemble("A:FP32[1] -> Y:FP32[1] Z:FP32[1]", &["some: x=A -> y=Y z=Z"]))
            .with(
                "f",
                ensemble(
                    "A:FP32[1] -> Y:FP32[1] Z:FP32[1]",
                    &["some: x=A -> y=Y z=a", "id: x=a -> y=Z"],
                ),
            ),
    );
    let request = floats(&[("A", &[1.0])]);
    let answer = server.infer("e", &request);
    assert_eq!((answer.numbers("Y"), answer.outputs()), (vec![1.0], vec!["Y".to_owned()]));
    let answer = server.infer("f", &request);
    answer.refuses(
        400,
        "in ensemble 'f', step 0 (model 'some' version 1, instance 'some_0'): output 'z' is \
         missing, which step 1 (model 'id') needs as input 'x': [request id: <id_unknown>] \
         expected 1 inputs but got 0 inputs for model 'id'",
    );
}
