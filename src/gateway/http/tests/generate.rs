//! The generate extension: what its flat objects mean.

use super::*;

impl Bench {
    async fn generate(&self, model: &str, body: &str) -> Answered {
        self.post(&format!("/v2/models/{model}/generate"), body).await
    }
}

#[actix_rt::test]
async fn members_are_inputs_or_parameters() {
    let bench = Bench::start().await;
    let two = r#""IN0":[1,2,3,4],"IN1":[5,6]"#;
    let said = |model: &str, rest: &str| {
        format!(r#"{{"model_name":"{model}","model_version":"1"{rest}}}"#)
    };
    let both = said("two", r#","OUT0":[1.0,2.0,3.0,4.0],"OUT1":[5,6]"#);
    for (model, body, expected) in [
        ("two", format!("{{{two}}}"), both.clone()),
        ("two", r#"{"parameters":{"IN1":[5,6]},"IN0":[1,2,3,4]}"#.into(), both.clone()),
        ("two", format!(r#"{{"id":"7",{two}}}"#), both.replacen('{', r#"{"id":"7","#, 1)),
        (
            "two",
            format!(r#"{{"a":1,{two},"parameters":{{"b":"x","c":true,"id":"y"}},"d":-0.5}}"#),
            both.replacen(r#","OUT0""#, r#","a":1,"b":"x","c":true,"id":"y","d":-0.5,"OUT0""#, 1),
        ),
        (
            "two",
            format!(r#"{{"OUT1":1,"model_name":"mine",{two}}}"#),
            format!(
                r#"{{"model_version":"1","model_name":"mine",{}}}"#,
                r#""OUT0":[1.0,2.0,3.0,4.0],"OUT1":[5,6]"#
            ),
        ),
        ("batched", r#"{"IN0":[1,2,3,4]}"#.into(), said("batched", r#","OUT0":[1.0,2.0,3.0,4.0]"#)),
        ("many", r#"{"IN0":[1]}"#.into(), said("many", r#","OUT0":1.0"#)),
        ("many", r#"{"IN0":[NaN,Infinity]}"#.into(), said("many", r#","OUT0":[NaN,Infinity]"#)),
        ("fp32", r#"{"IN0":[]}"#.into(), said("fp32", r#","OUT0":[]"#)),
        ("bool", r#"{"IN0":true}"#.into(), said("bool", r#","OUT0":true"#)),
        ("bool", r#"{"IN0":[true,false]}"#.into(), said("bool", r#","OUT0":[true,false]"#)),
        ("uint8", r#"{"IN0":255}"#.into(), said("uint8", r#","OUT0":255"#)),
        ("int8", r#"{"IN0":-128}"#.into(), said("int8", r#","OUT0":-128"#)),
        (
            "uint64",
            r#"{"IN0":18446744073709551615}"#.into(),
            said("uint64", r#","OUT0":18446744073709551615"#),
        ),
        (
            "int64",
            r#"{"IN0":-9223372036854775808}"#.into(),
            said("int64", r#","OUT0":-9223372036854775808"#),
        ),
        ("fp64", r#"{"IN0":0.1}"#.into(), said("fp64", r#","OUT0":0.1"#)),
        (
            "text",
            r#"{"text_IN":"a [\"b\", \u00e9\n]"}"#.into(),
            said("text", r#","text_OUT":"a [\"b\", é\n]""#),
        ),
        ("string", r#"{"IN0":["a",""]}"#.into(), said("string", r#","OUT0":["a",""]"#)),
    ] {
        let answer = bench.generate(model, &body).await;
        assert_eq!((answer.status, answer.text()), (200, expected.clone()), "{model} {body}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let streamed = bench.post(&format!("/v2/models/{model}/generate_stream"), &body).await;
        assert_eq!((streamed.status, streamed.chunks()), (200, format!("data: {expected}\n\n")));
        assert_eq!(streamed.header("content-type"), Some("text/event-stream; charset=utf-8"));
    }
    bench.stop().await;
}

#[actix_rt::test]
async fn wrong_requests_are_refused_in_json() {
    let bench = Bench::start().await;
    let unfit = "The schema can not convert input 'IN0' to tensor with proper shape";
    let no_string = "Unable to parse 'data': attempt to access JSON non-string as string";
    let no_object = "attempt to access JSON non-object as object";
    let invalid = |it: &str| {
        format!(
            "parameter '{it}' has invalid type. It should be either 'int', 'bool', or 'string'."
        )
    };
    let nested = format!("Converting keyword: 'parameters': {}", invalid("nested"));
    let missing = "[request id: a] expected 2 inputs but got 0 inputs for model 'two'. Got \
                   input(s) [], but missing required input(s) ['IN0','IN1']. Please provide all \
                   required input(s).";
    for (model, body, status, error) in [
        ("nope", "{}", 404, "Request for unknown model: 'nope' is not found"),
        ("two", r#"{"id":"a"}"#, 400, missing),
        (
            "two",
            r#"{"id":7}"#,
            400,
            "Unable to parse 'id': attempt to access JSON non-string as string",
        ),
        ("two", "[]", 400, no_object),
        (
            "two",
            "",
            400,
            "failed to parse the request JSON buffer: EOF while parsing a value at line 1 column 0",
        ),
        ("two", r#"{"IN0":[1,2,3]}"#, 400, unfit),
        ("two", r#"{"IN0":[[1,2],[3,4]]}"#, 400, unfit),
        ("two", r#"{"IN0":[]}"#, 400, unfit),
        ("batched", r#"{"IN0":[1,2,3]}"#, 400, unfit),
        (
            "two",
            r#"{"IN0":[1,2,3,"x"]}"#,
            400,
            "Unable to parse 'data': attempt to access JSON non-number as number",
        ),
        (
            "int32",
            r#"{"IN0":1.5}"#,
            400,
            "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
        ),
        (
            "bool",
            r#"{"IN0":"true"}"#,
            400,
            "Unable to parse 'data': attempt to access JSON non-boolean as boolean",
        ),
        ("word", r#"{"IN0":123}"#, 400, no_string),
        ("word", r#"{"IN0":null}"#, 400, no_string),
        ("word", r#"{"IN0":{"a":"b","c":"d"}}"#, 400, no_string),
        ("word", r#"{"IN0":["a","b"]}"#, 400, unfit),
        (
            "fp16",
            r#"{"IN0":1}"#,
            400,
            "receiving FP16 data via JSON is not supported. Please use the binary data format for input IN0",
        ),
        (
            "fp32",
            r#"{"IN0":1,"IN0":2}"#,
            400,
            "[request id: <id_unknown>] input 'IN0' already exists in request",
        ),
        ("fp32", r#"{"IN0":1,"x":{"y":1}}"#, 400, &invalid("x")),
        ("fp32", r#"{"IN0":1,"parameters":{"nested":{"twice":1}}}"#, 400, &nested),
        (
            "fp32",
            r#"{"IN0":1,"parameters":1}"#,
            400,
            &format!("Expected JSON object for keyword: 'parameters': {no_object}"),
        ),
        (
            "fp32",
            r#"{"IN0":1,"triton_x":1}"#,
            400,
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
        ),
        (
            "fp32",
            &format!(r#"{{"x":{}{}}}"#, "[".repeat(100), "]".repeat(100)),
            400,
            "JSON nesting depth exceeds maximum allowed limit (100)",
        ),
        (
            "keyword",
            r#"{"parameters":1}"#,
            400,
            "Keyword 'parameters' for nested schema also given as input tensor name",
        ),
    ] {
        for path in ["generate", "generate_stream"] {
            let answer = bench.post(&format!("/v2/models/{model}/{path}"), body).await;
            answer.refuses(status, error, &format!("{model} {path} {body}"));
        }
    }
    bench.stop().await;
}

#[actix_rt::test]
async fn refusals_name_the_input_what_it_takes_and_what_it_got() {
    let bench = Bench::start().await;
    let two = "{\"name\":\"IN0\",\"datatype\":\"FP32\",\"shape\":[4],\"data\":[1,2,3,4]}";
    let flat =
        format!(": flat JSON goes to /v2/models/two/generate; here it is {{\"inputs\":[{two}]}}");
    for (path, body, expected) in [
        ("two/generate", r#"{"IN0":[1,2,3]}"#, ": its shape is [4], but it got 3 elements"),
        (
            "two/generate",
            r#"{"IN0":[[1,2],[3,4]]}"#,
            ": its shape is [4], whose elements stand in one",
        ),
        ("two/generate", r#"{"IN0":[1,2,3,"x"]}"#, ": input 'IN0' is FP32, got \"x\""),
        ("word/generate", r#"{"IN0":123}"#, ": input 'IN0' is BYTES, got 123"),
        ("two/generate", r#"{"IN9":[1]}"#, " No input of 'two' has this name, did you mean `IN0`?"),
        ("two/infer", r#"{"IN0":[1,2,3,4]}"#, &flat),
    ] {
        let (status, error) = bench.post(&format!("/v2/models/{path}"), body).await.error();
        assert!(status == 400 && error.contains(expected), "{path} {body}: {error}");
    }
    // However often a member stands there, the answer stays short.
    let repeated = format!("{{{}}}", vec![r#""IN0":[1,2,3,4]"#; 1000].join(","));
    let (status, error) = bench.post("/v2/models/two/infer", &repeated).await.error();
    assert!(status == 400 && error.len() < 1000, "{}", error.len());
    bench.stop().await;
}

#[actix_rt::test]
async fn limits_are_those_of_every_request() {
    let bench = Bench::start().await;
    let path = "/v2/models/text/generate_stream";
    let long = format!(r#"{{"text_IN":"{}"}}"#, "x".repeat(LIMIT));
    let (status, error) = bench.post(path, &long).await.error();
    assert!(status == 400 && error.contains("exceeds the maximum allowed input size"), "{error}");
    let members: String = (0..5000).map(|it| format!(r#","p{it}":1"#)).collect();
    let (status, error) = bench.post(path, &format!(r#"{{"text_IN":"x"{members}}}"#)).await.error();
    assert!(status == 400 && error.contains("more than 4096"), "{error}");
    for coding in ["gzip", "deflate", "br"] {
        let sent = message("POST", path, &[("Content-Encoding", coding)], b"{}");
        let text = "Unsupported content-encoding, only 'identity' is supported.";
        assert_eq!(bench.send(&sent).await.error(), (400, text.to_owned()));
    }
    assert_eq!(
        bench.get(path).await.error(),
        (405, "Method Not Allowed: ask with POST".to_owned())
    );
    bench.state.lifecycle.exit();
    assert_eq!(bench.post(path, r#"{"text_IN":"x"}"#).await.status, 503);
    bench.stop().await;
}
