//! Where the time of one request went, in the parameters of its response.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::{Value, json};
use troupe_proto::inference::{InferParameter, infer_parameter::ParameterChoice};

use crate::support::{
    Repository, Server, ensemble,
    grpc::{self, Grpc},
    http::floats,
    models::{delay, execute},
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let inner = ["slow: x=x -> y=MIDDLE", "quick: x=MIDDLE -> y=y"];
    let outer = ["quick: x=x -> y=A", "inner: x=A -> y=B", "calling: x=B -> y=y"];
    let calling = execute(
        FLOATS,
        "
        given = pb_utils.get_input_tensor_by_name(requests[0], 'x')
        asked = pb_utils.InferenceRequest(
            model_name='quick', requested_output_names=['y'], inputs=[given])
        return [pb_utils.InferenceResponse([asked.exec().output_tensors()[0]])]",
    );
    let repository = Repository::new()
        .with("slow", delay(20, FLOATS))
        .with("quick", delay(2, FLOATS))
        .with("inner", ensemble(FLOATS, &inner))
        .with("calling", calling)
        .with("outer", ensemble(FLOATS, &outer));
    Server::start(repository)
});

fn check(times: &BTreeMap<String, u64>) {
    let of = |name: &str| {
        let name = format!("troupe_timing.{name}_us");
        *times.get(&name).unwrap_or_else(|| panic!("no {name} in {times:#?}"))
    };
    assert!(20_000 <= of("1.inner.0.slow.compute_infer"), "{times:#?}");
    assert!(2_000 <= of("0.quick.compute_infer"), "{times:#?}");
    assert!(2_000 <= of("1.inner.1.quick.total"), "{times:#?}");
    // What comes after another begins after it, and lies in what it is part of.
    assert!(of("0.quick.start") + of("0.quick.total") <= of("1.inner.start") + 1);
    assert!(of("1.inner.0.slow.total") + of("1.inner.1.quick.total") <= of("1.inner.total") + 1);
    assert!(of("0.quick.total") + of("1.inner.total") <= of("total"));
    let slow = |what: &str| of(&format!("1.inner.0.slow.{what}"));
    let parts =
        ["queue", "compute_input", "compute_infer", "compute_output"].map(slow).iter().sum::<u64>();
    assert!(parts <= slow("total") + 4 && slow("total") < parts + 5_000, "{times:#?}");
}

#[test]
fn http_tells_the_microseconds_of_every_step() {
    let mut request = floats(&[("x", &[1.0, 2.0])]);
    let plain = SERVER.infer("outer", &request).ok().json();
    assert!(plain.get("parameters").is_none_or(|it| !it.to_string().contains("timing")));
    request["parameters"] = json!({"troupe_timing": true});
    let answer = SERVER.infer("outer", &request).ok().json();
    let told = answer["parameters"].as_object().unwrap().iter();
    check(&told.filter_map(|(name, it)| Some((name.clone(), Value::as_u64(it)?))).collect());
}

#[test]
fn grpc_tells_the_microseconds_of_every_step() {
    let mut request = grpc::floats("outer", &[("x", &[1.0, 2.0])]);
    let yes = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
    request.parameters.insert("troupe_timing".to_owned(), yes);
    let mut client = Grpc::connect(SERVER.grpc);
    let answer = client.infer(request).unwrap();
    let number = |it: InferParameter| match it.parameter_choice {
        Some(ParameterChoice::Uint64Param(number)) => Some(number),
        _ => None,
    };
    let told = answer.parameters.into_iter();
    check(&told.filter_map(|(name, it)| Some((name, number(it)?))).collect());
}

#[test]
fn the_parts_of_a_step_never_exceed_their_whole() {
    let parts = ["queue", "compute_input", "compute_infer", "compute_output"];
    let double = "
        get = pb_utils.get_input_tensor_by_name
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor('y', get(it, 'x').as_numpy() * 2)])
            for it in requests
        ]";
    let repository = Repository::new()
        .with("double", execute(FLOATS, double))
        .with("e", ensemble(FLOATS, &["double: x=x -> y=A", "double: x=A -> y=y"]));
    let server = Server::start(repository);
    let mut request = floats(&[("x", &[1.0, 2.0])]);
    request["parameters"] = json!({"troupe_timing": true});
    for _ in 0..40 {
        let answer = server.infer("e", &request).ok().json();
        for step in 0..2 {
            let of = |part: &str| {
                let name = format!("troupe_timing.{step}.double.{part}_us");
                answer["parameters"][name].as_u64().unwrap()
            };
            assert!(parts.iter().map(|it| of(it)).sum::<u64>() <= of("total"), "{answer}");
        }
    }
}
