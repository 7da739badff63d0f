//! A snapshot of a model's Python files, taken when it loads: a worker that is started again runs
//! what was loaded, whatever has been saved since.

use std::{
    collections::{BTreeSet, VecDeque},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Serialize, Serializer};

/// Bytes of all files; those further down stay on the disk.
const MAX_SNAPSHOT_BYTES: u64 = 8 << 20;
const MAX_FILES: usize = 4096;
const MAX_FOLDERS: usize = 1024;

/// One file: its path, and its bytes as Latin-1, which has a letter for each.
#[derive(Debug, Serialize)]
struct SourceFile {
    path: String,
    text: String,
}

/// The files of one version, shared by all that start its workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct SourceSnapshot {
    files: Arc<Vec<SourceFile>>,
    /// There are more than fit.
    pub(crate) is_cut: bool,
}

impl Serialize for SourceSnapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.files.serialize(serializer)
    }
}

impl SourceSnapshot {
    /// Reads what the model's file may import from its own folders: the version's, then the
    /// model's without its other versions; files near the top first. Blocks.
    pub(crate) fn read(version_dir: &Path, model_dir: &Path) -> SourceSnapshot {
        let mut reading = Reading::default();
        reading.walk(version_dir, &|_| false);
        reading.walk(model_dir, &is_version);
        SourceSnapshot { files: reading.files.into(), is_cut: reading.is_cut }
    }
}

#[derive(Default)]
struct Reading {
    files: Vec<SourceFile>,
    size: u64,
    /// Folders by device and inode: links may lead back.
    entered: BTreeSet<(u64, u64)>,
    is_cut: bool,
}

impl Reading {
    /// Breadth first; `is_left_out` is asked about the folders in `root`.
    fn walk(&mut self, root: &Path, is_left_out: &dyn Fn(&Path) -> bool) {
        let mut next = VecDeque::from([root.to_owned()]);
        while let Some(folder) = next.pop_front() {
            let Ok(metadata) = fs::metadata(&folder) else { continue };
            if !self.entered.insert((metadata.dev(), metadata.ino())) {
                continue;
            }
            if MAX_FOLDERS < self.entered.len() {
                self.is_cut = true;
                return;
            }
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            let entries = entries.filter(|it| is_python(&it.path()) || may_be_folder(it));
            let mut paths: Vec<PathBuf> = entries.map(|it| it.path()).collect();
            paths.sort();
            for path in paths {
                if is_python(&path) {
                    self.add(&path);
                } else if path.is_dir()
                    && !is_foreign(&path)
                    && !(folder == *root && is_left_out(&path))
                {
                    next.push_back(path);
                }
            }
        }
    }

    fn add(&mut self, path: &Path) {
        // Opening a pipe would wait for its writer.
        let Ok(metadata) = fs::metadata(path).map(|it| (it.is_file(), it.len())) else { return };
        let (true, size) = metadata else { return };
        if MAX_SNAPSHOT_BYTES < self.size.saturating_add(size) || MAX_FILES <= self.files.len() {
            self.is_cut = true;
            return;
        }
        // What cannot be read is left to the worker, which says so.
        let (Ok(bytes), Some(path)) = (fs::read(path), path.to_str()) else { return };
        self.size += bytes.len() as u64;
        let text = bytes.into_iter().map(char::from).collect();
        self.files.push(SourceFile { path: path.to_owned(), text });
    }
}

fn is_python(path: &Path) -> bool {
    path.extension().is_some_and(|it| it == "py")
}

/// Folders of data may have many files, which are not asked one by one.
fn may_be_folder(entry: &fs::DirEntry) -> bool {
    entry.file_type().is_ok_and(|it| it.is_dir() || it.is_symlink())
}

fn is_version(path: &Path) -> bool {
    let name = path.file_name().and_then(|it| it.to_str());
    name.is_some_and(|name| name.bytes().all(|it| it.is_ascii_digit()))
}

/// Not the model's own: caches, environments, what is hidden.
fn is_foreign(path: &Path) -> bool {
    let name = path.file_name().and_then(|it| it.to_str()).unwrap_or(".");
    name.starts_with('.')
        || matches!(name, "__pycache__" | "site-packages" | "node_modules")
        || ["pyvenv.cfg", "conda-meta"].iter().any(|it| path.join(it).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_model_may_import_is_read_and_nothing_else() {
        let exe = std::env::current_exe().unwrap();
        let root = exe.parent().unwrap().join(format!("source-snapshot-{}", std::process::id()));
        for path in [
            "1/model.py",
            "1/sub/a.py",
            "1/weights.bin",
            "1/__pycache__/b.py",
            "2/model.py",
            "common.py",
            "lib/2/c.py",
            "env/pyvenv.cfg",
            "env/d.py",
            ".git/e.py",
        ] {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), b"\xe9").unwrap();
        }
        std::os::unix::fs::symlink(".", root.join("1/back")).unwrap();
        fs::create_dir(root.join("1/folder.py")).unwrap();
        let snapshot = SourceSnapshot::read(&root.join("1"), &root);
        let names = snapshot.files.iter().map(|it| it.path.strip_prefix(root.to_str().unwrap()));
        let names: Vec<&str> = names.map(Option::unwrap).collect();
        assert_eq!(names, ["/1/model.py", "/1/sub/a.py", "/common.py", "/lib/2/c.py"]);
        assert_eq!((&*snapshot.files[0].text, snapshot.is_cut), ("\u{e9}", false));
        fs::write(root.join("1/large.py"), vec![b' '; MAX_SNAPSHOT_BYTES as usize]).unwrap();
        assert!(SourceSnapshot::read(&root.join("1"), &root).is_cut);
        fs::remove_dir_all(root).unwrap();
    }
}
