//! gRPC messages that are more than they look: many empty parts, calls that are opened and left,
//! compressed bombs, requests there is no memory for, frames cut anywhere.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use tonic::{Code, codec::CompressionEncoding};
use troupe_proto::inference::{ModelInferRequest, model_infer_request::InferInputTensor};

use crate::support::{
    Repository, Server,
    grpc::{Grpc, floats, floats_of},
    native,
};

const MIB: usize = 1 << 20;

/// One for each test: what others send takes memory too.
fn serve() -> Server {
    let identity = |dtype: &str| native("identity", &format!("x:{dtype}[-1] -> y:{dtype}[-1]"));
    let models = [("m", identity("FP32")), ("bytes", identity("UINT8"))];
    Server::with(
        Repository::of(models),
        &["--max-inflight-bytes=67108864", "--http-max-input-size=33554432"],
    )
}

fn answers(server: &Server) {
    let mut grpc = Grpc::connect(server.grpc);
    let answer = grpc.infer(floats("m", &[("x", &[1.0, 2.0])])).unwrap();
    assert_eq!(floats_of(&answer.raw_output_contents[0]), [1.0, 2.0]);
}

/// A number of `/proc/PID/status`, in MiB.
fn memory_mib(server: &Server, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid)).unwrap();
    let line = status.lines().find_map(|it| it.strip_prefix(name)).unwrap();
    let line = line.trim_start_matches(':').trim().trim_end_matches(" kB");
    line.parse::<u64>().unwrap() >> 10
}

/// A request of so many bytes.
fn of_size(size: usize) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "bytes".to_owned(),
        inputs: vec![InferInputTensor {
            name: "x".to_owned(),
            datatype: "UINT8".to_owned(),
            shape: vec![size as i64],
            ..Default::default()
        }],
        raw_input_contents: vec![vec![7; size].into()],
        ..Default::default()
    }
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The head of a call, nothing of it compressed.
fn head(method: &str) -> Vec<u8> {
    let path = format!("/inference.GRPCInferenceService/{method}");
    let fields = [
        (":path", &*path),
        (":authority", "a"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let field = |(name, value): (&str, &str)| {
        [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
    };
    // POST and http.
    [vec![0x83, 0x86]].into_iter().chain(fields.map(field)).collect::<Vec<_>>().concat()
}

/// A connection that speaks frames.
struct Frames(TcpStream);

impl Frames {
    fn connect(address: SocketAddr) -> Frames {
        let mut stream = TcpStream::connect(address).unwrap();
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let settings = [frame(SETTINGS, 0, 0, b""), frame(SETTINGS, 1, 0, b"")].concat();
        stream.write_all(&[preface, settings].concat()).unwrap();
        Frames(stream)
    }

    fn send(&mut self, frames: &[Vec<u8>]) {
        self.0.write_all(&frames.concat()).unwrap();
    }

    /// Returns when the server has read all that was sent.
    fn is_read(&mut self) {
        self.send(&[frame(PING, 0, 0, b"are you?")]);
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).unwrap();
            let [a, b, c, kind, flags, ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            self.0.read_exact(&mut payload).unwrap();
            if (kind, flags) == (PING, 1) {
                return;
            }
        }
    }
}

#[test]
fn a1_messages_of_many_empty_parts_are_refused_and_take_no_memory() {
    let server = serve();
    answers(&server);
    let mut grpc = Grpc::connect(server.grpc);
    let before = memory_mib(&server, "VmHWM");
    // Parameters, inputs, requested outputs, raw contents; and the name first, or last.
    for (key, part) in ["\"\0", "*\0", "2\0", ":\0"].into_iter().zip(1..) {
        let parts = key.repeat(2 * MIB + 20);
        for message in [format!("\n\u{1}m{parts}"), format!("{parts}\n\u{1}m")] {
            let length = (message.len() as u32).to_be_bytes();
            assert!(length.is_ascii(), "it is sent as text");
            let body = format!("\0{}{message}", str::from_utf8(&length).unwrap());
            assert_eq!(grpc.send_raw(server.grpc, &body), "3", "part {part}");
        }
    }
    let after = memory_mib(&server, "VmHWM");
    assert!(after < before + 48, "{before} MiB, and {after} MiB after messages of 4 MiB");
    answers(&server);
    server.is_well();
}

#[test]
fn a8_calls_that_announce_much_and_are_left_take_no_memory() {
    let server = serve();
    answers(&server);
    let (before, mapped) = (memory_mib(&server, "VmRSS"), memory_mib(&server, "VmSize"));
    let mut frames = Frames::connect(server.grpc);
    let announced = (32 * MIB as u32).to_be_bytes();
    for call in 0..1000 {
        let stream = 2 * call + 1;
        let method = if call % 2 == 0 { "ModelInfer" } else { "ModelStreamInfer" };
        frames.send(&[
            frame(HEADERS, END_HEADERS, stream, &head(method)),
            frame(
                DATA,
                0,
                stream,
                &[&[0][..], &announced, b"\x0a\x05bytes\x3a\xf0\xff\xff\x0f"].concat(),
            ),
        ]);
    }
    frames.is_read();
    answers(&server);
    let (after, mapped_after) = (memory_mib(&server, "VmRSS"), memory_mib(&server, "VmSize"));
    assert!(after < before + 48, "{before} MiB, and {after} MiB with 1,000 calls");
    assert!(mapped_after < mapped + 1024, "{mapped} MiB, and {mapped_after} MiB with 1,000 calls");
    drop(frames);
    answers(&server);
    server.is_well();
}

#[test]
fn b2_compressed_messages_are_inflated_up_to_the_limit() {
    let server = serve();
    let mut grpc = Grpc::connect(server.grpc);
    let mut send = |encoding, size| {
        grpc.run(async |client| {
            let mut client = client.clone().send_compressed(encoding);
            client.model_infer(of_size(size)).await
        })
    };
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
        let answer = send(encoding, 3 * MIB).unwrap().into_inner();
        assert_eq!(answer.raw_output_contents[0].len(), 3 * MIB);
        let error = send(encoding, 33 * MIB).unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    }
    answers(&server);
    server.is_well();
}

#[test]
fn a_request_there_is_no_memory_for_is_refused_and_its_stream_goes_on() {
    let server = serve();
    // The budget is 64 MiB, a connection has half, and a quarter of that is for answers.
    let large = ModelInferRequest { id: "large".to_owned(), ..of_size(28 * MIB) };
    let mut grpc = Grpc::connect(server.grpc);
    let error = grpc.infer(large.clone()).unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(error.message().contains("no memory for this request"), "{error}");
    let small = ModelInferRequest { id: "small".to_owned(), ..of_size(MIB) };
    let answers = grpc.stream(vec![small.clone(), large, small]).unwrap();
    let told: Vec<_> = answers
        .iter()
        .map(|it| {
            let answer = it.infer_response.as_ref().unwrap();
            let bytes: usize = answer.raw_output_contents.iter().map(|it| it.len()).sum();
            (&*answer.id, bytes, it.error_message.contains("no memory for this request"))
        })
        .collect();
    assert_eq!(told, [("small", MIB, false), ("large", 0, true), ("small", MIB, false)]);
    // What is refused, cut off or taken back holds nothing.
    grpc.infer(of_size(16 * MIB)).unwrap();
    server.is_well();
}

#[test]
fn frames_cut_anywhere_end_their_call_only() {
    let server = serve();
    let message = b"\0\0\0\0\x0f\x0a\x05bytes\x1a\x06seven!";
    let mut frames = Frames::connect(server.grpc);
    let mut stream = 1u32;
    for method in ["ModelInfer", "ModelStreamInfer", "ModelConfig", "RepositoryModelLoad"] {
        let head = head(method);
        // Nothing but a head.
        frames.send(&[frame(HEADERS, END_HEADERS | END_STREAM, stream, &head)]);
        stream += 2;
        for end in 0..message.len() {
            let whole = &message[..end];
            let (first, rest) = whole.split_at(end / 2);
            for last in [
                frame(DATA, END_STREAM, stream, rest),
                frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()),
                // Trailers, as no client sends them.
                frame(HEADERS, END_HEADERS | END_STREAM, stream, b"\0\x01x\x01y"),
            ] {
                let mut last = last;
                last[5..9].copy_from_slice(&stream.to_be_bytes());
                frames.send(&[
                    frame(HEADERS, END_HEADERS, stream, &head),
                    frame(DATA, 0, stream, first),
                    last,
                ]);
                stream += 2;
            }
        }
        frames.is_read();
    }
    // Lengths that cannot be, and a connection that ends in the middle.
    for length in [u32::MAX, 1 << 31, 33 * MIB as u32, 1000] {
        frames.send(&[
            frame(HEADERS, END_HEADERS, stream, &head("ModelInfer")),
            frame(DATA, 0, stream, &[&[0][..], &length.to_be_bytes(), b"few"].concat()),
        ]);
        stream += 2;
    }
    frames.is_read();
    drop(frames);
    answers(&server);
    server.is_well();
}
