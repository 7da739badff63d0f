//! The order of places, and what is said when none has a library.

use std::{fs, process::Command};

use super::*;

/// A virtual environment that holds what a test puts there, and a cache; removed in the end.
struct Machine {
    home: PathBuf,
    options: Vec<(&'static str, &'static str, PathBuf)>,
    variable: Option<PathBuf>,
    provision: bool,
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.home);
    }
}

/// Writes a library that starts where pip is told to.
const PIP_WORKS: &str = "
import os, sys
folder = sys.argv[sys.argv.index('--target') + 1] + '/onnxruntime/capi'
os.makedirs(folder)
open(folder + '/libonnxruntime.so.1.31.1', 'w').write('fetched')
";
const PIP_FAILS: &str = "raise SystemExit('no network here')";

impl Machine {
    fn new(name: &str) -> Machine {
        let home = std::env::temp_dir().join(format!("troupe-onnx-{name}-{}", std::process::id()));
        let venv = home.join("venv");
        let made =
            Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&venv).output();
        assert!(made.unwrap().status.success());
        let options = vec![
            ("python", "python", venv.join("bin/python3")),
            ("python", "cache", home.join("cache")),
        ];
        Machine { home, options, variable: None, provision: true }
    }

    /// A library, which starts if it is not `broken`.
    fn library(&self, contents: &str) -> PathBuf {
        let path = self.home.join(format!("{contents}.so"));
        fs::write(&path, contents).unwrap();
        path
    }

    fn package(&self, path: &str, contents: &str) {
        let mut folders = fs::read_dir(self.home.join("venv/lib")).unwrap();
        let packages = folders.next().unwrap().unwrap().path().join("site-packages");
        let path = packages.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }

    fn wheel(&self, contents: &str) {
        self.package("onnxruntime/__init__.py", "raise SystemExit('never run')");
        self.package("onnxruntime/capi/libonnxruntime.so.1.22.0", contents);
    }

    fn pip(&self, source: &str) {
        self.package("pip/__init__.py", "");
        self.package("pip/__main__.py", source);
    }

    /// What the library that was started holds.
    fn found(&self) -> Result<String, String> {
        let name = |backend: &str, key: &str| (backend.to_owned(), key.to_owned());
        let options = self.options.iter();
        let options = options.map(|(b, k, path)| (name(b, k), path.display().to_string()));
        let settings = Settings {
            options: options.collect(),
            provision: self.provision,
            ..Settings::default()
        };
        // What this machine has installed is nothing to the test.
        let start = |path: &Path| match path.strip_prefix(&self.home) {
            Ok(_) => match fs::read_to_string(path).unwrap().as_str() {
                "broken" => Err(format!("'{}' is broken", path.display())),
                contents => Ok(contents.to_owned()),
            },
            Err(_) => Err("not on this machine".to_owned()),
        };
        let search = Search { settings: &settings, variable: self.variable.clone(), start: &start };
        search.find("m").map_err(|error| error.to_string())
    }
}

#[test]
fn what_is_named_goes_before_what_is_found() {
    let mut machine = Machine::new("named");
    machine.wheel("wheel");
    assert_eq!(machine.found().unwrap(), "wheel");
    machine.variable = Some(machine.library("variable"));
    assert_eq!(machine.found().unwrap(), "variable");
    machine.options.push(("onnxruntime", "library", machine.library("setting")));
    assert_eq!(machine.found().unwrap(), "setting");
}

#[test]
fn what_is_named_and_does_not_start_is_an_error() {
    let mut machine = Machine::new("named-badly");
    machine.wheel("wheel");
    let broken = machine.library("broken");
    machine.variable = Some(broken.clone());
    let text = format!("ORT_DYLIB_PATH: '{}' is broken", broken.display());
    assert_eq!(machine.found().unwrap_err(), text);
    machine.options.push(("onnxruntime", "library", machine.home.join("none.so")));
    let text = machine.found().unwrap_err();
    assert!(text.starts_with("--backend-config=onnxruntime,library: '"), "{text}");
    assert!(text.ends_with("none.so' does not exist"), "{text}");
}

#[test]
fn a_library_is_fetched_once_if_there_is_none_that_starts() {
    let machine = Machine::new("fetched");
    machine.wheel("broken");
    machine.pip(PIP_WORKS);
    assert_eq!(machine.found().unwrap(), "fetched");
    machine.pip(PIP_FAILS);
    assert_eq!(machine.found().unwrap(), "fetched");
}

#[test]
fn a_failure_says_where_was_looked_and_what_to_do() {
    let mut machine = Machine::new("nothing");
    machine.pip(PIP_FAILS);
    let python = machine.home.join("venv/bin/python3").display().to_string();
    let text = machine.found().unwrap_err();
    for part in [
        "no ONNX Runtime library to run the model with: ",
        &format!("`{python}` has no package onnxruntime; not on this machine; "),
        "-m pip install --quiet --progress-bar=off --no-input",
        "no network here",
        &format!("run `{python} -m pip install 'onnxruntime>=1.20,<2'` or name one with"),
        "--backend-config=onnxruntime,library=PATH",
    ] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    machine.provision = false;
    machine.pip(PIP_WORKS);
    let text = machine.found().unwrap_err();
    assert!(text.contains("start without --provision=never, or name one"), "{text}");
    machine.options[0].2 = machine.home.join("no-python");
    let text = machine.found().unwrap_err();
    assert!(text.contains("no-python` cannot be run: "), "{text}");
}

#[test]
fn a_file_that_is_no_library_is_refused() {
    let path = std::env::temp_dir().join(format!("troupe-onnx-garbage-{}", std::process::id()));
    fs::write(&path, "garbage").unwrap();
    let text = start(&path).unwrap_err();
    assert!(text.starts_with(&format!("cannot load '{}': ", path.display())), "{text}");
    fs::remove_file(path).unwrap();
}
