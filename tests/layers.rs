//! The shape of the source: imports go down, and some words are allowed in some rooms only.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Rooms from top to bottom; those of one row do not know each other.
const LAYERS: &[&[&str]] = &[
    &["main", "lib"],
    &["server"],
    &["gateway"],
    &["repository", "draw", "client", "telemetry"],
    &["ensemble", "batcher"],
    &["instance"],
    &["backend", "engines"],
    &["model"],
    &["tap"],
    &["config", "metrics"],
    &["request", "numpy"],
    &["trace"],
    &["tensor", "statistics"],
    &["log"],
    &["error", "proto", "options", "table"],
];

/// What is said only in these places; a place is a file or folder below `src`.
const ONLY_HERE: &[(&str, &[&str])] = &[
    ("actix_web::", &["gateway", "server", "main.rs"]),
    ("tonic::", &["gateway", "client", "server", "main.rs", "proto.rs"]),
    ("StatusCode", &["gateway"]),
    // Traces are written by a thread of their own.
    ("std::fs", &["repository", "backend", "client", "server", "main.rs", "telemetry/file.rs"]),
    ("opentelemetry::", &["telemetry"]),
    ("catch_unwind", &["instance"]),
    ("Arbiter::new", &["instance", "server", "main.rs"]),
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
        let room = room_of(&file);
        let Some(layer) = layer_of(&room) else {
            broken.push(format!("{} is in no layer: add `{room}` to LAYERS", file.display()));
            continue;
        };
        for module in imported_modules(&code_of(&file)) {
            let is_down = layer_of(&module).is_some_and(|it| layer < it);
            if module != room && !is_down {
                broken.push(format!("{} imports crate::{module}", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_doors_do_not_know_each_other() {
    let mut broken = Vec::new();
    for (room, other) in [("http", "grpc"), ("grpc", "http")] {
        for file in rust_files(&Path::new("src/gateway").join(room)) {
            let code = code_of(&file);
            if ["super", "gateway"].iter().any(|it| code.contains(&format!("{it}::{other}::"))) {
                broken.push(format!("{} imports from {other}", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn some_words_are_said_in_some_rooms_only() {
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
fn tests_neither_sleep_nor_are_ignored() {
    let mut broken = Vec::new();
    let tests = rust_files(Path::new("tests"));
    let inside = rust_files(Path::new("src"));
    for (file, code) in tests.iter().map(|it| (it, fs::read_to_string(it).unwrap())).chain(
        inside.iter().map(|it| {
            let text = fs::read_to_string(it).unwrap();
            (it, text.split_once("#[cfg(test)]").map_or("", |(_, tests)| tests).to_owned())
        }),
    ) {
        // Put together here, so that this file does not hold them.
        for token in [concat!("thread::", "sleep"), concat!("#[ig", "nore")] {
            if code.contains(token) {
                broken.push(format!("{} says `{token}`", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn a_file_is_short_and_opens_with_one_sentence() {
    let mut broken = Vec::new();
    for file in ["src", "tests", "benches"].iter().flat_map(|it| rust_files(Path::new(it))) {
        let text = fs::read_to_string(&file).unwrap();
        let lines = text.lines().count();
        if 400 < lines {
            broken.push(format!("{} has {lines} lines, at most 400 are wanted", file.display()));
        }
        let first = text.lines().next().unwrap_or("");
        let is_sentence = first.starts_with("//! ") && first.ends_with(['.', ':', ',', ';', ')']);
        let goes_on = text.lines().nth(1).is_some_and(|it| it.starts_with("//! "));
        if !is_sentence && !goes_on {
            broken.push(format!("{} does not open with a `//!` sentence", file.display()));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn a_python_file_is_short_and_opens_with_one_sentence() {
    let mut broken = Vec::new();
    for file in files(Path::new("src"), "py") {
        let text = fs::read_to_string(&file).unwrap();
        let lines = text.lines().count();
        if 400 < lines {
            broken.push(format!("{} has {lines} lines, at most 400 are wanted", file.display()));
        }
        let first = text.lines().next().unwrap_or("").trim_end_matches("\"\"\"");
        if !first.starts_with("\"\"\"") || !first.ends_with('.') {
            broken.push(format!("{} does not open with a docstring's sentence", file.display()));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn a_dependency_says_why_it_is_there() {
    let manifest = fs::read_to_string("Cargo.toml").unwrap();
    let mut inside = false;
    let mut broken = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.contains("dependencies");
        } else if inside && line.contains(" = ") && !line.contains("# ") {
            broken.push(line.to_owned());
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn this_test_sees_what_it_looks_for() {
    let source = "use crate::{model::{A, B}, tensor::T}; fn f(it: crate::error::Error) {}";
    assert_eq!(imported_modules(source), ["model", "tensor", "error"]);
    assert_eq!(imported_modules("use crate::{\n    a,\n    b::C,\n};"), ["a", "b"]);
    assert_eq!(without_comments("a // crate::b\n/// std::fs\nc"), "a \n\nc\n");
}

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|it| it.contains(&module))
}

fn room_of(file: &Path) -> String {
    let room = file.strip_prefix("src").unwrap().components().next().unwrap();
    room.as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned()
}

/// The file without its comments and unit tests: doubles may come from anywhere.
fn code_of(file: &Path) -> String {
    if file.components().any(|it| it.as_os_str() == "tests" || it.as_os_str() == "tests.rs") {
        return String::new();
    }
    let text = without_comments(&fs::read_to_string(file).unwrap());
    match text.split_once("#[cfg(test)]\nmod ") {
        Some((code, tests)) if tests.contains('{') => code.to_owned(),
        _ => text,
    }
}

fn without_comments(source: &str) -> String {
    let code = |line: &str| line.split_once("//").map_or(line, |(code, _)| code).to_owned() + "\n";
    source.lines().map(code).collect()
}

/// First path segments after `crate::`, also of groups: `use crate::{a::X, b::Y}`.
fn imported_modules(source: &str) -> Vec<String> {
    let word =
        |it: &str| it.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut modules = Vec::new();
    for rest in source.split("crate::").skip(1) {
        let Some(group) = rest.strip_prefix('{') else {
            modules.push(word(rest));
            continue;
        };
        let mut depth = 0;
        for item in group.split_inclusive(['{', '}', ',']) {
            let name = word(item.trim_start());
            if depth == 0 && !name.is_empty() {
                modules.push(name);
            }
            match item.chars().last() {
                Some('{') => depth += 1,
                Some('}') if depth == 0 => break,
                Some('}') => depth -= 1,
                _ => (),
            }
        }
    }
    modules
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    files(folder, "rs")
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return found };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|it| it == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}
