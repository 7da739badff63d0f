//! How bodies travel over HTTP: in chunks, compressed, with lengths that lie.

use std::{
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    sync::LazyLock,
};

use flate2::{
    Compression,
    write::{GzEncoder, ZlibEncoder},
};
use serde_json::json;

use super::{
    attempts::{fuzz_server, identities, send_in_time},
    mutate::{Corpus, Random},
};
use crate::support::{Http, grpc::bytes_of, http::floats};

/// A request that is answered with its numbers at the end.
struct Sound {
    model: &'static str,
    body: Vec<u8>,
    /// Bytes before its tensor; `None`: the numbers are in the JSON.
    header: Option<usize>,
    numbers: Vec<u8>,
}

fn sound(random: &mut Random) -> Sound {
    let model = *random.pick(&["native", "python"]);
    // From 64 KiB on bodies lie in memory that workers map.
    let count = *random.pick(&[2, 2, 2, 2, 2, 2, 16_000, 50_000]);
    let numbers: Vec<f32> = (0..count).map(|_| random.below(1000) as f32 / 8.0).collect();
    let bytes = bytes_of(&numbers);
    if random.once_in(2) {
        let mut request = floats(&[("x", &numbers)]);
        request["parameters"] = json!({"binary_data_output": true});
        let body = request.to_string().into_bytes();
        return Sound { model, body, header: None, numbers: bytes };
    }
    let json = json!({
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [count],
                    "parameters": {"binary_data_size": bytes.len()}}],
        "parameters": {"binary_data_output": true},
    })
    .to_string();
    let body = [json.as_bytes(), &bytes].concat();
    Sound { model, body, header: Some(json.len()), numbers: bytes }
}

const TOKENS: &[&[u8]] = &[
    b"\r\n",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"10000000000000000\r\n",
    b"-1\r\n",
    b";a=b",
    b";\"\r\n\"",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Expect: 100-continue\r\n",
    b"\n",
    b"\0",
    b"GET / HTTP/1.1\r\n\r\n",
];

pub(super) fn gzipped(data: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn deflated(data: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// 32 MiB of nothing in some kilobytes.
pub(super) fn bomb() -> &'static [u8] {
    static BOMB: LazyLock<Vec<u8>> = LazyLock::new(|| gzipped(&vec![0; 32 << 20]));
    &BOMB
}

/// A body as it is to travel, and the lines of the head that say so.
struct Coded {
    body: Vec<u8>,
    head: String,
    is_sound: bool,
}

fn coded(sound: &Sound, random: &mut Random) -> Coded {
    let plain = &*sound.body;
    let mut is_sound = true;
    let mut head = String::new();
    if sound.header.is_some() || random.once_in(2) {
        let length = if random.once_in(8) {
            is_sound = false;
            let wrong =
                ["0", "1", "-1", "999999", "18446744073709551615", "18446744073709551616", ""];
            (*random.pick(&wrong)).to_owned()
        } else {
            sound.header.unwrap_or(plain.len()).to_string()
        };
        head += &format!("Inference-Header-Content-Length: {length}\r\n");
    }
    let (coding, body) = match random.below(10) {
        0 | 1 => ("gzip", gzipped(plain)),
        2 => ("deflate", deflated(plain)),
        3 => {
            is_sound = false;
            let mut body = if random.once_in(2) { gzipped(plain) } else { deflated(plain) };
            body.truncate(random.below(body.len()));
            (*random.pick(&["gzip", "deflate"]), body)
        }
        4 => {
            is_sound = false;
            let packed = gzipped(plain);
            (
                *random.pick(&["gzip", "deflate"]),
                random.input(&Corpus { inputs: &[&packed], tokens: TOKENS }),
            )
        }
        5 if random.once_in(8) => {
            is_sound = false;
            ("gzip", bomb().to_vec())
        }
        6 => {
            is_sound = false;
            (*random.pick(&["br", "gzip, gzip", "deflate", "zstd", ","]), plain.to_vec())
        }
        _ => ("", plain.to_vec()),
    };
    if !coding.is_empty() {
        head += &format!("Content-Encoding: {coding}\r\n");
    }
    Coded { body, head, is_sound }
}

/// The body in chunks, of which none is what a library would make of it.
fn chunks(body: &[u8], random: &mut Random) -> Vec<u8> {
    let mut text = Vec::new();
    let max = *random.pick(&[1, 4, 60]);
    for piece in random.pieces(body, max) {
        if piece.is_empty() {
            continue;
        }
        let size = match random.below(3) {
            0 => format!("{:X}", piece.len()),
            1 => format!("{:08x}", piece.len()),
            _ => format!("{:x}", piece.len()),
        };
        let extension = random.pick(&["", "", ";a", ";a=b", "; c=\"d\""]);
        text.extend_from_slice(format!("{size}{extension}\r\n").as_bytes());
        text.extend_from_slice(piece);
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(b"0\r\n\r\n");
    text
}

/// A request on the wire; whether it is to be answered well.
fn request(sound: &Sound, random: &mut Random) -> (Vec<u8>, bool) {
    let Coded { body, mut head, mut is_sound } = coded(sound, random);
    let length = body.len();
    let body = match random.below(8) {
        0..3 => {
            head += "Transfer-Encoding: chunked\r\n";
            chunks(&body, random)
        }
        3 => {
            is_sound = false;
            head += "Transfer-Encoding: chunked\r\n";
            let mut body = chunks(&body, random);
            for _ in 0..1 + random.below(4) {
                random.mutate(
                    &mut body,
                    &Corpus { inputs: &[b"5\r\nhello\r\n0\r\n\r\n"], tokens: TOKENS },
                );
            }
            body
        }
        4 => {
            is_sound = false;
            let wrong = random.below(2 * length + 2).to_string();
            let wrong =
                *random.pick(&[&*wrong, "-1", "99999999999", "18446744073709551616", "1,2", ""]);
            head += &format!("Content-Length: {wrong}\r\n");
            if random.once_in(3) {
                let more = ["Transfer-Encoding: chunked\r\n", "Content-Length: 7\r\n"];
                head += more[random.below(2)];
            }
            body
        }
        _ => {
            head += &format!("Content-Length: {length}\r\n");
            body
        }
    };
    let mut head = format!(
        "POST /v2/models/{}/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{head}",
        sound.model
    );
    if random.once_in(8) {
        is_sound = false;
        let mut bytes = head.into_bytes();
        random.mutate(&mut bytes, &Corpus { inputs: &[b"GET /v2 HTTP/1.1\r\n"], tokens: TOKENS });
        head = String::from_utf8_lossy(&bytes).into_owned();
    }
    let mut text = if random.once_in(8) {
        b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()
    } else {
        Vec::new()
    };
    text.extend_from_slice(head.as_bytes());
    text.extend_from_slice(b"\r\n");
    text.extend_from_slice(&body);
    (text, is_sound)
}

/// All that comes for these pieces, until the server closes the connection, and whether they were
/// sent in time.
fn exchange(http: Http, pieces: &[&[u8]], is_sound: bool) -> (Vec<u8>, bool) {
    let stream = http.connect();
    let writer = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || {
            let is_in_time = send_in_time(&writer, pieces);
            if !is_sound {
                // It would wait for the rest of what is cut.
                let _ = writer.shutdown(Shutdown::Write);
            }
            is_in_time
        });
        let mut answer = Vec::new();
        match (&stream).read_to_end(&mut answer) {
            Err(error) if error.kind() != ErrorKind::ConnectionReset => {
                panic!("the server keeps the connection: {error}")
            }
            _ => (answer, sending.join().unwrap()),
        }
    })
}

#[test]
fn bodies_are_read_however_they_travel() {
    let subject = identities();
    fuzz_server("HTTP transfers", &subject, |random| {
        let sound = sound(random);
        let (text, is_sound) = request(&sound, random);
        random.keep(&text);
        let pieces = random.pieces(&text, 4);
        let (answer, is_in_time) = exchange(subject.server.http, &pieces, is_sound);
        let shown = || answer[..answer.len().min(500)].escape_ascii().to_string();
        if is_sound && is_in_time {
            assert!(
                answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(&sound.numbers),
                "{}",
                shown()
            );
        } else if !answer.is_empty() {
            let status = answer.strip_prefix(b"HTTP/1.1 ").and_then(|it| it.first_chunk());
            let status = status.unwrap_or_else(|| panic!("no answer: {}", shown()));
            let is_fault = matches!(status, b"500" | b"502" | b"504");
            assert!(!is_fault, "{}", shown());
        }
    });
}
