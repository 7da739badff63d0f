//! Files that others write: configs as text and as JSON, arrays and archives of arrays.

use bytes::Bytes;
use troupe_base::{
    config::{ServerFeatures, read_json, read_text},
    numpy::{npy, npz},
    tensor::{DataType, Tensor},
};

use super::{attempts::fuzz, mutate::Corpus};

const TEXT: &[u8] = br#"
name: "m" platform: "onnxruntime_onnx" max_batch_size: 8 # a comment
input [ { name: "a" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] optional: true } ]
output { name: 'b' data_type: TYPE_STRING dims: 1 reshape { } label_filename: "labels.txt" }
version_policy { specific { versions: [ 1, 3 ] } }
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
instance_group [ { count: 3 }, { kind: KIND_MODEL passive: true name: "x" } ]
parameters { key: "k" value { string_value: "v\n\x41\101" } }
"#;

const ENSEMBLE: &[u8] = br#"
name: "e" platform: "ensemble"
input { name: "x" data_type: TYPE_FP32 dims: -1 }
output { name: "y" data_type: TYPE_FP32 dims: -1 }
ensemble_scheduling { step [
  { model_name: "a" model_version: -1 input_map { key: "i" value: "x" } output_map { key: "o" value: "t" } },
  { model_name: "b" input_map { key: "i" value: "t" } output_map { key: "o" value: "y" } } ] }
"#;

const JSON: &[u8] = br#"{"name":"m","backend":"python","maxBatchSize":4,"input":[{"name":"a",
"data_type":"TYPE_FP32","dims":["-1",2]}],"output":[{"name":"b","dataType":11,"dims":[1]}],
"instance_group":[{"count":1,"kind":"KIND_CPU"}],"parameters":{"k":{"string_value":"v"}},
"dynamic_batching":{"preferred_batch_size":[2,4]},"version_policy":{"latest":{"num_versions":1}}}"#;

const TOKENS: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"'",
    b":",
    b",",
    b"<",
    b">",
    b"\\",
    b"#",
    b"-",
    b"\0",
    b"\xff",
    b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    b"{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{",
    b"null",
    b"1e999",
    b"-9223372036854775808",
    b"18446744073709551616",
    b"0x7fffffffffffffff",
    b"\\u0000",
    b"\\ud800",
    b"dims: [ -1, 4611686018427387904 ]",
    b"max_batch_size: 2147483647",
    b"count: -1",
    b"ensemble_scheduling { step { model_name: 'e' } }",
    b"..",
    b"/",
    b"KIND_GPU",
    b"sequence_batching {}",
];

#[test]
fn configs_are_read_or_refused() {
    let corpus = Corpus { inputs: &[TEXT, ENSEMBLE], tokens: TOKENS };
    fuzz("config.pbtxt", &corpus, |input, _| {
        let text = String::from_utf8_lossy(input);
        if let Ok(draft) = read_text(&text, "f") {
            let _ = draft.finish(&ServerFeatures::default());
        }
    });
}

#[test]
fn configs_as_json_are_read_or_refused() {
    let corpus = Corpus { inputs: &[JSON], tokens: TOKENS };
    fuzz("config as JSON", &corpus, |input, _| {
        let text = String::from_utf8_lossy(input);
        if let Ok(draft) = read_json(&text, "f") {
            let _ = draft.finish(&ServerFeatures::default());
        }
    });
}

fn array() -> Vec<u8> {
    let shape = [2, 3].into_iter().collect();
    let tensor = Tensor::new(DataType::Fp32, shape, Bytes::from(vec![7; 24])).unwrap();
    [&npy::header(&tensor)[..], tensor.data()].concat()
}

const OF_ARRAYS: &[&[u8]] = &[
    b"\x93NUMPY\x02\x00",
    b"\x93NUMPY\x03\x00",
    b"'fortran_order': True",
    b"'descr': '|O'",
    b"'descr': '<f8'",
    b"'descr': '|S9'",
    b"(9223372036854775807, 2)",
    b"(-1,)",
    b"()",
    b"(2,",
    b"PK\x05\x06",
    b"PK\x01\x02",
    b"PK\x03\x04",
    b"\xff\xff\xff\xff",
    b"\0\0\0\0",
    b"../../x.npy",
];

#[test]
fn arrays_are_read_or_refused() {
    let corpus = Corpus { inputs: &[&array()], tokens: OF_ARRAYS };
    fuzz("npy", &corpus, |input, _| drop(npy::read(&Bytes::copy_from_slice(input))));
}

#[test]
fn archives_of_arrays_are_read_or_refused() {
    let entry = |name: &str| npz::NpzEntry { name: name.to_owned(), parts: vec![array().into()] };
    let archive = npz::write(vec![entry("a"), entry("b")]).unwrap().concat();
    let corpus = Corpus { inputs: &[&archive], tokens: OF_ARRAYS };
    fuzz("npz", &corpus, |input, _| drop(npz::read(&Bytes::copy_from_slice(input))));
}
