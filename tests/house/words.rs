//! Names and parameters: one name stands for one type, and no parameter hides several in a tuple.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use super::sources::{code_of, rust_files};

/// Names that mean the same kind of thing wherever they stand: its own error, its settings.
const SHARED_NAMES: &[&str] = &["Error", "Settings"];

#[test]
fn one_name_stands_for_one_type() {
    let mut files = BTreeMap::<String, BTreeSet<PathBuf>>::new();
    for file in production_files() {
        for name in types_of(&code_of(&file)) {
            files.entry(name).or_default().insert(file.clone());
        }
    }
    files.retain(|name, files| 1 < files.len() && !SHARED_NAMES.contains(&&**name));
    assert!(files.is_empty(), "names of several types: {files:#?}");
}

#[test]
fn no_parameter_is_a_tuple() {
    let mut broken = Vec::new();
    for file in production_files() {
        for function in tuple_parameters(&code_of(&file)) {
            broken.push(format!("{}: {function}", file.display()));
        }
    }
    assert!(broken.is_empty(), "separate parameters or a struct:\n{}", broken.join("\n"));
}

/// Rust files below `src` without doubles and unit tests.
fn production_files() -> impl Iterator<Item = PathBuf> {
    let files = rust_files(Path::new("src")).into_iter();
    files.filter(|file| file.file_name().is_some_and(|name| name != "testing.rs"))
}

/// Names of the structs, enums and traits that a file defines.
fn types_of(code: &str) -> Vec<String> {
    let name = |line: &str| {
        let line = line.trim_start();
        let line = match line.strip_prefix("pub") {
            Some(rest) => rest.split_once(' ')?.1,
            None => line,
        };
        let rest =
            ["struct ", "enum ", "trait "].iter().find_map(|word| line.strip_prefix(word))?;
        let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
        Some(rest[..end.unwrap_or(rest.len())].to_owned())
    };
    code.lines().filter_map(name).collect()
}

/// Names of the functions with a parameter that is a tuple pattern.
fn tuple_parameters(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (start, _) in code.match_indices("fn ") {
        let is_word = code[..start].chars().next_back().is_none_or(char::is_whitespace);
        let rest = &code[start + 3..];
        let name: String =
            rest.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
        if is_word && !name.is_empty() && parameters(rest).any(|text| text.starts_with('(')) {
            found.push(name);
        }
    }
    found
}

/// The parameters of a function, as they are written: between the first pair of parentheses that
/// stands outside of `<…>`.
fn parameters(code: &str) -> impl Iterator<Item = &str> {
    let (mut angles, mut depth, mut last) = (0i32, 0i32, ' ');
    let mut found = Vec::new();
    let mut start = 0;
    for (index, letter) in code.char_indices() {
        match letter {
            '<' => angles += 1,
            '>' if last != '-' && last != '=' => angles -= 1,
            '(' | '[' | '{' if depth != 0 || angles == 0 => {
                depth += 1;
                if depth == 1 {
                    start = index + 1;
                }
            }
            ')' | ']' | '}' if depth != 0 => depth -= 1,
            _ => (),
        }
        let ends = depth == 0 && letter == ')' && angles == 0;
        if ends || (depth == 1 && letter == ',' && angles == 0) {
            found.push(code[start..index].trim());
            start = index + 1;
        }
        if ends || (depth == 0 && matches!(letter, ';' | '{')) {
            break;
        }
        last = letter;
    }
    found.into_iter()
}

#[test]
fn types_and_tuple_parameters_are_found() {
    let code = "pub(crate) struct A<T>(T);\nenum B {}\n  pub trait C: D {}\nfn struct_of() {}";
    assert_eq!(types_of(code), ["A", "B", "C"]);
    for (code, expected) in [
        ("fn f((a, b): (A, B)) {}", &["f"][..]),
        ("fn f(a: A, (b, c): (B, C)) -> D {}", &["f"]),
        ("fn f<T: Fn(u8) -> u8>(\n    a: T,\n    (b, c): (B, C),\n) {}", &["f"]),
        ("fn f(a: (A, B), b: impl Fn((A, B)) -> C) {}", &[]),
        ("fn f(a: Map<A, (B, C)>) { let g = |(a, b): (A, B)| a; }", &[]),
        ("fn a();\nfn b((c, d): (C, D));", &["b"]),
    ] {
        assert_eq!(tuple_parameters(code), expected, "{code}");
    }
}
