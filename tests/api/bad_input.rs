//! Bad input: a clear error with the right code, the server stays, the next answer is right.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::support::{
    Repository, Server,
    http::{floats, input},
    native,
};

pub(crate) const LIMIT: usize = 4 << 20;

/// Everything in `bad_bytes` goes to it as well.
pub(crate) static SERVER: LazyLock<Server> = LazyLock::new(|| {
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

pub(crate) fn good() -> Value {
    floats(&[("a", &[1.0, 2.0, 3.0, 4.0]), ("b", &[1.0; 4])])
}

/// After whatever was sent, a good request gets its answer.
#[track_caller]
pub(crate) fn the_next_is_right(after: &str) {
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
fn shapes_without_elements() {
    for (shape, status) in [
        (json!([3, 0]), 200),
        (json!([0, 0]), 200),
        (json!([0, 1u64 << 62]), 200),
        (json!([1u64 << 40, 1u64 << 40]), 400),
        (json!([1u64 << 62, 1u64 << 62, 0]), 400),
    ] {
        let request =
            json!({"inputs": [{"name": "x", "datatype": "UINT8", "shape": shape, "data": []}]});
        let answer = SERVER.infer("matrix", &request);
        assert_eq!(answer.status, status, "{shape}: {}", answer.text());
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
