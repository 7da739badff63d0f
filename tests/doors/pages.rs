//! Web pages of other origins, and files in load requests: visiting a page must not run code here.

use serde_json::json;
use tonic::{Code, Request, metadata::MetadataValue};
use troupe_proto::inference::{LogSettingsRequest, RepositoryModelLoadRequest};

use crate::support::{Http, Repository, Server, grpc::Grpc, native};

fn repository() -> Repository {
    Repository::of([("m", native("identity", "x:FP32[-1] -> y:FP32[-1]"))])
}

/// Requests that change something.
const CHANGES: &[(&str, &str)] = &[
    ("/v2/repository/models/m/load", ""),
    ("/v2/repository/models/m/unload", ""),
    ("/v2/logging", r#"{"log_info":false}"#),
    ("/v2/trace/setting", r#"{"trace_rate":"1"}"#),
    ("/v2/models/m/trace/setting", r#"{"trace_rate":"1"}"#),
    ("/v2/models/m/tap", ""),
    ("/v2/systemsharedmemory/unregister", ""),
    ("/v2/systemsharedmemory/region/r/register", "{}"),
];

fn browser(http: &Http, path: &str, headers: &[(&str, &str)], body: &str) -> u16 {
    http.send("POST", path, headers, body.as_bytes()).status
}

#[test]
fn a_page_of_another_origin_changes_nothing() {
    let server = Server::explicit(repository());
    server.load("m").ok();
    let evil: &[&[(&str, &str)]] = &[
        &[("Origin", "http://evil.example"), ("Content-Type", "text/plain")],
        &[("Origin", "null")],
        &[("Sec-Fetch-Site", "cross-site")],
        &[("Sec-Fetch-Site", "same-site")],
        // A name that its owner lets stand for this machine: the page seems to be of this origin.
        &[("Origin", "http://evil.example:8000"), ("Sec-Fetch-Site", "same-origin")],
        &[("Origin", "http://a"), ("Troupe-Page-Token", "guessed")],
    ];
    for (path, body) in CHANGES {
        for headers in evil {
            let answer = server.http.send("POST", path, headers, body.as_bytes());
            answer.refuses(403, "requests of web pages must not change this server");
        }
    }
    assert_eq!(server.state("m"), "READY");
    assert_eq!(server.http.get("/v2/logging").json()["log_info"], true);
    // What shows or computes something is no business of this check.
    let headers = [("Origin", "http://a.example")];
    let request = json!({"inputs": [
        {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}
    ]});
    assert_eq!(browser(&server.http, "/v2/models/m/infer", &headers, &request.to_string()), 200);
    assert_eq!(browser(&server.http, "/v2/repository/index", &headers, ""), 200);
    // Clients that are no browsers, and a page that was given the token.
    assert_eq!(browser(&server.http, "/v2/logging", &[], r#"{"log_info":true}"#), 200);
    let page = server.metrics.get("/").text();
    let (_, token) = page.split_once("name=\"troupe-page-token\" content=\"").unwrap();
    let ours = [("Origin", "http://a"), ("Troupe-Page-Token", token.split('"').next().unwrap())];
    assert_eq!(browser(&server.http, "/v2/logging", &ours, r#"{"log_info":true}"#), 200);
    server.is_well();
}

#[test]
fn a_page_that_speaks_grpc_changes_nothing() {
    let server = Server::start(repository());
    let mut grpc = Grpc::connect(server.grpc);
    let mut request = Request::new(LogSettingsRequest::default());
    request.metadata_mut().insert("origin", MetadataValue::from_static("http://evil.example"));
    let status = grpc.call(async |it| it.log_settings(request).await).unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
}

fn with_file(server: &Server) -> crate::support::Answer {
    let config = json!({"name": "new", "backend": "native"}).to_string();
    let body = json!({"parameters": {"config": config, "file:1/x": "eA=="}});
    server.http.post("/v2/repository/models/new/load", body)
}

#[test]
fn files_come_from_this_machine_unless_it_is_said_otherwise() {
    let refusal = "--allow-load-overrides=true";
    let everywhere = ["--model-control-mode=explicit", "--http-address=0.0.0.0"];
    let server = Server::with(repository(), &everywhere);
    with_file(&server).refuses(400, refusal);
    // gRPC listens on loopback here, and says so itself.
    let mut grpc = Grpc::connect(server.grpc);
    let load = RepositoryModelLoadRequest { model_name: "m".to_owned(), ..Default::default() };
    assert!(grpc.call(async |it| it.repository_model_load(load).await).is_ok());
    let asked = [&everywhere[..], &["--allow-load-overrides=true"]].concat();
    let server = Server::with(repository(), &asked);
    assert!(!with_file(&server).text().contains(refusal));
    let never = ["--model-control-mode=explicit", "--allow-load-overrides=false"];
    with_file(&Server::with(repository(), &never)).refuses(400, refusal);
}

#[test]
fn a_config_alone_leads_to_nothing_outside_its_model() {
    let server = Server::explicit(repository());
    let load = |parameter: serde_json::Value| {
        let mut config = json!({
            "name": "m", "backend": "native", "parameters": {"op": {"string_value": "identity"}},
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
        });
        for (key, value) in parameter.as_object().unwrap() {
            match value.is_object() {
                true => config["parameters"][key] = value.clone(),
                false => config[key] = value.clone(),
            }
        }
        let body = json!({"parameters": {"config": config.to_string()}});
        server.http.post("/v2/repository/models/m/load", body)
    };
    for name in ["/etc/passwd", "../../x.py", "a/../../../x"] {
        let answer = load(json!({"default_model_filename": name}));
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains("outside model directory"), "{}", answer.text());
        // Of a config that is completed, the file is read before the config is checked.
        let config = json!({"backend": "onnxruntime", "input": [], "output": [],
                            "default_model_filename": name});
        let answer = load(config);
        assert!(answer.text().contains("outside model directory"), "{}", answer.text());
    }
    for path in ["/usr/bin", "../x", "$$TRITON_MODEL_DIRECTORY/../x"] {
        let answer = load(json!({"EXECUTION_ENV_PATH": {"string_value": path}}));
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains("EXECUTION_ENV_PATH"), "{}", answer.text());
    }
    load(json!({})).ok();
}
