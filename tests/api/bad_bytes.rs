//! Bytes no library would send: bombs, endless chunks, names with control characters.

use std::io::{Read, Write};

use flate2::{
    Compression,
    write::{GzEncoder, ZlibEncoder},
};
use serde_json::json;
use tonic::Code;
use troupe_proto::inference::{ModelInferRequest, model_infer_request::InferInputTensor};

use crate::support::{
    Answer,
    grpc::{self, Grpc},
    process::resident_mib,
    until,
};

use crate::api::bad_input::{LIMIT, SERVER, good, the_next_is_right};

#[test]
fn bodies_that_are_too_large_are_refused_and_their_memory_comes_back() {
    let bomb = |bytes: usize| {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        std::io::copy(&mut std::io::repeat(b' ').take(bytes as u64), &mut gzip).unwrap();
        gzip.finish().unwrap()
    };
    let bomb = bomb(256 << 20);
    let mut deflate_bomb = ZlibEncoder::new(Vec::new(), Compression::fast());
    std::io::copy(&mut std::io::repeat(b'[').take(64 << 20), &mut deflate_bomb).unwrap();
    let deflate_bomb = deflate_bomb.finish().unwrap();
    let large = vec![b' '; LIMIT + 1];
    let zeros = format!("[{}0]", "0,".repeat(LIMIT / 4));
    let expanding = json!({"inputs": [{"name": "x", "datatype": "FP64", "shape": [LIMIT / 4 + 1],
                                       "data": []}]})
    .to_string()
    .replace("[]", &zeros);
    let post = |headers: &[(&str, &str)], body: &[u8]| {
        SERVER.http.send("POST", "/v2/models/any/infer", headers, body)
    };
    the_next_is_right("nothing");
    let before = resident_mib(SERVER.pid);
    for _ in 0..8 {
        for answer in [
            post(&[], &large),
            post(&[("Content-Encoding", "gzip")], &bomb),
            post(&[("Content-Encoding", "deflate")], &deflate_bomb),
            post(&[], expanding.as_bytes()),
            SERVER.http.send_chunks("/v2/models/any/infer", &[], large.chunks(1 << 16)),
        ] {
            refuses_size(&answer);
            the_next_is_right("a large body");
        }
        for body in [&b"\x1f\x8b\x08nonsense"[..], &bomb[..bomb.len() / 2], b"", b"{}"] {
            let answer = post(&[("Content-Encoding", "gzip")], body);
            assert_eq!(answer.status, 400, "{}", answer.text());
            the_next_is_right("a broken stream");
        }
    }
    until("memory to come back", || resident_mib(SERVER.pid) < before + 64);
    SERVER.is_well();
}

#[track_caller]
fn refuses_size(answer: &Answer) {
    assert!(matches!(answer.status, 400 | 413), "{}: {}", answer.status, answer.text());
    let error = answer.error();
    assert!(error.contains("--http-max-input-size"), "{error}");
    assert!(error.contains(&format!("{LIMIT} bytes")), "{error}");
}

#[test]
fn a_length_that_never_comes_costs_nothing() {
    let before = resident_mib(SERVER.pid);
    let mut open = Vec::new();
    for _ in 0..64 {
        let mut stream = SERVER.http.connect();
        let length = LIMIT - 1;
        let head = format!(
            "POST /v2/models/any/infer HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).unwrap();
        open.push(stream);
    }
    the_next_is_right("many that wait");
    // Other tests may take memory for a moment; these connections stay open.
    until("64 unfinished bodies to take little", || resident_mib(SERVER.pid) < before + 64);
    drop(open);
}

#[test]
fn many_small_chunks() {
    let request = good().to_string();
    let padding = " ".repeat(65_536 - request.len());
    let exactly = format!("{request}{padding}");
    let bytes = |text: &str| text.as_bytes().chunks(1).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let send = |text: &str| {
        let chunks = bytes(text);
        let chunks = chunks.iter().map(Vec::as_slice);
        SERVER.http.send_chunks("/v2/models/add_sub/infer", &[], chunks)
    };
    assert_eq!(send(&exactly).numbers("sum"), [2.0, 3.0, 4.0, 5.0]);
    send(&format!("{exactly} ")).refuses(
        400,
        "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP \
         chunks.",
    );
    the_next_is_right("many chunks");
}

#[test]
fn heads_that_are_wrong() {
    let long = format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", "a".repeat(1 << 20));
    let headers = format!("GET /v2 HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(10_000));
    for (head, statuses) in [
        ("nonsense\r\n\r\n", &[400][..]),
        ("GET /v2 HTTP/9.9\r\n\r\n", &[400, 505]),
        ("POST /v2/models/any/infer HTTP/1.1\r\nHost: t\r\nContent-Length: x\r\n\r\n", &[400]),
        ("POST /v2/models/any/infer HTTP/1.1\r\nHost: t\r\nContent-Length: -1\r\n\r\n", &[400]),
        (
            "POST /v2/models/any/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            &[400],
        ),
        (long.as_str(), &[400, 404, 414, 431]),
        (headers.as_str(), &[400, 431]),
    ] {
        let shown = &head[..head.len().min(100)];
        // Refused half read, or a chunk without a length: the connection ends, often unanswered.
        let status = SERVER.http.send_or_be_cut(&[head.as_bytes()]).map(|it| it.status);
        let may_be_cut = 1000 < head.len() || head.ends_with("zz\r\n");
        assert!(status.map_or(may_be_cut, |it| statuses.contains(&it)), "{shown}: {status:?}");
        the_next_is_right(shown);
    }
}

#[test]
fn names_that_are_wrong() {
    for (name, statuses) in [
        ("..", &[400, 404][..]),
        ("../../etc", &[400, 404]),
        ("%2e%2e%2fetc", &[400, 404]),
        ("..%2f..%2fetc%2fpasswd", &[400, 404]),
        ("a%00b", &[400, 404]),
        ("%0aforged", &[400, 404]),
        ("%1b[31mred", &[400, 404]),
        ("%ff%fe", &[400, 404]),
        ("add_sub%00", &[400, 404]),
        ("%20", &[400, 404]),
    ] {
        for answer in [
            SERVER.http.get(&format!("/v2/models/{name}")),
            SERVER.http.get(&format!("/v2/models/{name}/config")),
            SERVER.http.infer(name, good()),
            SERVER.http.get(&format!("/v2/models/add_sub/versions/{name}")),
        ] {
            assert!(statuses.contains(&answer.status), "{name}: {}", answer.status);
            answer.error();
        }
        let answer = SERVER.load(name);
        assert!(matches!(answer.status, 400 | 404 | 500), "load {name}: {}", answer.status);
        let answer = SERVER.unload(name);
        assert!(matches!(answer.status, 200 | 400 | 404), "unload {name}: {}", answer.status);
        the_next_is_right(name);
    }
    let mut grpc = Grpc::connect(SERVER.grpc);
    for name in
        ["..", "../../etc/passwd", "a/../add_sub", "a\0b", "a\nforged line", "\u{1b}[31m", ""]
    {
        let request = grpc::floats(name, &[("a", &[1.0; 4]), ("b", &[1.0; 4])]);
        let error = grpc.infer(request).unwrap_err();
        assert!(
            matches!(error.code(), Code::NotFound | Code::InvalidArgument),
            "{name:?}: {error}"
        );
        let load = troupe_proto::inference::RepositoryModelLoadRequest {
            model_name: name.to_owned(),
            ..Default::default()
        };
        let error = grpc.call(async |it| it.repository_model_load(load).await).unwrap_err();
        if name.contains("..") {
            let text = "model name must not contain path traversal characters";
            assert!(error.message().contains(text), "{name:?}: {error}");
        }
        the_next_is_right(name);
    }
    assert_eq!(SERVER.state("add_sub"), "READY");
    is_one_line("forged");
    SERVER.is_well();
}

/// Nobody writes lines of their own into the log, nor into a terminal that shows it.
fn is_one_line(word: &str) {
    for line in SERVER.log().lines() {
        assert!(!line.starts_with(word) && !line.contains('\u{1b}'), "{line:?}");
        assert!(line.len() < 100_000, "a line of {} bytes", line.len());
    }
}

#[test]
fn ids_and_names_of_a_megabyte_and_of_control_characters() {
    let long = "i".repeat(1 << 20);
    for id in
        [long.as_str(), "line\nbroken", "nul\0inside", "\u{1b}[2Jcleared", "\r\nbroken: header"]
    {
        let mut request = good();
        request["id"] = json!(id);
        let answer = SERVER.infer("add_sub", &request);
        assert_eq!(answer.ok().json()["id"], id);
        request["inputs"][0]["name"] = json!(id);
        let answer = SERVER.infer("add_sub", &request);
        assert_eq!(answer.status, 400);
        assert!(answer.error().contains("unexpected inference input"), "{}", answer.status);
        request["parameters"] = json!({id: id});
        assert_eq!(SERVER.infer("add_sub", &request).status, 400);
        the_next_is_right("an odd id");
        let mut request = grpc::floats("add_sub", &[("a", &[1.0; 4]), ("b", &[1.0; 4])]);
        request.id = id.to_owned();
        let mut grpc = Grpc::connect(SERVER.grpc);
        assert_eq!(grpc.infer(request.clone()).unwrap().id, id);
        request.model_name = id.to_owned();
        let code = grpc.infer(request).unwrap_err().code();
        assert!(matches!(code, Code::NotFound | Code::InvalidArgument), "{code}");
    }
    is_one_line("broken");
    SERVER.is_well();
}

#[test]
fn noise_at_the_grpc_door() {
    let http1 = b"GET / HTTP/1.1\r\nHost: t\r\n\r\n".to_vec();
    let frames = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[255u8; 4096][..]].concat();
    for noise in [http1, frames, vec![0; 100_000]] {
        let mut stream = std::net::TcpStream::connect(SERVER.grpc).unwrap();
        // The server may close at any byte of it.
        let _ = stream.write_all(&noise);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        the_next_is_right("noise");
    }
    let mut grpc = Grpc::connect(SERVER.grpc);
    assert_eq!(grpc.infer(of_a_megabyte()).unwrap().raw_output_contents[0].len(), 1 << 20);
    SERVER.is_well();
}

fn of_a_megabyte() -> ModelInferRequest {
    ModelInferRequest {
        model_name: "any".to_owned(),
        inputs: vec![InferInputTensor {
            name: "x".to_owned(),
            datatype: "UINT8".to_owned(),
            shape: vec![1 << 20],
            ..Default::default()
        }],
        raw_input_contents: vec![vec![7; 1 << 20].into()],
        ..Default::default()
    }
}

#[test]
fn grpc_messages_that_are_too_large_too_short_or_no_messages() {
    let mut grpc = Grpc::connect(SERVER.grpc);
    let before = resident_mib(SERVER.pid);
    for (message, codes, what) in [
        // A length of 3.2 GB, above what gRPC allows.
        ("\0\u{80}AA", &["8", "11"][..], "announces 3.2 GB"),
        // 1.1 GB are announced, above --http-max-input-size.
        ("\0AAAAfew", &["8"], "announces 1.1 GB"),
        ("\0\0\0\0\u{7f}few", &["3", "13"], "is shorter than it says"),
        ("\0\0\0\0\u{4}\u{7f}\u{7f}\u{7f}\u{7f}", &["3", "13"], "is no protobuf"),
        ("\u{7}\0\0\0\0", &["3", "12", "13"], "has an unknown compression"),
    ] {
        for _ in 0..8 {
            let code = grpc.send_raw(SERVER.grpc, message);
            assert!(codes.contains(&code.as_str()), "a message that {what}: grpc-status {code}");
        }
        the_next_is_right(what);
    }
    until("memory to come back", || resident_mib(SERVER.pid) < before + 64);
    assert_eq!(grpc.infer(of_a_megabyte()).unwrap().raw_output_contents[0].len(), 1 << 20);
    SERVER.is_well();
}
