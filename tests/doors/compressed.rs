//! Compressed and large bodies at their limits, and again and again.

use std::io::{Read, Write};

use flate2::{Compression, write::GzEncoder};
use serde_json::json;

use crate::support::{
    Repository, Server, at_once,
    http::finish,
    native,
    process::{memory_is_back, resident_mib},
    until,
};

const LIMIT: usize = 1 << 20;

fn models() -> Repository {
    Repository::of([
        ("m", native("identity", "x:FP32[-1] -> y:FP32[-1]")),
        ("words", native("identity", "x:BYTES[-1] -> y:BYTES[-1]")),
    ])
}

fn serve() -> Server {
    Server::with(models(), &[&format!("--http-max-input-size={LIMIT}")])
}

fn gzip(bytes: impl Read) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    std::io::copy(&mut { bytes }, &mut encoder).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn cve_2025_33211_a_body_at_its_limit_is_taken_and_one_byte_more_is_not() {
    let server = serve();
    let request =
        json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]});
    let of = |size: usize| {
        let text = request.to_string();
        let padding = " ".repeat(size - text.len());
        (text + &padding).into_bytes()
    };
    let path = "/v2/models/m/infer";
    for (size, is_taken) in [(LIMIT, true), (LIMIT + 1, false), (2 * LIMIT, false)] {
        let body = of(size);
        let packed = gzip(&body[..]);
        let nested = gzip(&packed[..]);
        for answer in [
            server.http.send("POST", path, &[], &body),
            server.http.send_chunks(path, &[], body.chunks(10_000)),
            server.http.send("POST", path, &[("Content-Encoding", "gzip")], &packed),
        ] {
            match is_taken {
                true => assert_eq!(answer.numbers("y"), [1.0]),
                false => {
                    assert!(matches!(answer.status, 400 | 413), "{size}: {}", answer.text());
                    assert!(answer.error().contains("--http-max-input-size"), "{}", answer.text());
                }
            }
        }
        // Compressed twice is inflated once, or not understood at all.
        for encoding in ["gzip", "gzip, gzip", "gzip, deflate", "br", "identity, nonsense"] {
            let headers = [("Content-Encoding", encoding)];
            let answer = server.http.send("POST", path, &headers, &nested);
            assert!(matches!(answer.status, 400..=499 | 501), "{encoding}: {}", answer.text());
        }
        server.still_serves("a body at the limit");
    }
}

#[test]
fn cve_2025_33201_strings_that_say_they_are_long_take_nothing() {
    let server = serve();
    server.still_serves("nothing");
    let before = resident_mib(server.pid);
    // Each of them says 2 GiB; their sum wraps in 32 bits.
    for length in [u32::MAX, 1 << 31, (1 << 31) - 1, 1 << 30] {
        let bytes = length.to_le_bytes().repeat(1000);
        let request = json!({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1000],
                                         "parameters": {"binary_data_size": bytes.len()}}]});
        let answer = server.http.infer_binary("words", &request, &[&bytes]);
        assert_eq!(answer.status, 400, "{}", answer.text());
        server.still_serves("long strings");
    }
    memory_is_back(server.pid, before);
}

#[test]
fn pull_669cef083_ten_thousand_bodies_that_cannot_be_inflated_leave_no_memory() {
    let server = serve();
    let good = gzip(&br#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}"#[..]);
    let bomb = gzip(std::io::repeat(b' ').take(8 * LIMIT as u64));
    let spoiled = [&good[..good.len() - 4], b"\xff\xff\xff\xff"].concat();
    let bodies = [&b"\x1f\x8b\x08nonsense"[..], &good[..good.len() / 2], &spoiled, &bomb];
    let round = |turns: usize| {
        at_once(4, |caller| {
            for turn in 0..turns {
                let body = bodies[(caller + turn) % bodies.len()];
                let headers = [("Content-Encoding", "gzip")];
                let answer = server.http.send("POST", "/v2/models/m/infer", &headers, body);
                assert!(matches!(answer.status, 400 | 413), "{}", answer.text());
            }
        });
        server.still_serves("bodies that cannot be inflated");
    };
    round(100);
    let before = resident_mib(server.pid);
    round(2_500);
    memory_is_back(server.pid, before);
    server.is_well();
}

#[test]
fn pull_13480cbf3_chunks_that_drip_on_many_connections_are_counted() {
    const BUDGET_MIB: u64 = 16;
    let budget = format!("--max-inflight-bytes={}", BUDGET_MIB << 20);
    let server = Server::with(models(), &[&budget]);
    server.still_serves("nothing");
    let before = resident_mib(server.pid);
    let head = "POST /v2/models/m/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut all: Vec<_> = (0..100).map(|_| server.http.connect()).collect();
    all.iter_mut().for_each(|it| it.write_all(head.as_bytes()).unwrap());
    // Some chunks of one byte at a time, and all of them nearly as many as there may be: six
    // million, of which each takes a place of 32 bytes beside its own.
    for _ in 0..20 {
        let chunks = b"1\r\n \r\n".repeat(3_000);
        // Those that are refused are closed.
        all.retain_mut(|it| it.write_all(&chunks).is_ok());
    }
    until("some of them to be refused", || {
        server.metric("troupe_requests_refused_total", &["server_bytes"]) != Some(0.0)
    });
    // What was refused is let go of, though its clients stay; what was not is in the budget.
    memory_is_back(server.pid, before + 2 * BUDGET_MIB);
    drop(all);
    until("their bytes to be given back", || {
        server.metric("troupe_inflight_bytes", &["received"]) == Some(0.0)
    });
    server.still_serves("connections that went");
    // One alone may have its 65,536 chunks, and no more.
    let mut one = server.http.connect();
    one.write_all(head.as_bytes()).unwrap();
    one.write_all(&b"1\r\n \r\n".repeat(65_537)).unwrap();
    let refused = finish(one);
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.error().contains("65536 non-empty chunks"), "{}", refused.text());
    memory_is_back(server.pid, before);
    server.is_well();
}
