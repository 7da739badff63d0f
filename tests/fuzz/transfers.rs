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

use super::{
    attempts::{attacked, fuzz_server},
    mutate::{Corpus, Random},
};
use crate::support::{Http, Repository, Server, http::floats, models::native, subject::Subject};

const JSON: &[u8] = br#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1,2.5]}],
"parameters":{"binary_data_output":true}}"#;
const BINARY: &[u8] = b"{\"inputs\":[{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[2],\
\"parameters\":{\"binary_data_size\":8}}],\"parameters\":{\"binary_data_output\":true}}\
\x00\x00\x80\x3f\x00\x00\x20\x40";
/// Both are answered with them at the end.
const NUMBERS: &[u8] = b"\x00\x00\x80\x3f\x00\x00\x20\x40";

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

fn coded(random: &mut Random) -> Coded {
    let is_binary = random.once_in(2);
    let plain = if is_binary { BINARY } else { JSON };
    let json = plain.len() - if is_binary { NUMBERS.len() } else { 0 };
    let mut is_sound = true;
    let mut head = String::new();
    if is_binary || random.once_in(2) {
        let length = if random.once_in(8) {
            is_sound = false;
            (*random.pick(&["0", "1", "-1", "999999", "18446744073709551616", "", "x"])).to_owned()
        } else {
            json.to_string()
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
fn request(random: &mut Random) -> (Vec<u8>, bool) {
    let Coded { body, mut head, mut is_sound } = coded(random);
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
    let mut head =
        format!("POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{head}");
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

/// All that comes for these pieces, until the server closes the connection.
fn exchange(http: Http, pieces: &[&[u8]], is_sound: bool) -> Vec<u8> {
    let stream = http.connect();
    let writer = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = pieces.iter().try_for_each(|it| (&writer).write_all(it));
            if !is_sound {
                // It would wait for the rest of what is cut.
                let _ = writer.shutdown(Shutdown::Write);
            }
        });
        let mut answer = Vec::new();
        match (&stream).read_to_end(&mut answer) {
            Err(error) if error.kind() != ErrorKind::ConnectionReset => {
                panic!("the server keeps the connection: {error}")
            }
            _ => answer,
        }
    })
}

fn subject() -> Subject {
    let models = [("m", native("identity", "x:FP32[-1] -> y:FP32[-1]"))];
    attacked(Repository::of(models), &[], |server: &Server| {
        let answer = server.infer("m", &floats(&[("x", &[1.0, 2.5])]));
        assert_eq!(answer.numbers("y"), [1.0, 2.5]);
    })
}

#[test]
fn bodies_are_read_however_they_travel() {
    let subject = subject();
    fuzz_server("HTTP transfers", &subject, |random| {
        let (text, is_sound) = request(random);
        random.keep(&text);
        let pieces = random.pieces(&text, 4);
        let answer = exchange(subject.server.http, &pieces, is_sound);
        let shown = || answer.escape_ascii().to_string();
        if is_sound {
            assert!(
                answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(NUMBERS),
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
