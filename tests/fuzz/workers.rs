//! What a Python model that has taken over its worker writes to its sockets: frames with mistakes,
//! descriptors of whatever it has.

use troupe_proto::inference::{ModelInferRequest, model_infer_request::InferInputTensor};

use super::{
    attempts::{attacked, fuzz_server},
    mutate::{Corpus, Random},
};
use crate::{
    decoupled::models::decoupled,
    support::{
        Repository, Server,
        grpc::Grpc,
        http::floats,
        models::{native, python},
        until,
    },
};

/// Does what its input says, each part of it a letter, a size and so many bytes: `f` sends a frame,
/// `m` the descriptor of memory of this size, `o` another descriptor, `b` bytes without one. Then it
/// answers as it should, if it still can.
const HOSTILE: &str = r#"
import os
import struct
import tempfile


class TritonPythonModel:
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy()
        worker = pb_utils._requests.worker
        group = worker.group or (0, 0)
        self.control, self.passing = worker.frames.control, worker.segments.passing
        script, at = x.tobytes(), 0
        while at < len(script):
            kind, size = script[at : at + 1], int.from_bytes(script[at + 1 : at + 5], "little")
            body = script[at + 5 : at + 5 + size]
            at += 5 + size
            if kind == b"f":
                # Of the group in work, so that some of it makes sense.
                self.control.sendall(body.replace(b"SEQUGROU", struct.pack("<II", *group)))
            elif kind == b"m":
                fd = os.memfd_create("mine", os.MFD_ALLOW_SEALING)
                os.ftruncate(fd, int.from_bytes(body[:8], "little") % (1 << 42))
                self.show(fd)
                os.close(fd)
            elif kind == b"o":
                for fd in self.others(body[0]):
                    self.show(fd)
                    os.close(fd)
            elif kind == b"e":
                os._exit(1)
            else:
                self.passing.sendall(body)
        return self.answers(requests, x)

    def show(self, fd):
        self.passing.sendmsg([b"s"], [(1, 1, struct.pack("i", fd))])

    def others(self, which):
        if which % 4 == 0:
            return os.pipe()
        if which % 4 == 1:
            return [os.open("/dev/zero", os.O_RDWR)]
        if which % 4 == 2:
            return [os.open("/", os.O_RDONLY)]
        with tempfile.TemporaryFile() as file:
            file.truncate(65536)
            return [os.dup(file.fileno())]

    def answers(self, requests, x):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]) for _ in requests]
"#;

/// The same of a decoupled model.
const DECOUPLED: &str = r#"

class Once(TritonPythonModel):
    def answers(self, requests, x):
        for it in requests:
            it.get_response_sender().send(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]), 1)


TritonPythonModel = Once
"#;

const SIGNATURE: &str = "x:UINT8[-1] -> y:UINT8[-1]";

/// Where a frame says which group it answers.
const GROUP: &[u8] = b"SEQUGROU";

fn numbers<const N: usize>(all: [u64; N]) -> Vec<u8> {
    all.map(u64::to_le_bytes).concat()
}

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let size = (8 + body.len() as u32).to_le_bytes();
    [&size[..], &[kind, 0, 0, 0], body].concat()
}

/// An output of so many bytes: in the frame (0), in a segment of its own (1) or of the server's.
fn output(place: u32, size: u64, tail: &[u8]) -> Vec<u8> {
    let head = [&0u16.to_le_bytes()[..], &[2, 1], &place.to_le_bytes()].concat();
    [&head, &numbers([size, size])[..], tail].concat()
}

fn json_frame(kind: u8, text: &str) -> Vec<u8> {
    let padding = " ".repeat(text.len().next_multiple_of(8) - text.len());
    frame(kind, format!("{text}{padding}").as_bytes())
}

/// A sound frame of every kind, or nearly sound.
fn corpus() -> Vec<Vec<u8>> {
    let result = |count: u16| [&[0, 0][..], &count.to_le_bytes(), &[0; 4]].concat();
    let answer = |output: &[u8]| {
        let counts = [&1u32.to_le_bytes()[..], &[0; 4]].concat();
        frame(b'A', &[GROUP, &numbers([1, 2, 3]), &counts, &result(1), output].concat())
    };
    let part = |flags: u32, output: &[u8]| {
        let head = [&0u32.to_le_bytes()[..], &flags.to_le_bytes(), &numbers([4])].concat();
        frame(b'P', &[GROUP, &head, &result(1), output].concat())
    };
    let inline = output(0, 8, b"8 bytes!");
    let own = output(1, 65536, &numbers([1, 0]));
    let call = |flags: u32, group: &[u8]| {
        let model =
            [&(-1i64).to_le_bytes()[..], &[5, 0, 0, 0, 0, 0, 0, 0], b"other\0\0\0"].concat();
        let tensor =
            [&[1, 0, 11, 1, 0, 0, 0, 0][..], &numbers([8, 2]), b"x\0\0\0\0\0\0\0"].concat();
        let size = (model.len() + tensor.len()) as u32;
        let head = [&numbers([7])[..], group, &flags.to_le_bytes(), &size.to_le_bytes()].concat();
        let text = br#"{"id":"7","correlation_id":0,"flags":0,"timeout":0,"parameters":"{}"}   "#;
        let extra = [&numbers([text.len() as u64])[..], text].concat();
        let extra = if flags & 2 == 0 { Vec::new() } else { extra };
        frame(b'B', &[&head, &numbers([1])[..], &model, &tensor, b"8 bytes!", &extra].concat())
    };
    let metric = |question: &str| {
        let asked = json_frame(b'M', question);
        frame(b'M', &[&numbers([9]), &asked[8..]].concat())
    };
    vec![
        answer(&inline),
        answer(&own),
        answer(&output(2, 65536, &numbers([1, 0]))),
        answer(&output(3, 65536, &numbers([1, 0]))),
        part(3, &inline),
        part(2, &own),
        part(1, b""),
        call(0, GROUP),
        call(3, GROUP),
        call(5, &[0xff; 8]),
        frame(b'N', &numbers([1, 65536])),
        frame(b'N', &numbers([2, 1 << 30])),
        frame(b'D', &numbers([1, 2])),
        frame(b'F', &numbers([1, 1])),
        frame(b'K', &numbers([7, 1])),
        frame(b'T', &numbers([7, 1])),
        frame(b'C', &[&numbers([7])[..], GROUP, &[0; 8]].concat()),
        frame(b'H', &numbers([0, 0])),
        json_frame(b'L', r#"{"level":0,"place":"a.py:1","message":"hello"}"#),
        json_frame(b'R', r#"{"is_async":false,"has_check":true}"#),
        json_frame(b'X', r#"{"error":"no","is_import":false}"#),
        frame(b'M', &[&numbers([0])[..], &numbers([0, 4, 0x4059_0000_0000_0000])].concat()),
        metric(r#"{"do":"family","name":"a","description":"b","kind":1}"#),
        metric(r#"{"do":"metric","family":1,"labels":{"c":"d"},"buckets":[1,2]}"#),
        metric(r#"{"do":"value","metric":2}"#),
        frame(b'U', &[&numbers([7, 3, 0, 1])[..], &numbers([5]), b"other\0\0\0"].concat()),
    ]
}

const TOKENS: &[&[u8]] = &[
    GROUP,
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\0\0\0\0\0\0\0\0",
    b"\x01\0\0\0\0\0\0\0",
    b"\0\0\x01\0\0\0\0\0",
    b"other\0\0\0",
    b"hostile\0",
    b"{\"error\":1}    ",
    b"\x80\x80\x80\x80",
];

/// A frame with mistakes, of the size that its head says.
fn damaged(random: &mut Random, corpus: &Corpus<'_>) -> Vec<u8> {
    let mut frame = random.pick(corpus.inputs).to_vec();
    for _ in 0..random.below(4) {
        random.mutate(&mut frame, corpus);
    }
    frame.resize(frame.len().max(8).next_multiple_of(8), 0);
    let size = (frame.len() as u32).to_le_bytes();
    frame[..4].copy_from_slice(&size);
    frame
}

/// What the model is to do.
fn script(random: &mut Random, corpus: &Corpus<'_>) -> Vec<u8> {
    let mut script = Vec::new();
    let mut put = |kind: u8, body: &[u8]| {
        script.push(kind);
        script.extend((body.len() as u32).to_le_bytes());
        script.extend(body);
    };
    for _ in 0..1 + random.below(8) {
        let size = *random.pick(&[0, 1, 4096, 65536, 1 << 30, 1 << 41]);
        let (kind, body) = match random.below(10) {
            0 | 1 => (b'm', numbers([size])),
            2 => (b'o', vec![random.next() as u8]),
            3 => (b'b', vec![b's'; 1 + random.below(3)]),
            _ => (b'f', damaged(random, corpus)),
        };
        put(kind, &body);
    }
    if random.once_in(12) {
        let mut lie = damaged(random, corpus);
        random.mutate(&mut lie, corpus);
        put(b'f', &lie);
        // Or the server would wait for half a minute for what is missing.
        put(b'e', b"");
    }
    random.keep(&script);
    script
}

/// A script for one of the two; whether it was answered, and what was wrong if not.
fn run(server: &Server, model: &str, script: &[u8]) -> Result<(), String> {
    let input = InferInputTensor {
        name: "x".to_owned(),
        datatype: "UINT8".to_owned(),
        shape: vec![script.len() as i64],
        ..Default::default()
    };
    let request = ModelInferRequest {
        model_name: model.to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![script.to_vec().into()],
        ..Default::default()
    };
    let answers = Grpc::connect(server.grpc).stream(vec![request]).map_err(|it| it.to_string())?;
    match answers.first() {
        Some(it) if it.error_message.is_empty() => Ok(()),
        Some(it) => Err(it.error_message.clone()),
        None => Err("no response".to_owned()),
    }
}

/// An empty script is answered; so is another model.
fn works(server: &Server) {
    for model in ["hostile", "decoupled"] {
        until("the worker to be there again", || run(server, model, b"").is_ok());
    }
    let answer = server.infer("other", &floats(&[("x", &[1.0, 2.5])]));
    assert_eq!(answer.numbers("y"), [1.0, 2.5]);
}

#[test]
fn workers_that_send_anything_fail_their_own_requests_only() {
    let once = format!("{HOSTILE}{DECOUPLED}");
    let models = [
        ("hostile", python(SIGNATURE, HOSTILE)),
        ("decoupled", decoupled(python(SIGNATURE, &once))),
        ("other", native("identity", "x:FP32[-1] -> y:FP32[-1]")),
    ];
    let subject = attacked(Repository::of(models), &[], works);
    let frames = corpus();
    let frames: Vec<&[u8]> = frames.iter().map(|it| &**it).collect();
    let corpus = Corpus { inputs: &frames, tokens: TOKENS };
    fuzz_server("worker frames", &subject, |random| {
        let model = *random.pick(&["hostile", "hostile", "decoupled"]);
        let script = script(random, &corpus);
        if let Err(error) = run(&subject.server, model, &script) {
            for internal in ["memfd", "/dev/shm", "/proc/"] {
                assert!(!error.contains(internal), "{error}");
            }
        }
        // A worker that has answered something is started again at once.
        works(&subject.server);
    });
}
