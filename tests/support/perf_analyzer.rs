//! perf_analyzer, Triton's load generator: the machine's own, or one out of wheels that have it.

use std::{
    ffi::OsString,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
};

use rustix::fs::{FlockOperation, flock};

use super::venv;

/// Later wheels of the client have no perf_analyzer; it is linked to CUDA's runtime.
const REQUIREMENTS: &[&str] = &["tritonclient==2.44.0", "nvidia-cuda-runtime-cu12"];

/// Stands in for libb64, which no wheel has. Only data in JSON files is decoded with it.
const NO_BASE64: &str = "
    void base64_init_encodestate(void) { __builtin_trap(); }
    void base64_encode_block(void) { __builtin_trap(); }
    void base64_encode_blockend(void) { __builtin_trap(); }
    void base64_init_decodestate(void) { __builtin_trap(); }
    void base64_decode_block(void) { __builtin_trap(); }";

/// The program and its `LD_LIBRARY_PATH`, or why there is none.
static PROGRAM: LazyLock<Result<(PathBuf, OsString), String>> =
    LazyLock::new(|| found().map_or_else(make, |it| Ok((it, OsString::new()))));

/// The program, to be given arguments. Says so if this machine cannot have it.
pub(crate) fn perf_analyzer() -> Option<Command> {
    match &*PROGRAM {
        Ok((program, libraries)) => Some(command(program, libraries)),
        Err(why) => {
            println!(
                "skipped: no perf_analyzer on the PATH or in $PEER_HOME/bin, and none made: {why}"
            );
            None
        }
    }
}

fn command(program: &Path, libraries: &OsString) -> Command {
    let mut command = Command::new(program);
    if !libraries.is_empty() {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    command
}

fn found() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("PEER_HOME").map(|it| Path::new(&it).join("bin"));
    let mut all = std::env::split_paths(&folders).chain(home).map(|it| it.join("perf_analyzer"));
    all.find(|it| it.exists())
}

fn make() -> Result<(PathBuf, OsString), String> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("perf_analyzer");
    fs::create_dir_all(&home).unwrap();
    // Another test run may be making it right now.
    let lock = fs::File::create(home.join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let (program, made) = (home.join("bin/perf_analyzer"), home.join("made"));
    let (own, cuda) = (home.join("lib"), home.join("nvidia/cuda_runtime/lib"));
    let libraries = std::env::join_paths([&own, &cuda]).unwrap();
    let key = REQUIREMENTS.join("\n");
    if !fs::read_to_string(&made).is_ok_and(|it| it == key) {
        println!("making a perf_analyzer of {}", REQUIREMENTS.join(" "));
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"];
        let target = ["--upgrade", "--target"];
        let mut install = Command::new(venv::python());
        run(install.args(pip).args(target).arg(&home).args(REQUIREMENTS))?;
        // The system's own may be there.
        if run(command(&program, &libraries).arg("--version")).is_err() {
            fs::create_dir_all(&own).unwrap();
            compile(NO_BASE64, &own.join("libb64.so.0d"))?;
        }
        run(command(&program, &libraries).arg("--version"))?;
        fs::write(made, key).unwrap();
    }
    Ok((program, libraries))
}

fn compile(source: &str, library: &Path) -> Result<(), String> {
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-x", "c", "-", "-o"]).arg(library).stdin(Stdio::piped());
    let mut child = compiler.spawn().map_err(|it| format!("{compiler:?}: {it}"))?;
    child.stdin.take().expect("it is piped").write_all(source.as_bytes()).unwrap();
    match child.wait().unwrap() {
        status if status.success() => Ok(()),
        status => Err(format!("{compiler:?} ended with {status}")),
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|it| format!("{command:?}: {it}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}
