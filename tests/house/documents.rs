//! Documents for people: the README stays short, links lead somewhere, the map names every module.

use std::path::{Path, PathBuf};

use super::sources::{CRATES, exists, files, modules, read};

/// What a newcomer reads at once; what does not fit is a linked page.
const MAX_README_LINES: usize = 220;

#[test]
fn the_readme_is_short() {
    let lines = read(Path::new("README.md")).lines().count();
    assert!(lines <= MAX_README_LINES, "README.md has {lines} lines, at most {MAX_README_LINES}");
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut broken = Vec::new();
    for document in documents() {
        let folder = document.parent().unwrap_or(Path::new(""));
        for link in links(&read(&document)) {
            let target = folder.join(link.split('#').next().unwrap_or(""));
            if !exists(&target) {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_map_names_every_module() {
    let text = read(Path::new("src/README.md"));
    let mut missing = Vec::new();
    for name in CRATES.iter().flat_map(|row| row.iter()) {
        let heading = format!("\n### `{name}`\n");
        let section = text.split_once(&heading).map_or("", |(_, rest)| rest);
        let section = section.split("\n### ").next().unwrap_or("");
        for (module, file) in modules(name) {
            let is_shown = !module.is_empty() && !module.contains("::") && module != "tests";
            if is_shown && module != "testing" && !section.contains(&format!("\n- `{module}`: ")) {
                let sentence = read(&file);
                let sentence = sentence.lines().next().unwrap_or("").trim_start_matches("//! ");
                missing.push(format!("{name} lacks\n- `{module}`: {sentence}"));
            }
            let Some((parent, child)) = module.split_once("::") else { continue };
            let is_test = [parent, child].iter().any(|it| ["tests", "testing"].contains(it));
            let is_shown = !child.contains("::") && !is_test;
            if is_shown
                && !entry(section, parent).contains(&format!("`{child}`"))
                && !section.contains(&format!("- `{module}`: "))
            {
                missing.push(format!("{name}, `{parent}` lacks `{child}`"));
            }
        }
        for listed in section.lines().filter_map(|line| line.strip_prefix("- `")) {
            let module = listed.split('`').next().unwrap_or("");
            if !modules(name).contains_key(module) {
                missing.push(format!("{name} has no module `{module}`"));
            }
            let inside = entry(section, module).split_once("In it: ").map_or("", |(_, it)| it);
            let inside = inside.split("\n\n").next().unwrap_or("").split('`').skip(1).step_by(2);
            for child in inside.filter(|it| !modules(name).contains_key(&format!("{module}::{it}")))
            {
                missing.push(format!("{name}, `{module}` has no `{child}`"));
            }
        }
    }
    assert!(missing.is_empty(), "src/README.md, ### `…`:\n{}", missing.join("\n"));
}

/// What a section says of one of its modules.
fn entry<'a>(section: &'a str, module: &str) -> &'a str {
    let rest = section.split_once(&format!("\n- `{module}`: ")).map_or("", |(_, rest)| rest);
    rest.split("\n- `").next().unwrap_or("")
}

fn documents() -> Vec<PathBuf> {
    let mut all = vec![PathBuf::from("README.md")];
    for folder in ["src", "pipelines", "benches"] {
        all.extend(files(Path::new(folder), "md"));
    }
    all
}

/// Targets of Markdown links that are neither addresses nor places in the same document.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let is_file = |target: &&str| !target.contains("://") && !target.starts_with('#');
    targets.map(|(target, _)| target).filter(is_file).map(str::to_owned).collect()
}

#[test]
fn links_are_found() {
    let text = "[a](b.md) ![c](d/e.svg) [f](https://g) [h](#i) [j](k.md#l)";
    assert_eq!(links(text), ["b.md", "d/e.svg", "k.md#l"]);
}
