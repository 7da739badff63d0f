//! Real clients over TLS: tritonclient, curl, openssl, our own commands, and a collector of traces.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use super::tls::Encrypted;
use crate::support::{
    Repository, Server,
    certificates::{Authority, tls_proxy},
    collector::{Collector, new_trace},
    http::floats,
    native, troupe, until, venv,
};

/// Runs a program to its end; `None`: there is no such program here.
#[track_caller]
fn run(command: &mut Command) -> Option<(bool, String)> {
    let output = match command.stdin(Stdio::null()).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: there is no {:?}", command.get_program());
            return None;
        }
        output => output.unwrap(),
    };
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    println!("{said}");
    Some((output.status.success(), said))
}

#[test]
fn tritonclient_shows_its_certificate_over_both_protocols() {
    for mutual in [false, true] {
        let encrypted = Encrypted::start(mutual);
        let beside = |name: &str| encrypted.server.repository.beside(name);
        let (certificate, key) = encrypted.authority.issue("a client").write(&beside(""), "client");
        let mut command = Command::new(venv::python());
        command
            .args(["-m", "unittest", "--verbose", "test_tls"])
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("TROUPE_HTTP", encrypted.server.http.0.to_string())
            .env("TROUPE_GRPC", encrypted.server.grpc.to_string())
            .env("TROUPE_ROOTS", beside("roots.pem"))
            .env("TROUPE_CERTIFICATE", certificate)
            .env("TROUPE_KEY", key);
        if mutual {
            command.env("TROUPE_MUTUAL", "1");
        }
        let (is_ok, said) = run(&mut command).expect("the tests have a Python");
        assert!(is_ok && said.contains("\nOK"), "mutual: {mutual}");
    }
}

#[test]
fn curl_and_openssl_agree_that_it_is_tls() {
    let encrypted = Encrypted::start(false);
    let roots = encrypted.server.repository.beside("roots.pem");
    let url = format!("https://{}/v2/health/live", encrypted.server.http.0);
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--include", "--cacert"]).arg(&roots).arg(&url);
    if let Some((_, said)) = run(&mut curl) {
        assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    }
    for (version, is_spoken) in [("-tls1_3", true), ("-tls1_2", true), ("-tls1_1", false)] {
        let address = encrypted.server.grpc.to_string();
        let mut openssl = Command::new("openssl");
        openssl.args(["s_client", "-brief", "-alpn", "h2", version, "-verify_return_error"]);
        openssl.args(["-connect", &address, "-CAfile"]).arg(&roots);
        let Some((is_ok, said)) = run(&mut openssl) else { return };
        assert_eq!(is_ok && said.contains("Verification: OK"), is_spoken, "{version}: {said}");
    }
}

#[test]
fn our_commands_speak_tls_and_show_a_certificate() {
    let encrypted = Encrypted::start(true);
    let beside = |name: &str| encrypted.server.repository.beside(name).display().to_string();
    let folder = encrypted.server.repository.beside("");
    encrypted.authority.issue("a client").write(&folder, "client");
    let url = format!("https://{}", encrypted.server.grpc);
    let files = [
        format!("--ca-cert={}", beside("roots.pem")),
        format!("--client-cert={}", beside("client.pem")),
        format!("--client-key={}", beside("client.key")),
    ];
    let infer = ["infer", "identity", "-i", "[1, 2]", "--json", "--url"];
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let with = |arguments: &[&str], files: &[&str]| troupe(&[arguments, &[&url], files].concat());
    let ended = with(&infer, &files);
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    assert!(ended.output.contains("\"y\""), "{}", ended.output);
    // A scheme is not needed where the files say that it is TLS.
    let plain = url.strip_prefix("https://").unwrap();
    let ended = troupe(&[&infer[..], &[plain], &files].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    let bench = ["bench", "identity", "-i", "[1, 2]", "--concurrency=2", "--seconds=0.2", "--url"];
    let ended = with(&bench, &files);
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    let http = format!("https://{}", encrypted.server.http.0);
    let ended = troupe(&[&["logs", "identity", "--url", &http], &files[..]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    assert!(ended.output.contains("loaded `identity`"), "{}", ended.output);
    let ended = troupe(&["logs", "identity", "--url", &http]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.output.contains("`--ca-cert FILE` names the roots"), "{}", ended.output);
    Authority::new("of nobody").issue("a stranger").write(&folder, "foreign");
    let foreign = [
        format!("--client-cert={}", beside("foreign.pem")),
        format!("--client-key={}", beside("foreign.key")),
    ];
    for (files, expected) in [
        (&files[..1], "if the server wants clients to show a certificate"),
        (
            &[files[0], &foreign[0], &foreign[1]],
            "if the server wants clients to show a certificate",
        ),
        (&[files[0], files[1], &foreign[1]], "it is not the key of --client-cert"),
        (&files[1..], "UnknownIssuer"),
        (&["--ca-cert=/dev/null"], "--ca-cert=/dev/null: there is no"),
        (&["--ca-cert=nowhere"], "--ca-cert=nowhere: No such file"),
    ] {
        let ended = with(&infer, files);
        assert_eq!(ended.code, Some(1), "{files:?}: {}", ended.output);
        assert!(ended.output.contains(expected), "{files:?}: {}", ended.output);
        assert!(!ended.output.contains("if it is encrypted"), "{files:?}: {}", ended.output);
    }
    let ended =
        troupe(&["infer", "identity", "-i", "1", "--url", &encrypted.server.grpc.to_string()]);
    assert!(ended.output.contains("if it is encrypted"), "{}", ended.output);
}

#[test]
fn our_commands_say_that_a_port_is_not_encrypted() {
    let id = native("identity", "x:FP32[-1] -> y:FP32[-1]");
    let server = Server::with(Repository::of([("identity", id)]), &[]);
    for port in [server.grpc, server.http.0] {
        let url = format!("https://{port}");
        let ended = troupe(&["infer", "identity", "-i", "1", "--url", &url]);
        assert_eq!(ended.code, Some(1), "{}", ended.output);
        assert!(ended.output.contains("this port is not encrypted"), "{}", ended.output);
    }
}

#[test]
fn a_collector_that_is_not_trusted_is_told_from_one_that_is_not_there() {
    let collector = Collector::start();
    let authority = Authority::new("of nobody");
    let address = tls_proxy(&authority, collector.http, "http/1.1");
    let repository = Repository::of([("id", native("identity", "x:FP32[-1] -> y:FP32[-1]"))]);
    let roots = repository.beside("roots.pem");
    std::fs::write(&roots, Authority::new("of another").pem()).unwrap();
    let url = format!("opentelemetry,url=https://{address}/v1/traces");
    let delay = "opentelemetry,bsp_schedule_delay=5";
    let flags = ["mode=opentelemetry", "level=TIMESTAMPS", "rate=1", &url, delay];
    let flags = flags.map(|it| format!("--trace-config={it}"));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let variables = [("OTEL_EXPORTER_OTLP_CERTIFICATE", &*roots)];
    let server = Server::launch(repository, &flags, &variables);
    server.ready();
    server.http.infer("id", floats(&[("x", &[1.0])]).to_string()).ok();
    until("the reason to be logged", || server.log().contains("UnknownIssuer"));
}

#[test]
fn spans_are_sent_by_tls_with_the_certificates_of_the_standard_variables() {
    let collector = Collector::start();
    let authority = Authority::new("of the collector");
    for (protocol, alpn, to, path) in [
        ("http/protobuf", "http/1.1", collector.http, "/v1/traces"),
        ("grpc", "h2", collector.grpc, ""),
    ] {
        let repository = Repository::of([("id", native("identity", "x:FP32[-1] -> y:FP32[-1]"))]);
        let (certificate, key) = authority.issue("a server").write(&repository.beside(""), "own");
        let roots = repository.beside("roots.pem");
        std::fs::write(&roots, authority.pem()).unwrap();
        let address = tls_proxy(&authority, to, alpn);
        let url = format!("--trace-config=opentelemetry,url=https://{address}{path}");
        let flags = ["mode=opentelemetry", "level=TIMESTAMPS", "rate=1"];
        let flags = flags.map(|it| format!("--trace-config={it}"));
        let delay = "--trace-config=opentelemetry,bsp_schedule_delay=5";
        let flags = [&flags[0], &flags[1], &flags[2], &url, delay];
        let server = Server::launch(
            repository,
            &flags,
            &[
                ("OTEL_EXPORTER_OTLP_PROTOCOL", Path::new(protocol)),
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", &roots),
                ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &certificate),
                ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", &key),
            ],
        );
        server.ready();
        let (id, parent) = new_trace();
        let body = floats(&[("x", &[1.0])]).to_string();
        let headers = [("traceparent", parent.as_str())];
        server.http.send("POST", "/v2/models/id/infer", &headers, body.as_bytes()).ok();
        assert!(!collector.tree(id).0.is_empty(), "{protocol}");
    }
}
