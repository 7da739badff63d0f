//! The fingerprint of a version: a hash of its config and files, equal on every server that loads the
//! same. A response cache that servers share tells by it whose answers are whose.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use troupe_base::config::{ModelConfig, json};

/// Folders in folders that are looked at.
const MAX_DEPTH: usize = 32;

/// Of a model that its backend runs: all files of its folder but those of other versions. Blocks as
/// long as it takes to read them.
pub(crate) fn of_files(config: &ModelConfig, model_dir: &Path, version: i64) -> io::Result<u128> {
    let mut hasher = begun(config, version);
    let own = version.to_string();
    let mut files = Vec::new();
    list(model_dir, 0, &mut files, &|name| name == own || name.parse::<u64>().is_err())?;
    files.sort();
    for path in files {
        let name = path.strip_prefix(model_dir).unwrap_or(&path).to_string_lossy();
        text(&name, &mut hasher);
        hasher.update(contents(&path)?.finalize());
    }
    Ok(ended(hasher))
}

fn contents(path: &Path) -> io::Result<Sha256> {
    let (mut file, mut hasher) = (File::open(path)?, Sha256::new());
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher),
            more => hasher.update(&buffer[..more]),
        }
    }
}

/// Of an ensemble: its config, and the models it runs.
pub(crate) fn of_ensemble(config: &ModelConfig, version: i64, steps: &[u128]) -> u128 {
    let mut hasher = begun(config, version);
    steps.iter().for_each(|it| hasher.update(it.to_le_bytes()));
    ended(hasher)
}

fn begun(config: &ModelConfig, version: i64) -> Sha256 {
    let mut hasher = Sha256::new();
    text(&json::print(&config.proto), &mut hasher);
    hasher.update(version.to_le_bytes());
    hasher
}

fn ended(hasher: Sha256) -> u128 {
    let digest = hasher.finalize();
    u128::from_le_bytes(digest.first_chunk::<16>().copied().unwrap_or_default())
}

/// With its length before it.
fn text(text: &str, hasher: &mut Sha256) {
    hasher.update((text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

/// All files below a folder; `is_wanted` decides about those right in it. What Python leaves behind
/// when it runs a file says nothing.
fn list(
    folder: &Path,
    depth: usize,
    files: &mut Vec<PathBuf>,
    is_wanted: &dyn Fn(&str) -> bool,
) -> io::Result<()> {
    if MAX_DEPTH < depth {
        return Err(io::Error::other("folders are nested too deep"));
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name == "__pycache__" || !is_wanted(&name) {
            continue;
        }
        if path.is_dir() {
            list(&path, depth + 1, files, &|_| true)?;
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::config::{ServerFeatures, read_text};

    fn config(text: &str) -> ModelConfig {
        read_text(text, "f").unwrap().finish(&ServerFeatures::default()).unwrap()
    }

    #[test]
    fn what_was_changed_has_another_fingerprint_and_a_copy_has_the_same() {
        let root = std::env::temp_dir().join(format!("fingerprint-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for copy in ["a", "b"] {
            write(&format!("{copy}/1/model.py"), "one");
            write(&format!("{copy}/2/model.py"), "two");
            write(&format!("{copy}/labels.txt"), "cat");
        }
        let plain = config("name: 'm' backend: 'python'");
        let of = |copy: &str, config: &ModelConfig| of_files(config, &root.join(copy), 1).unwrap();
        let first = of("a", &plain);
        assert_eq!(of("b", &plain), first);
        write("b/2/model.py", "other");
        write("b/1/__pycache__/model.pyc", "left");
        assert_eq!(of("b", &plain), first, "nothing of this version");
        assert_ne!(of("b", &config("name: 'm' backend: 'python' max_batch_size: 2")), first);
        write("b/1/model.py", "One");
        assert_ne!(of("b", &plain), first);
        write("a/more.txt", "");
        assert_ne!(of("a", &plain), first);
        let ensemble = |steps: &[u128]| of_ensemble(&plain, 1, steps);
        assert_ne!(ensemble(&[1, 2]), ensemble(&[1, 3]));
        fs::remove_dir_all(root).unwrap();
    }
}
