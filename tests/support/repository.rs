//! A model repository in a folder of its own, gone with its value.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::Model;

/// A folder of models.
pub(crate) struct Repository {
    home: PathBuf,
    needs_python: bool,
    needs_onnxruntime: bool,
}

impl Repository {
    /// Without a model yet.
    pub(crate) fn new() -> Repository {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("work").join(name);
        fs::create_dir_all(home.join("models")).unwrap();
        Repository { home, needs_python: false, needs_onnxruntime: false }
    }

    /// With these models.
    pub(crate) fn of(models: impl IntoIterator<Item = (impl AsRef<str>, Model)>) -> Repository {
        models.into_iter().fold(Repository::new(), |it, (name, model)| it.with(name, model))
    }

    /// And this model.
    pub(crate) fn with(mut self, name: impl AsRef<str>, model: Model) -> Repository {
        self.write(name.as_ref(), &model);
        self
    }

    /// Writes or replaces a model.
    pub(crate) fn write(&mut self, name: &str, model: &Model) {
        self.needs_python |= model.source.is_some();
        if !model.config.is_empty() {
            self.write_file(&format!("{name}/config.pbtxt"), &model.config);
        }
        for version in &model.versions {
            fs::create_dir_all(self.models().join(name).join(version)).unwrap();
            if let Some(source) = &model.source {
                self.write_file(&format!("{name}/{version}/model.py"), source);
            }
        }
    }

    /// And a copy of one of the models of `tests/models/onnx`.
    pub(crate) fn with_onnx(self, name: &str) -> Repository {
        self.with_onnx_as(name, name, "")
    }

    /// The same under another name, with this config unless it is empty.
    pub(crate) fn with_onnx_as(mut self, name: &str, of: &str, config: &str) -> Repository {
        self.needs_onnxruntime = true;
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/onnx").join(of);
        copy(&from, &self.models().join(name));
        if !config.is_empty() {
            self.write_file(&format!("{name}/config.pbtxt"), config);
        }
        self
    }

    /// Writes a file somewhere below the folder of models.
    pub(crate) fn write_file(&self, path: &str, contents: impl AsRef<[u8]>) {
        let path = self.models().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // A rename is seen whole or not at all, and its time of change differs from the last one.
        let new = self.home.join("new");
        fs::write(&new, contents).unwrap();
        fs::rename(new, path).unwrap();
    }

    /// Takes a file or a folder away.
    pub(crate) fn remove(&self, path: &str) {
        let path = self.models().join(path);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }

    /// The folder of models.
    pub(crate) fn models(&self) -> PathBuf {
        self.home.join("models")
    }

    /// A path beside the models, for what a test shares with its models.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    /// There is an ONNX model that something else wrote.
    pub(crate) fn needs_onnxruntime_too(&mut self) {
        self.needs_onnxruntime = true;
    }

    /// There is a Python model that something else wrote.
    pub(crate) fn needs_python_too(&mut self) {
        self.needs_python = true;
    }

    /// Is there an ONNX model?
    pub(crate) fn needs_onnxruntime(&self) -> bool {
        self.needs_onnxruntime
    }

    /// Is there a Python model?
    pub(crate) fn needs_python(&self) -> bool {
        self.needs_python
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        // What is left over goes with the target folder.
        let _ = fs::remove_dir_all(&self.home);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}
