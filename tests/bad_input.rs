//! Whatever comes in: a clear error with the right code, the server stays, the next answer is right.

use std::{
    io::{Read, Write},
    sync::LazyLock,
};

use flate2::{
    Compression,
    write::{GzEncoder, ZlibEncoder},
};
use serde_json::{Value, json};
use tonic::Code;

use crate::support::{
    Answer, Repository, Server,
    grpc::{self, Grpc},
    http::{floats, input},
    native,
    process::resident_mib,
    until,
};

const LIMIT: usize = 4 << 20;

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let signature = "a:FP32[4] b:FP32[4] -> sum:FP32[4] difference:FP32[4]";
    let repository = Repository::new()
        .with("add_sub", native("add_sub", signature))
        .with("text", native("identity", "x:BYTES[2] -> y:BYTES[2]"))
        .with("any", native("identity", "x:UINT8[-1] -> y:UINT8[-1]"))
        .with("matrix", native("identity", "x:UINT8[-1,-1] -> y:UINT8[-1,-1]"))
        .with("batched", native("add_sub", signature).batch(4));
    let limit = format!("--http-max-input-size={LIMIT}");
    Server::with(repository, &["--model-control-mode=explicit", "--load-model=*", &limit])
});

fn good() -> Value {
    floats(&[("a", &[1.0, 2.0, 3.0, 4.0]), ("b", &[1.0; 4])])
}

/// After whatever was sent, a good request gets its answer.
#[track_caller]
fn the_next_is_right(after: &str) {
    let answer = SERVER.infer("add_sub", &good());
    assert_eq!(answer.numbers("sum"), [2.0, 3.0, 4.0, 5.0], "after {after}");
}

fn with(change: impl FnOnce(&mut Value)) -> String {
    let mut request = good();
    change(&mut request);
    request.to_string()
}

fn nested(depth: usize) -> String {
    format!("{{\"inputs\":{}1{}}}", "[".repeat(depth), "]".repeat(depth))
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn requests_that_are_wrong() {
    let data_matches = "Unable to parse 'data': Shape does not match true shape of 'data' field";
    let missing = "expected 2 inputs but got 1 inputs for model 'add_sub'. Got input(s) ['a'], but \
                   missing required input(s) ['b']. Please provide all required input(s).";
    let reserved = "parameter keys starting with 'triton_' are reserved for Triton usage and \
                    should not be specified.";
    let rows: Vec<(String, u16, &str)> = vec![
        (String::new(), 400, ""),
        ("{".to_owned(), 400, ""),
        ("nonsense".to_owned(), 400, ""),
        ("[]".to_owned(), 400, ""),
        ("{\"inputs\": 3}".to_owned(), 400, "Unable to parse 'inputs'"),
        ("{}".to_owned(), 400, "Unable to parse 'inputs'"),
        (format!("{} trailing", good()), 400, ""),
        (nested(101), 400, "JSON nesting depth exceeds maximum allowed limit (100)"),
        (nested(100_000), 400, "JSON nesting depth exceeds maximum allowed limit (100)"),
        (with(|it| it["inputs"][0]["shape"] = json!([5])), 500, data_matches),
        (with(|it| it["inputs"][0]["data"] = json!([1, 2, 3, 4, 5])), 500, data_matches),
        (
            with(|it| it["inputs"][0] = input("a", "FP32", &[5], vec![1.0; 5])),
            400,
            "unexpected shape for input 'a' for model 'add_sub'. Expected [4], got [5].",
        ),
        (
            with(|it| it["inputs"][0] = input("a", "FP32", &[2, 2], vec![1.0; 4])),
            400,
            "unexpected shape for input 'a' for model 'add_sub'. Expected [4], got [2,2].",
        ),
        (with(|it| it["inputs"][0]["datatype"] = json!("INT32")), 400, ""),
        (
            with(|it| it["inputs"][0] = input("a", "INT32", &[4], vec![1; 4])),
            400,
            "inference input 'a' data-type is 'INT32', but model 'add_sub' expects 'FP32'",
        ),
        (with(|it| it["inputs"][0]["data"] = json!(["a", "b", "c", "d"])), 400, ""),
        (with(|it| it["inputs"][0]["data"] = json!({"a": 1})), 400, ""),
        (with(|it| it["inputs"][0]["datatype"] = json!("FP33")), 400, ""),
        (with(|it| it["inputs"][0]["datatype"] = json!(7)), 400, "'datatype'"),
        (with(|it| it["inputs"][0]["shape"] = json!("4")), 400, "'shape'"),
        (with(|it| it["inputs"][0]["shape"] = json!([4.5])), 400, ""),
        (with(|it| it["inputs"][0]["shape"] = json!([-4])), 400, "invalid dimensions"),
        (with(|it| it["inputs"][0]["shape"] = json!([-1])), 400, "invalid dimensions"),
        (with(|it| it["inputs"][0]["shape"] = json!([1u64 << 33, 1u64 << 33])), 400, "exceed"),
        (with(|it| it["inputs"][0]["shape"] = json!([1u64 << 62])), 400, "exceed"),
        (with(|it| it["inputs"][0]["shape"] = json!([u64::MAX])), 400, ""),
        (with(|it| it["inputs"][0]["name"] = json!(null)), 400, "'name'"),
        (
            with(|it| {
                it["inputs"][0].as_object_mut().unwrap().remove("data");
            }),
            400,
            "Input must set only one of the following fields: 'data', 'binary_data_size' in \
             'parameters', 'shared_memory_region' in 'parameters'. But no field is set",
        ),
        (
            with(|it| {
                it["inputs"].as_array_mut().unwrap().pop();
            }),
            400,
            missing,
        ),
        (with(|it| it["inputs"] = json!([])), 400, "but got 0 inputs for model 'add_sub'"),
        (
            with(|it| {
                let again = it["inputs"][0].clone();
                it["inputs"].as_array_mut().unwrap().push(again);
            }),
            400,
            "input 'a' already exists in request",
        ),
        (
            with(|it| it["inputs"][1]["name"] = json!("c")),
            400,
            "unexpected inference input 'c' for model 'add_sub'",
        ),
        (
            with(|it| it["outputs"] = json!([{"name": "no"}])),
            400,
            "unexpected inference output 'no' for model 'add_sub'",
        ),
        (
            with(|it| it["outputs"] = json!([{"name": "sum"}, {"name": "sum"}])),
            400,
            "output 'sum' already exists in request",
        ),
        (with(|it| it["outputs"] = json!("sum")), 400, "Unable to parse 'outputs'"),
        (with(|it| it["parameters"] = json!({"triton_x": 1})), 400, reserved),
        (
            with(|it| it["parameters"] = json!({"x": [1]})),
            400,
            "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        (with(|it| it["id"] = json!(7)), 400, "'id'"),
    ];
    for (request, status, text) in rows {
        let shown: String = request.chars().take(200).collect();
        let answer = SERVER.http.infer("add_sub", &request);
        assert_eq!(answer.status, status, "{shown}: {}", answer.text());
        answer.refuses(status, text);
        the_next_is_right(&shown);
    }
    SERVER.is_well();
}

#[test]
fn batches_that_are_wrong() {
    let rows = |a: &[i64], b: &[i64]| {
        let of = |name: &str, shape: &[i64]| {
            input(name, "FP32", shape, vec![0.0; shape.iter().product::<i64>() as usize])
        };
        json!({"inputs": [of("a", a), of("b", b)]})
    };
    for (request, text) in [
        (rows(&[5, 4], &[5, 4]), "inference request batch-size must be <= 4 for 'batched'"),
        (rows(&[2, 4], &[3, 4]), "input 'b' batch size does not match other inputs for 'batched'"),
        (
            rows(&[4], &[4]),
            "unexpected shape for input 'a' for model 'batched'. Expected [-1,4], got [4]. NOTE: \
             Setting a non-zero max_batch_size in the model config requires a batch dimension to \
             be prepended to each input shape. If you want to specify the full shape including \
             the batch dim in your input dims config, try setting max_batch_size to zero. See the \
             model configuration docs for more info on max_batch_size.",
        ),
    ] {
        SERVER.infer("batched", &request).refuses(400, text);
        the_next_is_right(text);
    }
}

/// Headers, JSON and what follows it; the status and text of the answer.
type Binary<'a> = (Vec<(&'a str, String)>, Value, Vec<u8>, u16, &'a str);

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn binary_bodies_that_are_wrong() {
    const LENGTH: &str = "Inference-Header-Content-Length";
    let any = |size: usize| {
        json!({"inputs": [{"name": "x", "datatype": "UINT8", "shape": [4],
                           "parameters": {"binary_data_size": size}}]})
    };
    let length = |it: &Value| vec![(LENGTH, it.to_string().len().to_string())];
    let plain = |value: &str| vec![(LENGTH, value.to_owned())];
    let mut both = any(4);
    both["inputs"][0]["data"] = json!([1, 2, 3, 4]);
    let rows: Vec<Binary> = vec![
        (
            length(&any(4)),
            any(4),
            vec![1; 3],
            400,
            "unexpected size for input 'x', expecting 1 additional bytes for model 'any'",
        ),
        (
            length(&any(4)),
            any(4),
            vec![],
            400,
            "unexpected size for input 'x', expecting 4 additional bytes for model 'any'",
        ),
        (
            length(&any(4)),
            any(4),
            vec![1; 5],
            400,
            "unexpected additional input data for model 'any'",
        ),
        (length(&any(5)), any(5), vec![1; 5], 400, "Expected 4, got 5"),
        (length(&any(3)), any(3), vec![1; 3], 400, "Expected 4, got 3"),
        (length(&any(1 << 60)), any(1 << 60), vec![1; 4], 400, ""),
        (length(&both), both.clone(), vec![1; 4], 400, "But set 'data' 'binary_data_size'"),
        (
            vec![],
            any(4),
            vec![],
            400,
            "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when passing inputs in binary data format",
        ),
        (
            plain("7x"),
            any(4),
            vec![1; 4],
            400,
            "Unable to parse Inference-Header-Content-Length, got: 7x",
        ),
        (
            plain("nonsense"),
            any(4),
            vec![1; 4],
            400,
            "Unable to parse Inference-Header-Content-Length, got: nonsense",
        ),
        (plain("-1"), any(4), vec![1; 4], 400, "inference header size should be in range (0, "),
        (
            plain("99999999999"),
            any(4),
            vec![1; 4],
            400,
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: 99999999999",
        ),
        (plain("100000"), any(4), vec![1; 4], 400, "inference header size should be in range (0, "),
        (plain("20"), any(4), vec![1; 4], 400, ""),
    ];
    for (headers, json, bytes, status, text) in rows {
        let headers: Vec<_> = headers.iter().map(|(name, it)| (*name, it.as_str())).collect();
        let body = [json.to_string().into_bytes(), bytes].concat();
        let answer = SERVER.http.send("POST", "/v2/models/any/infer", &headers, &body);
        assert_eq!(answer.status, status, "{headers:?} {json}: {}", answer.text());
        answer.refuses(status, text);
        the_next_is_right(text);
    }
    let texts = |size: usize| {
        json!({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [2],
                           "parameters": {"binary_data_size": size}}]})
    };
    for (bytes, text) in [
        (&b"\x01\0\0\0a\xff\xff\xff\xffb"[..], ""),
        (b"\x01\0\0\0a\x09\0\0\0b", ""),
        (
            b"\x01\0\0\0a",
            "expected 2 string elements for inference input 'x' for model 'text', got 1",
        ),
        (
            b"\x01\0\0\0a\0\0",
            "incomplete string length indicator for inference input 'x' for model 'text', expecting 4 bytes but only 2 bytes available",
        ),
        (
            b"\x01\0\0\0a\x01\0\0\0b\x01\0\0\0c",
            "unexpected number of string elements 3 for inference input 'x' for model 'text', expecting 2",
        ),
    ] {
        let answer = SERVER.http.infer_binary("text", &texts(bytes.len()), &[bytes]);
        answer.refuses(400, text);
        the_next_is_right(text);
    }
    SERVER.is_well();
}

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
    assert!(resident_mib(SERVER.pid) < before + 64, "64 unfinished bodies take their whole length");
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
        (long.as_str(), &[400, 404, 414, 431]),
        (headers.as_str(), &[400, 431]),
    ] {
        let shown = &head[..head.len().min(100)];
        // What is refused half read may be cut off before the client has seen the answer.
        let status = SERVER.http.send_or_be_cut(&[head.as_bytes()]).map(|it| it.status);
        let may_be_cut = 1000 < head.len();
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
        let load = troupe::proto::inference::RepositoryModelLoadRequest {
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
fn tensors_of_zeros_by_their_shape() {
    for (shape, status) in [
        (json!([0, 1u64 << 62]), 400),
        (json!([1u64 << 40, 1u64 << 40]), 400),
        (json!([3, 0]), 200),
        (json!([0, 0]), 200),
    ] {
        let request =
            json!({"inputs": [{"name": "x", "datatype": "UINT8", "shape": shape, "data": []}]});
        let answer = SERVER.infer("matrix", &request);
        assert!(answer.status == status || shape[0] == 0, "{shape}: {}", answer.text());
        the_next_is_right(&shape.to_string());
    }
}

#[test]
fn bodies_of_the_repository_door_that_are_wrong() {
    for (path, body, status, text) in [
        (
            "/v2/repository/index",
            "{\"ready\": 3}",
            400,
            "Invalid value for 'ready': expected a boolean",
        ),
        ("/v2/repository/index", "{", 400, ""),
        ("/v2/repository/models/any/load", "{\"parameters\": {\"config\": 3}}", 400, ""),
        (
            "/v2/repository/models/any/load",
            "{\"parameters\": {\"nonsense\": \"x\"}}",
            400,
            "nrecognized load parameter 'nonsense'",
        ),
        ("/v2/repository/models/any/load", "{\"parameters\": {\"config\": \"{\"}}", 400, ""),
        (
            "/v2/repository/models/any/load",
            "{\"parameters\": {\"file:1/x\": \"AAAA\"}}",
            400,
            "Load parameter 'config' must be specified for model file override",
        ),
        (
            "/v2/repository/models/any/unload",
            "{\"parameters\": {\"unload_dependents\": 3}}",
            400,
            "Unable to parse 'unload_dependents'",
        ),
    ] {
        SERVER.http.post(path, body).refuses(status, text);
        the_next_is_right(body);
    }
    for body in [nested(101), nested(100_000)] {
        let answer = SERVER.http.post("/v2/repository/index", &body);
        assert_eq!(answer.status, 400, "{}", answer.text());
    }
    assert_eq!(SERVER.state("any"), "READY");
}

#[test]
fn grpc_messages_over_the_limit_and_broken_ones() {
    let mut stream = std::net::TcpStream::connect(SERVER.grpc).unwrap();
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    let _ = stream.read_to_end(&mut Vec::new());
    let mut stream = std::net::TcpStream::connect(SERVER.grpc).unwrap();
    let _ = stream.write_all(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[255u8; 4096][..]].concat());
    let _ = stream.read_to_end(&mut Vec::new());
    the_next_is_right("noise at the gRPC door");
    let mut grpc = Grpc::connect(SERVER.grpc);
    let mut request = grpc::floats("any", &[]);
    request.inputs = vec![troupe::proto::inference::model_infer_request::InferInputTensor {
        name: "x".to_owned(),
        datatype: "UINT8".to_owned(),
        shape: vec![1 << 20],
        ..Default::default()
    }];
    request.raw_input_contents = vec![vec![7; 1 << 20].into()];
    assert_eq!(grpc.infer(request).unwrap().raw_output_contents[0].len(), 1 << 20);
    SERVER.is_well();
}
