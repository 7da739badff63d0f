//! Imports go down, also between crates, and some words are allowed in some modules only.

use std::path::Path;

use super::sources::{CRATES, code_of, crate_of, rust_files, without_comments};

/// Words that stand only in these places; a place is a file or folder below `src`.
const ONLY_HERE: &[(&str, &[&str])] = &[
    ("actix_web::", &["gateway", "server", "main.rs"]),
    ("tonic::", &["gateway", "tools", "server", "main.rs", "proto"]),
    ("StatusCode", &["gateway"]),
    // Traces are written by a thread of their own; certificates are read at start.
    (
        "std::fs",
        &[
            "repository",
            "backends",
            "tools",
            "server",
            "main.rs",
            "observability/telemetry/file.rs",
            "observability/telemetry/collector_tls.rs",
        ],
    ),
    ("opentelemetry::", &["observability/telemetry"]),
    ("catch_unwind", &["engine/instance"]),
    ("Arbiter::new", &["engine/instance", "server", "main.rs"]),
    ("static mut", &[]),
    ("SyncArbiter", &[]),
    ("process::exit", &[]),
    ("todo!", &[]),
    ("unimplemented!", &[]),
    ("dbg!", &[]),
];

#[test]
fn imports_only_go_down() {
    let mut broken = Vec::new();
    for file in rust_files(Path::new("src")) {
        let own = crate_of(&file);
        let code = code_of(&file);
        for other in CRATES.iter().flat_map(|row| row.iter()) {
            let is_named = code.contains(&format!("troupe_{other}"));
            if is_named && layer_of(other) <= layer_of(&own) {
                broken.push(format!("{} imports troupe_{other}", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// 0 is the top.
fn layer_of(name: &str) -> usize {
    CRATES.iter().position(|row| row.contains(&name)).expect("`crate_of` names crates only")
}

#[test]
fn the_protocols_do_not_know_each_other() {
    let mut broken = Vec::new();
    for (module, other) in [("http", "grpc"), ("grpc", "http")] {
        for file in rust_files(&Path::new("src/gateway").join(module)) {
            let code = code_of(&file);
            if ["super", "gateway"].iter().any(|it| code.contains(&format!("{it}::{other}::"))) {
                broken.push(format!("{} imports from {other}", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn some_words_stand_in_some_modules_only() {
    let mut broken = Vec::new();
    for file in rust_files(Path::new("src")) {
        let place = file.strip_prefix("src").unwrap();
        let code = code_of(&file);
        for (token, allowed) in ONLY_HERE {
            let is_allowed = allowed
                .iter()
                .any(|it| place.starts_with(it) || place == Path::new(&format!("{it}.rs")));
            if !is_allowed && code.contains(token) {
                broken.push(format!("{} says `{token}`", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn comments_are_no_code() {
    assert_eq!(without_comments("a // crate::b\n/// std::fs\nc"), "a \n\nc\n");
}
