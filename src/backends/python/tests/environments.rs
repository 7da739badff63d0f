//! Where interpreters come from: requirements, folders, interpreters and archives of a model's own.

use std::{fs::File, path::Path, process::Command};

use flate2::{Compression, write::GzEncoder};

use super::*;

/// Tells its prefix, where numpy lies, its parent, and what the environment alone has.
const TELL: &str = "
    import os, sys
    import numpy as np
    try:
        from troupe_test_package import WORD
    except ImportError:
        WORD = ''
    class TritonPythonModel:
        def execute(self, requests):
            told = [sys.prefix, os.path.dirname(np.__path__[0]), str(os.getppid()), WORD]
            if requests[0].inputs()[0].as_numpy()[0] == 1:
                os.kill(os.getppid(), 9)
                while True:
                    pass
            out = pb_utils.Tensor('OUT0', np.array(told, dtype=object))
            return [pb_utils.InferenceResponse([out])]
    ";

fn teller() -> Model {
    model(TELL, &[(FP32, &[1])], &[(DataType::Bytes, &[4])])
}

fn send(x: f32) -> Request {
    request(vec![fp32(&[1], &[x])])
}

async fn strings(remote: &mut dyn Remote) -> Vec<String> {
    let tensor = output(remote, send(0.0)).await;
    tensor.strings().map(|it| String::from_utf8_lossy(it).into_owned()).collect()
}

fn python(arguments: &[&str]) {
    let done = Command::new("python3").args(arguments).output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {done:?}");
}

/// A virtual environment with a module of its own, and the numpy that other tests use.
async fn environment(folder: &Path) {
    let usual = teller();
    let numpy = strings(&mut *usual.open()).await.swap_remove(1);
    python(&["-m", "venv", "--without-pip", folder.to_str().unwrap()]);
    let library = fs::read_dir(folder.join("lib")).unwrap().next().unwrap().unwrap();
    let packages = library.path().join("site-packages");
    fs::write(packages.join("numpy.pth"), numpy).unwrap();
    fs::write(packages.join("troupe_test_package.py"), "WORD = 'inside'\n").unwrap();
}

impl Model {
    fn own_cache(&mut self) -> PathBuf {
        let cache = self.files.model_dir.join("cache");
        let name = ("python".to_owned(), "cache".to_owned());
        self.settings.options.insert(name, cache.display().to_string());
        cache
    }

    fn execution_env(&mut self, path: &str) {
        self.config.parameters.insert("EXECUTION_ENV_PATH".into(), path.into());
    }
}

#[actix_rt::test]
async fn an_environment_may_be_a_folder_an_interpreter_or_an_archive() {
    let mut model = teller();
    let cache = model.own_cache();
    let folder = model.files.model_dir.join("env");
    environment(&folder).await;
    let archive = File::create(model.files.model_dir.join("packed.tar.gz")).unwrap();
    let mut archive = tar::Builder::new(GzEncoder::new(archive, Compression::fast()));
    archive.follow_symlinks(false);
    let base = fs::canonicalize(folder.join("bin/python3")).unwrap();
    for name in ["python", "python3"] {
        fs::remove_file(folder.join("bin").join(name)).unwrap();
    }
    std::os::unix::fs::symlink(base, folder.join("bin/python")).unwrap();
    archive.append_dir_all(".", &folder).unwrap();
    archive.into_inner().unwrap().finish().unwrap();
    let interpreter = folder.join("bin/python").display().to_string();
    let rows: [(&str, &Path); 6] = [
        ("$$TRITON_MODEL_DIRECTORY/env", &folder),
        ("$$TRITON_MODEL_DIRECTORY/env/bin/python", &folder),
        (&interpreter, &folder),
        ("env", &folder),
        ("$$TRITON_MODEL_DIRECTORY/packed.tar.gz", &cache),
        ("packed.tar.gz", &cache),
    ];
    for (path, expected) in rows {
        model.execution_env(path);
        let told = strings(&mut *model.open()).await;
        assert!(Path::new(&told[0]).starts_with(expected), "{path}: {told:?}");
        assert_eq!(told[3], "inside", "{path}");
    }
    assert_eq!(fs::read_dir(cache.join("packed")).unwrap().count(), 2, "one folder and its lock");
}

/// One entry, named without anybody's checks.
fn entry(name: &str, kind: tar::EntryType, link: &str) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(if kind == tar::EntryType::Regular { 4 } else { 0 });
    header.set_cksum();
    header
}

#[actix_rt::test]
async fn an_archive_writes_nothing_outside_of_its_folder() {
    use tar::EntryType::{Block, Char, Fifo, Link, Regular, Symlink};
    let mut model = teller();
    let cache = model.own_cache();
    let outside = model.files.model_dir.join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "kept").unwrap();
    let there = outside.display().to_string();
    let secret = format!("{there}/secret");
    let mut bomb = entry("bomb", Regular, "");
    bomb.set_size(1 << 40);
    bomb.set_cksum();
    let rows = [
        ("bomb", vec![entry("first", Regular, ""), bomb]),
        ("pipe", vec![entry("pipe", Fifo, "")]),
        ("character", vec![entry("null", Char, "")]),
        ("block", vec![entry("disk", Block, "")]),
        ("up", vec![entry("../evil", Regular, "")]),
        ("far_up", vec![entry("a/../../../../outside/evil", Regular, "")]),
        ("through_a_link", vec![entry("way", Symlink, &there), entry("way/evil", Regular, "")]),
        ("over_a_link", vec![entry("way", Symlink, &there), entry("way/secret", Regular, "")]),
        ("hard_link", vec![entry("inside", Link, &secret), entry("inside", Regular, "")]),
    ];
    for (name, entries) in rows {
        let path = format!("{name}.tar.gz");
        let file = File::create(model.files.model_dir.join(&path)).unwrap();
        let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::fast()));
        for header in entries {
            let size = header.size().unwrap().min(4) as usize;
            archive.append(&header, &b"evil"[..size]).unwrap();
        }
        archive.into_inner().unwrap().finish().unwrap();
        model.execution_env(&path);
        let text = model.open_error();
        assert!(text.starts_with("cannot unpack '"), "{name}: {text}");
        assert_eq!(text.contains("too large for the size"), name == "bomb", "{text}");
        let is_special = ["pipe", "character", "block"].contains(&name);
        assert_eq!(text.contains("is a device or a pipe"), is_special, "{name}: {text}");
        assert_eq!(fs::read_to_string(&secret).unwrap(), "kept", "{name}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "{name}");
        let found = fs::read_dir(cache.join("packed")).unwrap().map(|it| it.unwrap().path());
        let left: Vec<_> =
            found.filter(|it| it.extension().is_none_or(|it| it != "lock")).collect();
        assert!(left.is_empty(), "{name}: {left:?}");
    }
}

/// A wheel is an archive with a few files; pip needs nothing else to install it.
const WHEEL: &str = "
import sys, zipfile
about = 'troupe_test_package-1.0.dist-info'
files = {
    'troupe_test_package.py': 'WORD = \"installed\"\\n',
    f'{about}/METADATA': 'Metadata-Version: 2.1\\nName: troupe-test-package\\nVersion: 1.0\\n',
    f'{about}/WHEEL': 'Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n',
}
files[f'{about}/RECORD'] = ''.join(f'{name},,\\n' for name in [*files, f'{about}/RECORD'])
with zipfile.ZipFile(sys.argv[1], 'w') as wheel:
    for name, text in files.items():
        wheel.writestr(name, text)
";

#[actix_rt::test]
async fn requirements_are_installed_once() {
    let mut model = teller();
    let cache = model.own_cache();
    let wheel = model.files.model_dir.join("troupe_test_package-1.0-py3-none-any.whl");
    python(&["-c", WHEEL, wheel.to_str().unwrap()]);
    model.file("1/requirements.txt", &format!("# Of our own.\n{}\n", wheel.display()));
    let first = strings(&mut *model.open()).await;
    assert_eq!(first[3], "installed");
    assert!(Path::new(&first[0]).starts_with(&cache), "{first:?}");
    // Whoever installed again would miss it.
    fs::remove_file(&wheel).unwrap();
    assert_eq!(strings(&mut *model.open()).await, first);
    model.file("1/requirements.txt", &format!("{}\n# Changed.\n", wheel.display()));
    let text = model.open_error();
    assert!(text.contains("pip: ") && text.contains("troupe_test_package-1.0"), "{text}");
}

#[actix_rt::test]
async fn a_fork_server_that_is_killed_is_replaced_with_its_workers() {
    let mut model = teller();
    // An interpreter that no other test uses.
    environment(&model.files.model_dir.join("env")).await;
    model.execution_env("env");
    let health = Arc::new(Health::default());
    (0..2).for_each(|_| health.join());
    let mut one = model.open_with(&health).unwrap();
    let mut other = model.open_with(&health).unwrap();
    let before = strings(&mut *one).await;
    assert_eq!(strings(&mut *other).await, before);
    let error = ask(&mut *one, send(1.0)).await.unwrap_err();
    let expected = "Model 'm': its fork server ended (signal: 9 (SIGKILL)) and took it along; ";
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(error.kind(), ErrorKind::Crashed);
    while !health.is_ready() || ask(&mut *other, send(0.0)).await.is_err() {
        tokio::task::yield_now().await;
    }
    let after = strings(&mut *one).await;
    assert_ne!(after[2], before[2], "another parent");
    assert_eq!(strings(&mut *other).await, after, "the same for both");
}
