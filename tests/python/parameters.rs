//! Parameters of requests and responses through Python models: all types, over HTTP and gRPC, in each direction.

use std::{collections::HashMap, sync::LazyLock};

use serde_json::{Value, json};
use troupe_proto::inference::{
    InferParameter, ModelInferRequest, infer_parameter::ParameterChoice as Choice,
};

use crate::support::{
    Model, Repository, Server,
    grpc::{Grpc, floats},
    http::{self, input},
    models::execute,
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

/// Answers with the parameters it was sent, and with the types Python saw.
const REFLECTS: &str = "
    answers = []
    for it in requests:
        parameters = json.loads(it.parameters())
        types = {f'type_{key}': type(value).__name__ for key, value in parameters.items()}
        parameters = {k: v for k, v in parameters.items() if type(v) is not float}
        x = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
        y = pb_utils.Tensor('y', x)
        answers.append(pb_utils.InferenceResponse([y], parameters={**parameters, **types}))
    return answers";

/// The same, once per element, the last with the end.
const REFLECTS_OFTEN: &str = "
    for it in requests:
        sender = it.get_response_sender()
        values = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
        for index, value in enumerate(values):
            y = pb_utils.Tensor('y', np.array([value], np.float32))
            parameters = {**json.loads(it.parameters()), 'index': index}
            is_last = index + 1 == len(values)
            sender.send(pb_utils.InferenceResponse([y], parameters=parameters), int(is_last))";

/// Makes a response with the parameters that the input is, as Python.
const SETS: &str = "
    code = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()[0].decode()
    try:
        response = pb_utils.InferenceResponse([], parameters=eval(code))
        return [pb_utils.InferenceResponse(
            [pb_utils.Tensor('y', np.array([response.parameters()], dtype=np.object_))],
            parameters=json.loads(response.parameters()),
        )]
    except pb_utils.TritonModelException as error:
        error = pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG)
        return [pb_utils.InferenceResponse(error=error)]";

fn decoupled(model: Model) -> Model {
    model.with("model_transaction_policy { decoupled: true }")
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let repository = Repository::new()
        .with("reflects", execute(FLOATS, REFLECTS))
        .with("reflects_often", decoupled(execute(FLOATS, REFLECTS_OFTEN)))
        .with("sets", execute("x:BYTES[1] -> y:BYTES[1]", SETS));
    Server::start(repository)
});

fn all() -> Vec<(&'static str, Choice)> {
    vec![
        ("yes", Choice::BoolParam(true)),
        ("no", Choice::BoolParam(false)),
        ("zero", Choice::Int64Param(0)),
        ("least", Choice::Int64Param(i64::MIN)),
        ("most", Choice::Int64Param(i64::MAX)),
        ("text", Choice::StringParam("h\u{e9}\n\"\\ \u{1f600}".into())),
        ("empty", Choice::StringParam(String::new())),
        // Beyond what an `int64_param` holds.
        ("unsigned", Choice::Uint64Param(u64::MAX)),
    ]
}

fn map(parameters: &[(&str, Choice)]) -> HashMap<String, InferParameter> {
    let value = |it: &Choice| InferParameter { parameter_choice: Some(it.clone()) };
    parameters.iter().map(|(name, it)| ((*name).to_owned(), value(it))).collect()
}

fn ask(model: &str, values: &[f32], parameters: &[(&str, Choice)]) -> ModelInferRequest {
    ModelInferRequest { parameters: map(parameters), ..floats(model, &[("x", values)]) }
}

#[test]
fn every_type_goes_over_grpc_and_back() {
    let sent = [&all()[..], &[("half", Choice::DoubleParam(0.5))]].concat();
    let answer = Grpc::connect(SERVER.grpc).infer(ask("reflects", &[1.0], &sent)).unwrap();
    let mut expected = all();
    for (name, kind) in [
        ("type_yes", "bool"),
        ("type_no", "bool"),
        ("type_zero", "int"),
        ("type_least", "int"),
        ("type_most", "int"),
        ("type_text", "str"),
        ("type_empty", "str"),
        ("type_unsigned", "int"),
        ("type_half", "float"),
    ] {
        expected.push((name, Choice::StringParam(kind.into())));
    }
    assert_eq!(answer.parameters, map(&expected));
}

#[test]
fn every_type_goes_over_http_and_back() {
    let parameters = json!({
        "yes": true, "no": false, "zero": 0, "least": i64::MIN, "most": i64::MAX,
        "text": "h\u{e9}\n\"\\ \u{1f600}", "empty": "", "unsigned": u64::MAX,
    });
    let mut request = http::floats(&[("x", &[1.0])]);
    request["parameters"] = parameters.clone();
    request["parameters"]["half"] = json!(0.5);
    let mut got = SERVER.infer("reflects", &request).ok().json()["parameters"].take();
    let got = got.as_object_mut().unwrap();
    assert_eq!(got.remove("type_half"), Some(json!("float")));
    got.retain(|key, _| !key.starts_with("type_"));
    assert_eq!(Value::Object(got.clone()), parameters);
}

#[test]
fn streams_and_parts_carry_them_too() {
    let mut grpc = Grpc::connect(SERVER.grpc);
    let requests = vec![ask("reflects_often", &[1.0, 2.0, 3.0], &all())];
    let parts = grpc.stream(requests).unwrap();
    assert_eq!(parts.len(), 3);
    for (index, part) in parts.into_iter().enumerate() {
        let mut expected = all();
        expected.push(("index", Choice::Int64Param(index as i64)));
        expected.push(("triton_final_response", Choice::BoolParam(index == 2)));
        assert_eq!(part.infer_response.unwrap().parameters, map(&expected), "{index}");
    }
    let single = grpc.stream(vec![ask("reflects", &[1.0], &all())]).unwrap();
    let single = single[0].infer_response.as_ref().unwrap();
    for (name, value) in all() {
        assert_eq!(single.parameters[name].parameter_choice, Some(value), "{name}");
    }
}

#[test]
fn what_is_no_parameter_is_told_in_tritons_words() {
    let set = |code: &str| {
        SERVER.infer("sets", &json!({"inputs": [input("x", "BYTES", &[1], vec![code])]}))
    };
    for code in ["None", "{}"] {
        let body = set(code).ok().json();
        assert_eq!(body.get("parameters"), None, "{body}");
    }
    let surrogate = set("{'a': '\\ud800', '\\udfff': 1}").ok().json();
    assert_eq!(surrogate["parameters"], json!({"a": "?", "?": 1}));
    for (code, expected) in [
        ("[]", "Expect dict, got <class 'list'>"),
        ("{1: 'int key'}", "Expect parameters keys to have type str, found type <class 'int'>"),
        (
            "{'int': 2, 'float': 0.5}",
            "Expect parameters values to have type bool/int/str, found type <class 'float'>",
        ),
        (
            "{'bool': True, 'null': None}",
            "Expect parameters values to have type bool/int/str, found type <class 'NoneType'>",
        ),
        (
            "{'str': '', 'list': ['variable']}",
            "Expect parameters values to have type bool/int/str, found type <class 'list'>",
        ),
        (
            "{'nested': {'a': 1}}",
            "Expect parameters values to have type bool/int/str, found type <class 'dict'>",
        ),
        (
            "{'int': 1 << 64}",
            "Expect parameters values of type int between -2^63 and 2^64 - 1, found \
             18446744073709551616",
        ),
    ] {
        set(code).refuses(400, expected);
    }
    SERVER.is_well();
}
