//! The source files of the workspace: where they are, and what is code in them.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Crates from top to bottom; those of one row do not know each other.
pub(crate) const CRATES: &[&[&str]] = &[
    &["troupe"],
    &["gateway"],
    &["repository", "draw", "tools", "observability"],
    &["engine", "backends"],
    &["base"],
    &["proto", "options"],
];

/// The folder of the workspace.
fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The text of a file of the workspace.
pub(crate) fn read(file: &Path) -> String {
    fs::read_to_string(top().join(file)).unwrap()
}

/// Is there such a file or folder?
pub(crate) fn exists(path: &Path) -> bool {
    top().join(path).exists()
}

/// Rust files below a folder, sorted; but those that a generator wrote.
pub(crate) fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = files(folder, "rs");
    found.retain(|file| !file.components().any(|part| part.as_os_str() == "generated"));
    found
}

/// Files with an extension below a folder, sorted.
pub(crate) fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(top().join(folder)) else { return found };
    for entry in entries {
        let path = folder.join(entry.unwrap().file_name());
        if top().join(&path).is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|it| it == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The file without its comments and unit tests: doubles may come from anywhere.
pub(crate) fn code_of(file: &Path) -> String {
    if file.components().any(|it| it.as_os_str() == "tests" || it.as_os_str() == "tests.rs") {
        return String::new();
    }
    let text = without_comments(&read(file));
    match text.split_once("#[cfg(test)]\nmod ") {
        Some((code, tests)) if tests.lines().next().is_some_and(|it| it.contains('{')) => {
            code.to_owned()
        }
        _ => text,
    }
}

/// Source text with line comments cut off.
pub(crate) fn without_comments(source: &str) -> String {
    let code = |line: &str| line.split_once("//").map_or(line, |(code, _)| code).to_owned() + "\n";
    source.lines().map(code).collect()
}

/// The crate a file below `src` belongs to: `troupe` for the files of the binary itself.
pub(crate) fn crate_of(file: &Path) -> String {
    let mut parts = file.strip_prefix("src").unwrap().components();
    let first = parts.next().unwrap().as_os_str().to_str().unwrap().to_owned();
    match CRATES.iter().flat_map(|row| row.iter()).any(|name| *name == first) {
        true => first,
        false => "troupe".to_owned(),
    }
}

/// The module path of each file of one crate, as `a::b`; the crate's root is empty.
pub(crate) fn modules(name: &str) -> BTreeMap<String, PathBuf> {
    let root = if name == "troupe" { PathBuf::from("src") } else { Path::new("src").join(name) };
    let mut found = BTreeMap::new();
    for file in rust_files(&root).into_iter().filter(|file| crate_of(file) == name) {
        let inside = file.strip_prefix(&root).unwrap().with_extension("");
        let mut parts: Vec<&str> = inside.iter().map(|part| part.to_str().unwrap()).collect();
        match parts.last() {
            Some(&"mod") => drop(parts.pop()),
            Some(&"lib") if parts.len() == 1 => drop(parts.pop()),
            Some(&"main" | &"build") if parts.len() == 1 => continue,
            _ => (),
        }
        found.insert(parts.join("::"), file);
    }
    found
}
