//! What clients say makes no line of the log, no file on disk, and no object of anybody's language.

use std::collections::HashMap;

use serde_json::json;
use tonic::{Code, Request, metadata::MetadataValue};
use troupe_proto::inference::{
    InferParameter, LogSettingsRequest, ModelInferRequest, RepositoryModelLoadRequest,
    TraceSettingRequest,
    infer_parameter::ParameterChoice,
    log_settings_request::{SettingValue, setting_value},
    model_infer_request::InferInputTensor,
    trace_setting_request,
};

use super::restricted::ROUTES;
use crate::support::{
    Model, Repository, Server,
    grpc::{Grpc, floats},
    http,
    models::execute,
    native,
};

/// Longer than anything that is logged of a request.
const MAX_LINE_BYTES: usize = 100_000;

fn models() -> Repository {
    Repository::of([("m", native("identity", "x:FP32[-1] -> y:FP32[-1]")), ("words", words())])
}

/// Gives strings back; Python reads every one of them.
fn words() -> Model {
    let body = "
        answers = []
        for it in requests:
            x = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor('y', x)]))
        return answers";
    execute("x:BYTES[-1] -> y:BYTES[-1]", body)
}

/// As a terminal, a log or a parser of lines would mistake them.
fn forged() -> Vec<String> {
    vec![
        "a\nforged line".to_owned(),
        "a\r\nforged: header\r\n\r\n".to_owned(),
        "\u{1b}[2J\u{1b}[31mforged\u{7}".to_owned(),
        "nul\0inside".to_owned(),
        "\u{2028}forged\u{85}\u{9b}31m".to_owned(),
        "\"}\n{\"forged\":\"line".to_owned(),
        "i".repeat(1 << 20),
    ]
}

fn escaped(text: &str) -> String {
    text.bytes().take(4096).map(|byte| format!("%{byte:02x}")).collect()
}

/// Says `text` wherever a client can say something.
fn say(server: &Server, text: &str) {
    let mut grpc = Grpc::connect(server.grpc);
    let path = escaped(text);
    for (_, _, route) in ROUTES {
        server.http.get(&route.replace("/m/", &format!("/{path}/")));
        server.http.post(&route.replace("/r/", &format!("/{path}/")), "");
    }
    let mut request = http::floats(&[("x", &[1.0])]);
    request["id"] = json!(text);
    request["parameters"] = json!({text: text});
    server.infer("m", &request);
    request["inputs"][0]["name"] = json!(text);
    server.infer("m", &request);
    request["inputs"][0]["datatype"] = json!(text);
    server.infer("m", &request);
    let config = json!({"backend": "native", text: text, "name": text}).to_string();
    for parameters in [json!({"config": config}), json!({"config": text}), json!({text: text})] {
        let body = json!({"parameters": parameters});
        server.http.post("/v2/repository/models/m/load", body);
    }
    for settings in [json!({text: text}), json!({"log_format": text}), json!({"log_info": text})] {
        server.http.post("/v2/logging", &settings);
        server.http.post("/v2/trace/setting", &settings);
    }
    let visible: String =
        text.chars().filter(|it| *it == '\t' || !it.is_control()).take(1000).collect();
    let headers = ["traceparent", "user-agent", "x-said", "content-encoding", "accept", "origin"];
    for name in headers {
        let request = http::floats(&[("x", &[1.0])]).to_string();
        server.http.send("POST", "/v2/models/m/infer", &[(name, &visible)], request.as_bytes());
    }
    let mut request = floats("m", &[("x", &[1.0])]);
    request.id = text.to_owned();
    let choice = Some(ParameterChoice::StringParam(text.to_owned()));
    let value = InferParameter { parameter_choice: choice };
    request.parameters = HashMap::from([(text.to_owned(), value)]);
    let _ = grpc.infer(request.clone());
    request.model_name = text.to_owned();
    let _ = grpc.infer(request.clone());
    let _ = grpc.stream(vec![request.clone()]);
    request.model_version = text.to_owned();
    let _ = grpc.infer(request);
    let load = RepositoryModelLoadRequest { model_name: text.to_owned(), ..Default::default() };
    let _ = grpc.call(async |it| it.repository_model_load(load).await);
    let mut request = Request::new(floats("m", &[("x", &[1.0])]));
    for name in ["x-said-bin", "traceparent-bin"] {
        request.metadata_mut().insert_bin(name, MetadataValue::from_bytes(text.as_bytes()));
    }
    let _ = grpc.call(async |it| it.model_infer(request).await);
}

#[test]
fn cve_2024_0095_whatever_clients_say_is_in_one_line_of_the_log() {
    let shared = ["--access-log", "--log-verbose=1", "--model-control-mode=explicit"];
    for format in ["default", "json"] {
        let format_flag = format!("--log-format={format}");
        let patterns = ["--http-header-forward-pattern=^x-", "--grpc-header-forward-pattern=^x-"];
        let flags = [&shared[..], &patterns, &["--load-model=*", &format_flag]].concat();
        let server = Server::with(models(), &flags);
        for text in forged() {
            say(&server, &text);
            // One of the routes unloads it.
            server.load("m").ok();
            server.still_serves("forged lines");
        }
        let lines = server.log();
        let lines = lines.lines();
        for line in lines {
            let is_clean = !line.chars().any(|it| it.is_control() && it != '\t');
            assert!(is_clean && !line.contains('\u{2028}'), "{line:?}");
            assert!(!line.trim_start().starts_with("forged"), "{line:?}");
            assert!(!line.starts_with("{\"forged"), "{line:?}");
            assert!(line.len() < MAX_LINE_BYTES, "a line of {} bytes", line.len());
        }
    }
}

#[test]
fn cve_2024_0087_no_request_names_a_file_that_the_server_writes() {
    let server = Server::start(models());
    let file = server.repository.beside("written");
    let name = file.display().to_string();
    for (path, body) in [
        ("/v2/logging", json!({"log_file": name})),
        ("/v2/trace/setting", json!({"trace_file": name})),
        ("/v2/trace/setting", json!({"trace_file": [name]})),
        ("/v2/models/m/trace/setting", json!({"trace_file": name, "trace_level": ["TIMESTAMPS"]})),
    ] {
        let answer = server.http.post(path, &body);
        // As Triton says it: not supported over the network.
        assert!(matches!(answer.status, 400 | 501), "{body}: {}", answer.text());
        server.still_serves(path);
    }
    let mut grpc = Grpc::connect(server.grpc);
    let choice = Some(setting_value::ParameterChoice::StringParam(name.clone()));
    let log = LogSettingsRequest {
        settings: [("log_file".to_owned(), SettingValue { parameter_choice: choice })].into(),
    };
    let value = trace_setting_request::SettingValue { value: vec![name] };
    let trace = TraceSettingRequest {
        settings: [("trace_file".to_owned(), value)].into(),
        ..Default::default()
    };
    let refused = [
        grpc.call(async |it| it.log_settings(log).await).unwrap_err(),
        grpc.call(async |it| it.trace_setting(trace).await).unwrap_err(),
    ];
    for status in refused {
        let codes = [Code::InvalidArgument, Code::Unimplemented];
        assert!(codes.contains(&status.code()), "{status}");
    }
    server.still_serves("names of files");
    assert!(!file.exists());
}

#[test]
fn cve_2024_2912_pickles_are_bytes_to_everybody() {
    let server = Server::with(models(), &["--model-control-mode=explicit", "--load-model=*"]);
    let file = server.repository.beside("unpickled");
    let command = format!("touch {}", file.display());
    // Calls `os.system`, as protocols 0 and 2 of pickle say it.
    let text = format!("cos\nsystem\n(S'{command}'\ntR.").into_bytes();
    let length = [command.len() as u8, 0, 0, 0];
    let binary = [b"\x80\x02cos\nsystem\nX", &length[..], command.as_bytes(), b"\x85R."].concat();
    // Code and lists, as marshal has them.
    let code = b"\xe3\0\0\0\0\0\0\0\0\0\0\0\0[\xff\xff\xff\x7fs\xff\xff\xff\x7f".to_vec();
    for pickle in [&text, &binary, &code] {
        for (_, _, path) in ROUTES {
            for kind in
                ["application/x-pickle", "application/vnd.pickle", "application/octet-stream"]
            {
                let headers = [("Content-Type", kind)];
                let answer = server.http.send("POST", path, &headers, pickle);
                assert!(answer.status < 500 || answer.status == 501, "{path}: {}", answer.text());
            }
        }
        // One element, and so many that a worker reads them all at once.
        for count in [1, 100] {
            let element = [&(pickle.len() as u32).to_le_bytes()[..], pickle].concat();
            let bytes = element.repeat(count);
            // Of different lengths, too.
            let bytes = [&bytes[..], &[1, 0, 0, 0, b'[']].concat();
            let shape = count as i64 + 1;
            let request = json!({
                "inputs": [{"name": "x", "datatype": "BYTES", "shape": [shape],
                            "parameters": {"binary_data_size": bytes.len()}}],
                "parameters": {"binary_data_output": true},
            });
            let answer = server.http.infer_binary("words", &request, &[&bytes]);
            assert!(answer.ok().body.ends_with(&bytes), "{count}");
            let input = InferInputTensor {
                name: "x".to_owned(),
                datatype: "BYTES".to_owned(),
                shape: vec![shape],
                ..Default::default()
            };
            let request = ModelInferRequest {
                model_name: "words".to_owned(),
                inputs: vec![input],
                raw_input_contents: vec![bytes.clone().into()],
                ..Default::default()
            };
            let answer = Grpc::connect(server.grpc).infer(request).unwrap();
            assert_eq!(answer.raw_output_contents[0][..], bytes);
        }
    }
    server.load("m").ok();
    server.still_serves("pickles");
    assert!(!file.exists());
}
