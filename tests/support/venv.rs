//! A Python with the real clients and ONNX Runtime, made once beside the tests and kept.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use rustix::fs::{FlockOperation, flock};

/// Versions with wheels for Python 3.10 to 3.13.
const REQUIREMENTS: &[&str] = &[
    "tritonclient[http,grpc]>=2.50,<3",
    "numpy",
    "onnxruntime>=1.20.1",
    "opencv-python-headless",
    "pillow",
    "openapi-spec-validator",
];

static PYTHON: LazyLock<PathBuf> = LazyLock::new(make);

/// The interpreter of the environment.
pub(crate) fn python() -> &'static Path {
    &PYTHON
}

/// An interpreter without any package but pip.
pub(crate) fn bare(folder: &Path) -> PathBuf {
    let base = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    run(Command::new(base).args(["-m", "venv"]).arg(folder));
    folder.join("bin/python")
}

/// The library of ONNX Runtime in it, unless the environment names another.
pub(crate) fn onnxruntime() -> PathBuf {
    if let Some(named) = std::env::var_os("ORT_DYLIB_PATH") {
        return named.into();
    }
    let program = "import onnxruntime as it; print(it.__path__[0])";
    let folder = run(Command::new(python()).args(["-c", program]));
    let mut files = fs::read_dir(Path::new(folder.trim()).join("capi")).unwrap();
    let is_library = |it: &PathBuf| it.to_string_lossy().contains("libonnxruntime.so");
    files.find_map(|it| Some(it.unwrap().path()).filter(is_library)).expect("the library is there")
}

fn make() -> PathBuf {
    let base = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let version = run(Command::new(&base).args(["-c", "import sys; print(sys.version)"]));
    let key = format!("{}\n{version}", REQUIREMENTS.join("\n"));
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
    fs::create_dir_all(&home).unwrap();
    // Another test run may be making it right now.
    let lock = fs::File::create(home.join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let (python, made) = (home.join("venv/bin/python"), home.join("made"));
    if fs::read_to_string(&made).is_ok_and(|it| it == key) {
        return python;
    }
    println!("making a Python environment for {}", REQUIREMENTS.join(" "));
    run(Command::new(&base).args(["-m", "venv", "--clear"]).arg(home.join("venv")));
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    run(Command::new(&python).args(pip).args(REQUIREMENTS));
    fs::write(made, key).unwrap();
    python
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|it| panic!("{command:?}: {it}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?} failed (the tests need python3 with its venv module, and a package index that \
         pip reaches):\n{said}"
    );
    String::from_utf8(output.stdout).unwrap()
}
