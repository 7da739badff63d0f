//! A session of a reader: a folder like a fresh clone, a shell, and the server that they start.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use super::{
    blocks::{conversation, is_unfinished},
    compare::is_as_printed,
};
use crate::support::{Repository, eventually, http::Http, until, venv};

/// How long a model that was just saved may take to be loaded.
const SAVED_PATIENCE: Duration = Duration::from_secs(30);
/// The ports of documents, and of the server of this session.
const PORTS: [(&str, &str); 3] = [
    ("8000", "Started HTTPService at "),
    ("8001", "Started GRPCInferenceService at "),
    ("8002", "Started Metrics Service at "),
];

/// What a reader has.
pub(super) struct Session {
    /// Its folder goes with it.
    home: Repository,
    /// Where the next command runs.
    place: PathBuf,
    server: Option<Child>,
    /// Of the server, in the order of [`PORTS`].
    addresses: Vec<String>,
}

impl Session {
    pub(super) fn new() -> Session {
        let home = Repository::new();
        let place = home.beside("clone");
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        fs::create_dir_all(place.join("model_repository")).unwrap();
        symlink(source.join("pipelines"), place.join("pipelines")).unwrap();
        for model in fs::read_dir(source.join("model_repository")).unwrap().flatten() {
            let link = place.join("model_repository").join(model.file_name());
            symlink(model.path(), link).unwrap();
        }
        let session = Session { home, place, server: None, addresses: Vec::new() };
        session.write_programs();
        session
    }

    /// `troupe` asks the server of this session, and Python is the one with the clients.
    fn write_programs(&self) {
        let bin = self.home.beside("bin");
        fs::create_dir_all(&bin).unwrap();
        let (troupe, python) = (env!("CARGO_BIN_EXE_troupe"), venv::python().display().to_string());
        let own = format!("--backend-config=python,python={python}");
        let grpc = self.addresses.get(1).map_or("127.0.0.1:1", String::as_str);
        for (name, text) in [
            (
                "troupe",
                format!(
                    "case \"$1\" in\n  infer|bench|replay|models|reload) exec {troupe} \"$@\" --url \
                     {grpc} ;;\n  new|run-once) exec {troupe} \"$@\" {own} ;;\n  *) exec {troupe} \
                     \"$@\" ;;\nesac\n"
                ),
            ),
            ("python3", format!("exec {python} \"$@\"\n")),
            ("pytest", format!("exec {python} -m pytest \"$@\"\n")),
        ] {
            let path = bin.join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    /// Runs commands and compares their outputs.
    pub(super) fn console(&mut self, text: &str) -> Result<(), String> {
        let mut wrong = Vec::new();
        for (command, printed) in conversation(text) {
            let (_, output) = self.run(&command)?;
            // A block may show a command and leave its output out.
            let is_told = !printed.trim().is_empty();
            // A model that was just saved may not be loaded yet.
            let mut last = output;
            if is_told && !is_as_printed(&printed, &last) && self.server.is_some() {
                let begun = Instant::now();
                while begun.elapsed() < SAVED_PATIENCE {
                    last = self.run(&command)?.1;
                    if is_as_printed(&printed, &last) {
                        break;
                    }
                }
            }
            if is_told && !is_as_printed(&printed, &last) {
                wrong.push(format!("$ {command}\nprints\n{last}\nand not\n{printed}"));
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    }

    /// Runs commands, which must succeed.
    pub(super) fn commands(&mut self, text: &str) -> Result<(), String> {
        let mut command = String::new();
        for line in text.lines() {
            command += line;
            let open_braces = command.matches('{').count() != command.matches('}').count();
            if is_unfinished(&command) || (open_braces && !command.contains('\'')) {
                command.push('\n');
                continue;
            }
            let (is_good, output) = self.run(&command)?;
            if !is_good {
                return Err(format!("{command}\nfails:\n{output}"));
            }
            command.clear();
        }
        Ok(())
    }

    /// Runs a program, and compares what it prints with what stands behind its prints.
    pub(super) fn python(&mut self, text: &str) -> Result<(), String> {
        let file = self.home.beside("program.py");
        fs::write(&file, self.with_ports(text)).unwrap();
        let (is_good, output) = self.run(&format!("python3 {}", file.display()))?;
        let printed = text.lines().filter_map(|line| line.split_once(")  # "));
        let printed: Vec<&str> = printed.map(|(_, printed)| printed).collect();
        match is_good && is_as_printed(&printed.join("\n"), &output) {
            true => Ok(()),
            false => Err(format!("prints\n{output}")),
        }
    }

    /// Writes a file below the reader's folder.
    pub(super) fn file(&mut self, path: &str, text: &str) -> Result<(), String> {
        let path = self.place.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Whether it succeeds, and what it prints.
    fn run(&mut self, command: &str) -> Result<(bool, String), String> {
        let command = command.replace("target/release/troupe", "troupe");
        let command = command.replace("cargo run --release -- ", "troupe ");
        let command = command.replace("cargo run --release", "troupe");
        let words: Vec<&str> = command.split_whitespace().collect();
        if words[0] == "troupe" && words.get(1).is_none_or(|it| it.starts_with(['-', '#'])) {
            self.serve(
                words[1..].iter().map(|it| it.trim_matches('\'')).take_while(|it| *it != "#"),
            );
            return Ok((true, String::new()));
        }
        let asks = ["localhost:", "troupe infer", "troupe models", "troupe reload"];
        if self.server.is_none() && asks.iter().any(|it| command.contains(it)) {
            // The reader of a page of reference has one running.
            self.serve(std::iter::empty());
        }
        println!("$ {command}");
        let place = self.home.beside("place");
        let script = format!(
            "{}\ncode=$?\npwd > {}\nexit $code",
            self.with_ports(&command),
            place.display()
        );
        let path =
            format!("{}:{}", self.home.beside("bin").display(), std::env::var("PATH").unwrap());
        let output = Command::new("bash")
            .args(["-c", &script])
            .current_dir(&self.place)
            .env("PATH", path)
            .env("HOME", self.home.beside(""))
            .env("TROUPE", env!("CARGO_MANIFEST_DIR"))
            .env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/src/python"))
            .env("ORT_DYLIB_PATH", venv::onnxruntime())
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{command}: {error}"))?;
        if let Ok(moved) = fs::read_to_string(&place) {
            self.place = moved.trim().into();
        }
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        // `curl` tells its progress there.
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if words[0] != "curl" {
            text += &errors;
        }
        for ((port, _), address) in PORTS.iter().zip(&self.addresses) {
            text = text.replace(address, &format!("localhost:{port}"));
        }
        Ok((output.status.success(), text))
    }

    fn with_ports(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for ((port, _), address) in PORTS.iter().zip(&self.addresses) {
            text = text.replace(&format!("localhost:{port}"), address);
        }
        text
    }

    /// Starts the server, in place of the one that runs.
    fn serve<'a>(&mut self, flags: impl Iterator<Item = &'a str>) {
        self.stop();
        let file = fs::File::create(self.home.beside("log")).unwrap();
        let python = format!("--backend-config=python,python={}", venv::python().display());
        let child = Command::new(env!("CARGO_BIN_EXE_troupe"))
            .args(flags)
            .args(["--http-port=0", "--grpc-port=0", "--metrics-port=0", &python])
            .args(["--http-address=127.0.0.1", "--grpc-address=127.0.0.1"])
            .current_dir(&self.place)
            .env("ORT_DYLIB_PATH", venv::onnxruntime())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .unwrap();
        self.server = Some(child);
        let address = |after: &str| {
            eventually(&format!("`{after}` in the log"), || {
                let log = self.log();
                let rest = log.split_once(after)?.1;
                Some(rest.split([' ', '"', '\n']).next()?.to_owned())
            })
        };
        let mut addresses: Vec<String> = PORTS.iter().map(|(_, after)| address(after)).collect();
        for address in &mut addresses {
            *address = address.replace("0.0.0.0", "127.0.0.1");
        }
        let http = Http(addresses[0].parse().unwrap());
        self.addresses = addresses;
        self.write_programs();
        until("the server to have tried its models", || self.log().contains("server_id"));
        until("the server to be live", || http.get("/v2/health/live").status == 200);
    }

    /// What the server has logged.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.home.beside("log")).unwrap_or_default()
    }

    fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop();
    }
}
