//! Faults that other servers had: the table of tests for them names tests that are there, and what
//! could run code that it reads is in no source.

use std::{collections::BTreeSet, path::Path};

use super::sources::{files, read, rust_files};

const TABLE: &str = "tests/doors/README.md";

/// Names of functions in all tests.
fn tests() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in ["src", "tests"].iter().flat_map(|it| rust_files(Path::new(it))) {
        let text = read(&file);
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            let name = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
            match name.and_then(|it| it.split_once('(')) {
                Some((name, _)) if is_test => drop(found.insert(name.to_owned())),
                _ => (),
            }
            let is_attribute = line.starts_with("#[");
            is_test &= is_attribute;
            is_test |= is_attribute && (line.contains("test]") || line.contains("test("));
        }
    }
    found
}

/// The cells of the rows of a table with so many columns, without its head.
fn rows(text: &str, columns: usize) -> Vec<Vec<&str>> {
    let cells = |line: &str| line.trim_matches('|').split('|').count();
    let lines = text.lines().filter(|it| it.starts_with('|') && cells(it) == columns);
    lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).skip(2).collect()
}

#[test]
fn every_fault_in_the_table_has_its_tests() {
    let (text, tests) = (read(Path::new(TABLE)), tests());
    let rows = rows(&text, 4);
    assert!(30 <= rows.len(), "{TABLE} has {} rows", rows.len());
    let mut missing = Vec::new();
    for row in rows {
        let named: Vec<&str> = row[2].split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            missing.push(format!("{}: names no test", row[0]));
        }
        let is_missing = |it: &&&str| !tests.contains(**it);
        missing.extend(named.iter().filter(is_missing).map(|it| format!("{}: no `{it}`", row[0])));
    }
    assert!(missing.is_empty(), "{TABLE}:\n{}", missing.join("\n"));
}

/// Pickles run what they hold. Only lists of bytes whose every letter and length we wrote ourselves
/// are read by `marshal`.
#[test]
fn nothing_is_read_that_can_hold_code() {
    let mut broken = Vec::new();
    for file in files(Path::new("src"), "py") {
        let text = read(&file);
        for word in
            ["pickle", "shelve", "marshal", "allow_pickle=True", "eval(", "os.system", "shell=True"]
        {
            let is_known = word == "marshal" && file.ends_with("python/py/strings.py");
            let uses = |line: &str| {
                let code = line.split('#').next().unwrap_or("");
                code.contains(word) && !code.contains("\"\"\"")
            };
            if !is_known && text.lines().any(uses) {
                broken.push(format!("{} says `{word}`", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
