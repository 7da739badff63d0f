//! What the log says of models that fail: who, for which request, and where in the user's file.

use serde_json::json;

use crate::support::{
    Repository, Server,
    http::floats,
    models::{execute, python},
    until,
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

#[test]
fn an_exception_of_execute_is_one_line_with_the_request_and_the_frames_of_the_users_file() {
    let model = execute(
        FLOATS,
        "
        def deep(it):
            raise KeyError('no such key')
        deep(requests)",
    );
    let coroutine = python(
        FLOATS,
        "
        class TritonPythonModel:
            async def execute(self, requests):
                raise ValueError('later')",
    );
    let server = Server::start(Repository::of([("m", model), ("later", coroutine)]));
    let mut request = floats(&[("x", &[1.0])]);
    request["id"] = json!("seven");
    assert_eq!(server.infer("m", &request).status, 500);
    let line = server.logged("KeyError");
    assert!(line.starts_with('E'), "{line}");
    for told in [
        "execution failed: KeyError: 'no such key', at ",
        "/m/1/model.py(13): deep, called at ",
        "/m/1/model.py(14): execute\"",
        " model=m version=1 instance=m_0 requests=1 request_id=seven",
    ] {
        assert!(line.contains(told), "no {told} in\n{line}");
    }
    assert_eq!(server.infer("later", &floats(&[("x", &[1.0])])).status, 500);
    let line = server.logged("ValueError: later");
    assert!(
        line.contains("later/1/model.py(12): execute") && !line.contains("request_id"),
        "{line}"
    );
    // One line each.
    assert_eq!(server.log().matches("KeyError").count(), 1, "{}", server.log());
    server.is_well();
}

#[test]
fn a_model_that_always_fails_logs_ten_lines_and_then_how_many_more() {
    let server =
        Server::explicit(Repository::of([("m", execute(FLOATS, "raise ValueError('again')"))]));
    assert_eq!(server.load("m").status, 200);
    for _ in 0..25 {
        assert_eq!(server.infer("m", &floats(&[("x", &[1.0])])).status, 500);
    }
    assert_eq!(server.unload("m").status, 200);
    // A machine that is very slow may begin another ten.
    let line = server.logged("more executions failed and were not logged");
    assert!(line.starts_with('E') && line.contains("model=m"), "{line}");
    assert!(server.log().matches("ValueError: again").count() <= 20, "{}", server.log());
}

#[test]
fn an_answer_that_is_not_what_the_config_promises_is_a_line() {
    let body = "return [pb_utils.InferenceResponse([pb_utils.Tensor('y', np.zeros(1, np.int32))])]";
    let server = Server::start(Repository::of([("m", execute(FLOATS, body))]));
    assert_eq!(server.infer("m", &floats(&[("x", &[1.0])])).status, 500);
    let line = server.logged("execution failed: ");
    assert!(line.contains("'INT32', expected 'FP32'") && line.contains("instance=m_0"), "{line}");
}

#[test]
fn an_error_that_a_model_answers_on_purpose_is_no_line() {
    let body = "return [pb_utils.InferenceResponse(error=pb_utils.TritonError('on purpose'))]";
    let server = Server::start(Repository::of([("m", execute(FLOATS, body))]));
    assert_eq!(server.infer("m", &floats(&[("x", &[1.0])])).status, 500);
    assert!(!server.log().contains("on purpose"), "{}", server.log());
}

#[test]
fn exceptions_of_threads_and_of_finalize_are_a_line_each() {
    let model = python(
        FLOATS,
        "
        import threading


        def fails():
            raise ValueError('in a thread')


        class TritonPythonModel:
            def execute(self, requests):
                thread = threading.Thread(target=fails, name='helper')
                thread.start()
                thread.join()
                return [pb_utils.InferenceResponse([
                    pb_utils.Tensor('y', pb_utils.get_input_tensor_by_name(it, 'x').as_numpy())
                ]) for it in requests]

            def finalize(self):
                raise OSError('at the end')",
    );
    let server = Server::explicit(Repository::of([("m", model)]));
    assert_eq!(server.load("m").status, 200);
    assert_eq!(server.infer("m", &floats(&[("x", &[1.0])])).status, 200);
    let line = server.logged("in a thread");
    assert!(line.starts_with('E'), "{line}");
    assert!(line.contains("thread 'helper' raised ValueError: in a thread, at "), "{line}");
    assert!(line.contains("/m/1/model.py(14): fails\""), "{line}");
    assert!(!line.contains("threading.py"), "{line}");
    server.unload("m");
    until("the end of the worker in the log", || server.log().contains("at the end"));
    let line = server.logged("at the end");
    assert!(
        line.starts_with('E') && line.contains("`finalize` raised OSError: at the end"),
        "{line}"
    );
    assert!(!server.log().contains("Traceback"), "{}", server.log());
}

#[test]
fn a_worker_that_is_killed_has_a_reason_of_its_own_in_the_metrics() {
    let deadly = execute(FLOATS, "os.kill(os.getpid(), 9)");
    let server = Server::start(Repository::of([("m", deadly)]));
    assert_eq!(server.infer("m", &floats(&[("x", &[1.0])])).status, 503);
    let failures = |reason: &str| {
        let labels = ["model=\"m\"", &format!("reason=\"{reason}\"")];
        server.metric("nv_inference_request_failure", &labels)
    };
    let expected = [Some(1.0), Some(0.0), Some(0.0)];
    assert_eq!(["CRASHED", "REJECTED", "BACKEND"].map(failures), expected);
}

#[test]
fn outputs_that_are_left_out_or_named_otherwise_are_told_once_and_counted() {
    let signature = "x:FP32[-1] -> y:FP32[-1] score:FP32[-1]";
    let model = execute(
        signature,
        "
        x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
        tensors = [pb_utils.Tensor('y', x), pb_utils.Tensor('scores', x)]
        return [pb_utils.InferenceResponse(tensors)]",
    );
    let server = Server::start(Repository::of([("m", model)]));
    let request = floats(&[("x", &[1.0])]);
    for _ in 0..3 {
        let answer = server.infer("m", &request).ok().json();
        assert_eq!(answer["outputs"].as_array().unwrap().len(), 1, "{answer}");
    }
    // One who does not ask for it misses nothing.
    let mut only = request.clone();
    only["outputs"] = json!([{"name": "y"}]);
    server.infer("m", &only).ok();
    let line = server.logged("a response lacks output 'score'");
    assert!(line.starts_with('W') && line.contains("model=m version=1 instance=m_0"), "{line}");
    let line = server.logged("the model returned output 'scores'");
    assert!(line.starts_with('W') && line.contains("its config has 'y', 'score'"), "{line}");
    let log = server.log();
    assert_eq!(log.matches("lacks output").count() + log.matches("returned output").count(), 2);
    let missing = server.metric("troupe_missing_outputs_total", &["model=\"m\""]);
    assert_eq!(missing, Some(3.0));
}

#[test]
fn response_senders_that_answer_wrongly_or_not_at_all_are_a_line() {
    let with = |body: &str| {
        execute(
            FLOATS,
            &format!(
                "
        sender = requests[0].get_response_sender()
        y = pb_utils.Tensor('y', np.zeros(1, np.int32))
        {body}
        return [None]"
            ),
        )
    };
    let server = Server::start(Repository::of([
        ("empty", with("sender.send(pb_utils.InferenceResponse([]), 1)")),
        ("wrong", with("sender.send(pb_utils.InferenceResponse([y]), 1)")),
        ("dropped", with("sender = None")),
    ]));
    let request = floats(&[("x", &[1.0])]);
    // As from Triton.
    assert_eq!(server.infer("empty", &request).ok().json()["outputs"], json!([]));
    let line = server.logged("a response lacks output 'y'");
    assert!(line.starts_with('W') && line.contains("model=empty"), "{line}");
    let missing = server.metric("troupe_missing_outputs_total", &["model=\"empty\""]);
    assert_eq!(missing, Some(1.0));
    for (model, text) in [
        ("wrong", "has data-type 'INT32', expected 'FP32'"),
        ("dropped", "The response sender of the request was dropped without a response."),
    ] {
        server.infer(model, &request).refuses(500, text);
        let line = server.logged(text);
        assert!(line.starts_with('E') && line.contains(&format!("model={model} ")), "{line}");
    }
}

#[test]
fn frames_are_on_the_line_of_loads_checks_and_calls_too() {
    let fails = |method: &str| {
        python(
            FLOATS,
            &format!(
                "
        class TritonPythonModel:
            def {method}:
                raise KeyError('no such key')

            def execute(self, requests):
                pass"
            ),
        )
    };
    let caller = execute(
        FLOATS,
        "
        x = pb_utils.Tensor('x', np.zeros(1, np.float32))
        inner = pb_utils.InferenceRequest(model_name='inner', inputs=[x], requested_output_names=['y'])
        raise ValueError(inner.exec().error().message())",
    );
    let server = Server::lenient(Repository::of([
        ("load", fails("initialize(self, args)")),
        ("check", fails("is_ready(self)")),
        ("inner", execute(FLOATS, "raise KeyError('no such key')")),
        ("outer", caller),
    ]));
    assert_eq!(server.http.get("/v2/models/check/ready").status, 400);
    assert_eq!(server.infer("outer", &floats(&[("x", &[1.0])])).status, 500);
    for (told, place) in [
        ("failed to load `load`", "KeyError: 'no such key', at "),
        ("Model 'check_0' is not ready", "KeyError: 'no such key', at "),
        ("execution failed: ValueError", "inner/1/model.py(11): execute, at "),
    ] {
        let line = server.logged(told);
        assert!(line.contains(place) && !line.contains("At:"), "{line}");
    }
}
