//! The API described: the OpenAPI document and the reference page, whose examples run as they are.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{
    backends::ocr::{here, ocr},
    support::{Repository, Server, ensemble, native, venv},
};

const EVIL: &str = "<img/src=x>&'";

fn repository() -> Repository {
    let text = format!("{EVIL}:BYTES[-1] -> y:BYTES[-1]");
    Repository::of([
        ("add", native("add_sub", "a:FP32[4] b:FP32[4] -> c:FP32[4] d:FP32[4]")),
        ("rows", native("identity", "x:INT64[3] -> y:INT64[3]").with("max_batch_size: 8")),
        ("flags", native("identity", "x:BOOL[-1,2] -> y:BOOL[-1,2]")),
        ("big", native("identity", "x:FP32[3,224,224] -> y:FP32[3,224,224]")),
        ("half", native("identity", "x:FP16[2] -> y:FP16[2]")),
        ("text", native("identity", &text)),
        ("pair", ensemble("x:FP32[4] -> y:FP32[4]", &["add: a=x b=x -> c=y"])),
    ])
}

fn document(server: &Server) -> Value {
    server.http.get("/v2/openapi.json").ok().json()
}

#[test]
fn the_openapi_document_is_valid() {
    let server = Server::start(repository());
    let text = server.http.get("/v2/openapi.json").ok().text();
    let program = "import json, sys; from openapi_spec_validator import validate; \
                   validate(json.load(sys.stdin))";
    let mut child = Command::new(venv::python())
        .args(["-c", program])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}\n{text}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn every_example_of_the_document_is_answered() {
    let server = Server::start(repository());
    let document = document(&server);
    let mut answered = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let body = &operations["post"]["requestBody"]["content"]["application/json"];
        let Some(example) = body.get("example") else { continue };
        server.http.post(path, example).ok();
        answered.push(path.trim_start_matches("/v2/models/"));
    }
    for path in
        ["add/infer", "add/generate", "rows/infer", "flags/infer", "text/infer", "pair/infer"]
    {
        assert!(answered.contains(&path), "{path} is not in {answered:?}");
    }
    let paths = document["paths"].as_object().unwrap();
    let big = &paths["/v2/models/big/infer"]["post"]["requestBody"]["content"]["application/json"];
    assert!(big.get("example").is_none(), "too many elements to be written");
    assert!(!paths.contains_key("/v2/models/half/infer"), "FP16 has no JSON");
    assert!(paths.contains_key("/v2/models/{model}"));
    let inputs = &paths["/v2/models/rows/infer"]["post"]["requestBody"]["content"];
    let input = &inputs["application/json"]["schema"]["properties"]["inputs"]["items"]["oneOf"][0];
    assert_eq!(input["properties"]["name"]["const"], "x");
    assert_eq!(input["properties"]["datatype"]["const"], "INT64");
    assert_eq!(input["properties"]["shape"]["prefixItems"][1]["const"], 3);
    server.is_well();
}

#[test]
fn the_document_follows_what_is_loaded() {
    let server = Server::explicit(repository());
    let has = |server: &Server| document(server)["paths"].get("/v2/models/add/infer").is_some();
    assert!(!has(&server));
    server.load("add").ok();
    assert!(has(&server));
}

/// The texts of all `<pre>`.
fn commands(page: &str) -> Vec<String> {
    let text = |it: &str| {
        let text = it.split_once('>').unwrap().1.split("</pre>").next().unwrap();
        ["&lt;<", "&gt;>", "&quot;\"", "&#39;'", "&amp;&"]
            .iter()
            .map(|it| it.split_at(it.len() - 1))
            .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    };
    page.split("<pre").skip(1).map(text).collect()
}

fn run(command: &str, folder: &str) -> Value {
    let ran = Command::new("sh").args(["-c", command]).current_dir(here(folder)).output().unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|it| panic!("{it} in {text} of\n{command}"))
}

#[test]
fn the_command_lines_of_the_reference_page_run_as_they_are() {
    let server = Server::start(repository());
    let page = format!("http://localhost:{}", server.http.0.port());
    let fetched = Command::new("curl").args(["-s", &format!("{page}/v2/docs")]).output().unwrap();
    let html = String::from_utf8(fetched.stdout).unwrap();
    assert!(html.contains("<link rel=\"stylesheet\" href=\"/v2/docs.css\">"), "{html}");
    assert!(!html.contains("<img") && html.contains("&lt;img/src=x&gt;&amp;&#39;"), "{html}");
    let commands = commands(&html);
    assert_eq!(commands.len(), 10, "two of each, none of `half` and `big`: {commands:#?}");
    for command in &commands {
        assert!(command.starts_with(&format!("curl '{page}/")), "{command}");
        let answer = run(command, ".");
        assert!(answer.get("error").is_none(), "{answer} of\n{command}");
    }
    let policy = server.http.get("/v2/docs");
    assert!(policy.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    // The same beside the page.
    assert!(server.metrics.get("/docs").ok().text().contains("<section id=\"model-add\">"));
    assert_eq!(server.metrics.get("/docs.css").ok().text(), server.http.get("/v2/docs.css").text());
}

#[test]
fn a_file_is_sent_as_the_reference_page_says() {
    let server = ocr();
    let html = server.metrics.get("/docs").ok().text();
    let section = html.split("<section id=\"model-ocr\">").nth(1).unwrap();
    let commands = commands(section.split("</section>").next().unwrap());
    let command = commands.iter().find(|it| it.starts_with("file=")).unwrap();
    let command = command.replace("picture.jpg", "sign_street.jpg");
    let port = server.http.0.port();
    assert!(command.contains(&format!(":{port}/v2/models/ocr/infer")), "{command}");
    // The name under which the page was asked for.
    let command = command.replace("http://test:", "http://localhost:");
    let answer = run(&command, "pipelines/ocr/images");
    assert_eq!(answer["outputs"][0]["data"][0], "parking", "{answer}");
}

#[test]
fn without_pages_there_is_no_reference_page() {
    let server = Server::with(repository(), &["--allow-dashboard=false"]);
    assert_eq!(server.http.get("/v2/docs").status, 404);
    assert_eq!(server.metrics.get("/docs").status, 404);
    server.http.get("/v2/openapi.json").ok();
}
