//! The HTTP door: what each address answers, and tensors in all the forms they may travel in.

use std::{
    io::{Read, Write},
    sync::LazyLock,
};

use flate2::{
    Compression,
    read::{GzDecoder, ZlibDecoder},
    write::{GzEncoder, ZlibEncoder},
};
use serde_json::{Value, json};

use crate::support::{
    Answer, Http, Repository, Server, ensemble,
    grpc::bytes_of,
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

fn http() -> Http {
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
    for path in
        ["/", "/v2/nothing", "/v1/models/e", "/v2/models/e/nothing", "/v2/models/e/versions/1/x"]
    {
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
    for reason in ["REJECTED", "CANCELED", "BACKEND", "OTHER"] {
        let labels = ["model=\"mul\"", &format!("reason=\"{reason}\"")];
        assert_eq!(SERVER.metric("nv_inference_request_failure", &labels), Some(0.0), "{reason}");
    }
    assert_eq!(SERVER.metrics.send("POST", "/metrics", &[], b"").status, 405);
}
