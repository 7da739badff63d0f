//! The places an ONNX Runtime library may be at: named, a Python package, the system, our cache.

use std::{
    env::consts::{ARCH, DLL_PREFIX, DLL_SUFFIX, OS},
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::provision::{NO_PIP, base, cache, key, logged, once, run};
use troupe_base::{
    backend::Settings,
    error::{Error, Result},
};

/// Where the wheel has the library, in the package's folder.
const IN_PACKAGE: &str = "capi";
/// Finds the package without running it; what lies in the working folder is no package.
const FIND: &str = "
import importlib.util, json, sys
sys.path[:] = [it for it in sys.path if it]
found = importlib.util.find_spec('onnxruntime')
print(json.dumps(list(found.submodule_search_locations or []) if found else []))
";

/// A library file, the one in a folder, or a bare name that the system resolves.
pub(super) fn named(path: &Path) -> Result<PathBuf, String> {
    if path.is_dir() {
        let found = ["", "lib", IN_PACKAGE].iter().find_map(|it| newest(&path.join(it)));
        return found.ok_or_else(|| {
            let path = path.display();
            format!("no {DLL_PREFIX}onnxruntime{DLL_SUFFIX} in '{path}', its lib or its capi")
        });
    }
    if path.is_file() {
        return std::path::absolute(path).map_err(|it| format!("'{}': {it}", path.display()));
    }
    if path.components().count() == 1 {
        return Ok(path.to_owned());
    }
    Err(format!("'{}' does not exist", path.display()))
}

/// In the package `onnxruntime` of the server's Python.
pub(super) fn package(settings: &Settings) -> Result<Vec<PathBuf>, String> {
    let base = base(settings);
    let python = base.display();
    let found = Command::new(&base).args(["-c", FIND]).output();
    let found = found.map_err(|error| format!("`{python}` cannot be run: {error}"))?;
    let folders = folders(&found).map_err(|it| format!("`{python}` cannot be asked: {it}"))?;
    let Some(folder) = folders.first() else {
        return Err(format!("`{python}` has no package onnxruntime"));
    };
    let library = folders.iter().find_map(|it| newest(&it.join(IN_PACKAGE)));
    library
        .map(|it| vec![it])
        .ok_or_else(|| format!("the package onnxruntime in '{}' has no library", folder.display()))
}

/// The last line is ours: start files of Python may have printed others.
fn folders(found: &Output) -> Result<Vec<PathBuf>, String> {
    let (output, errors) =
        (String::from_utf8_lossy(&found.stdout), String::from_utf8_lossy(&found.stderr));
    let last = |it: &str| it.lines().last().unwrap_or_default().to_owned();
    if !found.status.success() {
        return Err(format!("{}: {}", found.status, last(&errors)));
    }
    serde_json::from_str(&last(&output)).map_err(|error| error.to_string())
}

/// What the system finds by name, then other versions it knows.
pub(super) fn system(_: &Settings) -> Result<Vec<PathBuf>, String> {
    let plain = format!("{DLL_PREFIX}onnxruntime{DLL_SUFFIX}");
    let mut found = vec![PathBuf::from(&plain)];
    if cfg!(target_os = "linux") {
        found.insert(0, format!("{plain}.1").into());
    }
    // Users often have no /sbin in their path; without ldconfig there is no cache either.
    let listed = ["ldconfig", "/sbin/ldconfig"]
        .iter()
        .find_map(|it| Command::new(it).arg("-p").output().ok())
        .map_or_else(Vec::new, |it| it.stdout);
    found.extend(in_cache(&String::from_utf8_lossy(&listed)));
    Ok(found)
}

/// The libraries in the listing of ldconfig, which has `name (kind) => path` on its lines.
fn in_cache(listing: &str) -> Vec<PathBuf> {
    let entries = listing.lines().filter_map(|it| it.split_once(" => "));
    let paths = entries.map(|(_, path)| PathBuf::from(path.trim()));
    paths.filter(|it| version(it).is_some()).collect()
}

/// In our cache; pip fetches it when it is not there. Waits for other servers that do the same.
pub(super) fn fetched(settings: &Settings, model: &str, requirement: &str) -> Result<PathBuf> {
    let folder = cache(settings)?.join("onnxruntime").join(key(&[&requirement, &OS, &ARCH]));
    let library = || {
        newest(&folder.join("onnxruntime").join(IN_PACKAGE)).ok_or_else(|| {
            Error::internal(format!("pip put no ONNX Runtime library into '{}'", folder.display()))
        })
    };
    once(&folder, || {
        let about = format!("{} for model '{model}' ({requirement})", folder.display());
        logged("ONNX Runtime environment", &about, || {
            install(&base(settings), &folder, requirement)?;
            library().map(drop)
        })
    })?;
    library()
}

/// With the base's pip, else with that of a virtual environment.
fn install(base: &Path, folder: &Path, requirement: &str) -> Result<()> {
    let Err(first) = run(pip(base, folder, requirement)) else { return Ok(()) };
    if !first.to_string().contains(NO_PIP) {
        return Err(first);
    }
    let own = folder.join("pip");
    let mut venv = Command::new(base);
    venv.args(["-m", "venv"]).arg(&own);
    run(venv)?;
    run(pip(&own.join("bin/python"), folder, requirement))?;
    // It has served; left behind it only takes room.
    let _ = fs::remove_dir_all(own);
    Ok(())
}

/// The library alone: what the package needs to be imported is left out.
fn pip(python: &Path, folder: &Path, requirement: &str) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--progress-bar=off", "--no-input"]);
    pip.arg("--disable-pip-version-check");
    pip.args(["--no-deps", "--no-compile", "--only-binary=:all:", requirement]);
    pip.arg("--target").arg(folder);
    // Settings of the user that contradict a folder of our own.
    pip.envs([("PIP_USER", "0"), ("PIP_REQUIRE_VIRTUALENV", "0")]);
    pip
}

/// The library with the highest version in a folder.
fn newest(folder: &Path) -> Option<PathBuf> {
    let folder = std::path::absolute(folder).ok()?;
    let paths = fs::read_dir(folder).ok()?.filter_map(|it| Some(it.ok()?.path()));
    paths.filter_map(|it| Some((version(&it)?, it))).max().map(|(_, path)| path)
}

/// The numbers in `libonnxruntime.so.1.31.1`, or of the name a Mac has; `None` for another name.
fn version(path: &Path) -> Option<Vec<u32>> {
    let name = path.file_name()?.to_str()?.strip_prefix("libonnxruntime")?;
    let numbers = name.strip_prefix(".so").or_else(|| name.strip_suffix(".dylib"))?;
    numbers.split('.').skip(1).map(|it| it.parse().ok()).collect()
}

#[cfg(test)]
mod tests;
