//! What a load request brings and names: files, configs and names that would lead elsewhere, run
//! something, or ask for more than there is.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use tonic::Code;
use troupe_proto::inference::{
    ModelRepositoryParameter, RepositoryModelLoadRequest,
    model_repository_parameter::ParameterChoice,
};

use crate::support::{
    Answer, Model, Repository, Server, ensemble,
    grpc::Grpc,
    http::{finish, floats},
    native,
    process::{memory_is_back, resident_mib},
};

/// Triton's words for a load of what no repository has; its status for that is 500.
const NOT_THERE: &str = "failed to poll from model repository";
const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

fn identity() -> Model {
    native("identity", FLOATS)
}

fn serve(repository: Repository) -> Server {
    let server = Server::explicit(repository.with("m", identity()));
    server.load("m").ok();
    server
}

/// A config that would load, with these fields changed.
fn config(changes: Value) -> Value {
    let mut config = json!({
        "backend": "native", "parameters": {"op": {"string_value": "identity"}},
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
    });
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    config
}

fn load(server: &Server, model: &str, parameters: Value) -> Answer {
    let body = json!({"parameters": parameters});
    server.http.post(&format!("/v2/repository/models/{model}/load"), body)
}

fn with_file(server: &Server, path: &str) -> Answer {
    let config = config(json!({})).to_string();
    load(server, "m", json!({"config": config, (format!("file:{path}")): "ZXZpbA=="}))
}

/// All files below a folder, and what they hold.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.symlink_metadata().unwrap().is_dir() {
            true => found.extend(files(&path)),
            false => drop(found.insert(path.clone(), fs::read(&path).unwrap_or_default())),
        }
    }
    found
}

#[test]
fn cve_2023_31036_files_of_a_load_are_written_nowhere_but_in_a_folder_of_its_own() {
    let repository = Repository::of([("other", identity())]);
    let outside = repository.beside("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "kept").unwrap();
    fs::create_dir_all(repository.models().join("m/1")).unwrap();
    symlink(&outside, repository.models().join("m/1/way")).unwrap();
    symlink(outside.join("secret"), repository.models().join("m/1/file")).unwrap();
    let server = serve(repository);
    let home = server.repository.beside("");
    let before = files(&home);
    for path in [
        "../../x",
        "../x",
        "/etc/x",
        "1/../../x",
        "1/../../other/1/x",
        "../other/config.pbtxt",
        "..",
        ".",
        "",
        "1/",
        "1/..",
        "1/a\0b",
        "\0",
        "~/../x/..",
    ] {
        let answer = with_file(&server, path);
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        server.still_serves(path);
    }
    // These stay inside: of the files on disk and their links there is nothing in that folder.
    for path in ["1/way/secret", "1/file", "1/x"] {
        let answer = with_file(&server, path);
        assert!(matches!(answer.status, 200 | 400), "{path}: {}", answer.text());
        server.still_serves(path);
    }
    assert_eq!(files(&home), before);
}

#[test]
fn core_491_names_that_are_too_long_for_a_file_are_refused() {
    let server = serve(Repository::new());
    let long = "A".repeat(256);
    for path in [long.clone(), format!("1/{long}"), "a/".repeat(5000) + "x", "A".repeat(1 << 20)] {
        let answer = with_file(&server, &path);
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().len() < 4096, "an error of {} bytes", answer.text().len());
        server.still_serves("a long name of a file");
    }
    for name in [long.clone(), "A".repeat(10_000)] {
        for answer in [load(&server, &name, json!({})), server.unload(&name)] {
            assert!(matches!(answer.status, 200 | 400 | 500), "{}", answer.text());
            assert!(answer.status != 500 || answer.error().contains(NOT_THERE));
        }
        assert_eq!(server.infer(&name, &floats(&[("x", &[1.0])])).status, 404);
        server.still_serves("a long name of a model");
    }
}

#[test]
fn cve_2024_53880_files_are_base64_and_no_larger_than_a_request_may_be() {
    let repository = Repository::of([("m", identity())]);
    let flags =
        ["--model-control-mode=explicit", "--load-model=m", "--http-max-input-size=1048576"];
    let server = Server::with(repository, &flags);
    server.still_serves("nothing");
    let before = resident_mib(server.pid);
    let config = config(json!({})).to_string();
    for text in ["A", "====", "YQ", "Y Q==", "YQ==YQ==", "\u{e4}\u{e4}==", "YQ=\n=", "Y\0=="] {
        let answer = load(&server, "m", json!({"config": config, "file:1/x": text}));
        assert_eq!(answer.status, 400, "{text:?}: {}", answer.text());
        server.still_serves(text);
    }
    let large = load(&server, "m", json!({"config": config, "file:1/x": "A".repeat(2 << 20)}));
    assert!(matches!(large.status, 400 | 413), "{}", large.text());
    assert!(large.error().contains("--http-max-input-size"), "{}", large.text());
    // Three gigabytes are announced; the answer comes without them.
    let stream = server.http.connect();
    let head = "POST /v2/repository/models/m/load HTTP/1.1\r\nHost: t\r\n\
                Content-Length: 3221225472\r\n\r\n{\"parameters\":{\"file:1/x\":\"AAAA";
    (&stream).write_all(head.as_bytes()).unwrap();
    let announced = finish(stream);
    assert!(matches!(announced.status, 400 | 413), "{}", announced.text());
    let bytes = vec![0; 2 << 20];
    let parameter = |choice| ModelRepositoryParameter { parameter_choice: Some(choice) };
    let request = RepositoryModelLoadRequest {
        model_name: "m".to_owned(),
        parameters: [
            ("config".to_owned(), parameter(ParameterChoice::StringParam(config))),
            ("file:1/x".to_owned(), parameter(ParameterChoice::BytesParam(bytes.into()))),
        ]
        .into(),
        ..Default::default()
    };
    let mut grpc = Grpc::connect(server.grpc);
    let status = grpc.call(async |it| it.repository_model_load(request).await).unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    for handle in ["", "AAAA", "not base64"] {
        let body = json!({"raw_handle": {"b64": handle}, "device_id": 0, "byte_size": 8});
        let path = "/v2/cudasharedmemory/region/r/register";
        let answer = server.http.post(path, body);
        assert!(matches!(answer.status, 400 | 501), "{}", answer.text());
    }
    memory_is_back(server.pid, before);
    server.still_serves("large files");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn cve_2025_23336_configs_that_cannot_be_meant_fail_to_load() {
    let selves = ensemble(FLOATS, &["selves: x=x -> y=y"]);
    let circle = |other: &str| ensemble(FLOATS, &[&format!("{other}: x=x -> y=y")]);
    let pbtxt = |text: String| Model::of(text);
    let deep = "parameters { key: \"a\" value { ".repeat(100_000);
    let long =
        format!("{}\n{}", identity().config, "version_policy { nonsense: 1 }\n".repeat(330_000));
    let repository = Repository::of([
        ("selves", selves),
        ("ping", circle("pong")),
        ("pong", circle("ping")),
        ("deep", pbtxt(deep)),
        ("brackets", pbtxt("[".repeat(1 << 20))),
        ("long", pbtxt(long)),
        ("bytes", pbtxt("\u{1}\u{0}\u{7f}".repeat(1000))),
    ]);
    let server = serve(repository);
    for name in ["selves", "ping", "pong", "deep", "brackets", "long", "bytes"] {
        let answer = server.load(name);
        let (length, error) = (answer.text().len(), answer.error());
        let is_not_there = answer.status == 500 && error.contains(NOT_THERE);
        assert!(length < 1 << 20, "{name}: an error of {length} bytes");
        assert!(answer.status == 400 || is_not_there, "{name}: {error}");
        server.still_serves(name);
    }
    let step = json!({"model_name": "m", "model_version": -1, "input_map": {"x": "x"},
                      "output_map": {"y": "y"}});
    let steps = json!({"ensemble_scheduling": {"step": vec![step; 20_000]}, "backend": "",
                       "platform": "ensemble", "parameters": {}});
    let input = |dims: Value| json!([{"name": "x", "data_type": "TYPE_FP32", "dims": dims}]);
    let policy = |it: Value| json!({"version_policy": {"specific": {"versions": it}}});
    for changes in [
        json!({"instance_group": [{"count": 1_000_000_000}]}),
        json!({"instance_group": [{"count": -1}]}),
        json!({"instance_group": vec![json!({"count": 1000}); 1000]}),
        json!({"input": input(json!([-5]))}),
        json!({"input": input(json!([0]))}),
        json!({"input": input(json!([u64::MAX]))}),
        json!({"max_batch_size": -1}),
        json!({"max_batch_size": 1u64 << 31}),
        json!({"max_batch_size": "many"}),
        json!({"version_policy": {"latest": {"num_versions": -1}}}),
        policy(json!([-1])),
        json!({"dynamic_batching": {"max_queue_delay_microseconds": -1}, "max_batch_size": 4}),
        json!({"dynamic_batching": {"preferred_batch_size": [0, -1]}, "max_batch_size": 4}),
        json!({"model_warmup": [{"name": "w", "batch_size": 1_000_000_000u64,
            "inputs": {"x": {"data_type": "TYPE_FP32", "dims": [1_000_000_000u64],
                             "zero_data": true}}}]}),
        steps,
    ] {
        let shown: String = changes.to_string().chars().take(120).collect();
        let answer = load(&server, "m", json!({"config": config(changes).to_string()}));
        let (length, error) = (answer.text().len(), answer.error());
        assert!(length < 1 << 17, "{shown}: an error of {length} bytes");
        let is_not_there = answer.status == 500 && error.contains(NOT_THERE);
        assert!(answer.status == 400 || is_not_there, "{shown}: {error}");
        server.still_serves(&shown);
    }
    // Nothing has that shape: it may load, and no request fits it.
    let huge = json!([1u64 << 40, 1u64 << 40]);
    let reshaped = json!([{"name": "x", "data_type": "TYPE_FP32", "dims": huge,
                           "reshape": {"shape": [1u64 << 62, 1 << 18]}}]);
    let warmup = json!([{"name": "w", "batch_size": 1, "inputs": {
        "x": {"data_type": "TYPE_FP32", "dims": huge, "zero_data": true}}}]);
    for changes in [
        json!({"input": input(huge.clone())}),
        json!({"input": reshaped}),
        json!({"input": input(huge.clone()), "model_warmup": warmup}),
    ] {
        let answer = load(&server, "m", json!({"config": config(changes).to_string()}));
        assert!(matches!(answer.status, 200 | 400), "{}", answer.text());
        let wrong = server.infer("m", &floats(&[("x", &[1.0])]));
        assert!(matches!(wrong.status, 200 | 400), "{}", wrong.text());
        server.load("m").ok();
        server.still_serves("a huge shape");
    }
}

#[test]
fn cve_2025_23325_nesting_is_refused_wherever_json_is_read() {
    let server = serve(Repository::new());
    let deep = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let objects = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
    let open = "[".repeat(250_000);
    let infer = "/v2/models/m/infer";
    for nested in [deep(101), deep(250_000), objects(250_000), open] {
        let text = json!(nested).to_string();
        let input = format!(r#""name":"x","datatype":"FP32","shape":[1],"data":{nested}"#);
        for (path, body) in [
            (infer, format!(r#"{{"inputs":[{{{input}}}]}}"#)),
            (infer, format!(r#"{{"parameters":{{"a":{nested}}},"inputs":[]}}"#)),
            (infer, format!(r#"{{"inputs":[],"unknown":{nested}}}"#)),
            ("/v2/models/m/generate", format!(r#"{{"x":{nested}}}"#)),
            ("/v2/models/m/generate_stream", format!(r#"{{"x":{nested}}}"#)),
            ("/v2/repository/index", format!(r#"{{"ready":{nested}}}"#)),
            ("/v2/repository/models/m/load", format!(r#"{{"parameters":{nested}}}"#)),
            ("/v2/repository/models/m/load", format!(r#"{{"parameters":{{"config":{text}}}}}"#)),
            ("/v2/repository/models/m/unload", format!(r#"{{"parameters":{nested}}}"#)),
            ("/v2/logging", format!(r#"{{"log_info":{nested}}}"#)),
            ("/v2/trace/setting", format!(r#"{{"trace_level":{nested}}}"#)),
            ("/v2/models/m/trace/setting", format!(r#"{{"trace_rate":{nested}}}"#)),
        ] {
            let answer = server.http.post(path, body);
            assert_eq!(answer.status, 400, "{path}: {}", answer.text());
            assert!(answer.text().len() < 10_000, "{path}: {} bytes", answer.text().len());
            server.still_serves(path);
        }
    }
}

#[test]
fn cve_2026_24208_names_lead_to_no_other_folder_and_dots_are_no_harm() {
    // Dots that lead nowhere else are letters of a name.
    let odd = ["model..", "a..b", "a.b", "a..."];
    // What a dot begins is hidden, as `.git` and `..data` of Kubernetes are.
    let hidden = ["...", "..model", ".model"];
    let all = odd.iter().chain(&hidden).map(|name| (*name, identity()));
    let repository = Repository::of(all);
    let server = serve(repository);
    let one = floats(&[("x", &[3.0])]);
    for name in odd {
        server.load(name).ok();
        assert_eq!(server.infer(name, &one).numbers("y"), [3.0], "{name}");
        server.http.get(&format!("/v2/models/{name}/config")).ok();
        server.unload(name).ok();
    }
    for name in hidden {
        server.load(name).refuses(500, NOT_THERE);
        assert_eq!(server.infer(name, &one).status, 404, "{name}");
        server.still_serves(name);
    }
    let mut grpc = Grpc::connect(server.grpc);
    for (name, escaped) in [
        ("..", "%2e%2e"),
        (" ..", "%20.."),
        ("a/b", "a%2fb"),
        ("../m", "..%2fm"),
        ("m/../m", "m%2f..%2fm"),
        ("   ", "%20%20%20"),
        ("m\0", "m%00"),
        ("m\n", "m%0a"),
        ("\u{2215}etc\u{2215}passwd", "%e2%88%95etc%e2%88%95passwd"),
        ("\u{ff0f}etc", "%ef%bc%8fetc"),
        (".", "%2e"),
        ("/etc/passwd", "%2fetc%2fpasswd"),
    ] {
        for answer in [
            load(&server, escaped, json!({})),
            load(&server, escaped, json!({"config": config(json!({})).to_string()})),
            server.infer(escaped, &one),
            server.http.get(&format!("/v2/models/{escaped}/config")),
        ] {
            let is_not_there = answer.status == 500 && answer.error().contains(NOT_THERE);
            assert!(
                matches!(answer.status, 400 | 404) || is_not_there,
                "{name:?}: {}",
                answer.text()
            );
        }
        let request =
            RepositoryModelLoadRequest { model_name: name.to_owned(), ..Default::default() };
        let status = grpc.call(async |it| it.repository_model_load(request).await).unwrap_err();
        let codes = [Code::InvalidArgument, Code::NotFound, Code::Internal];
        assert!(codes.contains(&status.code()), "{name:?}: {status}");
        server.still_serves(name);
    }
    for file in ["../../etc/passwd", "/etc/passwd", "a/../../x", "..", "a\0b"] {
        let output = json!([{"name": "y", "data_type": "TYPE_FP32", "dims": [-1],
                             "label_filename": file}]);
        let answer =
            load(&server, "m", json!({"config": config(json!({"output": output})).to_string()}));
        assert_eq!(answer.status, 400, "{file}: {}", answer.text());
        assert!(!answer.text().contains("root:"), "{}", answer.text());
        server.still_serves(file);
    }
}

#[test]
fn cve_2025_23316_nothing_in_a_config_is_read_by_a_shell() {
    let source = "
        class TritonPythonModel:
            def execute(self, requests):
                return [None for _ in requests]
        ";
    let python = crate::support::python(FLOATS, source);
    let server = serve(Repository::of([("python", python)]));
    let home = server.repository.beside("");
    for word in [
        "$(touch pwned)",
        "`touch pwned`",
        ";touch pwned;",
        "|touch pwned",
        "&& touch pwned",
        "\ntouch pwned\n",
        "-c touch pwned",
        "a b",
        "'; touch pwned; '",
        "\"$(touch pwned)\"",
    ] {
        for changes in [
            json!({"parameters": {"EXECUTION_ENV_PATH": {"string_value": word}}}),
            json!({"parameters": {"EXECUTION_ENV_PATH": {
                "string_value": format!("$$TRITON_MODEL_DIRECTORY/{word}")}}}),
            json!({"default_model_filename": word}),
        ] {
            let mut all = config(changes);
            all["backend"] = json!("python");
            let answer = load(&server, "python", json!({"config": all.to_string()}));
            assert_eq!(answer.status, 400, "{word}: {}", answer.text());
            server.still_serves(word);
        }
    }
    let written = files(&home);
    assert!(!written.keys().any(|it| it.ends_with("pwned")), "{written:?}");
}
