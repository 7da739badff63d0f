//! Requests that are wrong, and what is said about them.

use super::*;

/// `(model, body, status, error)`; afterwards a right request is answered.
async fn check(cases: &[(&str, &str, u16, &str)]) {
    let bench = Bench::start().await;
    for (model, body, status, error) in cases {
        let answer = bench.post(&format!("/v2/models/{model}/infer"), body).await;
        answer.refuses(*status, error, &format!("{model} {body}"));
    }
    let right = bench.one("fp32", ("FP32", "[1]", "[1]")).await;
    assert_eq!(right.status, 200, "{}", right.text());
    bench.stop().await;
}

const DISABLED: &str =
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.";
const IN0: &str = r#"{"name":"IN0","datatype":"FP32","shape":[4],"data":[1,2,3,4]}"#;
const IN1: &str = r#"{"name":"IN1","datatype":"INT32","shape":[2],"data":[1,2]}"#;

#[actix_rt::test]
async fn envelopes() {
    let both = format!(r#""inputs":[{IN0},{IN1}]"#);
    let with = |more: &str| format!("{{{both},{more}}}");
    let invalid_parameter =
        "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'.";
    let out0 = |it: &str| with(&format!(r#""outputs":[{{"name":"OUT0","parameters":{{{it}}}}}]"#));
    let deep = with(&format!(r#""x":{}{}"#, "[".repeat(200), "]".repeat(200)));
    check(&[
        ("nope", "{}", 404, "Request for unknown model: 'nope' is not found"),
        ("two/versions/0", "{}", 400, "invalid model version specified '0' , version should be an integral value > 0"),
        ("two/versions/x", "{}", 400, "failed to get model version from specified version string 'x' (details: stol), version should be an integral value > 0"),
        ("gone/versions/3", "{}", 503, "Request for unknown model: 'gone' version 3 is not at ready state"),
        ("two", "", 400, "failed to parse the request JSON buffer: EOF while parsing a value at line 1 column 0"),
        ("two", "{\"inputs\":[", 400, "failed to parse the request JSON buffer: EOF while parsing a list at line 1 column 11"),
        ("two", "{}", 400, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ("two", r#"{"inputs":5}"#, 400, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        ("two", r#"{"id":5,"inputs":[]}"#, 400, "Unable to parse 'id': attempt to access JSON non-string as string"),
        ("two", r#"{"id":"a","inputs":[]}"#, 400, "[request id: a] expected 2 inputs but got 0 inputs for model 'two'. Got input(s) [], but missing required input(s) ['IN0','IN1']. Please provide all required input(s)."),
        ("two", &deep, 400, "JSON nesting depth exceeds maximum allowed limit (100)"),
        ("two", &with(r#""parameters":{"x":[1]}"#), 400, invalid_parameter),
        ("two", &with(r#""parameters":{"x":null}"#), 400, invalid_parameter),
        ("two", &with(r#""parameters":[]"#), 400, "Unable to parse 'parameters': attempt to access JSON non-object as object"),
        ("two", &with(r#""parameters":{"triton_x":1}"#), 400, "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."),
        ("two", &with(r#""outputs":[{"name":"OUT9"}]"#), 400, "[request id: <id_unknown>] unexpected inference output 'OUT9' for model 'two'"),
        ("two", &with(r#""outputs":[{"name":"OUT0"},{"name":"OUT0"}]"#), 400, "[request id: <id_unknown>] output 'OUT0' already exists in request"),
        ("two", &with(r#""outputs":[{}]"#), 400, "Unable to parse 'name': attempt to access non-existing object member 'name'"),
        ("two", &out0(r#""classification":-1"#), 400, "Unable to parse 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ("two", &out0(r#""classification":1,"shared_memory_region":"r""#), 400, "Output can't set both 'shared_memory_region' and 'classification'"),
        ("two", &out0(r#""binary_data":true,"shared_memory_region":"r""#), 400, "Output can't set both 'shared_memory_region' and 'binary_data'"),
        ("two", &out0(r#""binary_data":false,"shared_memory_region":"r""#), 501, DISABLED),
        ("two", &out0(r#""binary_data":2"#), 400, "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean"),
    ])
    .await;
}

#[actix_rt::test]
async fn lists_without_end() {
    let bench = Bench::start().await;
    for body in [
        format!(r#"{{"inputs":[{}{{}}]}}"#, "{},".repeat(5000)),
        format!(r#"{{"inputs":[{{"name":"IN0","shape":[{}1]}}]}}"#, "1,".repeat(5000)),
        format!(r#"{{"inputs":[],"outputs":[{}{{}}]}}"#, "{},".repeat(5000)),
        format!(r#"{{"inputs":[],"parameters":{{{}"a":1}}}}"#, "\"a\":1,".repeat(5000)),
    ] {
        let (status, error) = bench.post("/v2/models/two/infer", &body).await.error();
        let text = "more than 4096 inputs, outputs, dimensions or parameters";
        assert!(status == 400 && error.contains(text), "{error}");
    }
    bench.stop().await;
}

#[actix_rt::test]
async fn inputs() {
    let of = |input: &str| format!(r#"{{"inputs":[{input}]}}"#);
    let source = "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. But ";
    let (none, two_set) =
        (format!("{source}no field is set"), format!("{source}set 'data' 'binary_data_size'"));
    let in0 = |rest: &str| of(&format!(r#"{{"name":"IN0","datatype":"FP32",{rest}}}"#));
    check(&[
        ("two", &of("{}"), 400, "Unable to parse 'name': attempt to access non-existing object member 'name'"),
        ("two", &of(r#"{"name":"IN0"}"#), 400, "Unable to parse 'datatype': attempt to access non-existing object member 'datatype'"),
        ("two", &of(r#"{"name":"IN0","datatype":"FP31"}"#), 400, "unknown datatype 'FP31' of inference input 'IN0'"),
        ("two", &in0(r#""data":[1]"#), 400, "Unable to parse 'shape': attempt to access non-existing object member 'shape'"),
        ("two", &in0(r#""shape":[1.5]"#), 400, "Unable to parse 'shape': attempt to access JSON non-signed-integer as signed-integer"),
        ("two", &in0(r#""shape":[4]"#), 400, &none),
        ("two", &in0(r#""shape":[4],"data":[1,2,3,4],"parameters":{"binary_data_size":16}"#), 400, &two_set),
        ("two", &in0(r#""shape":[4],"parameters":{"shared_memory_region":"r"}"#), 501, DISABLED),
        ("two", &in0(r#""shape":[4],"parameters":{"binary_data_size":16}"#), 400, "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when passing inputs in binary data format"),
        ("two", &in0(r#""shape":[4],"parameters":{"binary_data_size":-1}"#), 400, "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ("two", &in0(r#""shape":[-4],"data":[]"#), 400, "invalid shape for input 'IN0': shape [-4] contains one or more invalid dimensions"),
        ("two", &in0(r#""shape":[4294967296,4294967296],"data":[]"#), 400, "invalid shape for input 'IN0': shape [4294967296,4294967296] causes total element count to exceed maximum size of 9223372036854775807"),
        ("two", &in0(r#""shape":[4611686018427387904],"data":[]"#), 400, "byte size overflow for input 'IN0': element count (4611686018427387904) * data type size (4) exceeds maximum allowed size (9223372036854775807)"),
        ("two", &in0(r#""shape":[300000],"data":[]"#), 400, "JSON input 'IN0' has a byte_size (1200000 bytes) that exceeds the maximum allowed value of 1048576 bytes. Use --http-max-input-size to increase the limit."),
        ("two", &of(&format!("{IN0},{IN0}")), 400, "[request id: <id_unknown>] input 'IN0' already exists in request"),
        ("two", &of(&IN0.replace("IN0", "x\\u0000\\n\\u001b")), 400, "[request id: <id_unknown>] unexpected inference input 'x\0\n\u{1b}' for model 'two'"),
        ("two", &of(&format!("{},{IN1}", IN0.replace("FP32", "INT32"))), 400, "[request id: <id_unknown>] inference input 'IN0' data-type is 'INT32', but model 'two' expects 'FP32'"),
        ("two", &of(&format!("{},{IN1}", IN0.replace("[4]", "[2,2]"))), 400, "[request id: <id_unknown>] unexpected shape for input 'IN0' for model 'two'. Expected [4], got [2,2]."),
    ])
    .await;
}

#[actix_rt::test]
async fn elements() {
    let bench = Bench::start().await;
    let count = "Shape does not match true shape of 'data' field: the shape of input 'IN0' has 2 \
                 elements";
    for (model, dtype, data, status, error) in [
        ("fp32", "FP32", "[1]", 500, count),
        ("fp32", "FP32", "[1,2,3]", 500, count),
        ("string", "BYTES", r#"["a"]"#, 500, count),
        ("fp32", "FP32", "5", 400, "attempt to access JSON non-array as array"),
        ("fp32", "FP32", "[1,\"2\"]", 400, "attempt to access JSON non-number as number"),
        ("fp32", "FP32", "[1,{}]", 400, "attempt to access JSON non-number as number"),
        ("fp32", "FP32", "[1,1e39]", 400, "value 1e39 of input 'IN0' is out of range for FP32"),
        ("int8", "INT8", "[1,128]", 400, "value 128 of input 'IN0' is out of range for INT8"),
        (
            "int8",
            "INT8",
            "[1,1.0]",
            400,
            "attempt to access JSON non-signed-integer as signed-integer",
        ),
        (
            "uint8",
            "UINT8",
            "[1,-1]",
            400,
            "attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        ("bool", "BOOL", "[true,1]", 400, "attempt to access JSON non-boolean as boolean"),
        ("bool", "BOOL", "[true,null]", 400, "attempt to access JSON non-boolean as boolean"),
        ("string", "BYTES", "[\"a\",1]", 400, "attempt to access JSON non-string as string"),
    ] {
        let answer = bench.one(model, (dtype, "[2]", data)).await;
        answer.refuses(status, &format!("Unable to parse 'data': {error}"), model);
    }
    for dtype in ["FP16", "BF16"] {
        let answer = bench.one(&dtype.to_lowercase(), (dtype, "[1]", "[1]")).await;
        let error = format!(
            "receiving {dtype} data via JSON is not supported. Please use the binary data format for input IN0"
        );
        assert_eq!(answer.error(), (400, error));
    }
    bench.stop().await;
}
