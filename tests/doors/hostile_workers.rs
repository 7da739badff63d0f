//! A Python model that has taken over its worker says whatever it likes: only its own request fails.

use crate::support::{
    Repository, Server,
    http::floats,
    models::{native, python},
    until,
};

/// Sends frames as `worker.py` would not. `x[0]` says which; 0 is answered as it should be.
const HOSTILE: &str = r#"
import struct
import tempfile

HEAD = struct.Struct("<Ic3xIIQQQIHBB")
HUGE = (1 << 64) - 1


class TritonPythonModel:
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy()
        case = int(x[0])
        if case:
            worker = pb_utils._requests.worker
            self.control = worker.frames.control
            self.passing = worker.segments.passing
            self.group = worker.group
            CASES[case - 1](self)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])]

    def raw(self, kind, body=b"", size=None):
        self.control.sendall(struct.pack("<Ic3x", size or 8 + len(body), kind) + body)

    def answer(self, body=b"", count=1, held=0, ahead=0):
        sequence, group = self.group
        size = 48 + len(body)
        head = HEAD.pack(size, b"A", sequence + ahead, group, 0, 0, 0, count, held, 0, 0)
        self.control.sendall(head + body)

    def output(self, place, size, tail, index=0, code=11, dims=(1,)):
        head = struct.pack("<BBHI", 0, 0, 1, 0)
        head += struct.pack("<HBBIQ", index, code, len(dims), place, size)
        self.answer(head + b"".join(struct.pack("<q", dim) for dim in dims) + tail)

    def descriptor(self, fd):
        self.passing.sendmsg([b"s"], [(1, 1, struct.pack("i", fd))])

    def segment(self, size, announced, number=1):
        fd = os.memfd_create("mine", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        self.descriptor(fd)
        self.raw(b"N", struct.pack("<QQ", number, announced))


def of_file(it):
    with tempfile.TemporaryFile() as file:
        file.truncate(65536)
        it.descriptor(file.fileno())
        it.raw(b"N", struct.pack("<QQ", 1, 65536))


def in_segment(it, offset, size):
    it.segment(65536, 65536)
    it.output(1, size, struct.pack("<QQ", 1, offset), dims=(size // 4,))


def sparse(it):
    it.segment(1 << 41, 1 << 41)


NOWHERE = struct.pack("<QQ", 1 << 60, 0)
CASES = [
    lambda it: it.output(0, 4, b"\0" * 8, index=0xFFFF),
    lambda it: it.output(1, 1 << 20, NOWHERE),
    lambda it: it.output(2, 1 << 20, NOWHERE),
    lambda it: it.output(3, 1 << 20, NOWHERE),
    lambda it: it.output(77, 1 << 20, NOWHERE),
    lambda it: it.output(0, HUGE, b""),
    lambda it: it.output(0, 4, b"", dims=()),
    lambda it: it.output(0, 4, b"\0" * 8, code=99),
    lambda it: it.output(0, 32, b"\0" * 32, dims=(1 << 62, 8)),
    lambda it: it.output(0, 4, b"\0" * 8, dims=(-1,)),
    lambda it: in_segment(it, 65532, 8),
    lambda it: in_segment(it, HUGE, 8),
    lambda it: in_segment(it, 0, 1 << 40),
    of_file,
    sparse,
    lambda it: it.segment(4096, 1 << 30),
    lambda it: it.raw(b"N", struct.pack("<QQ", 1, 65536)),
    lambda it: (it.segment(4096, 4096), it.segment(4096, 4096)),
    lambda it: it.answer(count=0xFFFFFFFF),
    lambda it: it.answer(held=0xFFFF),
    lambda it: it.answer(b"\1" * 24, ahead=7),
    lambda it: it.raw(b"?"),
    lambda it: it.raw(b"A"),
    lambda it: it.raw(b"A", size=0xFFFFFFF8),
    lambda it: it.raw(b"A", size=12),
    lambda it: it.raw(b"B", b"\xff" * 64),
    lambda it: it.raw(b"M", b"\xff" * 64),
    lambda it: it.raw(b"U", b"\xff" * 64),
    lambda it: it.raw(b"P", b"\xff" * 64),
    lambda it: it.raw(b"L", b"\xff" * 64),
    # What has gone already is let go of once more.
    lambda it: it.raw(b"D", struct.pack("<QQ", 7, HUGE)),
    lambda it: it.raw(b"F", struct.pack("<QQ", 7, HUGE)),
    lambda it: it.raw(b"T", struct.pack("<QQ", 7, HUGE)),
    lambda it: it.raw(b"K", struct.pack("<QQ", 7, 1)),
]
"#;

/// The last four are no mistake that anybody would notice.
const CASES: usize = 34;

#[test]
fn whatever_a_worker_sends_only_its_own_request_fails() {
    let signature = "x:FP32[1] -> y:FP32[1]";
    let server = Server::lenient(Repository::of([
        ("hostile", python(signature, HOSTILE)),
        ("other", native("identity", signature)),
    ]));
    let ask = |model: &str, case: usize| server.infer(model, &floats(&[("x", &[case as f32])]));
    for case in 1..=CASES {
        let answer = ask("hostile", case);
        if answer.status == 200 {
            assert_eq!(answer.numbers("y"), [case as f64], "case {case}");
        }
        for internal in ["memfd", "/dev/shm", "/proc/"] {
            assert!(!answer.text().contains(internal), "case {case}: {}", answer.text());
        }
        assert_eq!(ask("other", case).numbers("y"), [case as f64], "case {case}");
        until("the worker is there again", || ask("hostile", 0).status == 200);
    }
    server.http.get("/v2/health/live").ok();
}

#[test]
fn names_are_never_read_by_a_shell() {
    let source = "
class TritonPythonModel:
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]
";
    let names = [
        ("semi;touch pwned", "semi%3Btouch%20pwned"),
        ("$(touch pwned)", "%24%28touch%20pwned%29"),
        ("`touch pwned`", "%60touch%20pwned%60"),
        ("-rf", "-rf"),
        ("a'b\"c", "a%27b%22c"),
        ("a&&touch pwned|x>pwned", "a%26%26touch%20pwned%7Cx%3Epwned"),
    ];
    let model = |_| python("x:FP32[1] -> y:FP32[1]", source);
    let repository = Repository::of(names.map(|(name, _)| (name, model(name))));
    let folder = repository.models();
    let server = Server::lenient(repository);
    for (name, path) in names {
        let answer = server.infer(path, &floats(&[("x", &[7.0])]));
        // Served or refused, but understood as a name.
        assert!([200, 400, 404].contains(&answer.status), "{name}: {}", answer.text());
        if answer.status == 200 {
            assert_eq!(answer.numbers("y"), [7.0], "{name}");
        }
    }
    for place in [folder.join("pwned"), "pwned".into(), folder.join("../pwned")] {
        assert!(!place.exists(), "{}", place.display());
    }
}
