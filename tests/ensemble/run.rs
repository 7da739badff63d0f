//! Ensembles at run time: what steps receive, what fails, clients that leave.

use std::{fs, sync::LazyLock};

use serde_json::{Value, json};
use tonic::Code;

use crate::support::{
    Model, Repository, Server, at_once, ensemble,
    gate::Gate,
    grpc::{self, Grpc},
    http::{self, floats, input},
    models::execute,
    native, until,
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

/// A Python model that answers with an error of the code it is sent.
fn failing() -> Model {
    execute(
        "x:INT32[1] -> y:INT32[1]",
        "
        code = int(pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()[0])
        names = 'UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED'.split()
        names += ['ALREADY_EXISTS', 'CANCELLED']
        error = pb_utils.TritonError('no luck', getattr(pb_utils.TritonError, names[code]))
        return [pb_utils.InferenceResponse(error=error)]",
    )
}

/// Two Python models that meet: each answers only while the other runs too.
fn meeting(repository: Repository) -> Repository {
    let here = repository.beside("here").display().to_string();
    let there = repository.beside("there").display().to_string();
    let model = |mine: &str, theirs: &str| {
        execute(
            FLOATS,
            &format!(
                "
                for path in ('{mine}', '{theirs}'):
                    try:
                        os.mkfifo(path)
                    except FileExistsError:
                        pass
                order = ['{mine}', '{theirs}']
                for path in sorted(order):
                    with open(path, 'w' if path == order[0] else 'r'):
                        pass
                x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
                return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]"
            ),
        )
    };
    let (left, right) = (model(&here, &there), model(&there, &here));
    repository.with("left", left).with("right", right)
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let steps = ["failing: x=CODE -> y=Z"];
    let signature = "A:FP32[-1] CODE:INT32[1] -> Z:INT32[1] B:FP32[-1]";
    Server::start(
        meeting(Repository::new())
            .with("id", native("identity", FLOATS))
            .with("failing", failing())
            .with("fixed", native("identity", "x:FP32[4] -> y:FP32[4]"))
            .with("e", ensemble(signature, &["id: x=A -> y=B", steps[0]]))
            .with(
                "outer",
                ensemble("A:FP32[-1] CODE:INT32[1] -> Z:INT32[1]", &["e: A=A CODE=CODE -> Z=Z"]),
            )
            .with("wild", ensemble("A:FP32[-1] -> Z:FP32[-1]", &["fixed: x=A -> y=Z"]))
            .with("both", {
                let steps = ["left: x=A -> y=L", "right: x=A -> y=R"];
                ensemble("A:FP32[-1] -> L:FP32[-1] R:FP32[-1]", &steps)
            }),
    )
});

#[test]
fn an_error_says_where_it_happened_and_keeps_its_kind() {
    let mut grpc = Grpc::connect(SERVER.grpc);
    for (code, status, grpc_code) in [
        (0, 400, Code::Unknown),
        (1, 500, Code::Internal),
        (2, 404, Code::NotFound),
        (3, 400, Code::InvalidArgument),
        (4, 503, Code::Unavailable),
        (5, 501, Code::Unimplemented),
        (6, 400, Code::AlreadyExists),
        (7, 400, Code::Cancelled),
    ] {
        let request = json!({"inputs": [
            input("A", "FP32", &[1], vec![1.0]),
            input("CODE", "INT32", &[1], vec![code]),
        ]});
        let inner =
            "in ensemble 'e', step 1 (model 'failing' version 1, instance 'failing_0'): no luck";
        let answer = SERVER.infer("e", &request);
        assert_eq!((answer.status, answer.error().as_str()), (status, inner));
        let outer = format!("in ensemble 'outer', step 0 (model 'e' version 1): {inner}");
        let answer = SERVER.infer("outer", &request);
        assert_eq!((answer.status, answer.error()), (status, outer.clone()));
        let mut request = grpc::floats("outer", &[("A", &[1.0]), ("CODE", &[0.0])]);
        request.inputs[1].datatype = "INT32".to_owned();
        request.raw_input_contents[1] = i32::to_le_bytes(code).to_vec().into();
        let error = grpc.infer(request).unwrap_err();
        assert_eq!((error.code(), error.message()), (grpc_code, outer.as_str()));
    }
}

#[test]
fn a_shape_that_only_a_step_refuses_is_the_steps_error() {
    let answer = SERVER.infer("wild", &floats(&[("A", &[1.0, 2.0])]));
    answer.refuses(400, "in ensemble 'wild', step 0 (model 'fixed' version 1): ");
    answer.refuses(400, "unexpected shape for input 'x' for model 'fixed'. Expected [4], got [2].");
}

#[test]
fn branches_run_at_the_same_time() {
    let answer = SERVER.infer("both", &floats(&[("A", &[3.0])]));
    assert_eq!((answer.numbers("L"), answer.numbers("R")), (vec![3.0], vec![3.0]));
}

#[test]
fn every_step_is_told_what_the_client_said() {
    let echo = execute(
        "x:BYTES[-1] -> y:BYTES[1] unasked:BYTES[1]",
        "
        it = requests[0]
        said = json.dumps({
            'id': it.request_id(),
            'parameters': json.loads(it.parameters()),
            'outputs': it.requested_output_names(),
            'correlation': it.correlation_id(),
            'flags': it.flags(),
            'timeout': it.timeout(),
            'priority': it.priority(),
            'model': it.model_name(),
            'version': it.model_version(),
        })
        y = pb_utils.Tensor('y', np.array([said.encode()], dtype=object))
        return [pb_utils.InferenceResponse([y])]",
    );
    let server = Server::start(Repository::of([("first", echo.clone()), ("second", echo)]).with(
        "e",
        ensemble(
            "A:BYTES[-1] -> ONE:BYTES[1] TWO:BYTES[1]",
            &["first: x=A -> y=ONE", "second: x=ONE -> y=TWO"],
        ),
    ));
    let request = json!({
        "id": "seven",
        "parameters": {"word": "hello", "number": 5, "yes": true, "half": 0.5, "priority": 2,
                       "timeout": 60_000_000, "sequence_id": 9, "sequence_start": true},
        "inputs": [input("A", "BYTES", &[1], vec!["a"])],
    });
    let answer = server.infer("e", &request);
    assert_eq!(answer.ok().json()["id"], "seven");
    for (output, model) in [("ONE", "first"), ("TWO", "second")] {
        let said = answer.output(output)[0].as_str().unwrap().to_owned();
        let said: Value = serde_json::from_str(&said).unwrap();
        let parameters = json!({"word": "hello", "number": 5, "yes": true, "half": 0.5});
        for (key, value) in parameters.as_object().unwrap() {
            assert_eq!(said["parameters"][key], *value, "{said}");
        }
        let expected = json!({"id": "seven", "outputs": ["y"], "correlation": 9, "flags": 1,
                              "timeout": 60_000_000, "priority": 2, "model": model, "version": 1});
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(said[key], *value, "{key} in {said}");
        }
    }
}

#[test]
fn a_failing_branch_answers_at_once_and_its_siblings_go_no_further() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let server = Server::start(
        repository
            .with("slow", gate.model("FP32[-1]"))
            .with("behind", native("identity", FLOATS))
            .with("failing", failing())
            .with("e", {
                let signature = "A:FP32[-1] CODE:INT32[1] -> Z:INT32[1] B:FP32[-1]";
                ensemble(
                    signature,
                    &["slow: x=A -> y=m", "behind: x=m -> y=B", "failing: x=CODE -> y=Z"],
                )
            })
            .with("chain", {
                let steps = ["slow: x=A -> y=m", "behind: x=m -> y=B"];
                ensemble("A:FP32[-1] -> B:FP32[-1]", &steps)
            }),
    );
    let request = json!({"inputs": [
        input("A", "FP32", &[1], vec![1.0]),
        input("CODE", "INT32", &[1], vec![3]),
    ]});
    // The gate is closed: an answer that waited for the other branch would never come.
    let text = "step 2 (model 'failing' version 1, instance 'failing_0'): no luck";
    server.infer("e", &request).refuses(400, text);
    gate.let_through(2);
    server.infer("chain", &floats(&[("A", &[1.0])])).ok();
    assert_eq!(server.executions("behind"), 1);
    assert_eq!(server.stats("e")["inference_stats"]["fail"]["count"], 1);
    server.is_well();
}

#[test]
fn steps_that_have_not_started_do_not_when_the_client_has_gone() {
    let repository = Repository::new();
    let started = repository.beside("started");
    let waits = execute(
        FLOATS,
        &format!(
            "
            open('{}', 'w').close()
            pause = __import__('threading').Event()
            while not requests[0].is_cancelled():
                pause.wait(0.001)
            x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
            return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]",
            started.display()
        ),
    );
    let server = Server::start(
        repository
            .with("waits", waits)
            .with("behind", native("identity", FLOATS))
            .with("straight", ensemble("A:FP32[-1] -> Z:FP32[-1]", &["behind: x=A -> y=Z"]))
            .with("e", {
                let steps = ["waits: x=A -> y=m", "behind: x=m -> y=Z"];
                ensemble("A:FP32[-1] -> Z:FP32[-1]", &steps)
            }),
    );
    let request = floats(&[("A", &[1.0])]);
    let has_started = || started.exists();

    let connection = server.http.start("e", &request);
    until("the step to start", has_started);
    drop(connection);
    until("the step to see that nobody waits", || server.executions("waits") == 1);
    server.infer("straight", &request).ok();
    assert_eq!(server.executions("behind"), 1);

    fs::remove_file(&started).unwrap();
    let mut grpc = Grpc::connect(server.grpc);
    grpc.run(async |client| {
        let call = client.model_infer(grpc::floats("e", &[("A", &[1.0])]));
        let start = async {
            while !has_started() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            answer = call => panic!("the step waits, but got {answer:?}"),
            () = start => (),
        }
    });
    drop(grpc);
    until("the step to see that nobody waits", || server.executions("waits") == 2);
    server.infer("straight", &request).ok();
    assert_eq!(server.executions("behind"), 2);
    server.is_well();
}

#[test]
fn a_request_in_flight_keeps_the_models_it_started_with() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let server = Server::with(
        repository
            .with("slow", gate.model("FP32[-1]"))
            .with("behind", native("identity", FLOATS))
            .with("e", {
                let steps = ["slow: x=A -> y=m", "behind: x=m -> y=Z"];
                ensemble("A:FP32[-1] -> Z:FP32[-1]", &steps)
            }),
        &["--model-control-mode=explicit", "--load-model=e"],
    );
    let request = floats(&[("A", &[4.0])]);
    let connection = server.http.start("e", &request);
    gate.is_reached();
    for model in ["behind", "slow", "e"] {
        server.unload(model).ok();
    }
    server.infer("e", &request).refuses(404, "Request for unknown model: 'e'");
    gate.let_through(1);
    assert_eq!(http::finish(connection).numbers("Z"), [4.0]);
    server.is_well();
}

#[test]
fn metrics_tell_the_steps_of_an_ensemble_apart() {
    let server = Server::start(
        Repository::of([("id", native("identity", FLOATS))])
            .with("e", ensemble("A:FP32[-1] -> Z:FP32[-1]", &["id: x=A -> y=m", "id: x=m -> y=Z"])),
    );
    for _ in 0..3 {
        server.infer("e", &floats(&[("A", &[1.0])])).ok();
    }
    for step in ["step=\"0\"", "step=\"1\""] {
        let labels = ["ensemble=\"e\"", "model=\"id\"", step];
        let count = server.metric("troupe_ensemble_step_duration_seconds_count", &labels);
        assert_eq!(count, Some(3.0), "{step} of\n{}", server.metrics.get("/metrics").text());
        assert_eq!(server.metric("troupe_ensemble_step_in_flight", &labels), Some(0.0));
    }
    for (model, count) in [("e", 3.0), ("id", 6.0)] {
        let label = format!("model=\"{model}\"");
        for name in ["nv_inference_request_success", "nv_inference_count"] {
            assert_eq!(server.metric(name, &[&label]), Some(count), "{name} of {model}");
        }
    }
}

#[test]
fn a_window_of_requests_in_flight_opens_again_whatever_comes() {
    let steps = ["id: x=A -> y=m", "fails_on_0: x=m -> y=Z"];
    let fails = execute(
        FLOATS,
        "
        x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
        if not x.any():
            raise ValueError('zero')
        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]",
    );
    let mut limited = ensemble("A:FP32[-1] -> Z:FP32[-1]", &steps);
    limited.config = limited
        .config
        .replace("ensemble_scheduling {", "ensemble_scheduling { max_inflight_requests: 1");
    let server = Server::start(
        Repository::of([("id", native("identity", FLOATS)), ("fails_on_0", fails)])
            .with("e", limited),
    );
    at_once(8, |caller| {
        for turn in 0..10 {
            let value = ((caller + turn) % 3) as f32;
            let answer = server.infer("e", &floats(&[("A", &[value])]));
            if value == 0.0 {
                let step = "step 1 (model 'fails_on_0' version 1, instance 'fails_on_0_0'): ";
                answer.refuses(500, &format!("in ensemble 'e', {step}"));
            } else {
                assert_eq!(answer.numbers("Z"), [f64::from(value)]);
            }
        }
    });
    for step in ["step=\"0\"", "step=\"1\""] {
        assert_eq!(server.metric("troupe_ensemble_step_in_flight", &[step]), Some(0.0));
    }
    server.is_well();
}
