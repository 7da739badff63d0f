//! Overlays: temporary folders for models whose files came with a load request. They are removed
//! with the model, or at the next start.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Component, Path, PathBuf},
};

use rustix::fs::{FlockOperation, OFlags, flock};

use troupe_base::error::{Error, Result};

const OVERLAY_PREFIX: &str = "troupe-models-";
const LOCK_FILE: &str = "lock";

/// A model's folder made of a load request's files. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Overlay {
    folder: PathBuf,
    /// Held locked as long as the folder is in use, so that another process knows.
    _lock: File,
}

impl Overlay {
    /// Writes `files` into a new folder under `parent`; none of them may leave it.
    pub(crate) fn new(parent: &Path, files: &BTreeMap<String, Vec<u8>>) -> Result<Overlay> {
        // Checked first, so that a refused request leaves nothing behind.
        let files: Vec<_> =
            files.iter().map(|(path, data)| Ok((inside(path)?, data))).collect::<Result<_>>()?;
        let failed = |error: io::Error| {
            Error::internal(format!("failed to store the files of the load request: {error}"))
        };
        let overlay = Overlay::empty(parent).map_err(failed)?;
        let model_dir = overlay.model_dir();
        fs::create_dir(&model_dir).map_err(failed)?;
        for (path, data) in files {
            write(&model_dir.join(path), data).map_err(failed)?;
        }
        Ok(overlay)
    }

    fn empty(parent: &Path) -> io::Result<Overlay> {
        let mut number = 0;
        loop {
            let folder = parent.join(format!("{OVERLAY_PREFIX}{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => {
                    let lock = File::create_new(folder.join(LOCK_FILE))?;
                    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
                    return Ok(Overlay { folder, _lock: lock });
                }
                Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists => {
                    number += 1;
                }
                Err(other) => return Err(other),
            }
        }
    }

    /// Stands in for the model's folder in a repository.
    pub(crate) fn model_dir(&self) -> PathBuf {
        self.folder.join("model")
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        if let Err(problem) = fs::remove_dir_all(&self.folder) {
            tracing::warn!("failed to remove '{}': {problem}", self.folder.display());
        }
    }
}

/// Removes what processes that were killed left under `parent`.
pub(crate) fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(owner) = name.to_str().and_then(|name| name.strip_prefix(OVERLAY_PREFIX)) else {
            continue;
        };
        if is_ours(&entry.path()) && is_abandoned(&entry.path(), owner) {
            // What cannot be removed stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A folder of this user: in a temporary folder that all share, others may have put anything.
fn is_ours(folder: &Path) -> bool {
    let about = fs::symlink_metadata(folder);
    about.is_ok_and(|it| it.is_dir() && it.uid() == rustix::process::geteuid().as_raw())
}

/// The lock tells, also across containers; the process only matters before it took its lock.
fn is_abandoned(folder: &Path, owner: &str) -> bool {
    let process = owner.split('-').next().unwrap_or_default();
    let is_ours = process == std::process::id().to_string();
    if !is_ours && Path::new("/proc").join(process).exists() {
        return false;
    }
    // Opened so that whatever stands there, a pipe for instance, is not waited for.
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32;
    match OpenOptions::new().read(true).custom_flags(flags).open(folder.join(LOCK_FILE)) {
        Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok(),
        Err(problem) => !is_ours && problem.kind() == io::ErrorKind::NotFound,
    }
}

fn write(path: &Path, data: &[u8]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, data)
}

/// The path with `.` and `..` resolved, or an error if it leads out of the folder or to it.
fn inside(path: &str) -> Result<PathBuf> {
    let mut normalized = PathBuf::new();
    let mut is_inside = !path.contains('\0');
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => normalized.push(name),
            Component::CurDir => (),
            Component::ParentDir => is_inside &= normalized.pop(),
            Component::RootDir | Component::Prefix(_) => is_inside = false,
        }
        if !is_inside {
            break;
        }
    }
    if is_inside && normalized.file_name().is_some() {
        return Ok(normalized);
    }
    Err(Error::invalid(format!(
        "Invalid file parameter 'file:{0}' with normalized path '{0}' must stay within model \
         directory.",
        path.escape_debug()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(paths: &[&str]) -> BTreeMap<String, Vec<u8>> {
        paths.iter().map(|it| ((*it).to_owned(), it.as_bytes().to_vec())).collect()
    }

    fn parent(name: &str) -> PathBuf {
        let parent =
            std::env::temp_dir().join(format!("troupe-test-{}-{name}", std::process::id()));
        fs::create_dir_all(&parent).unwrap();
        parent
    }

    fn count(parent: &Path) -> usize {
        fs::read_dir(parent).unwrap().count()
    }

    #[test]
    fn files_stay_in_the_folder() {
        let parent = parent("files-stay");
        for path in ["..", "../x", "1/../../x", "/etc/x", "", ".", "1/..", "a\0b"] {
            let refused = Overlay::new(&parent, &files(&["1/ok", path])).unwrap_err().to_string();
            assert!(refused.starts_with("Invalid file parameter 'file:"), "{path}: {refused}");
            assert!(refused.ends_with("must stay within model directory."), "{path}: {refused}");
        }
        assert_eq!(count(&parent), 0);
        let overlay = Overlay::new(&parent, &files(&["1/model.py", "./2/../labels"])).unwrap();
        let read = |path: &str| fs::read_to_string(overlay.model_dir().join(path)).unwrap();
        assert_eq!((&*read("1/model.py"), &*read("labels")), ("1/model.py", "./2/../labels"));
        drop(overlay);
        fs::remove_dir(parent).unwrap();
    }

    #[test]
    fn only_abandoned_folders_are_swept() {
        let parent = parent("swept");
        let used = Overlay::new(&parent, &files(&["1/model.py"])).unwrap();
        // No process has so high a number.
        let dead = parent.join(format!("{OVERLAY_PREFIX}4000000000-0"));
        fs::create_dir_all(dead.join("model/1")).unwrap();
        fs::write(dead.join(LOCK_FILE), "").unwrap();
        fs::create_dir(parent.join("unrelated")).unwrap();
        sweep(&parent);
        assert!(used.model_dir().exists() && !dead.exists());
        drop(used);
        assert_eq!(count(&parent), 1);
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn a_pipe_in_the_place_of_a_lock_does_not_keep_the_server_from_starting() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let parent = parent("pipe");
        let folder = parent.join(format!("{OVERLAY_PREFIX}4000000000-0"));
        fs::create_dir(&folder).unwrap();
        mknodat(CWD, folder.join(LOCK_FILE), FileType::Fifo, Mode::RUSR, 0).unwrap();
        std::os::unix::fs::symlink("/etc", parent.join(format!("{OVERLAY_PREFIX}4000000000-1")))
            .unwrap();
        sweep(&parent);
        fs::remove_dir_all(parent).unwrap();
    }
}
