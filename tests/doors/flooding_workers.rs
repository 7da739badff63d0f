//! A Python model that has taken over its worker sends without end: it is stopped, and the server keeps
//! its memory and its descriptors.

use std::io::Read;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;

use crate::{
    decoupled::models::decoupled,
    support::{Repository, Server, http::floats, models::python, native, process, until},
};

/// What it floods the server with is `x[0]`; 0 is answered as it should be.
const FLOODS: &str = r#"
import struct


class TritonPythonModel:
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy()
        worker = pb_utils._requests.worker
        self.control, self.passing = worker.frames.control, worker.segments.passing
        self.group = struct.pack("<II", *worker.group)
        case = int(x[0])
        while case:
            self.control.sendall(FLOODS[case - 1](self))
        sender = requests[0].get_response_sender()
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]), 1)

    def segment(self):
        fd = os.memfd_create("mine", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 4096)
        self.passing.sendmsg([b"s"], [(1, 1, struct.pack("i", fd))])
        os.close(fd)
        self.number = getattr(self, "number", 0) + 1
        return frame(b"N", struct.pack("<QQ", self.number, 4096))


def frame(kind, body):
    body += b" " * (-len(body) % 8)
    return struct.pack("<Ic3x", 8 + len(body), kind) + body


CALL = struct.pack("<Q", 7)
FAMILY = b'{"do":"family","name":"n","description":"' + b"d" * 4000 + b'","kind":1}'
FLOODS = [
    # Whether the request is cancelled, what a metric is, whether a model is ready.
    lambda it: frame(b"C", CALL + it.group + bytes(8)) * 1000,
    lambda it: frame(b"M", CALL + b'{"do":"value","metric":1}') * 1000,
    lambda it: frame(b"U", CALL + struct.pack("<QQQQ", 3, 0, 1, 5) + b"other\0\0\0") * 1000,
    lambda it: it.segment(),
    # Responses without outputs.
    lambda it: frame(b"P", it.group + struct.pack("<IIQQ", 0, 2, 0, 0)) * 1000,
    lambda it: frame(b"M", CALL + FAMILY) * 100,
]
"#;

/// More than what is kept of all floods at once.
const MAX_GROWTH_MIB: u64 = 200;

fn serve() -> Server {
    let signature = "x:FP32[1] -> y:FP32[1]";
    let models = [
        ("floods", decoupled(python(signature, FLOODS))),
        ("other", native("identity", signature)),
    ];
    Server::lenient(Repository::of(models))
}

/// Both models answer, the one that floods once its worker is there again.
fn answers(server: &Server) {
    let is_there = || {
        let request = json!({"x": 0.0});
        server.http.post("/v2/models/floods/generate", &request).status == 200
    };
    until("the worker to be there again", is_there);
    let answer = server.infer("other", &floats(&[("x", &[1.0])]));
    assert_eq!(answer.numbers("y"), [1.0]);
}

/// Once it has stopped, everything is as it was.
fn is_over(server: &Server, before_mib: u64) {
    answers(server);
    let now = process::resident_mib(server.pid);
    assert!(now < before_mib + MAX_GROWTH_MIB, "{before_mib} MiB have become {now} MiB");
    server.is_well();
}

fn check(flood: f32, expected: &str) {
    let server = serve();
    answers(&server);
    // So that they are scarce soon.
    let limit = Rlimit { current: Some(1024), maximum: Some(1024) };
    prlimit(Pid::from_raw(server.pid as i32), Resource::Nofile, limit).unwrap();
    let before = process::resident_mib(server.pid);
    let answer = server.http.post("/v2/models/floods/generate", json!({"x": flood}));
    assert!(answer.text().contains(expected), "{flood}: {}", answer.text());
    is_over(&server, before);
    let descriptors = process::descriptors(server.pid).len();
    assert!(descriptors < 200, "{descriptors} descriptors are open");
}

#[test]
fn questions_whose_answers_are_not_read_end_their_worker() {
    check(1.0, "it sent 65537 questions and read no answer");
    check(2.0, "it sent 65537 questions and read no answer");
}

#[test]
fn calls_of_the_repository_are_bounded() {
    check(3.0, "it sent more than 10000 calls of the repository at once");
}

#[test]
fn segments_of_a_worker_leave_descriptors_to_others() {
    check(4.0, "it sent more than 256 segments");
}

#[test]
fn metrics_of_a_worker_are_bounded() {
    // They are answered with an error, and the answers are not read.
    check(6.0, "it sent 65537 questions and read no answer");
}

#[test]
fn a_worker_is_never_far_ahead_of_a_client_that_does_not_read() {
    let server = serve();
    answers(&server);
    let before = process::resident_mib(server.pid);
    let stream = server.http.start_at("/v2/models/floods/generate_stream", &json!({"x": 5.0}));
    server.logged("it sent 16384 responses ahead of the client of one request");
    is_over(&server, before);
    // What it was sent is read, and then the error.
    let mut all = String::new();
    (&stream).take(64 << 20).read_to_string(&mut all).unwrap();
    assert!(all.contains("it sent 16384 responses ahead"), "{}", &all[all.len().min(500)..]);
}
