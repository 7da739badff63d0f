//! The folder of a new model: made under a name that is free, and gone again if something fails.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::disk::scan::repository_flag;
use troupe_options::NewTarget;

/// A folder that is being made: without [`NewFolder::keep`] it is gone again with its value.
pub(super) struct NewFolder {
    pub(super) path: PathBuf,
    is_kept: bool,
}

impl NewFolder {
    /// Makes the folder of a model; refuses names that are taken or would need quotes somewhere.
    pub(super) fn make(target: &NewTarget, name: &str) -> Result<NewFolder, String> {
        check_name(name)?;
        let repository = &target.model_repository;
        if repository.exists() && !repository.is_dir() {
            return Err(format!("{}: not a folder", repository.display()));
        }
        let path = repository.join(name);
        if path.symlink_metadata().is_ok() {
            return Err(format!(
                "{} is there already and stays as it is: choose another name, or take it away \
                 first",
                path.display()
            ));
        }
        let folder = NewFolder { path, is_kept: false };
        fs::create_dir_all(&folder.path).map_err(|error| told(&folder.path, &error))?;
        Ok(folder)
    }

    /// Writes a file; its path is relative to the folder.
    pub(super) fn write(&self, file: &str, text: &str) -> Result<(), String> {
        let path = self.place(file)?;
        fs::write(&path, text).map_err(|error| told(&path, &error))
    }

    /// The path of a file to be made, in folders that are there.
    pub(super) fn place(&self, file: &str) -> Result<PathBuf, String> {
        let path = self.path.join(file);
        let parent = path.parent().unwrap_or(&self.path);
        fs::create_dir_all(parent).map_err(|error| told(parent, &error))?;
        Ok(path)
    }

    /// It stays.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if !self.is_kept {
            // What failed before is what is reported.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

pub(super) fn told(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Names stand in addresses, configs and shells.
fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    let begins = name.starts_with(|letter: char| letter.is_ascii_alphanumeric() || letter == '_');
    if begins && name.chars().all(is_plain) && name != "__pycache__" {
        return Ok(());
    }
    Err(format!(
        "`{name}` cannot be a model's name: it begins with a letter, a digit or `_`, and goes on \
         with these, `-` and `.`"
    ))
}

/// The lines that say what to run next; `infer` is a whole command.
pub(super) fn next_steps(target: &NewTarget, infer: &str) -> String {
    let flag = repository_flag(&target.model_repository);
    format!("next, in two terminals:\n  troupe --watch{flag}\n  {infer}\n")
}

#[cfg(test)]
mod tests {
    use super::check_name;

    #[test]
    fn names_need_no_quotes_anywhere() {
        for name in ["a", "text_prep", "resnet-50.v2", "_x", "7"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", ".", "..", ".hidden", "-flag", "a/b", "a b", "a'b", "ü", "__pycache__"] {
            let error = check_name(name).unwrap_err();
            assert!(error.starts_with(&format!("`{name}` cannot be a model's name")), "{error}");
        }
    }
}
