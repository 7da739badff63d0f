//! gRPC messages that are more than they look: many empty parts, calls that are opened and left,
//! compressed bombs, requests there is no memory for, frames cut anywhere.

use tonic::{Code, codec::CompressionEncoding};
use troupe_proto::inference::ModelInferRequest;

use crate::support::{
    Repository, Server,
    grpc::{Grpc, bytes, floats, floats_of},
    http2::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, RST_STREAM, frame, head},
    native, process,
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

#[test]
fn a1_messages_of_many_empty_parts_are_refused_and_take_no_memory() {
    let server = serve();
    answers(&server);
    let mut grpc = Grpc::connect(server.grpc);
    let before = process::memory_mib(server.pid, "VmHWM");
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
    let after = process::memory_mib(server.pid, "VmHWM");
    assert!(after < before + 48, "{before} MiB, and {after} MiB after messages of 4 MiB");
    answers(&server);
    server.is_well();
}

#[test]
fn a8_calls_that_announce_much_and_are_left_take_no_memory() {
    let server = serve();
    answers(&server);
    let (before, mapped) =
        (process::memory_mib(server.pid, "VmRSS"), process::memory_mib(server.pid, "VmSize"));
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
    let (after, mapped_after) =
        (process::memory_mib(server.pid, "VmRSS"), process::memory_mib(server.pid, "VmSize"));
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
            client.model_infer(bytes("bytes", size)).await
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
    let large = ModelInferRequest { id: "large".to_owned(), ..bytes("bytes", 28 * MIB) };
    let mut grpc = Grpc::connect(server.grpc);
    let error = grpc.infer(large.clone()).unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(error.message().contains("no memory for this request"), "{error}");
    let small = ModelInferRequest { id: "small".to_owned(), ..bytes("bytes", MIB) };
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
    grpc.infer(bytes("bytes", 16 * MIB)).unwrap();
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
