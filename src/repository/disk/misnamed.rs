//! Hints at misnamed folders of versions: what lies in a model's folder and is not read as meant.

use std::{fs, path::Path};

use super::{
    pipeline,
    scan::{is_model, names_in},
};
use troupe_base::config;

/// What to do about a folder whose name is not quite that of a version, a model's file that lies
/// beside the folders of versions, or a repository that lies in another.
pub(super) fn misplaced(model_dir: &Path) -> Option<String> {
    let dir = model_dir.display();
    let names = names_in(model_dir);
    if let Some(name) = names.iter().find(|it| is_model(&model_dir.join(it))) {
        return Some(format!(
            "'{dir}' is a repository itself, with the model '{name}': give its path, '{dir}', \
             where the one above was given."
        ));
    }
    let mut folders = names.iter().filter(|it| model_dir.join(it).is_dir());
    if let Some((number, name)) = folders.find_map(|it| Some((meant_version(it)?, it))) {
        return Some(format!(
            "A version's folder has a number for its name: rename '{dir}/{name}' to \
             '{dir}/{number}'."
        ));
    }
    names.iter().find_map(|file| {
        let expected = config::usual_file(file)?;
        if is_pipeline(&model_dir.join(file)) {
            let expected = pipeline::PIPELINE_FILE;
            return Some(format!(
                "The file of a pipeline is {expected}: rename '{dir}/{file}' to \
                 '{dir}/{expected}'."
            ));
        }
        Some(format!(
            "A model lies in the folder of its version: move '{dir}/{file}' to \
             '{dir}/1/{expected}'."
        ))
    })
}

/// Marks the file a function of it as a pipeline?
fn is_pipeline(file: &Path) -> bool {
    let source = fs::read_to_string(file).unwrap_or_default();
    let marks = ["@pipeline", "@troupe.pipeline"];
    source.lines().any(|line| marks.iter().any(|mark| line.starts_with(mark)))
}

/// What to do about a folder with a model that is not called as a version, beside one that is.
pub(crate) fn misnamed_version(model_dir: &Path) -> Option<String> {
    let names = names_in(model_dir);
    let folders = || names.iter().filter(|it| model_dir.join(it).is_dir());
    let is_version = |name: &String| name.parse::<u32>().is_ok_and(|it| it.to_string() == *name);
    if !folders().any(is_version) {
        return None;
    }
    let has_file = |name: &str| {
        names_in(&model_dir.join(name)).iter().any(|it| config::usual_file(it).is_some())
    };
    let mut meant = folders().filter(|it| has_file(it));
    let (number, name) = meant.find_map(|it| Some((meant_version(it)?, it)))?;
    let folder = model_dir.join(name);
    Some(format!(
        "'{}' is not read: a version's folder has a number for its name, as '{number}'",
        folder.display()
    ))
}

/// What to do about a version without a file.
pub(super) fn lacking(version_dir: &Path) -> String {
    format!(
        "Nothing is there to load: put a model.py or a model.onnx into '{}'.",
        version_dir.display()
    )
}

/// `v1`, `version_1` and `01` for 1.
fn meant_version(name: &str) -> Option<u32> {
    let words = ["v", "version", "ver"];
    let digits = name.trim_start_matches(|it: char| !it.is_ascii_digit());
    let word = name[..name.len() - digits.len()].to_ascii_lowercase();
    let word = word.trim_end_matches(['-', '_', '.', ' ']);
    let is_meant = word.is_empty() || words.contains(&word);
    let number: u32 = digits.parse().ok().filter(|it| is_meant && *it != 0)?;
    (number.to_string() != name).then_some(number)
}
