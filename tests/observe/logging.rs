//! Logs: formats, switches that change at once over HTTP and gRPC, the access log, and pipes nobody
//! reads.

use serde_json::{Value, json};
use tonic::Code;
use troupe_proto::inference::{
    LogSettingsRequest, LogSettingsResponse,
    log_settings_request::{SettingValue, setting_value::ParameterChoice},
    log_settings_response::setting_value::ParameterChoice as Told,
};

use crate::support::{
    Model, Repository, Server, ensemble,
    gate::Gate,
    grpc::{self, Grpc},
    http::{Answer, floats},
    models::{delay, execute},
    native,
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

/// Logs one line of each level.
fn chatty() -> Model {
    execute(
        FLOATS,
        "
        word = json.loads(requests[0].parameters()).get('word', '')
        pb_utils.Logger.log_verbose(f'{word} verbose')
        pb_utils.Logger.log_info(f'{word} info')
        pb_utils.Logger.log_warn(f'{word} warning')
        pb_utils.Logger.log_error(f'{word} error')
        x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]",
    )
}

/// The levels that were logged when the model said this word; one of them must be an error.
fn levels(server: &Server, word: &str) -> Vec<String> {
    let mut request = floats(&[("x", &[1.0])]);
    request["parameters"] = json!({"word": word});
    server.infer("m", &request).ok();
    server.logged(&format!("{word} error"));
    let log = server.log();
    let said = log.lines().filter_map(|it| it.split_once(&format!("{word} ")));
    said.map(|it| it.1.split('"').next().unwrap().to_owned()).collect()
}

fn settings(server: &Server, change: Value) -> Answer {
    server.http.post("/v2/logging", change)
}

fn default_settings() -> Value {
    json!({
        "log_file": "", "log_info": true, "log_warning": true, "log_error": true,
        "log_verbose_level": 0, "log_format": "default",
    })
}

#[test]
fn levels_and_formats_change_at_once_and_what_is_not_given_stays() {
    let server = Server::start(Repository::of([("m", chatty())]));
    assert_eq!(server.http.get("/v2/logging").ok().json(), default_settings());
    assert_eq!(levels(&server, "one"), ["info", "warning", "error"]);
    let mut expected = default_settings();
    for (word, key, value, logged) in [
        ("two", "log_info", json!(false), &["warning", "error"][..]),
        ("three", "log_verbose_level", json!(1), &["verbose", "warning", "error"]),
        ("four", "log_warning", json!(false), &["verbose", "error"]),
        ("five", "log_info", json!(true), &["verbose", "info", "error"]),
        ("six", "log_verbose_level", json!(0), &["info", "error"]),
    ] {
        expected[key] = value.clone();
        assert_eq!(settings(&server, json!({ key: value })).ok().json(), expected);
        assert_eq!(levels(&server, word), logged, "{word}");
    }
    settings(&server, json!({"log_format": "ISO8601"})).ok();
    levels(&server, "seven");
    let line = server.logged("seven error");
    let (time, rest) = line.split_once(' ').unwrap();
    assert!(time.len() == 20 && time.contains('T') && time.ends_with('Z'), "{line}");
    let expected = format!("E {} model.py:", server.pid);
    assert!(rest.starts_with(&expected), "{line}");
    settings(&server, json!({"log_format": "json"})).ok();
    levels(&server, "eight");
    let line: Value = serde_json::from_str(&server.logged("eight error")).unwrap();
    assert_eq!(line["level"], "ERROR");
    assert_eq!((&line["message"], &line["file"]), (&json!("eight error"), &json!("model.py")));
    assert_eq!((&line["model"], &line["instance"]), (&json!("m"), &json!("m_0")));
    assert!(line["line"].is_u64() && line["time"].is_string(), "{line}");
    // Errors can be silenced too: what comes after is there, what came before is not.
    settings(&server, json!({"log_error": false, "log_warning": true})).ok();
    let mut request = floats(&[("x", &[1.0])]);
    request["parameters"] = json!({"word": "nine"});
    server.infer("m", &request).ok();
    settings(&server, json!({"log_error": true})).ok();
    levels(&server, "ten");
    assert!(!server.log().contains("nine error"), "{}", server.log());
    server.is_well();
}

#[test]
fn wrong_changes_are_refused_in_tritons_words_and_change_nothing() {
    let server = Server::start(Repository::of([("id", native("identity", FLOATS))]));
    let moved = "log file location can not be updated through network protocol";
    for (change, status, text) in [
        (json!({"log_file": "a", "log_info": false}), 501, moved),
        (
            json!({"log_info": false, "log_format": "x"}),
            503,
            "invalid argument for --log_format, got: x",
        ),
        (json!({"log_info": 1}), 400, "attempt to access JSON non-boolean as boolean"),
        (json!({"log_info": false, "log_verbose_level": "x"}), 400, "non-unsigned-integer"),
        (json!([1]), 400, "failed to parse the request JSON buffer"),
    ] {
        settings(&server, change).refuses(status, text);
    }
    let mut client = Grpc::connect(server.grpc);
    let text = || ParameterChoice::StringParam("x".to_owned());
    for (name, choice, code, expected) in [
        ("log_file", text(), Code::Unimplemented, moved),
        ("log_info", text(), Code::InvalidArgument, "expect boolean for 'log_info'"),
        (
            "log_verbose_level",
            text(),
            Code::InvalidArgument,
            "expect int32 for 'log_verbose_level'",
        ),
        ("log_format", text(), Code::InvalidArgument, "invalid argument for log_format, got: x"),
        (
            "log_format",
            ParameterChoice::Uint32Param(1),
            Code::InvalidArgument,
            "expect string for 'log_format'",
        ),
    ] {
        let off = ("log_warning", ParameterChoice::BoolParam(false));
        let error = ask(&mut client, [(name, choice), off]).unwrap_err();
        assert_eq!((error.code(), error.message()), (code, expected));
    }
    let unknown = settings(&server, json!({"log_inf": false}));
    unknown.refuses(400, "the log has no setting 'log_inf', did you mean `log_info`?");
    assert_eq!(server.http.get("/v2/logging").ok().json(), default_settings());
    assert_eq!(server.http.send("PUT", "/v2/logging", &[], b"{}").status, 405);
}

fn ask(
    client: &mut Grpc,
    given: impl IntoIterator<Item = (&'static str, ParameterChoice)>,
) -> Result<LogSettingsResponse, tonic::Status> {
    let value =
        |(name, it): (&str, _)| (name.to_owned(), SettingValue { parameter_choice: Some(it) });
    let settings = given.into_iter().map(value).collect();
    client.call(async |it| it.log_settings(LogSettingsRequest { settings }).await)
}

#[test]
fn grpc_changes_the_same_settings() {
    let server = Server::start(Repository::of([("m", chatty())]));
    let mut client = Grpc::connect(server.grpc);
    let off = ("log_info", ParameterChoice::BoolParam(false));
    let verbose = ("log_verbose_level", ParameterChoice::Uint32Param(1));
    let told = ask(&mut client, [off, verbose]).unwrap();
    let value = |name: &str| told.settings[name].parameter_choice.clone().unwrap();
    for (name, expected) in [
        ("log_file", Told::StringParam(String::new())),
        ("log_info", Told::BoolParam(false)),
        ("log_warning", Told::BoolParam(true)),
        ("log_error", Told::BoolParam(true)),
        ("log_verbose_level", Told::Uint32Param(1)),
        ("log_format", Told::StringParam("default".to_owned())),
    ] {
        assert_eq!(value(name), expected, "{name}");
    }
    assert_eq!(levels(&server, "one"), ["verbose", "warning", "error"]);
    assert_eq!(ask(&mut client, []).unwrap(), told);
    assert_eq!(server.http.get("/v2/logging").ok().json()["log_info"], false);
}

#[test]
fn a_log_file_is_appended_to_and_every_line_of_json_is_an_object() {
    let repository = || Repository::of([("id", native("identity", FLOATS))]);
    let repository = repository().with("broken\u{1b}[31m", native("nonsense", FLOATS));
    repository.write_file("../server.log", "{\"message\": \"an older line\"}\n");
    let flags = ["--log-file=server.log", "--log-format=json", "--exit-on-error=false"];
    let server = Server::with(repository, &flags);
    let settings = server.http.get("/v2/logging").ok().json();
    assert_eq!(settings["log_file"], "server.log");
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.end().code(), Some(0));
    let text = std::fs::read_to_string(server.repository.beside("server.log")).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|it| serde_json::from_str(it).unwrap_or_else(|error| panic!("{error}: {it}")))
        .collect();
    assert_eq!(lines[0]["message"], "an older line");
    let says = |text: &str| lines.iter().any(|it| it["message"].as_str().unwrap().contains(text));
    // The last line is there too: nothing is lost at the end.
    assert!(says("Started HTTPService at ") && says("stopped"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[test]
fn messages_may_go_without_quotation_marks() {
    let repository = Repository::of([("m", chatty())]);
    let escape = ("TRITON_SERVER_ESCAPE_LOG_MESSAGES", std::path::Path::new("0"));
    let server = Server::launch(repository, &[], &[escape]);
    server.ready();
    let mut request = floats(&[("x", &[1.0])]);
    request["parameters"] = json!({"word": "a \"b\"\n"});
    server.infer("m", &request).ok();
    let line = server.logged("a \"b\"");
    assert!(line.contains("] a \"b\"\\n "), "{line}");
}

/// The access log's line about the request with this id, as JSON.
fn accessed(server: &Server, id: &str) -> Value {
    let line = server.logged(&format!("\"request_id\":\"{id}\""));
    serde_json::from_str(&line).unwrap()
}

#[test]
fn the_access_log_has_a_line_for_each_inference_with_the_time_of_each_step() {
    let steps = ["slow: x=A -> y=a", "fast: x=a -> y=B"];
    let repository = Repository::of([
        ("slow", delay(30, FLOATS)),
        ("fast", delay(10, FLOATS)),
        ("e", ensemble("A:FP32[-1] -> B:FP32[-1]", &steps)),
        ("outer", ensemble("A:FP32[-1] -> B:FP32[-1]", &["e: A=A -> B=B"])),
    ]);
    let server = Server::with(repository, &["--access-log", "--log-format=json"]);
    settings(&server, json!({"log_info": false})).ok();
    let request = |input: &str, id: &str| {
        let mut request = floats(&[(input, &[1.0])]);
        request["id"] = json!(id);
        request
    };
    let answer = server.infer("outer", &request("A", "http-1"));
    let line = accessed(&server, "http-1");
    for (key, expected) in [
        ("protocol", json!("http")),
        ("model", json!("outer")),
        ("version", json!("1")),
        ("status", json!(200)),
        ("bytes_in", json!(request("A", "http-1").to_string().len())),
        ("bytes_out", json!(answer.ok().body.len())),
        ("message", json!("inference")),
    ] {
        assert_eq!(line[key], expected, "{key} in {line}");
    }
    let steps = line["steps"].as_array().unwrap();
    let named: Vec<String> =
        steps.iter().map(|it| format!("{} {}", it["step"], it["model"])).collect();
    assert_eq!(named, ["\"0\" \"e\"", "\"0.0\" \"slow\"", "\"0.1\" \"fast\""]);
    let micros = |it: &Value| it["total_us"].as_u64().unwrap();
    assert!(30_000 <= micros(&steps[1]) && 10_000 <= micros(&steps[2]), "{line}");
    let inner = micros(&steps[1]) + micros(&steps[2]);
    assert!(inner <= micros(&steps[0]) && micros(&steps[0]) <= micros(&line), "{line}");

    server.infer("slow", &request("x", "http-2")).ok();
    let line = accessed(&server, "http-2");
    assert!(30_000 <= line["compute_us"].as_u64().unwrap(), "{line}");
    assert!(line["queue_us"].is_u64() && line.get("steps").is_none(), "{line}");
    server.infer("nobody", &request("x", "lost")).refuses(404, "nobody");
    let line: Value = serde_json::from_str(&server.logged("\"model\":\"nobody\"")).unwrap();
    assert_eq!((&line["status"], &line["version"]), (&json!(404), &json!("")));
    let body = json!({"A": [1.0], "id": "generated"});
    server.http.post("/v2/models/e/generate", &body).ok();
    assert_eq!(accessed(&server, "generated")["status"], 200);
    let body = json!({"A": [1.0], "id": "streamed"});
    let streamed = server.http.post("/v2/models/e/generate_stream", &body);
    let line = accessed(&server, "streamed");
    assert_eq!(line["bytes_out"], json!(streamed.body.len()), "{line}");

    let mut client = Grpc::connect(server.grpc);
    for id in ["grpc", "in-a-stream"] {
        let mut request = grpc::floats("e", &[("A", &[1.0])]);
        request.id = id.to_owned();
        match id {
            "grpc" => drop(client.infer(request).unwrap()),
            _ => drop(client.stream(vec![request]).unwrap()),
        }
        let line = accessed(&server, id);
        assert_eq!((&line["protocol"], &line["status"]), (&json!("grpc"), &json!(0)), "{line}");
        assert_eq!(line["steps"].as_array().unwrap().len(), 2, "{line}");
        assert!(line["bytes_in"] != json!(0) && line["bytes_out"] != json!(0), "{line}");
    }
    client.infer(grpc::floats("slow", &[("A", &[1.0])])).unwrap_err();
    server.logged("\"status\":3");
    server.is_well();
}

#[test]
fn a_client_that_leaves_is_in_the_access_log_and_without_the_flag_there_is_none() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let model = gate.model("FP32[-1]");
    let server = Server::with(repository.with("m", model), &["--access-log"]);
    let mut request = floats(&[("x", &[1.0])]);
    request["id"] = json!("left");
    let stream = server.http.start("m", &request);
    gate.is_reached();
    drop(stream);
    let line = server.logged("request_id=left");
    assert!(line.contains(" access] \"inference\" protocol=http model=m "), "{line}");
    assert!(line.contains(" status=499 "), "{line}");

    let server = Server::start(Repository::of([("id", native("identity", FLOATS))]));
    server.infer("id", &floats(&[("x", &[1.0])])).ok();
    server.signal(rustix::process::Signal::TERM);
    server.end();
    assert!(!server.log().contains("access]"), "{}", server.log());
}

#[test]
fn a_full_pipe_holds_up_no_request() {
    let noisy = execute(
        FLOATS,
        "
        for number in range(400):
            pb_utils.Logger.log_error('x' * 4000)
        x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]",
    );
    let server = Server::start(Repository::of([("m", noisy)]));
    server.reads_log(false);
    for _ in 0..4 {
        server.infer("m", &floats(&[("x", &[1.0])])).ok();
    }
    server.is_well();
    server.reads_log(true);
    server.logged("lines were not logged: they came faster than they go");
}
