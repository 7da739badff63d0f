//! The form of single files: their length, their first sentence, what their tests may not do.

use std::path::Path;

use super::sources::{files, read, rust_files};

#[test]
fn tests_neither_sleep_nor_are_ignored() {
    let mut broken = Vec::new();
    let tests = rust_files(Path::new("tests"));
    let inside = rust_files(Path::new("src"));
    for (file, code) in tests.iter().map(|it| (it, read(it))).chain(inside.iter().map(|it| {
        let text = read(it);
        (it, text.split_once("#[cfg(test)]").map_or("", |(_, tests)| tests).to_owned())
    })) {
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
        let text = read(&file);
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
        let text = read(&file);
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
