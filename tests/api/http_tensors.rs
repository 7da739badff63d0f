//! Tensors over HTTP: as JSON, as bytes behind it, raw, compressed.

use std::io::{Read, Write};

use flate2::{
    Compression,
    read::{GzDecoder, ZlibDecoder},
    write::{GzEncoder, ZlibEncoder},
};
use serde_json::{Value, json};

use crate::support::{
    Answer,
    grpc::bytes_of,
    http::{floats, input},
};

use crate::api::http::http;

#[test]
fn every_type_that_json_has_goes_both_ways() {
    for (dtype, data) in [
        ("BOOL", json!([true, false, false, true])),
        ("UINT8", json!([0, 255, 1, 2])),
        ("UINT16", json!([0, 65535, 1, 2])),
        ("UINT32", json!([0, 4294967295u32, 1, 2])),
        ("UINT64", json!([0, u64::MAX, 1, 2])),
        ("INT8", json!([-128, 127, 0, 1])),
        ("INT16", json!([-32768, 32767, 0, 1])),
        ("INT32", json!([i32::MIN, i32::MAX, 0, 1])),
        ("INT64", json!([i64::MIN, i64::MAX, 0, 1])),
        ("FP32", json!([0.5, -1.25, 1e20, 16777216.0])),
        ("FP64", json!([0.1, -1e300, 3.0, 4.0])),
        ("BYTES", json!(["", "héllo \u{1F600}", "a\"b\\c\n\u{0}", "x"])),
    ] {
        let model = format!("id_{dtype}");
        let nested = json!([[data[0], data[1]], [data[2], data[3]]]);
        for form in [data.clone(), nested] {
            let request = json!({"inputs": [input("x", dtype, &[2, 2], form)]});
            let answer = http().infer(&model, &request);
            let got = answer.output("y");
            for (got, sent) in got.as_array().unwrap().iter().zip(data.as_array().unwrap()) {
                let number = |it: &Value| it.as_f64().filter(|_| dtype == "FP32");
                match (number(got), number(sent)) {
                    (Some(got), Some(sent)) => assert_eq!(got as f32, sent as f32),
                    _ => assert_eq!(got, sent, "{dtype}"),
                }
            }
            assert_eq!(answer.shape("y"), json!([2, 2]));
        }
    }
}

#[test]
fn types_that_json_lacks_are_refused_there_and_pass_as_bytes() {
    for dtype in ["FP16", "BF16"] {
        let model = format!("id_{dtype}");
        let request = json!({"inputs": [input("x", dtype, &[1, 2], vec![1.0, 2.0])]});
        http().infer(&model, &request).refuses(
            400,
            &format!(
                "receiving {dtype} data via JSON is not supported. Please use the binary data \
                 format for input x"
            ),
        );
        let request = binary_request(&[("x", dtype, &[1, 2], 4)], json!(null));
        http().infer_binary(&model, &request, &[&[1, 2, 3, 4]]).refuses(
            400,
            &format!(
                "sending {dtype} data via JSON is not supported. Please use the binary data \
                 format for output y"
            ),
        );
        let request = binary_request(
            &[("x", dtype, &[1, 2], 4)],
            json!([{"name": "y",
            "parameters": {"binary_data": true}}]),
        );
        let answer = http().infer_binary(&model, &request, &[&[1, 2, 3, 4]]);
        assert_eq!(parts(answer.ok()).1, [1, 2, 3, 4], "{dtype}");
    }
}

/// A request whose inputs follow the JSON.
fn binary_request(inputs: &[(&str, &str, &[i64], usize)], outputs: Value) -> Value {
    let inputs: Vec<Value> = inputs
        .iter()
        .map(|(name, dtype, shape, size)| {
            json!({"name": name, "datatype": dtype, "shape": shape,
                   "parameters": {"binary_data_size": size}})
        })
        .collect();
    let mut request = json!({ "inputs": inputs });
    if !outputs.is_null() {
        request["outputs"] = outputs;
    }
    request
}

/// The JSON and what follows it.
fn parts(answer: &Answer) -> (Value, Vec<u8>) {
    let length = answer.header("inference-header-content-length").expect("there are bytes behind");
    let (json, bytes) = answer.body.split_at(length.parse().unwrap());
    (serde_json::from_slice(json).unwrap(), bytes.to_vec())
}

#[test]
fn json_and_bytes_mix_in_requests_and_answers() {
    let mut request = binary_request(
        &[("a", "FP32", &[4], 16)],
        json!([{"name": "sum"}, {"name": "difference", "parameters": {"binary_data": true}}]),
    );
    let b = input("b", "FP32", &[4], vec![1.0, 1.0, 1.0, 1.0]);
    request["inputs"].as_array_mut().unwrap().insert(0, b);
    let a = bytes_of(&[1.0, 2.0, 3.0, 4.0]);
    let answer = http().infer_binary("add_sub", &request, &[&a]);
    assert_eq!(answer.ok().header("content-type"), Some("application/octet-stream"));
    let (json, bytes) = parts(&answer);
    assert_eq!(json["outputs"][0]["data"], json!([2.0, 3.0, 4.0, 5.0]));
    assert_eq!(json["outputs"][1]["parameters"]["binary_data_size"], 16);
    assert_eq!(bytes, bytes_of(&[0.0, 1.0, 2.0, 3.0]));

    request.as_object_mut().unwrap().remove("outputs");
    request["parameters"] = json!({"binary_data_output": true});
    let (json, bytes) = parts(http().infer_binary("add_sub", &request, &[&a]).ok());
    assert_eq!(json["outputs"][0]["parameters"]["binary_data_size"], 16);
    assert_eq!(bytes[..16], bytes_of(&[2.0, 3.0, 4.0, 5.0]));
    assert_eq!(bytes.len(), 32);
}

#[test]
fn a_body_without_json_is_the_only_input() {
    let raw = [("Inference-Header-Content-Length", "0")];
    let answer = http().send("POST", "/v2/models/one_byte/infer", &raw, &[7, 8, 9]);
    let (json, bytes) = parts(answer.ok());
    assert_eq!(json["outputs"][0]["shape"], json!([3]));
    assert_eq!(bytes, [7, 8, 9]);
    let answer = http().send("POST", "/v2/models/text/infer", &raw, b"plain text");
    assert_eq!(parts(answer.ok()).1, b"\x0a\0\0\0plain text");
    let answer = http().send("POST", "/v2/models/add_sub/infer", &raw, &[0; 16]);
    answer.refuses(400, "Raw request must only have 1 input (found ");
    answer.refuses(400, ") to be deduced but got 2 inputs in 'add_sub' model configuration");
}

#[test]
fn bodies_are_compressed_both_ways() {
    let request = floats(&[("a", &[1.0; 4]), ("b", &[2.0; 4])]).to_string();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(request.as_bytes()).unwrap();
    let mut deflate = ZlibEncoder::new(Vec::new(), Compression::default());
    deflate.write_all(request.as_bytes()).unwrap();
    let path = "/v2/models/add_sub/infer";
    let unzip = |answer: &Answer| -> Value {
        let mut text = String::new();
        match answer.ok().header("content-encoding") {
            Some("gzip") => GzDecoder::new(&*answer.body).read_to_string(&mut text),
            Some("deflate") => ZlibDecoder::new(&*answer.body).read_to_string(&mut text),
            other => panic!("expected a compressed answer, got {other:?}"),
        }
        .unwrap();
        serde_json::from_str(&text).unwrap()
    };
    for (coding, body) in [
        ("gzip", gzip.finish().unwrap()),
        ("deflate", deflate.finish().unwrap()),
        ("identity", request.clone().into_bytes()),
    ] {
        let answer = http().send("POST", path, &[("Content-Encoding", coding)], &body);
        assert_eq!(answer.numbers("sum"), [3.0; 4], "{coding}");
        let both = [("Content-Encoding", coding), ("Accept-Encoding", "gzip")];
        let answer = http().send("POST", path, &both, &body);
        assert_eq!(answer.header("content-encoding"), Some("gzip"));
        assert_eq!(unzip(&answer)["model_name"], "add_sub");
    }
    let accept = [("Accept-Encoding", "gzip;q=0.5, deflate;q=1")];
    let answer = http().send("POST", path, &accept, request.as_bytes());
    assert_eq!(answer.header("content-encoding"), Some("deflate"));
    assert_eq!(unzip(&answer)["model_name"], "add_sub");
    let answer = http().send("POST", path, &[("Content-Encoding", "br")], b"x");
    answer.refuses(501, "Unsupported compression type");
}

#[test]
fn numbers_that_json_has_no_word_for_are_written_as_python_reads_them() {
    let values = bytes_of(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.5]);
    let request = binary_request(&[("x", "FP32", &[2, 2], 16)], json!([{"name": "y"}]));
    let text = http().infer_binary("id_FP32", &request, &[&values]).ok().text();
    assert!(text.replace(' ', "").contains("[NaN,Infinity,-Infinity,1.5]"), "{text}");
}
