//! The pipelines whose tokenizer and networks come from a hub, with the small ones that lie there.

use std::{fs, process::Command};

use serde_json::json;

use super::ocr::{here, library};
use crate::support::{Repository, Server, browser::Browser, http::input, venv};

fn serve(pipeline: &str) -> Server {
    let models = here(&format!("pipelines/{pipeline}/model_repository"));
    let models = format!("--model-repository={}", models.display());
    Server::with(Repository::new(), &[&models, &library()])
}

/// The block of the README that begins with this command line: what it prints.
fn printed(pipeline: &str, command: &str) -> String {
    let readme = fs::read_to_string(here(&format!("pipelines/{pipeline}/README.md"))).unwrap();
    let (_, rest) = readme.split_once(&format!("$ {command}")).expect("the command is there");
    let (_, rest) = rest.split_once('\n').unwrap();
    rest.split("```").next().unwrap().to_owned()
}

/// Runs the client of a pipeline from the root of the project, as its README does.
fn client(server: &Server, pipeline: &str, arguments: &[&str]) -> String {
    let ran = Command::new(venv::python())
        .current_dir(here(""))
        .arg(format!("pipelines/{pipeline}/client.py"))
        .arg(format!("--server={}", server.http.0))
        .args(arguments)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn texts_of_one_topic_are_near_to_each_other() {
    let server = serve("embedding");
    let texts =
        ["a cat and a dog", "the train to the station", "my kitten has fur", "rain and cold wind"];
    let said = client(&server, "embedding", &texts);
    assert_eq!(said, printed("embedding", "python pipelines/embedding/client.py"));
    assert!(said.lines().next().unwrap().ends_with("my kitten has fur"), "{said}");
    // A vector of length 1 for each text, whatever else is in the batch.
    let embed = |texts: &[&str]| {
        let text = input("text", "BYTES", &[texts.len() as i64, 1], json!(texts));
        let answer = server.infer("embedding", &json!({ "inputs": [text] }));
        assert_eq!(answer.shape("embedding"), json!([texts.len(), 32]));
        answer.numbers("embedding")
    };
    let both = embed(&["a cat", "how much is the ticket for a train to the station ?"]);
    let alone = embed(&["a cat"]);
    for (one, other) in both.iter().zip(&alone) {
        assert!((one - other).abs() < 1e-5, "{both:?} {alone:?}");
    }
    let length: f64 = alone.iter().map(|it| it * it).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    server.is_well();
}

#[test]
fn pictures_are_named_by_the_colours_of_their_signs() {
    let server = serve("classification");
    let pictures = ["exit", "menu", "stop", "street"];
    let pictures = pictures.map(|it| format!("pipelines/ocr/images/sign_{it}.jpg"));
    let said = client(&server, "classification", &pictures.each_ref().map(|it| it.as_str()));
    assert_eq!(said, printed("classification", "python pipelines/classification/client.py"));
    for (line, colour) in said.lines().zip(["green", "brown", "red", "yellow"]) {
        assert!(line.contains(&format!(": {colour} ")), "{line}");
    }
    // And in the form of its page.
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    browser.go(&server.metrics, "/ensemble/classification");
    browser.press("#try [type=file]", here(&pictures[0]).to_str().unwrap());
    browser.click("#try [type=submit]");
    // The one row of the batch, a label beside its score.
    browser.says("#try-answer .answer tr:nth-child(1) td", "green");
    browser.says("#try-answer .answer tr:nth-child(2) td", "yellow");
    server.is_well();
}
