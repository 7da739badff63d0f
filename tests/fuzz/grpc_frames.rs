//! Frames of HTTP/2 and prefixes of gRPC messages: cut at any place, of lengths that lie, compressed
//! badly, ended early, between frames that nobody has asked for.

use prost::Message;

use super::{
    attempts::{fuzz_server, identities, send_in_time},
    grpc_messages::call,
    mutate::Random,
    transfers::{bomb, deflated, gzipped},
};
use crate::support::{
    grpc::{bytes_of, floats},
    http2::{
        ACK, DATA, END_HEADERS, END_STREAM, Frames, GOAWAY, HEADERS, PADDED, PING, RST_STREAM,
        SETTINGS, WINDOW_UPDATE, field, frame, head,
    },
    subject::Subject,
};

/// A frame may have 16 KiB, padding included.
const MAX_PART_BYTES: usize = 15 << 10;

/// What is known of a call while it is made.
struct Call {
    method: &'static str,
    encoding: Option<&'static str>,
    /// A prefix and a message, or what has been made of them.
    body: Vec<u8>,
    /// What it is answered with at the end if it is sound.
    numbers: Vec<u8>,
    is_sound: bool,
}

/// A call that is answered with its numbers, unless it says something else.
fn make(random: &mut Random) -> Call {
    // From 64 KiB on tensors are received into memory that workers map.
    let count = *random.pick(&[2, 2, 2, 2, 2, 2, 16_000, 50_000]);
    let numbers: Vec<f32> = (0..count).map(|_| random.below(1000) as f32 / 8.0).collect();
    let model = *random.pick(&["native", "python"]);
    let message = floats(model, &[("x", &numbers)]).encode_to_vec();
    let mut is_sound = !random.once_in(3);
    let (method, message) = if is_sound {
        (*random.pick(&["ModelInfer", "ModelStreamInfer"]), message)
    } else {
        call(random)
    };
    let (encoding, flag, message) = match random.below(12) {
        0 => (Some("gzip"), 1, gzipped(&message)),
        1 => (Some("deflate"), 1, deflated(&message)),
        2 => (Some("gzip"), 0, message),
        3 => {
            is_sound = false;
            let mut damaged = gzipped(&message);
            damaged.truncate(random.below(damaged.len()));
            (Some("gzip"), 1, damaged)
        }
        4 if random.once_in(8) => {
            is_sound = false;
            (Some("gzip"), 1, bomb().to_vec())
        }
        5 => {
            is_sound = false;
            (*random.pick(&[None, Some("br"), Some("identity"), Some("gzip,gzip")]), 1, message)
        }
        6 => {
            is_sound = false;
            (None, *random.pick(&[2, 3, 128, 255]), message)
        }
        _ => (None, 0, message),
    };
    let mut length = message.len() as u32;
    if random.once_in(8) {
        is_sound = false;
        length = match random.below(4) {
            0 => length.wrapping_sub(1 + random.below(20) as u32),
            1 => length + 1 + random.below(20) as u32,
            _ => *random.pick(&[0, 1 << 20, 1 << 31, u32::MAX]),
        };
    }
    let mut body = [&[flag][..], &length.to_be_bytes(), &message].concat();
    if random.once_in(8) {
        is_sound = false;
        body.extend_from_within(..random.below(body.len()));
    }
    Call { method, encoding, body, numbers: bytes_of(&numbers), is_sound }
}

/// The frames of one call, and whether it is still to be answered.
fn frames(call: &Call, stream: u32, random: &mut Random) -> (Vec<Vec<u8>>, bool) {
    let mut headers = head(call.method);
    if let Some(encoding) = call.encoding {
        headers.extend(field(("grpc-encoding", encoding)));
    }
    let mut is_sound = call.is_sound;
    let mut all = vec![frame(HEADERS, END_HEADERS, stream, &headers)];
    let max = *random.pick(&[1, 3, 40]);
    let pieces = random.pieces(&call.body, max);
    let last = pieces.len() - 1;
    let ends_early = random.once_in(10).then(|| random.below(pieces.len()));
    for (index, piece) in pieces.iter().enumerate() {
        for part in piece.chunks(MAX_PART_BYTES) {
            all.push(data(stream, part, random));
        }
        if random.once_in(8) {
            all.push(between(stream, random));
        }
        if ends_early == Some(index) && index < last {
            is_sound = false;
            all.push(end(stream, random));
        }
    }
    if random.once_in(10) {
        is_sound = false;
        all.push(end(stream, random));
    }
    all.push(frame(DATA, END_STREAM, stream, b""));
    if random.once_in(20) {
        is_sound = false;
        all.push(trouble(stream, random));
    }
    (all, is_sound)
}

fn data(stream: u32, part: &[u8], random: &mut Random) -> Vec<u8> {
    if random.once_in(6) {
        let padding = random.below(200);
        return frame(DATA, PADDED, stream, &[&[padding as u8], part, &vec![0; padding]].concat());
    }
    frame(DATA, 0, stream, part)
}

/// What may come at any time.
fn between(stream: u32, random: &mut Random) -> Vec<u8> {
    match random.below(5) {
        0 => frame(PING, 0, 0, b"anybody?"),
        // A window, a priority, kinds and settings that nobody knows.
        1 => frame(WINDOW_UPDATE, 0, stream, &1000u32.to_be_bytes()),
        2 => frame(2, 0, stream, &[0, 0, 0, 0, 7]),
        3 => frame(0xee, 0xff, stream, b"?"),
        _ => frame(SETTINGS, 0, 0, &[0xff, 0xee, 0, 0, 0, 1]),
    }
}

/// An end of a call that is not its own.
fn end(stream: u32, random: &mut Random) -> Vec<u8> {
    match random.below(4) {
        0 => frame(RST_STREAM, 0, stream, &(random.below(15) as u32).to_be_bytes()),
        1 => frame(HEADERS, END_HEADERS | END_STREAM, stream, &field(("x", "y"))),
        2 => frame(DATA, END_STREAM, stream, b""),
        _ => frame(DATA, END_STREAM, stream, b"\0\0\0\0\x05"),
    }
}

/// What ends a connection, or should.
fn trouble(stream: u32, random: &mut Random) -> Vec<u8> {
    match random.below(10) {
        0 => frame(GOAWAY, 0, 0, &[0; 8]),
        1 => frame(DATA, PADDED, stream, &[200, 1]),
        2 => frame(DATA, 0, 0, b"of no stream"),
        3 => frame(HEADERS, END_HEADERS, stream + 2, b"\xff\xff\xff\xff\xff\xff"),
        // Not ended, and no continuation behind it.
        4 => frame(HEADERS, 0, stream + 2, &head("ModelInfer")),
        5 => frame(9, 0, stream, b"\x82"),
        6 => frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]),
        7 => frame(SETTINGS, ACK, 0, b"no"),
        8 => frame(RST_STREAM, 0, stream + 100, &[0; 4]),
        _ => {
            let mut frame = frame(DATA, 0, stream, b"few");
            frame[..3].fill(0xff);
            frame
        }
    }
}

/// Sends calls over one connection, and reads what is owed for them.
fn exchange(subject: &Subject, random: &mut Random) {
    // Windows that all answers fit into.
    let window = (1u32 << 29).to_be_bytes();
    let mut sent = vec![
        frame(SETTINGS, 0, 0, &[&[0, 4][..], &window].concat()),
        frame(WINDOW_UPDATE, 0, 0, &window),
    ];
    let (mut owed, mut all_are_sound) = (Vec::new(), true);
    let mut numbers = [0u8; 16].map(|_| Vec::new());
    for stream in (1..).step_by(2).take(1 + random.below(4)) {
        let call = make(random);
        let (frames, is_sound) = frames(&call, stream, random);
        numbers[stream as usize] = call.numbers;
        sent.extend(frames);
        all_are_sound &= is_sound;
        if is_sound {
            owed.push(stream);
        }
    }
    sent.push(frame(PING, 0, 0, b"are you?"));
    let sent = sent.concat();
    random.keep(&sent);
    let mut frames = Frames::connect(subject.server.grpc);
    // Until then there is room for 64 KiB, whatever the settings say of streams.
    while frames.receive().kind != WINDOW_UPDATE {}
    let pieces = random.pieces(&sent, 4);
    let is_in_time = send_in_time(&frames.0, &pieces);
    if !all_are_sound && random.once_in(4) {
        return;
    }
    let mut answered = [0u8; 16].map(|_| Vec::new());
    let mut has_pong = false;
    while !owed.is_empty() || !has_pong {
        let Ok(frame) = frames.receive_or_be_cut() else {
            assert!(!all_are_sound || !is_in_time, "{owed:?} are not answered");
            return;
        };
        has_pong |= (frame.kind, frame.flags) == (PING, ACK) && frame.payload == b"are you?";
        let stream = frame.stream as usize;
        if frame.kind == DATA && stream < answered.len() {
            answered[stream].extend(frame.payload);
        }
        let is_end =
            frame.kind == RST_STREAM || frame.kind == HEADERS && frame.flags & END_STREAM != 0;
        if is_end && let Some(at) = owed.iter().position(|it| *it == frame.stream) {
            owed.remove(at);
            let is_right = answered[stream].ends_with(&numbers[stream]);
            let is_reset = frame.kind == RST_STREAM && !all_are_sound;
            assert!(
                is_right || is_reset || !is_in_time,
                "call {stream}: {} bytes",
                answered[stream].len()
            );
        }
    }
}

#[test]
fn frames_over_grpc_are_answered_or_end_their_call() {
    let subject = identities();
    fuzz_server("gRPC frames", &subject, |random| exchange(&subject, random));
}
