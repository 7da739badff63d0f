//! Scans the folders of repositories: which models and versions there are, and stamps that tell
//! whether they changed.

use std::{
    collections::{BTreeMap, BTreeSet, hash_map::DefaultHasher},
    ffi::OsStr,
    fs::{self, File, Metadata},
    hash::{Hash, Hasher},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::UNIX_EPOCH,
};

use super::pipeline::PIPELINE_FILE;
use troupe_base::{
    config::usual_file,
    error::{Error, Result},
    files,
    text::shell_word,
};

/// Larger configs are refused unread.
pub(crate) const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Files that make up a stamp at most; changes of further ones go unseen.
const MAX_STAMPED_FILES: usize = 100_000;

/// Two stamps differ when a file was added, removed or written in between.
pub(crate) type Stamp = u64;

/// The config of a model, in its folder.
pub(crate) const CONFIG_FILE: &str = "config.pbtxt";
/// Has other configs of the model, by their names.
pub(crate) const CONFIGS_FOLDER: &str = "configs";

/// Which file it is, when it was written, and its size.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub(crate) struct Written {
    /// Since 1970.
    pub(crate) modified_nanos: u128,
    pub(crate) size_bytes: u64,
    /// What tools that set the first (`tar`, `cp -p`) leave as it is: its device and number.
    pub(crate) inode: (u64, u64),
    /// Since when the file is as it is, which nobody can set: seconds and nanoseconds.
    pub(crate) changed: (i64, i64),
}

/// Model folders by name; a name with several folders cannot be served.
pub(crate) type Folders = BTreeMap<Arc<str>, Vec<PathBuf>>;

/// Finds the model folders of all repositories, and says which repositories cannot be read.
pub(crate) fn folders(repositories: &[PathBuf]) -> (Folders, Vec<String>) {
    let mut folders = Folders::new();
    let mut problems = Vec::new();
    for repository in repositories {
        let warn = |text: &str| tracing::warn!("ignore model directory{text}");
        match folders_of(repository, &warn) {
            Ok(found) => {
                for (name, folder) in found {
                    folders.entry(name).or_default().push(folder);
                }
            }
            Err(problem) => problems.push(match problem.kind() {
                io::ErrorKind::NotFound => unread(
                    repository,
                    &format_args!(
                        "{problem}. Is it another folder, `--model-repository DIR`? A new one: {}",
                        new_model(repository)
                    ),
                ),
                _ => unread(repository, &problem),
            }),
        }
    }
    (folders, problems)
}

fn unread(repository: &Path, why: &dyn std::fmt::Display) -> String {
    format!("failed to read model repository '{}': {why}", repository.display())
}

/// The command line that makes a model in a repository.
fn new_model(repository: &Path) -> String {
    format!("`troupe new model NAME{}`", repository_flag(repository))
}

/// How command lines name a repository, behind a space; nothing of the usual one.
pub(crate) fn repository_flag(repository: &Path) -> String {
    match repository == Path::new("model_repository") {
        true => String::new(),
        false => format!(" --model-repository={}", shell_word(&repository.display().to_string())),
    }
}

/// What to say of repositories without a single model; nothing where there are no repositories.
pub(crate) fn emptiness(repositories: &[PathBuf]) -> Option<String> {
    let first = repositories.first()?;
    let all: Vec<_> = repositories.iter().map(|it| format!("'{}'", it.display())).collect();
    Some(format!("no models in {}: {} makes one", all.join(", "), new_model(first)))
}

/// Has what a model's folder has, and no folders but versions.
pub(super) fn is_model(folder: &Path) -> bool {
    let names = names_in(folder);
    let is_folder = |name: &&String| !name.starts_with('.') && is_folder(&folder.join(name));
    if names.iter().filter(is_folder).any(|it| !is_digits(it)) {
        return false;
    }
    let has_file = |version: &String| {
        is_digits(version)
            && names_in(&folder.join(version)).iter().any(|it| usual_file(it).is_some())
    };
    names.iter().any(|it| matches!(&**it, CONFIG_FILE | PIPELINE_FILE) || has_file(it))
}

/// None of what cannot be read.
pub(crate) fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Links of a folder that lead nowhere, one line each: whatever they were meant to be is ignored.
pub(crate) fn dangling_links(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    // A config that is one is a problem, not a warning.
    let others = entries.filter(|it| it.file_name() != CONFIG_FILE);
    let mut found: Vec<String> = others.filter_map(|it| files::dangling(&it.path())).collect();
    found.sort();
    found
}

/// Version folders of a model, ascending, each with its stamp.
pub(crate) fn versions(model_dir: &Path) -> io::Result<BTreeMap<i64, Stamp>> {
    let mut versions = BTreeMap::new();
    for entry in fs::read_dir(model_dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| is_digits(name)) else { continue };
        if !is_folder(&entry.path()) {
            if let Some(text) = files::dangling(&entry.path()) {
                tracing::warn!("ignore version directory: {text}");
            }
            continue;
        }
        if name.starts_with('0') {
            tracing::warn!(
                "ignore version directory '{name}' which contains leading zeros in its directory \
                 name"
            );
        } else if let Ok(number) = name.parse() {
            versions.insert(number, stamp(&entry.path(), &|_| true));
        }
    }
    Ok(versions)
}

/// The stamp of everything in a model's folder but its versions.
pub(crate) fn common_stamp(model_dir: &Path) -> Stamp {
    stamp(model_dir, &|name| !is_digits(name))
}

/// All files of all models, without their folders: those of a model that is in several repositories
/// are looked at together. What cannot be read is not there.
pub(crate) fn files_of_models(
    repositories: &[PathBuf],
) -> BTreeMap<Arc<str>, BTreeMap<PathBuf, Written>> {
    let mut models = BTreeMap::<Arc<str>, BTreeMap<PathBuf, Written>>::new();
    for repository in repositories {
        // A load warns of what is ignored; this is looked at several times a second.
        let folders = folders_of(repository, &|_| ());
        for (name, folder) in folders.into_iter().flatten() {
            let mut found = BTreeMap::new();
            collect(&folder, &|_| true, &mut found, &mut BTreeSet::new());
            let own = |(path, it): (PathBuf, Written)| {
                (path.strip_prefix(&folder).unwrap_or(&path).to_owned(), it)
            };
            models.entry(name).or_default().extend(found.into_iter().map(own));
        }
    }
    models
}

/// The text of a file of at most `limit` bytes.
pub(crate) fn read_text(path: &Path, limit: u64) -> Result<String> {
    String::from_utf8(read_bytes(path, limit)?)
        .map_err(|_| failed(path, &"stream did not contain valid UTF-8"))
}

/// A file of at most `limit` bytes.
pub(crate) fn read_bytes(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let failed = |what: &dyn std::fmt::Display| failed(path, what);
    // Opening a pipe would wait for its writer.
    if !fs::metadata(path).map_err(|error| failed(&error))?.is_file() {
        return Err(failed(&"not a regular file"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| failed(&error))?;
    let read = file.take(limit + 1).read_to_end(&mut bytes);
    let size = read.map_err(|error| failed(&error))?;
    if limit < size as u64 {
        return Err(failed(&format_args!("larger than {limit} bytes")));
    }
    Ok(bytes)
}

fn failed(path: &Path, what: &dyn std::fmt::Display) -> Error {
    Error::internal(format!("failed to read '{}': {what}", path.display()))
}

/// Refuses what cannot be the name of a folder in a repository.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.trim().is_empty() {
        let text = "Model name cannot be empty. Please enter a valid name to deploy.";
        return Err(Error::invalid(text));
    }
    if matches!(name, "." | "..") || name.contains(['/', '\\', '\0']) {
        return Err(Error::invalid(format!(
            "invalid model name '{}', model name must not contain path traversal characters",
            name.escape_debug()
        )));
    }
    Ok(())
}

/// Follows symbolic links: repositories are often made of them.
fn is_folder(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|it| it.is_dir())
}

fn is_digits(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|it| it.is_ascii_digit())
}

/// The model folders of one repository; `ignored` is told of the others.
fn folders_of(repository: &Path, ignored: &dyn Fn(&str)) -> io::Result<Vec<(Arc<str>, PathBuf)>> {
    if is_model(repository) {
        let above = std::path::absolute(repository).unwrap_or_else(|_| repository.to_owned());
        let above = above.parent().unwrap_or(Path::new("/")).display();
        let text = format!("it is the folder of a model, expected the one above, '{above}'");
        return Err(io::Error::other(text));
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(repository)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            ignored(&format!(" {name:?} whose name is not UTF-8"));
            continue;
        };
        if let Some(text) = files::dangling(&entry.path()) {
            ignored(&format!(": {text}"));
        }
        let is_model = !name.starts_with('.') && name != "__pycache__" && is_folder(&entry.path());
        if is_model && check_name(name).is_ok() {
            found.push((name.into(), entry.path()));
        }
    }
    Ok(found)
}

/// The same without its configs.
pub(crate) fn files_stamp(model_dir: &Path) -> Stamp {
    stamp(model_dir, &|name| !is_digits(name) && ![CONFIG_FILE, CONFIGS_FOLDER].contains(&name))
}

fn stamp(folder: &Path, is_included: &dyn Fn(&str) -> bool) -> Stamp {
    let mut files = BTreeMap::new();
    collect(folder, is_included, &mut files, &mut BTreeSet::new());
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    hasher.finish()
}

/// A folder is entered once, so links that lead back end somewhere.
fn collect(
    folder: &Path,
    is_included: &dyn Fn(&str) -> bool,
    files: &mut BTreeMap<PathBuf, Written>,
    entered: &mut BTreeSet<(u64, u64)>,
) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if is_passing(&name)
            || !name.to_str().is_none_or(is_included)
            || MAX_STAMPED_FILES <= files.len()
        {
            continue;
        }
        let path = entry.path();
        // A link that leads nowhere is told of once, and leads somewhere later.
        let found = fs::metadata(&path).or_else(|_| fs::symlink_metadata(&path));
        let Ok(metadata) = found else { continue };
        if !metadata.is_dir() {
            files.insert(path, written(&metadata));
        } else if entered.len() < MAX_STAMPED_FILES
            && entered.insert((metadata.dev(), metadata.ino()))
        {
            collect(&path, &|_| true, files, entered);
        }
    }
}

/// Python writes its caches while the model runs, and editors write beside a file before they put
/// it in place.
fn is_passing(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let endings = ["~", ".swp", ".swo", ".swx", "___jb_tmp___", "___jb_old___", ".kate-swp"];
    // vim tries whether it may write to a folder by a file of this name.
    matches!(name, "__pycache__" | "4913" | ".DS_Store" | ".git")
        || endings.iter().any(|it| name.ends_with(it))
        || name.starts_with(".#")
        || name.starts_with(".goutputstream-")
        || (name.starts_with('#') && name.ends_with('#'))
        || is_unfinished(name)
}

/// What `sed -i` (`sedQ1w2E3`) and `rsync` (`.model.py.Q1w2E3`) write before they put it in place.
fn is_unfinished(name: &str) -> bool {
    let letters = match name.strip_prefix('.') {
        Some(hidden) => hidden.rsplit_once('.').map(|it| it.1),
        None => name.strip_prefix("sed"),
    };
    let is_random = |letters: &str| {
        letters.len() == 6
            && letters.bytes().all(|it| it.is_ascii_alphanumeric())
            && !letters.bytes().all(|it| it.is_ascii_lowercase())
    };
    letters.is_some_and(is_random)
}

fn written(metadata: &Metadata) -> Written {
    let modified = metadata.modified().ok();
    let modified = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let modified_nanos = modified.unwrap_or_default().as_nanos();
    Written {
        modified_nanos,
        size_bytes: metadata.len(),
        inode: (metadata.dev(), metadata.ino()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_of_the_same_size_and_time_is_a_change_and_so_is_a_link_that_leads_nowhere() {
        let folder = std::env::temp_dir().join(format!("troupe-stamp-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, other) = (folder.join("model.py"), folder.join("model.py~"));
        let write = |path: &Path, text: &str| {
            fs::write(path, text).unwrap();
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(UNIX_EPOCH).unwrap();
        };
        let stamp = || stamp(&folder, &|_| true);
        write(&file, "old");
        let mut seen = vec![stamp()];
        write(&other, "new");
        assert_eq!(seen, [stamp()]);
        fs::rename(&other, &file).unwrap();
        seen.push(stamp());
        write(&file, "own");
        seen.push(stamp());
        std::os::unix::fs::symlink("/gone/for/good", folder.join("2")).unwrap();
        seen.push(stamp());
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 4);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_tools_write_beside_a_file_is_no_change() {
        for (name, expected) in [
            ("sedQ1w2E3", true),
            (".model.py.Q1w2E3", true),
            ("model.py~", true),
            (".model.py.swp", true),
            ("sediments", false),
            ("sedQ1w2E3.py", false),
            (".model.py.backup", false),
            ("model.py", false),
        ] {
            assert_eq!(is_passing(OsStr::new(name)), expected, "{name}");
        }
    }
}
