//! No file imports, over any number of others, a file that imports it.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::{algo::tarjan_scc, graph::DiGraph};

use super::{
    imports::{Import, imports},
    sources::{CRATES, code_of, modules},
};

/// What a crate's files import: by module path.
type Files = BTreeMap<String, Vec<Import>>;

#[test]
fn no_files_import_each_other() {
    let mut broken = Vec::new();
    for name in CRATES.iter().flat_map(|row| row.iter()) {
        let files = modules(name);
        let imported = files.iter().map(|(module, file)| {
            let segments: Vec<String> =
                module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
            let children = children(module, &files.keys().cloned().collect());
            (module.clone(), imports(&code_of(file), &segments, &children))
        });
        for circle in circles(&imported.collect()) {
            broken.push(format!("{name}: {}", circle.join(", ")));
        }
    }
    assert!(broken.is_empty(), "{} circles:\n{}", broken.len(), broken.join("\n"));
}

/// Names of the modules right below `module`.
fn children(module: &str, all: &BTreeSet<String>) -> Vec<String> {
    let prefix = if module.is_empty() { String::new() } else { format!("{module}::") };
    let below = all.iter().filter_map(|path| path.strip_prefix(&prefix));
    below.filter(|path| !path.is_empty() && !path.contains("::")).map(str::to_owned).collect()
}

/// Groups of files that can reach each other.
fn circles(files: &Files) -> Vec<Vec<String>> {
    let mut graph = DiGraph::<&str, ()>::new();
    let nodes: BTreeMap<&str, _> =
        files.keys().map(|module| (module.as_str(), graph.add_node(module))).collect();
    for (module, imports) in files {
        for import in imports.iter().filter(|import| !import.is_passed_on) {
            if let Some(target) = file_of(&import.path, files, 0)
                && target != module
            {
                graph.update_edge(nodes[module.as_str()], nodes[target], ());
            }
        }
    }
    let groups = tarjan_scc(&graph).into_iter().filter(|group| 1 < group.len());
    let named = groups.map(|group| {
        let mut names: Vec<String> = group.iter().map(|node| graph[*node].to_owned()).collect();
        names.sort();
        names
    });
    named.collect()
}

/// The file that defines what the path names: modules pass on what others define.
fn file_of<'a>(path: &[String], files: &'a Files, depth: usize) -> Option<&'a str> {
    let longest =
        (0..=path.len()).rev().find(|len| files.contains_key(&path[..*len].join("::")))?;
    let module = path[..longest].join("::");
    let (module, imports) = files.get_key_value(&module)?;
    let Some(item) = path.get(longest) else { return Some(module) };
    let passed = imports.iter().find(|import| import.name == *item && !import.path.is_empty());
    match passed {
        Some(import) if depth < 8 => {
            let own: Vec<String> = module.split("::").map(str::to_owned).collect();
            let is_itself = import.path[..import.path.len() - 1] == own[..];
            if is_itself { Some(module) } else { file_of(&import.path, files, depth + 1) }
        }
        _ => Some(module),
    }
}

#[test]
fn a_circle_is_seen_through_what_modules_pass_on() {
    let file = |code: &str, module: &str, below: &[&str]| {
        let path: Vec<String> =
            module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let below: Vec<String> = below.iter().map(|name| (*name).to_owned()).collect();
        (module.to_owned(), imports(code, &path, &below))
    };
    let of = |b: &str| {
        let files = [
            file("pub use self::b::B;", "a", &["b", "c"]),
            file(b, "a::b", &[]),
            file("use super::B;", "a::c", &[]),
        ];
        circles(&files.into())
    };
    assert!(of("use crate::error::Error;").is_empty());
    assert_eq!(of("use super::c::C;"), [["a::b", "a::c"]]);
    assert_eq!(of("fn f() { super::c::run() }"), [["a::b", "a::c"]]);
}
