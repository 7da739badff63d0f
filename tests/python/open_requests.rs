//! Requests in flight whose worker sends garbage, dies, or does not come back.

use crate::support::{
    Model, Repository, Server, at_once,
    grpc::{self, Grpc, floats_of},
    http::floats,
    models::execute,
    process, python, until,
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

/// Answers with the value and then with its tenfold; does something in between, or after the end,
/// when it is sent a 0.
fn decoupled(between: &str, after: &str) -> Model {
    let body = format!(
        "
import struct, sys, threading, troupe_requests
frames = troupe_requests.worker.frames
def send(group, index, flags, body=b''):
    key = (*group, index)
    frames.control.sendall(struct.pack('<Ic3xIIIIQ', 32 + len(body), b'P', *key, flags, 0) + body)
for it in requests:
    x = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
    y = pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])
    sender, group = it.get_response_sender(), it._group
    sender.send(y)
    if not x.any():
        print('famous last words', file=sys.stderr, flush=True)
        {between}
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('y', x * 10)]), 1)
    if not x.any():
        {after}"
    );
    execute(FLOATS, &body).with("model_transaction_policy { decoupled: true }")
}

/// The values and errors that a stream gave.
fn ask(server: &Server, model: &str, x: f32) -> Vec<String> {
    let answers = Grpc::connect(server.grpc).stream(vec![grpc::floats(model, &[("x", &[x])])]);
    let text = |it: troupe_proto::inference::ModelStreamInferResponse| {
        let response = it.infer_response.unwrap_or_default();
        let values = response.raw_output_contents.iter().flat_map(|it| floats_of(it));
        let values = values.map(|it| it.to_string()).collect::<Vec<_>>();
        it.error_message + &values.join(" ")
    };
    answers.unwrap().into_iter().map(text).collect()
}

#[test]
fn nonsense_about_other_requests_harms_nobody() {
    let rows = [
        ("a_second_end", "pass", "send(group, 0, 1)"),
        ("a_response_after_the_end", "pass", "send(group, 0, 2, bytes(8))"),
        ("of_another_frame", "send((4711, 0), 0, 1)", "pass"),
        ("of_another_group", "send((group[0], 99), 0, 1)", "pass"),
        ("of_another_request", "send(group, 99, 3, bytes(8))", "pass"),
        ("credit_for_nothing", "send((4711, 0), 0, 2, bytes(8))", "pass"),
    ];
    let models = rows.map(|(name, between, after)| (name, decoupled(between, after)));
    let server = Server::start(Repository::of(models));
    for (name, ..) in rows {
        for x in [1.0, 0.0, 2.0] {
            let expected = [x, 10.0 * x].map(|it| it.to_string());
            assert_eq!(ask(&server, name, x), expected, "{name}");
        }
    }
    server.is_well();
}

#[test]
fn a_worker_that_ends_ends_its_open_requests() {
    let rows = [
        ("exits", "os._exit(3)", "it exited with status 3; "),
        ("is_killed", "os.kill(os.getpid(), 9)", "it was ended by signal 9 "),
        ("breaks_off", "send(group, 0, 2, bytes(4))", "it sent a frame of 36 bytes"),
        ("ends_early", "send(group, 0, 2)", "it sent a frame that ends too early"),
        (
            "of_no_type",
            "send(group, 0, 2, struct.pack('<BBHIHBBIQ', 0, 0, 1, 0, 0, 99, 0, 0, 0))",
            "it sent element type 99",
        ),
    ];
    let models = rows.map(|(name, between, _)| (name, decoupled(between, "pass")));
    let server = Server::start(Repository::of(models).with("good", decoupled("pass", "pass")));
    for (name, _, text) in rows {
        let answers = at_once(4, |caller| match caller {
            0 => ask(&server, name, 0.0),
            _ => (0..5).flat_map(|_| ask(&server, "good", 2.0)).collect(),
        });
        let [first, error] = &answers[0][..] else { panic!("{name}: {answers:?}") };
        assert_eq!(first, "0", "{name}");
        for expected in [text, "famous last words", "for model instance '", name] {
            assert!(error.contains(expected), "{name}: no `{expected}` in {error}");
        }
        answers[1..].iter().for_each(|it| assert_eq!(it, &["2", "20"].repeat(5)));
        until("a new worker", || ask(&server, name, 1.0) == ["1", "10"]);
    }
    until("the server to be ready", || server.http.get("/v2/health/ready").status == 200);
    server.is_well();
}

/// Does not come back: its second worker never gets ready.
const HANGS: &str = "
    import threading

    class TritonPythonModel:
        def initialize(self, args):
            marker = os.path.join(args['model_repository'], 'once')
            if os.path.exists(marker):
                open(marker + '_more', 'w').close()
                threading.Event().wait()
            open(marker, 'w').close()

        def execute(self, requests):
            os._exit(3)";

#[test]
fn a_worker_that_hangs_while_it_comes_back_goes_with_its_model() {
    for parameter in ["false", "true"] {
        let model = python(FLOATS, HANGS).parameter("PRELOAD", parameter);
        let repository = Repository::of([("hangs", model)]);
        let flags = ["--model-control-mode=explicit", "--load-model=*"];
        let server = Server::with(repository, &flags);
        server.infer("hangs", &floats(&[("x", &[1.0])])).refuses(503, "status 3; ");
        let second = server.repository.models().join("hangs/once_more");
        until("the second worker", || second.exists());
        assert_eq!(server.http.get("/v2/models/hangs/ready").status, 400);
        server.unload("hangs").ok();
        until("the second worker to end", || process::descendants(server.pid).len() <= 1);
        assert_eq!(server.http.get("/v2/health/live").status, 200);
    }
}

/// Each instance executes a request three times before it answers.
const AGAIN: &str = "
    class TritonPythonModel:
        def initialize(self, args):
            self.turn = 0

        def execute(self, requests):
            self.turn += 1
            if self.turn % 3:
                for it in requests:
                    it.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return [None for _ in requests]
            xs = [pb_utils.get_input_tensor_by_name(it, 'x').as_numpy() for it in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)]) for x in xs]";

#[test]
fn a_request_that_is_queued_anew_keeps_its_place_in_the_order_of_answers() {
    let model = python(FLOATS, AGAIN).with("instance_group { count: 2 }");
    let server = Server::start(Repository::of([(
        "again",
        model.with("dynamic_batching { preserve_ordering: true }"),
    )]));
    for answers in (0..5).map(|_| at_once(8, |_| server.infer("again", &floats(&[("x", &[3.0])]))))
    {
        answers.iter().for_each(|it| assert_eq!(it.ok().numbers("y"), [3.0]));
    }
    server.is_well();
}
