//! Missing files in the words of errors: a link without a target, or a file of another name.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

/// Names of other files that an error lists.
const MAX_LISTED: usize = 5;

/// `'path' is a link to 'target', which does not exist`, if it is so.
pub fn dangling(path: &Path) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    let is_dangling = fs::metadata(path).is_err();
    is_dangling.then(|| {
        let (path, target) = (path.display(), target.display());
        format!("'{path}' is a link to '{target}', which does not exist")
    })
}

/// How the files begin that Git has in place of large ones.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// What to say of a file that Git LFS has not fetched; nothing of others.
pub fn not_fetched(path: &Path) -> Option<String> {
    let mut head = [0; LFS_POINTER.len()];
    fs::File::open(path).ok()?.read_exact(&mut head).ok()?;
    (head == LFS_POINTER).then(|| {
        format!(
            "'{}' is only a pointer to the file in Git LFS: run `git lfs pull` in its repository",
            path.display()
        )
    })
}

/// What to say behind the error that `path` is not there, beginning with a separator; nothing if
/// there is nothing to say.
pub fn instead_of(path: &Path) -> String {
    if let Some(text) = dangling(path) {
        return format!(": {text}");
    }
    match fs::metadata(path) {
        Ok(it) if it.is_dir() => return ": it is a folder, expected a file".to_owned(),
        // It has come meanwhile: files are saved by putting others in their places.
        Ok(it) if it.is_file() => return String::new(),
        Ok(_) => return ": it is no regular file".to_owned(),
        Err(_) => (),
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return String::new();
    };
    let name = name.to_string_lossy();
    let is_alike = |it: &PathBuf| it.extension() == path.extension();
    let found = match fs::read_dir(folder) {
        Ok(entries) => entries.flatten().map(|it| it.path()),
        Err(_) => return format!(": there is no folder '{}'", folder.display()),
    };
    let alike: Vec<PathBuf> = found.filter(is_alike).take(MAX_LISTED).collect();
    let names = alike.iter().filter_map(|it| Some(it.file_name()?.to_string_lossy()));
    let names: Vec<String> = names.map(|it| format!("'{it}'")).collect();
    if !names.is_empty() {
        let folder = folder.display();
        return format!(": '{folder}' has {}, expected '{name}'", names.join(", "));
    }
    // Beside the folder of its version.
    match folder.parent().map(|it| it.join(&*name)).filter(|it| it.exists()) {
        Some(above) => {
            format!(": '{}' belongs into the folder '{}'", above.display(), folder.display())
        }
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_missing_is_told_by_what_is_there() {
        let exe = std::env::current_exe().unwrap();
        let root = exe.parent().unwrap().join(format!("files-{}", std::process::id()));
        let at = |path: &str| root.join(path);
        fs::create_dir_all(at("empty/1")).unwrap();
        fs::create_dir_all(at("other/1")).unwrap();
        fs::create_dir_all(at("above/1")).unwrap();
        fs::create_dir_all(at("link/1")).unwrap();
        fs::write(at("other/1/clf.onnx"), "").unwrap();
        fs::write(at("above/model.onnx"), "").unwrap();
        fs::create_dir_all(at("folder/1/model.py")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("link/1/model.onnx")).unwrap();
        let told = |path: &str| instead_of(&at(path)).replace(&*root.to_string_lossy(), "");
        for (path, expected) in [
            ("empty/1/model.onnx", ""),
            ("none/1/model.onnx", ": there is no folder '/none/1'"),
            ("other/1/model.onnx", ": '/other/1' has 'clf.onnx', expected 'model.onnx'"),
            ("above/1/model.onnx", ": '/above/model.onnx' belongs into the folder '/above/1'"),
            ("folder/1/model.py", ": it is a folder, expected a file"),
            (
                "link/1/model.onnx",
                ": '/link/1/model.onnx' is a link to 'nowhere', which does not exist",
            ),
        ] {
            assert_eq!(told(path), expected);
        }
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
        fs::write(at("pointer"), pointer).unwrap();
        assert!(not_fetched(&at("pointer")).unwrap().contains("`git lfs pull`"));
        fs::write(at("pointer"), &pointer[1..]).unwrap();
        assert_eq!(not_fetched(&at("pointer")), None);
        fs::remove_dir_all(root).unwrap();
    }
}
