//! The words in pictures: the ensemble of native steps and networks, and the tutorial's of Python.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use serde_json::{Value, json};

use crate::support::{Answer, Repository, Server, at_once, http::input, until, venv};

/// The models of this project, `ocr` and its steps alone.
static SERVER: LazyLock<Server> = LazyLock::new(ocr);

pub(crate) fn ocr() -> Server {
    let models = format!("--model-repository={}", here("model_repository").display());
    let flags = [&models, &library(), "--model-control-mode=explicit", "--load-model=ocr"];
    Server::with(Repository::new(), &flags)
}

pub(super) fn library() -> String {
    format!("--backend-config=onnxruntime,library={}", venv::onnxruntime().display())
}

pub(crate) fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn sign(name: &str) -> Vec<u8> {
    fs::read(here(&format!("pipelines/ocr/images/sign_{name}.jpg"))).unwrap()
}

/// What `labels.json` says is on a sign: words and the middles of their boxes.
fn labels(name: &str) -> Vec<(String, [f64; 2])> {
    let text = fs::read_to_string(here("pipelines/ocr/images/labels.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let words = all[format!("sign_{name}.jpg")].as_array().unwrap();
    let word = |it: &Value| (it["text"].as_str().unwrap().to_owned(), middle(&it["quad"]));
    words.iter().map(word).collect()
}

fn middle(corners: &Value) -> [f64; 2] {
    let corners = corners.as_array().unwrap();
    let mean = |axis: usize| corners.iter().map(|it| it[axis].as_f64().unwrap()).sum::<f64>() / 4.0;
    [mean(0), mean(1)]
}

/// A picture of one colour.
fn blank(width: u32, height: u32) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&vec![120; (3 * width * height) as usize]).unwrap();
    writer.finish().unwrap();
    file
}

fn read(server: &Server, file: &[u8]) -> Answer {
    let size = json!({ "binary_data_size": file.len() });
    let picture = json!({
        "name": "input_image", "datatype": "UINT8", "shape": [file.len()], "parameters": size,
    });
    server.http.infer_binary("ocr", &json!({ "inputs": [picture] }), &[file])
}

fn words(answer: &Answer) -> Vec<String> {
    let words = answer.ok().output("recognized_text");
    words.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_words_on_the_signs_are_read_where_they_are() {
    for name in ["exit", "menu", "stop", "street"] {
        let answer = read(&SERVER, &sign(name));
        let (found, expected) = (words(&answer), labels(name));
        let texts: BTreeSet<&str> = expected.iter().map(|it| it.0.as_str()).collect();
        assert_eq!(found.iter().map(String::as_str).collect::<BTreeSet<_>>(), texts, "{name}");
        assert_eq!(found.len(), expected.len());
        assert_eq!(answer.shape("boxes"), json!([found.len(), 4, 2]));
        let scores = answer.numbers("scores");
        assert!(scores.is_sorted_by(|a, b| b <= a), "{scores:?}");
        let corners = answer.numbers("boxes");
        for (word, corners) in found.iter().zip(corners.chunks(8)) {
            let corners: Vec<&[f64]> = corners.chunks(2).collect();
            let (_, quad) = expected.iter().find(|it| it.0 == *word).unwrap();
            let [x, y] = middle(&json!(corners));
            let apart = (x - quad[0]).hypot(y - quad[1]);
            assert!(apart < 12.0, "{name}: '{word}' is {apart} pixels off");
        }
    }
}

#[test]
fn a_picture_without_words_has_no_rows_and_recognition_never_runs() {
    let server = ocr();
    for (width, height) in [(640, 480), (8, 8), (1, 500)] {
        let answer = read(&server, &blank(width, height));
        assert_eq!(words(&answer), [""; 0]);
        assert_eq!(answer.shape("recognized_text"), json!([0]));
        assert_eq!(answer.shape("boxes"), json!([0, 4, 2]));
        assert_eq!(answer.shape("scores"), json!([0]));
    }
    assert_eq!(server.executions("text_detection"), 3);
    assert_eq!(server.executions("text_recognition"), 0);
    server.is_well();
}

#[test]
fn words_of_different_callers_are_read_together() {
    // A batch waits until four words have come.
    let config = fs::read_to_string(here("model_repository/text_recognition/config.pbtxt"));
    let waits = "dynamic_batching { preferred_batch_size: [ 4 ] \
                 max_queue_delay_microseconds: 3600000000 }";
    let config = config.unwrap().replace("dynamic_batching { }", waits);
    assert!(config.contains(waits));
    let repository = Repository::new();
    for name in fs::read_dir(here("model_repository")).unwrap() {
        let name = name.unwrap().file_name().into_string().unwrap();
        let file = |path: &str| here(&format!("model_repository/{name}/{path}"));
        repository
            .write_file(&format!("{name}/config.pbtxt"), fs::read(file("config.pbtxt")).unwrap());
        repository.write_file(&format!("{name}/1/.gitkeep"), "");
        if let Ok(network) = fs::read(file("1/model.onnx")) {
            repository.write_file(&format!("{name}/1/model.onnx"), network);
        }
    }
    repository.write_file("text_recognition/config.pbtxt", config);
    let flags = [&library(), "--model-control-mode=explicit", "--load-model=ocr"];
    let server = Server::with(repository, &flags);
    let stop = sign("stop");
    let answers = at_once(4, |_| words(&read(&server, &stop)));
    assert_eq!(answers, vec![["stop"]; 4]);
    let stats = server.stats("text_recognition");
    assert_eq!((&stats["inference_count"], &stats["execution_count"]), (&json!(4), &json!(1)));
    assert_eq!(stats["batch_stats"][0]["batch_size"], 4);
}

#[test]
fn what_is_no_picture_is_refused_by_its_step_and_disturbs_nobody() {
    let stop = sign("stop");
    let rows: [(&[u8], &str); 4] = [
        (&stop[..stop.len() / 2], "it ends early"),
        (b"", "got 0 bytes"),
        (b"no picture at all", "JPEG, PNG or WebP"),
        (&blank(9, 9)[..40], "PNG"),
    ];
    let good = || assert_eq!(words(&read(&SERVER, &stop)), ["stop"]);
    for (file, text) in rows {
        let answer = read(&SERVER, file);
        println!("{}", answer.text());
        assert_eq!(answer.status, 400);
        let place =
            "in ensemble 'ocr', step 0 (model 'image_decode' version 1, instance 'image_decode_";
        assert!(answer.error().starts_with(place), "{}", answer.error());
        assert!(answer.error().contains(text), "{}", answer.error());
        good();
    }
    let inputs = [input("input_image", "UINT8", &[2, 2], vec![1, 2, 3, 4])];
    assert_eq!(SERVER.infer("ocr", &json!({ "inputs": inputs })).status, 400);
    SERVER.is_well();
}

/// Runs a client of a pipeline; what it printed.
#[track_caller]
fn client(script: &str, arguments: &[String]) -> String {
    let mut command = Command::new(venv::python());
    let output = command.arg(here(script)).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_client_prints_the_words_and_draws_them() {
    let drawn = SERVER.repository.beside("drawn.png");
    let sign = here("pipelines/ocr/images/sign_exit.jpg").display().to_string();
    for flags in [vec![format!("--server={}", SERVER.http.0)], {
        vec!["--grpc".to_owned(), format!("--server={}", SERVER.grpc)]
    }] {
        let output = format!("--output={}", drawn.display());
        let said = client("pipelines/ocr/client.py", &[flags, vec![output, sign.clone()]].concat());
        assert!(said.contains("exit") && said.contains("12"), "{said}");
        assert!(fs::read(&drawn).unwrap().starts_with(b"\x89PNG"));
        fs::remove_file(&drawn).unwrap();
    }
}

#[test]
fn the_tutorials_ensemble_and_clients_read_the_same_words() {
    let models = here("pipelines/ocr_python/model_repository");
    let models = format!("--model-repository={}", models.display());
    let server = Server::with(Repository::new(), &[&models, &library()]);
    let signs = ["exit", "menu", "stop", "street"];
    let files = signs.map(|it| here(&format!("pipelines/ocr/images/sign_{it}.jpg")));
    let files: Vec<String> = files.iter().map(|it| it.display().to_string()).collect();
    let clients = [
        ("pipelines/ocr_python/client.py", format!("--grpc={}", server.grpc)),
        ("pipelines/ocr_python/client_two_models.py", format!("--http={}", server.http.0)),
    ];
    for (script, server) in clients {
        let said = client(script, &[vec![server], files.clone()].concat());
        for (sign, line) in signs.iter().zip(said.lines()) {
            let found: BTreeSet<&str> = line.split(": ").nth(1).unwrap().split(' ').collect();
            let expected = labels(sign);
            let expected: BTreeSet<&str> = expected.iter().map(|it| it.0.as_str()).collect();
            assert_eq!(found, expected, "{script}: {line}");
        }
    }
    // Crops of one picture travel as a batch.
    let stats = server.stats("text_recognition");
    until("a batch of all words of the menu", || {
        let batches = stats["batch_stats"].as_array().unwrap();
        batches.iter().any(|it| it["batch_size"] == 8)
    });
    server.is_well();
}
