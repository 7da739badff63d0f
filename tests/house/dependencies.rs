//! Dependencies: each one that a manifest names is used by the sources beside it, and says why.

use std::path::{Path, PathBuf};

use super::sources::{CRATES, crate_of, read, rust_files, without_comments};

/// Dependencies that no source of ours names: code that is generated names them.
const GENERATED_CODE_USES: &[(&str, &str)] = &[
    ("src/proto/Cargo.toml", "prost"),
    ("src/proto/Cargo.toml", "tonic"),
    ("src/proto/Cargo.toml", "tonic-prost"),
];

#[test]
fn a_dependency_is_used() {
    let mut unused = Vec::new();
    let mut named = Vec::new();
    for manifest in manifests() {
        let code: String =
            sources(&manifest).iter().map(|file| without_comments(&read(file))).collect();
        for name in dependencies(&read(&manifest)) {
            let is_generated = GENERATED_CODE_USES
                .iter()
                .any(|(file, other)| Path::new(file) == manifest && *other == name);
            if !is_generated && !is_named(&code, &name.replace('-', "_")) {
                unused.push(format!("{}: {name}", manifest.display()));
            }
            named.push(name);
        }
    }
    let all = read(Path::new("Cargo.toml"));
    for name in keys(&all, |section| section == "[workspace.dependencies]") {
        if !named.contains(&name) {
            unused.push(format!("workspace.dependencies: {name}"));
        }
    }
    assert!(unused.is_empty(), "nothing uses\n{}", unused.join("\n"));
}

#[test]
fn a_dependency_says_why_it_is_there() {
    let mut inside = false;
    let mut broken = Vec::new();
    for line in read(Path::new("Cargo.toml")).lines() {
        if line.starts_with('[') {
            inside = line.contains("dependencies");
        } else if inside
            && line.contains(" = ")
            && !["# ", "path = ", "workspace = true"].iter().any(|it| line.contains(it))
            && !line.contains(".workspace")
        {
            broken.push(line.to_owned());
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The manifests of all members of the workspace.
fn manifests() -> Vec<PathBuf> {
    let crates = CRATES.iter().flat_map(|row| row.iter()).filter(|name| **name != "troupe");
    let members = crates.map(|name| Path::new("src").join(name).join("Cargo.toml"));
    members.chain(["Cargo.toml".into(), "tests/house/Cargo.toml".into()]).collect()
}

/// The Rust files that a manifest is for.
fn sources(manifest: &Path) -> Vec<PathBuf> {
    let folder = manifest.parent().unwrap();
    if folder != Path::new("") {
        return rust_files(folder);
    }
    let own = rust_files(Path::new("src")).into_iter().filter(|file| crate_of(file) == "troupe");
    own.chain(rust_files(Path::new("tests"))).chain(rust_files(Path::new("benches"))).collect()
}

/// The names of a member's dependencies.
fn dependencies(manifest: &str) -> Vec<String> {
    keys(manifest, |section| {
        section.ends_with("dependencies]") && !section.starts_with("[workspace")
    })
}

/// The keys of all sections that are wanted.
fn keys(manifest: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = is_wanted(line.trim());
        } else if inside && let Some((key, _)) = line.split_once(['.', ' ', '=']) {
            found.push(key.to_owned());
        }
    }
    found
}

/// Whether code has a path that begins with the crate's name, or imports the crate by its name.
fn is_named(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(start, _)| {
        let (before, after) = (&code[..start], &code[start + name.len()..]);
        let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
        let is_word = !before.ends_with(is_part) && !after.starts_with(is_part);
        is_word && (after.starts_with("::") || before.ends_with("use "))
    })
}

#[test]
fn the_parts_of_a_manifest_are_found() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\na-b.workspace = true\nc = { path = \"c\" }\n\
                    [workspace.dependencies]\nd = \"1\"\n[dev-dependencies]\ne = \"1\"\n";
    assert_eq!(dependencies(manifest), ["a-b", "c", "e"]);
    for (code, expected) in [
        ("use a_b::C;", true),
        ("use a_b;", true),
        ("x(a_b::c())", true),
        ("use my_a_b::C;", false),
        ("let a_b = 1;", false),
        ("use a_bc::C;", false),
    ] {
        assert_eq!(is_named(code, "a_b"), expected, "{code}");
    }
}
