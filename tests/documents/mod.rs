//! Documents for people are true: every command line in them is run, and what they print of its
//! output is what it prints.
//!
//! Blocks marked `console` (commands behind `$ `, and their outputs) and `sh` (commands only) are run
//! from top to bottom, as one session. What varies is written `…`: a line of it stands for any lines,
//! one inside a line for any text. Above a block may stand `<!-- not run: WHY -->`; above a block with
//! a file's contents, `<!-- file: PATH -->`; above one of Python, `<!-- run -->`: then what is behind
//! `print(…)  # ` must come out.

mod blocks;
mod compare;
mod session;

use std::path::{Path, PathBuf};

use blocks::{Block, Use};
use session::Session;

/// Runs a document; every difference, with its line.
#[track_caller]
fn is_true(document: &str) {
    let mut session = Session::new();
    let mut wrong = Vec::new();
    for Block { line, used, text } in blocks::blocks(&read(document)) {
        let told = match used {
            Use::Console => session.console(&text),
            Use::Commands => session.commands(&text),
            Use::Python => session.python(&text),
            Use::File(path) => session.file(&path, &text),
            Use::NotRun(_) | Use::Shown => Ok(()),
        };
        if let Err(told) = told {
            wrong.push(format!("{document}:{line}: {told}"));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n\n"), session.log());
}

fn read(document: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(document);
    std::fs::read_to_string(&path).unwrap_or_else(|it| panic!("{}: {it}", path.display()))
}

#[test]
fn the_first_page_is_true() {
    is_true("README.md");
}

#[test]
fn the_story_of_your_own_models_is_true() {
    is_true("pipelines/your_own/README.md");
}

#[test]
fn the_page_of_the_command_line_is_true() {
    is_true("pipelines/reference/command_line.md");
}

#[test]
fn the_page_of_python_models_is_true() {
    is_true("pipelines/reference/python_models.md");
}

#[test]
fn the_page_of_sequences_is_true() {
    is_true("pipelines/reference/sequences.md");
}

#[test]
fn the_story_of_two_models_is_true() {
    is_true("pipelines/add_sub_mul/README.md");
}

#[test]
fn the_story_of_meters_is_true() {
    is_true("pipelines/sequences/README.md");
}

#[test]
fn the_story_of_words_in_pictures_is_true() {
    is_true("pipelines/ocr/README.md");
}

#[test]
fn other_documents_have_only_blocks_that_say_why_they_are_not_run() {
    let run = [
        "README.md",
        "pipelines/your_own/README.md",
        "pipelines/reference/command_line.md",
        "pipelines/reference/python_models.md",
        "pipelines/reference/sequences.md",
        "pipelines/add_sub_mul/README.md",
        "pipelines/ocr/README.md",
        "pipelines/sequences/README.md",
    ];
    let mut unmarked = Vec::new();
    let all = ["pipelines", "benches", "src"].map(|it| documents(Path::new(it)));
    for document in all.into_iter().flatten() {
        for Block { line, used, .. } in blocks::blocks(&read(&document)) {
            match used {
                Use::NotRun(why) if why.len() < 8 => {
                    unmarked.push(format!("{document}:{line}: why?"))
                }
                Use::NotRun(_) | Use::Shown => (),
                _ if run.contains(&&*document) => (),
                _ => unmarked.push(format!("{document}:{line}: neither run nor marked")),
            }
        }
    }
    assert!(unmarked.is_empty(), "{}", unmarked.join("\n"));
}

/// Markdown below a folder.
fn documents(folder: &Path) -> Vec<String> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let entries = std::fs::read_dir(home.join(folder)).unwrap().flatten();
    let mut found = Vec::new();
    for entry in entries {
        let path: PathBuf = folder.join(entry.file_name());
        if entry.path().is_dir() {
            found.extend(documents(&path));
        } else if path.extension().is_some_and(|it| it == "md") {
            found.push(path.display().to_string());
        }
    }
    found
}
