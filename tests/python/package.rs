//! The Python package `troupe` outside a server: from a checkout, and installed by pip.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::support::venv;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Runs the tests of the package, with the package at this path.
fn tested(package: &Path) {
    let output = Command::new(venv::python())
        .args(["-m", "unittest", "--verbose", "test_package"])
        .current_dir(here("tests/clients"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONPATH", package)
        .env("TROUPE_BIN", env!("CARGO_BIN_EXE_troupe"))
        .env("TROUPE_MODELS", here("model_repository"))
        .env("TROUPE_PYTHON", venv::python())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("\nOK"), "{said}");
}

#[test]
fn models_and_ensembles_are_called_in_unit_tests() {
    tested(&here("src/python"));
}

#[test]
fn the_package_is_installed_from_its_folder() {
    let work = Path::new(env!("CARGO_TARGET_TMPDIR")).join("work");
    let home = work.join(format!("package-{}", std::process::id()));
    // Its build writes beside the sources: a copy keeps the checkout clean.
    for folder in ["src/python", "src/backends/python/py"] {
        copy(&here(folder), &home.join(folder));
    }
    let installed = home.join("installed");
    let output = Command::new(venv::python())
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .arg("--target")
        .arg(&installed)
        .arg(home.join("src/python"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(installed.join("troupe/py.typed").is_file());
    tested(&installed);
    fs::remove_dir_all(home).unwrap();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() { copy(&from, &to) } else { fs::copy(from, to).map(drop).unwrap() }
    }
}
