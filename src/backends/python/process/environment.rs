//! Python environments: which interpreter runs a model; makes one with its requirements if need be.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, BufReader},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use super::fork_server::{ForkServer, ForkServers, InterpreterInfo, NoForkServer};
use crate::provision::{NO_PIP, base, cache, failed, key, logged, once, run};
use troupe_base::{
    backend::{ModelFiles, Settings},
    error::{Error, Result},
};

/// What decides about the interpreter.
pub(crate) struct InterpreterChoice<'a> {
    /// Those that run.
    pub(crate) servers: &'a Arc<ForkServers>,
    pub(crate) settings: &'a Settings,
    pub(crate) files: &'a ModelFiles,
    /// The `EXECUTION_ENV_PATH` parameter.
    pub(crate) execution_env: Option<&'a str>,
}

/// The fork server of the model's environment, which is made if need be. Blocks.
pub(crate) fn fork_server(choice: &InterpreterChoice<'_>) -> Result<Arc<ForkServer>> {
    if let Some(path) = choice.execution_env {
        let interpreter = execution_env(choice, path)?;
        return choice
            .servers
            .acquire(&interpreter)
            .map_err(|it| no_fork_server(it, &interpreter, choice));
    }
    let base = base(choice.settings);
    let requirements = requirements(choice.files);
    if requirements.is_none() && choice.settings.provision {
        warm_up(choice, &base);
    }
    if requirements.is_none() || !choice.settings.provision {
        match choice.servers.acquire(&base) {
            Ok(server) => return Ok(server),
            Err(NoForkServer::NoNumpy(_)) if choice.settings.provision => (),
            Err(error) => return Err(no_fork_server(error, &base, choice)),
        }
    }
    let text = match &requirements {
        Some(path) => fs::read_to_string(path)
            .map_err(|error| failed(&format!("cannot read {}", path.display()), &error))?,
        None => String::new(),
    };
    let interpreter = provide(choice, &base, &text, requirements.as_deref())?;
    if requirements.is_none() {
        // Without it the next start is a little slower.
        let _ = fs::write(usual(choice, &base)?, interpreter.as_os_str().as_encoded_bytes());
    }
    choice.servers.acquire(&interpreter).map_err(|it| no_fork_server(it, &interpreter, choice))
}

/// The file that says which environment the interpreter needed last time.
fn usual(choice: &InterpreterChoice<'_>, base: &Path) -> Result<PathBuf> {
    let name = format!("usual-{}", key(&[&base.display()]));
    Ok(cache(choice.settings)?.join("environments").join(name))
}

/// Starts what was needed last time while the interpreter is asked whether it still is.
fn warm_up(choice: &InterpreterChoice<'_>, base: &Path) {
    let Ok(text) = usual(choice, base).and_then(|path| {
        fs::read_to_string(path).map_err(|error| failed("not used before", &error))
    }) else {
        return;
    };
    let interpreter = PathBuf::from(text);
    if interpreter.exists() {
        let servers = choice.servers.clone();
        choice.servers.reaper.spawn_blocking(move || servers.acquire(&interpreter).map(drop));
    }
}

/// What to do about a module that is missing.
pub(crate) fn advice(choice: &InterpreterChoice<'_>) -> String {
    let python = base(choice.settings).display().to_string();
    match requirements(choice.files) {
        _ if choice.execution_env.is_some() => {
            "install it into the environment of EXECUTION_ENV_PATH".into()
        }
        Some(path) if !choice.settings.provision => format!(
            "run `{python} -m pip install numpy -r {}`, or start without --provision=never",
            path.display()
        ),
        Some(path) => format!("add it to {}", path.display()),
        None => format!(
            "list it in a requirements.txt beside the model's file, or install it with \
             `{python} -m pip install …`"
        ),
    }
}

fn no_fork_server(
    error: NoForkServer,
    interpreter: &Path,
    choice: &InterpreterChoice<'_>,
) -> Error {
    let info = match error {
        NoForkServer::Broken(error) => return error,
        NoForkServer::NoNumpy(info) => info,
    };
    let text = info.error.as_deref().unwrap_or_default();
    let hint = if choice.execution_env.is_none() && !choice.settings.provision {
        ", or start without --provision=never"
    } else {
        ""
    };
    Error::internal(format!(
        "Python interpreter '{}' cannot run models: {text}; run `{} -m pip install numpy`{hint}",
        interpreter.display(),
        info.executable
    ))
}

/// The packages that the model lists, beside its file or in its folder.
pub(crate) fn requirements(files: &ModelFiles) -> Option<PathBuf> {
    let version = files.model_dir.join(files.version.to_string());
    [version, files.model_dir.clone()]
        .map(|it| it.join("requirements.txt"))
        .into_iter()
        .find(|it| it.is_file())
}

/// The interpreter of a virtual environment, of a packed one, or the one named.
fn execution_env(choice: &InterpreterChoice<'_>, path: &str) -> Result<PathBuf> {
    let path = named(choice.files, path)?;
    if is_packed(&path) { unpacked(choice, &path) } else { Ok(path) }
}

/// What `EXECUTION_ENV_PATH` names: an interpreter, also that of a folder, or an archive with one.
pub(crate) fn named(files: &ModelFiles, written: &str) -> Result<PathBuf> {
    let model_dir =
        std::path::absolute(&files.model_dir).unwrap_or_else(|_| files.model_dir.clone());
    let text = written.replace("$$TRITON_MODEL_DIRECTORY", &model_dir.display().to_string());
    let path = model_dir.join(&text);
    let path = if path.exists() { path } else { PathBuf::from(&text) };
    if path.is_dir() {
        return interpreter_in(&path);
    }
    if !path.is_file() {
        return Err(Error::invalid(format!(
            "EXECUTION_ENV_PATH '{}' of model '{}' does not exist",
            path.display(),
            files.name
        )));
    }
    Ok(path)
}

fn is_packed(path: &Path) -> bool {
    let name = path.to_string_lossy();
    name.ends_with(".tar.gz") || name.ends_with(".tgz")
}

fn interpreter_in(folder: &Path) -> Result<PathBuf> {
    let found = ["bin/python3", "bin/python"].map(|it| folder.join(it));
    found.into_iter().find(|it| it.exists()).ok_or_else(|| {
        Error::invalid(format!("no bin/python3 or bin/python in '{}'", folder.display()))
    })
}

/// Unpacks an archive once per path, size and time of change.
fn unpacked(choice: &InterpreterChoice<'_>, archive: &Path) -> Result<PathBuf> {
    let what = format!("cannot unpack '{}'", archive.display());
    let about = fs::metadata(archive).map_err(|error| failed(&what, &error))?;
    let changed = about.modified().ok();
    let key = key(&[&archive.display(), &about.len(), &format!("{changed:?}")]);
    let folder = cache(choice.settings)?.join("packed").join(key);
    once(&folder, || {
        tracing::info!(target: "troupe::python", "unpacking {} …", archive.display());
        let file = File::open(archive).map_err(|error| failed(&what, &error))?;
        let mut entries =
            tar::Archive::new(flate2::read::MultiGzDecoder::new(BufReader::new(file)));
        let mut left = most_unpacked(about.len());
        for entry in entries.entries().map_err(|error| failed(&what, &error))? {
            let mut entry = entry.map_err(|error| failed(&what, &error))?;
            check_entry(&entry, &mut left).map_err(|error| failed(&what, &error))?;
            if !entry.unpack_in(&folder).map_err(|error| failed(&what, &error))? {
                let path = entry.path().map(|it| it.display().to_string()).unwrap_or_default();
                return Err(failed(&what, &format!("'{path}' would lie outside of it")));
            }
        }
        Ok(())
    })?;
    interpreter_in(&folder)
}

/// Bytes that an archive of `size` bytes may unpack to. Libraries shrink to a half or a tenth, and
/// nothing but a bomb to a thousandth.
fn most_unpacked(size: u64) -> u64 {
    const MOST_TIMES: u64 = 64;
    const ALWAYS_ALLOWED_BYTES: u64 = 1 << 30;
    size.saturating_mul(MOST_TIMES).max(ALWAYS_ALLOWED_BYTES)
}

/// What an entry takes goes from `left`; also of a sparse one, whose holes would be written.
fn check_entry(entry: &tar::Entry<'_, impl io::Read>, left: &mut u64) -> Result<(), String> {
    let kind = entry.header().entry_type();
    let name = || String::from_utf8_lossy(&entry.path_bytes()).escape_debug().to_string();
    if kind.is_block_special() || kind.is_character_special() || kind.is_fifo() {
        return Err(format!("'{}' is a device or a pipe", name()));
    }
    *left = left
        .checked_sub(entry.size())
        .ok_or_else(|| format!("with '{}' it is too large for the size it has packed", name()))?;
    Ok(())
}

/// The interpreter of an environment with numpy and `requirements`, made on first use.
fn provide(
    choice: &InterpreterChoice<'_>,
    base: &Path,
    requirements: &str,
    file: Option<&Path>,
) -> Result<PathBuf> {
    let about = probe(choice, base)?;
    let key = key(&[&about, &requirements]);
    let folder = cache(choice.settings)?.join("environments").join(key);
    let python = folder.join("bin/python");
    once(&folder, || {
        let numpy = (!pins_numpy(requirements)).then_some("numpy");
        let listed = file.map(|it| it.display().to_string());
        let needs: Vec<&str> = numpy.into_iter().chain(listed.as_deref()).collect();
        let needs = needs.join(" and ");
        let what = format!("{} for model '{}' ({needs})", folder.display(), choice.files.name);
        let asked = numpy.map(OsStr::new).into_iter();
        let asked = asked.chain(file.into_iter().flat_map(|it| [OsStr::new("-r"), it.as_os_str()]));
        let asked: Vec<&OsStr> = asked.collect();
        logged("Python environment", &what, || make(base, &folder, &python, &asked))
    })?;
    Ok(python)
}

/// Do the requirements name numpy, whatever the platform? Then pip's texts are about their version,
/// not about ours beside it.
fn pins_numpy(requirements: &str) -> bool {
    requirements.lines().any(|line| {
        let line = line.split(" #").next().unwrap_or_default();
        let is_name = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '_' | '.');
        let line = line.trim_start();
        let name = line.split(|it| !is_name(it)).next().unwrap_or_default();
        name.eq_ignore_ascii_case("numpy") && !line.contains(';')
    })
}

/// Installs what is asked for with the base's pip if it can install elsewhere (22.3), else with one
/// of its own.
fn make(base: &Path, folder: &Path, python: &Path, asked: &[&OsStr]) -> Result<()> {
    let venv = |more: &[&str]| {
        let mut command = Command::new(base);
        command.args(["-m", "venv", "--system-site-packages"]).args(more).arg(folder);
        run(command)
    };
    let packages = |command: &mut Command| {
        command.args(["install", "--quiet", "--progress-bar=off", "--no-input"]);
        command.arg("--disable-pip-version-check").args(asked);
    };
    venv(&["--without-pip"])?;
    let mut pip = Command::new(base);
    pip.args(["-m", "pip", "--python"]).arg(python);
    packages(&mut pip);
    let Err(first) = run(pip) else { return Ok(()) };
    if !first.to_string().contains(NO_PIP) && !first.to_string().contains("no such option") {
        return Err(first);
    }
    venv(&["--upgrade-deps"]).or_else(|_| venv(&[]))?;
    let mut pip = Command::new(python);
    pip.args(["-m", "pip"]);
    packages(&mut pip);
    run(pip)
}

/// Version and place of an interpreter, which decide what can be installed for it.
fn probe(choice: &InterpreterChoice<'_>, base: &Path) -> Result<String> {
    match choice.servers.acquire(base) {
        Err(NoForkServer::NoNumpy(InterpreterInfo { version, prefix, .. })) => {
            Ok(version + &prefix)
        }
        Err(NoForkServer::Broken(error)) => Err(error),
        Ok(server) => Ok(server.info.version.clone() + &server.info.prefix),
    }
}

#[cfg(test)]
mod tests {
    use super::pins_numpy;

    #[test]
    fn numpy_is_asked_for_unless_the_requirements_do() {
        for (requirements, expected) in [
            ("", false),
            ("numpy", true),
            ("scipy\n NumPy==99.1  # new\n", true),
            ("numpy[extra] @ https://example.com/numpy.whl", true),
            ("numpydoc\nnumpy-stl==3\n# numpy==1", false),
            ("numpy==1.26; python_version < '3.12'", false),
            ("-r numpy.txt", false),
        ] {
            assert_eq!(pins_numpy(requirements), expected, "{requirements}");
        }
    }
}
