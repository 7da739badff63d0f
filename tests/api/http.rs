//! The HTTP API: what each address answers, and tensors in all the forms they may travel in.

use std::{
    io::{Read, Write},
    sync::LazyLock,
};

use serde_json::{Value, json};

use crate::support::{
    Http, Repository, Server, ensemble,
    http::{floats, input},
    native,
};

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let mut repository = Repository::new()
        .with("add_sub", native("add_sub", "a:FP32[4] b:FP32[4] -> sum:FP32[4] difference:FP32[4]"))
        .with("mul", native("mul", "x:FP32[4] y:FP32[4] -> z:FP32[4]"))
        .with(
            "e",
            ensemble(
                "INPUT0:FP32[4] INPUT1:FP32[4] -> OUTPUT:FP32[4]",
                &["add_sub: a=INPUT0 b=INPUT1 -> sum=s difference=d", "mul: x=s y=d -> z=OUTPUT"],
            ),
        )
        .with("batched", native("identity", "x:INT64[2] -> y:INT64[2]").batch(8))
        .with("text", native("identity", "text_input:BYTES[1] -> text_output:BYTES[1]"))
        .with("one_byte", native("identity", "x:UINT8[-1] -> y:UINT8[-1]"))
        .with(
            "two",
            native("identity", "x:FP32[-1] -> y:FP32[-1]")
                .versions(&["1", "3"])
                .with("version_policy { all {} }"),
        );
    for dtype in "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 BF16 FP32 FP64 BYTES"
        .split(' ')
    {
        let signature = format!("x:{dtype}[-1,2] -> y:{dtype}[-1,2]");
        repository.write(&format!("id_{dtype}"), &native("identity", &signature));
    }
    Server::with(repository, &["--id=tested"])
});

pub(crate) fn http() -> Http {
    SERVER.http
}

#[test]
fn health_has_no_body() {
    for path in [
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/e/ready",
        "/v2/models/e/versions/1/ready",
    ] {
        let answer = http().get(path);
        assert_eq!((answer.status, answer.text().as_str()), (200, ""), "{path}");
    }
}

#[test]
fn addresses_that_are_not_there_and_methods_that_do_not_fit() {
    for path in [
        "/index.html",
        "/v2/nothing",
        "/v1/models/e",
        "/v2/models/e/nothing",
        "/v2/models/e/versions/1/x",
    ] {
        http().get(path).refuses(404, "Not Found");
    }
    for (method, path) in [
        ("POST", "/v2"),
        ("POST", "/v2/health/live"),
        ("PUT", "/v2/models/e/config"),
        ("GET", "/v2/models/e/infer"),
        ("GET", "/v2/repository/index"),
        ("DELETE", "/v2/repository/models/e/load"),
    ] {
        http().send(method, path, &[], b"").refuses(405, "Method Not Allowed");
    }
}

#[test]
fn the_server_says_who_it_is() {
    let body = http().get("/v2").ok().json();
    assert_eq!(body["name"], "tested");
    assert!(body["version"].is_string(), "{body}");
    let extensions: Vec<_> = body["extensions"].as_array().unwrap().iter().collect();
    for expected in [
        "classification",
        "model_repository",
        "model_configuration",
        "binary_tensor_data",
        "parameters",
        "statistics",
    ] {
        assert!(extensions.iter().any(|it| **it == *expected), "no {expected} in {body}");
    }
}

#[test]
fn a_model_says_what_it_takes() {
    let tensor = |name: &str, dtype: &str, shape: &[i64]| -> Value {
        json!({"name": name, "datatype": dtype, "shape": shape})
    };
    let expected = json!({
        "name": "batched", "versions": ["1"], "platform": "native",
        "inputs": [tensor("x", "INT64", &[-1, 2])], "outputs": [tensor("y", "INT64", &[-1, 2])],
    });
    assert_eq!(http().get("/v2/models/batched").ok().json(), expected);
    let ensemble = http().get("/v2/models/e/versions/1").ok().json();
    assert_eq!(ensemble["platform"], "ensemble");
    assert_eq!(ensemble["inputs"][1], tensor("INPUT1", "FP32", &[4]));
    assert_eq!(http().get("/v2/models/two").ok().json()["versions"], json!(["1", "3"]));
    assert_eq!(http().get("/v2/models/two/versions/3").ok().json()["versions"], json!(["3"]));
}

#[test]
fn a_config_is_shown_completed() {
    let config = http().get("/v2/models/e/config").ok().json();
    assert_eq!(config["name"], "e");
    assert_eq!(config["platform"], "ensemble");
    assert_eq!(config["version_policy"], json!({"latest": {"num_versions": 1}}));
    assert_eq!(config["input"][0]["dims"], json!([4]));
    assert_eq!(config["input"][0]["data_type"], "TYPE_FP32");
    assert_eq!(config["model_transaction_policy"]["decoupled"], false);
    let step = &config["ensemble_scheduling"]["step"][0];
    assert_eq!(step["model_name"], "add_sub");
    assert_eq!(step["model_version"], -1);
    assert_eq!(step["input_map"], json!({"a": "INPUT0", "b": "INPUT1"}));
    let config = http().get("/v2/models/batched/versions/1/config").ok().json();
    assert_eq!(config["max_batch_size"], 8);
    assert_eq!(config["parameters"]["op"]["string_value"], "identity");
    let group = &config["instance_group"][0];
    assert_eq!((&group["count"], &group["kind"]), (&json!(1), &json!("KIND_CPU")));
    assert_eq!(config["input"][0]["optional"], false, "defaults are shown: {config}");
}

#[test]
fn models_that_are_not_there() {
    let request = floats(&[("x", &[1.0])]);
    for (answer, status, text) in [
        (http().get("/v2/models/no"), 404, "Request for unknown model: 'no' is not found"),
        (http().get("/v2/models/no/config"), 404, "Request for unknown model: 'no' is not found"),
        (http().infer("no", &request), 404, "Request for unknown model: 'no' is not found"),
        (http().get("/v2/models/no/stats"), 400, "requested model 'no' is not available"),
        (
            http().get("/v2/models/e/versions/7"),
            404,
            "Request for unknown model: 'e' version 7 is not found",
        ),
        (
            http().post("/v2/models/two/versions/2/infer", &request),
            404,
            "Request for unknown model: 'two' version 2 is not found",
        ),
        (
            http().get("/v2/models/e/versions/7/stats"),
            400,
            "requested model version is not available for model 'e'",
        ),
    ] {
        answer.refuses(status, text);
    }
}

#[test]
fn the_pipeline_answers() {
    let inputs: &[(&str, &[f32])] =
        &[("INPUT0", &[1.0, 2.0, 3.0, 4.0]), ("INPUT1", &[5.0, 6.0, 7.0, 8.0])];
    let mut request = floats(inputs);
    request["id"] = json!("my-id");
    let body = http().infer("e", &request).ok().json();
    assert_eq!(body["model_name"], "e");
    assert_eq!(body["model_version"], "1");
    assert_eq!(body["id"], "my-id");
    let outputs = body["outputs"].as_array().unwrap();
    assert_eq!(outputs.len(), 1);
    assert_eq!(outputs[0]["datatype"], "FP32");
    assert_eq!(outputs[0]["shape"], json!([4]));
    assert_eq!(http().infer("e", &request).numbers("OUTPUT"), [-24.0, -32.0, -40.0, -48.0]);
}

#[test]
fn curl_can_ask_in_one_line() {
    let body = br#"{"inputs":[{"name":"text_input","datatype":"BYTES","shape":[1],"data":["How can you be"]}]}"#;
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let answer = http().send("POST", "/v2/models/text/infer", &form, body);
    assert_eq!(answer.output("text_output"), json!(["How can you be"]));
    assert_eq!(answer.header("content-type"), Some("application/json"));
}

#[test]
fn a_connection_serves_many_requests_also_sent_ahead() {
    let body = floats(&[("a", &[1.0; 4]), ("b", &[2.0; 4])]).to_string();
    let request = format!(
        "POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let last = "GET /v2/health/ready HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    let mut stream = http().connect();
    stream.write_all(format!("{request}{request}{last}").as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 3, "{answers}");
    assert_eq!(answers.matches("\"sum\"").count(), 2, "{answers}");
}

#[test]
fn statistics_count_requests_and_rows() {
    let repository = Repository::of([("m", native("identity", "x:FP32[1] -> y:FP32[1]").batch(8))]);
    let server = Server::start(repository);
    for rows in [1, 3, 3] {
        let data = vec![0.0; rows];
        let request = json!({"inputs": [input("x", "FP32", &[rows as i64, 1], data)]});
        server.infer("m", &request).ok();
    }
    server.infer("m", &floats(&[("x", &[1.0])])).refuses(400, "unexpected shape for input 'x'");
    let stats = server.stats("m");
    assert_eq!((&stats["name"], &stats["version"]), (&json!("m"), &json!("1")));
    assert_eq!((&stats["inference_count"], &stats["execution_count"]), (&json!(7), &json!(3)));
    assert!(stats["last_inference"].as_u64().unwrap() > 1_600_000_000_000, "{stats}");
    for (name, count) in [
        ("success", 3),
        ("fail", 1),
        ("queue", 3),
        ("compute_input", 3),
        ("compute_infer", 3),
        ("compute_output", 3),
        ("cache_hit", 0),
        ("cache_miss", 0),
    ] {
        assert_eq!(stats["inference_stats"][name]["count"], count, "{name} in {stats}");
    }
    let sizes: Vec<_> = stats["batch_stats"].as_array().unwrap().iter().collect();
    let of = |it: &Value| (it["batch_size"].clone(), it["compute_infer"]["count"].clone());
    assert_eq!(
        sizes.iter().map(|it| of(it)).collect::<Vec<_>>(),
        [(json!(1), json!(1)), (json!(3), json!(2))]
    );
    let all = server.http.get("/v2/models/stats").ok().json();
    assert_eq!(all["model_stats"].as_array().unwrap().len(), 1);
    for (name, count) in [
        ("nv_inference_request_success", 3.0),
        ("nv_inference_count", 7.0),
        ("nv_inference_exec_count", 3.0),
        ("nv_inference_pending_request_count", 0.0),
    ] {
        assert_eq!(server.metric(name, &["model=\"m\"", "version=\"1\""]), Some(count), "{name}");
    }
}

#[test]
fn metrics_have_tritons_names_and_types() {
    let answer = SERVER.metrics.get("/metrics");
    let text = answer.ok().text();
    let content_type = answer.header("content-type").unwrap_or("");
    assert!(content_type.starts_with("text/plain"), "{content_type}");
    for (name, kind) in [
        ("nv_inference_request_success", "counter"),
        ("nv_inference_request_failure", "counter"),
        ("nv_inference_count", "counter"),
        ("nv_inference_exec_count", "counter"),
        ("nv_inference_request_duration_us", "counter"),
        ("nv_inference_queue_duration_us", "counter"),
        ("nv_inference_compute_input_duration_us", "counter"),
        ("nv_inference_compute_infer_duration_us", "counter"),
        ("nv_inference_compute_output_duration_us", "counter"),
        ("nv_inference_pending_request_count", "gauge"),
    ] {
        assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "no {name} in\n{text}");
    }
    for reason in ["REJECTED", "CANCELED", "BACKEND", "CRASHED", "OTHER"] {
        let labels = ["model=\"mul\"", &format!("reason=\"{reason}\"")];
        assert_eq!(SERVER.metric("nv_inference_request_failure", &labels), Some(0.0), "{reason}");
    }
    assert_eq!(SERVER.metrics.send("POST", "/metrics", &[], b"").status, 405);
}
