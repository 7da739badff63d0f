//! Everything but inference: health, metadata, statistics, the repository.

use super::*;

#[actix_rt::test]
async fn paths_answer_as_tritons() {
    let bench = Bench::start().await;
    for (method, path, status, body) in [
        ("GET", "/v2/health/live", 200, ""),
        ("GET", "/v2/health/ready", 200, ""),
        ("GET", "/v2/models/two/ready", 200, ""),
        ("GET", "/v2/models/two/versions/1/ready", 200, ""),
        ("GET", "/v2/models/gone/versions/3/ready", 400, r#"{"error":"Model version not ready"}"#),
        (
            "GET",
            "/v2/models/nope/ready",
            404,
            r#"{"error":"Request for unknown model: 'nope' is not found"}"#,
        ),
        (
            "GET",
            "/v2/models/..%2f..%2fetc/config",
            404,
            r#"{"error":"Request for unknown model: '..%2f..%2fetc' is not found"}"#,
        ),
        (
            "GET",
            "/v2/models/two/versions/7",
            404,
            r#"{"error":"Request for unknown model: 'two' version 7 is not found (ready: 1)"}"#,
        ),
        ("GET", "/v2/nope", 404, r#"{"error":"Not Found"}"#),
        ("POST", "/", 405, r#"{"error":"Method Not Allowed: ask with GET"}"#),
        ("POST", "/v2/health/live", 405, r#"{"error":"Method Not Allowed: ask with GET"}"#),
        ("GET", "/v2/models/two/infer", 405, r#"{"error":"Method Not Allowed: ask with POST"}"#),
        (
            "GET",
            "/v2/models/nope/stats",
            400,
            r#"{"error":"requested model 'nope' is not available"}"#,
        ),
        (
            "GET",
            "/v2/models/two/versions/9/stats",
            400,
            r#"{"error":"requested model version is not available for model 'two'"}"#,
        ),
        (
            "POST",
            "/v2/repository/mine/index",
            501,
            r#"{"error":"'repository_name' specification is not supported"}"#,
        ),
        (
            "GET",
            "/v2/logging",
            200,
            concat!(
                r#"{"log_file":"","log_info":true,"log_warning":true,"log_error":true,"#,
                r#""log_verbose_level":0,"log_format":"default"}"#
            ),
        ),
        ("DELETE", "/v2/logging", 405, r#"{"error":"Method Not Allowed"}"#),
        (
            "GET",
            "/v2/models/batched",
            200,
            concat!(
                r#"{"name":"batched","versions":["1"],"platform":"native","#,
                r#""inputs":[{"name":"IN0","datatype":"FP32","shape":[-1,2]}],"#,
                r#""outputs":[{"name":"OUT0","datatype":"FP32","shape":[-1,2]}]}"#
            ),
        ),
    ] {
        let answer = bench.send(&message(method, path, &[], b"")).await;
        assert_eq!((answer.status, &*answer.text()), (status, body), "{method} {path}");
    }
    bench.stop().await;
}

#[actix_rt::test]
async fn the_server_and_its_models_describe_themselves() {
    let bench = Bench::start().await;
    let server = bench.get("/v2").await;
    assert!(server.text().starts_with(r#"{"name":"bench","version":"2."#), "{server:?}");
    let config = bench.get("/v2/models/batched/config").await.text();
    assert!(config.contains(r#""max_batch_size":8"#) && config.contains(r#""dims":[2]"#));
    bench.one("fp32", ("FP32", "[1]", "[1]")).await;
    let one = bench.get("/v2/models/fp32/versions/1/stats").await.text();
    assert!(one.starts_with(r#"{"model_stats":[{"name":"fp32","version":"1","#), "{one}");
    assert!(one.contains(r#""inference_stats":{"success":{"count":1,"#), "{one}");
    let all = bench.get("/v2/models/stats").await.text();
    assert!(all.contains(r#""name":"two""#) && all.contains(r#""name":"fp32""#));
    bench.stop().await;
}

#[actix_rt::test]
async fn the_index_lists_what_was_tried_and_what_was_not() {
    let bench = Bench::start().await;
    let index = "/v2/repository/index";
    let all = bench.post(index, "").await.text();
    for line in [
        r#"{"name":"two","version":"1","state":"READY"}"#,
        r#"{"name":"gone","version":"3","state":"UNAVAILABLE","reason":"unloaded"}"#,
        r#"{"name":"untried"}"#,
    ] {
        assert!(all.contains(line), "{line} in {all}");
    }
    let ready = bench.post(index, r#"{"ready":true}"#).await.text();
    assert!(ready.contains("two") && !ready.contains("gone") && !ready.contains("untried"));
    let deep = format!("{{\"ready\":{}1{}}}", "[".repeat(101), "]".repeat(101));
    for (body, error) in [
        (r#"{"ready":"yes"}"#, "Invalid value for 'ready': expected a boolean"),
        (&deep, "JSON nesting depth exceeds maximum allowed limit (100)"),
    ] {
        assert_eq!(bench.post(index, body).await.error(), (400, error.to_owned()));
    }
    bench.stop().await;
}

#[actix_rt::test]
async fn models_are_loaded_and_unloaded() {
    let bench = Bench::start().await;
    let path = |what: &str| format!("/v2/repository/models/{what}");
    for (what, body, expected) in [
        ("m/load", "", "load m None {}"),
        (
            "m/load",
            r#"{"parameters":{"config":"{\"a\":1}","file:1/x":"aGk="}}"#,
            r#"load m Some("{\"a\":1}") {"1/x": [104, 105]}"#,
        ),
        ("m/unload", "", "unload m false"),
        ("m/unload", r#"{"parameters":{"unload_dependents":true}}"#, "unload m true"),
    ] {
        let answer = bench.post(&path(what), body).await;
        assert_eq!((answer.status, &*answer.text()), (200, ""), "{what} {body}");
        assert_eq!(bench.notebook.0.lock().pop().as_deref(), Some(expected));
    }
    for (what, body, error) in [
        ("broken/load", "", "load failed for model 'broken'"),
        ("m/load", r#"{"parameters":{"x":1}}"#, "Unrecognized load parameter 'x' with type 'INT'"),
        (
            "m/load",
            r#"{"parameters":{"config":5}}"#,
            "Unable to parse 'config': attempt to access JSON non-string as string",
        ),
        (
            "m/load",
            r#"{"parameters":{"file:a":"?"}}"#,
            "Unable to parse 'file:a': not base64: Invalid symbol 63, offset 0.",
        ),
        (
            "m/unload",
            r#"{"parameters":{"unload_dependents":1}}"#,
            "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean",
        ),
    ] {
        assert_eq!(bench.post(&path(what), body).await.error(), (400, error.to_owned()));
    }
    bench.stop().await;
}
