//! A repository in a folder of its own, whose models open as their configs say.

mod check;
mod scripts;
mod start;
mod storm;

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures_util::future::LocalBoxFuture;
use tokio::sync::Notify;

use super::{
    ControlMode, Overrides, Repository, Settings, Summary, VersionState,
    disk::definition::{Content, Definition},
    operation::open::{ModelPlace, OpenModel, parts},
    start::start_with,
};
use troupe_base::{
    config::Draft,
    error::{Error, Result},
    model::{Infer, Model, ModelParts},
    request::{Reply, Request},
};
use troupe_engine::ensemble;

struct Fixture {
    folder: PathBuf,
    repository: Option<Repository>,
    opened: Arc<AtomicUsize>,
    gate: Arc<Notify>,
    waiting: Arc<Notify>,
}

/// Opens nothing. `fail` in the parameters is the error, `gate` waits for the test.
struct Fake {
    opened: Arc<AtomicUsize>,
    gate: Arc<Notify>,
    waiting: Arc<Notify>,
}

struct Silent;

impl Infer for Silent {
    fn infer(&self, _: Request, _: Reply) {}
}

impl OpenModel for Fake {
    fn single(
        &self,
        definition: Arc<Definition>,
        version: i64,
        _: ModelPlace,
    ) -> LocalBoxFuture<'static, Result<Arc<Model>>> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let (gate, waiting) = (self.gate.clone(), self.waiting.clone());
        Box::pin(async move {
            let Content::Single(draft) = &definition.content else { panic!("no ensemble") };
            let config = Draft::clone(draft).finish(&Default::default()).unwrap();
            if let Some(error) = config.parameters.get("fail") {
                return Err(Error::internal(error.as_str()));
            }
            if config.parameters.contains_key("gate") {
                waiting.notify_one();
                gate.notified().await;
            }
            Ok(Arc::new(Model::new(parts(Arc::new(config), version), Arc::new(Silent))))
        })
    }

    fn ensemble(
        &self,
        _: Arc<Definition>,
        parts: ModelParts,
        _: Option<Arc<str>>,
    ) -> LocalBoxFuture<'static, Result<Arc<Model>, Vec<String>>> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let configs: Vec<_> = parts.steps.iter().map(|it| Some(&*it.config)).collect();
        let ensemble = parts.config.ensemble.as_ref().unwrap();
        let found = ensemble::check(&parts.config, ensemble, &configs);
        let found: Vec<_> = found.into_iter().map(|it| it.text).collect();
        let model = if found.is_empty() {
            Ok(Arc::new(Model::new(parts, Arc::new(Silent))))
        } else {
            Err(found)
        };
        Box::pin(async move { model })
    }
}

impl Fixture {
    /// One model or ensemble per line, as `write` takes it.
    fn new(name: &str, models: &[&str]) -> Fixture {
        let folder = std::env::temp_dir().join(format!("troupe-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("scratch")).unwrap();
        fs::create_dir_all(folder.join("models")).unwrap();
        let fixture = Fixture {
            folder,
            repository: None,
            opened: Arc::default(),
            gate: Arc::default(),
            waiting: Arc::default(),
        };
        models.iter().for_each(|it| fixture.write(it));
        fixture
    }

    fn settings(&self) -> Settings {
        Settings {
            repositories: vec![self.folder.join("models")],
            mode: ControlMode::Explicit,
            scratch: self.folder.join("scratch"),
            ..Settings::default()
        }
    }

    async fn start(&mut self, settings: Settings) -> Summary {
        let (opened, gate, waiting) =
            (self.opened.clone(), self.gate.clone(), self.waiting.clone());
        let started = start_with(settings, |_| Box::new(Fake { opened, gate, waiting }));
        self.repository = Some(started.repository);
        started.initial.await
    }

    fn models(&self) -> PathBuf {
        self.folder.join("models")
    }

    /// `m`, `m fail` (parameters), `m dims=2`, `e: a b/2` (a chain), `e dims=2: a`, `m /2` (has that
    /// version).
    fn write(&self, line: &str) {
        let (name, text) = config(line);
        let folder = self.models().join(name);
        let versions = line.split(' ').filter_map(|it| it.strip_prefix('/'));
        let versions: Vec<_> = versions.collect();
        for version in if versions.is_empty() { vec!["1"] } else { versions } {
            fs::create_dir_all(folder.join(version)).unwrap();
        }
        fs::write(folder.join("config.pbtxt"), text).unwrap();
    }

    /// `load m`, `unload m`, `unload all m`, `write …`, `remove m`; answers `ok` or the error.
    async fn act(&self, line: &str) -> String {
        let control = &self.repository.as_ref().unwrap().control;
        let (verb, rest) = line.split_once(' ').unwrap();
        let result = match (verb, rest.strip_prefix("all ")) {
            ("load", _) => control.load(rest.into(), Overrides::default()).await,
            ("unload", Some(name)) => control.unload(name.into(), true).await,
            ("unload", None) => control.unload(rest.into(), false).await,
            ("write", _) => {
                self.write(rest);
                Ok(())
            }
            ("remove", _) => {
                fs::remove_dir_all(self.models().join(rest)).unwrap();
                Ok(())
            }
            _ => panic!("{line}"),
        };
        result.map_or_else(
            |it| it.to_string().replace(self.folder.to_str().unwrap(), ""),
            |()| "ok".into(),
        )
    }

    /// `+m` is ready, `-m` was unloaded, `!m` failed; versions but the first after a slash.
    fn index(&self) -> String {
        let catalog = self.repository.as_ref().unwrap().catalog.load();
        let mut words = Vec::new();
        for (name, entry) in &catalog.entries {
            if !entry.reason.is_empty() {
                words.push(format!("!{name}"));
            }
            for (number, version) in &entry.versions {
                let sign = match (version.state, version.reason.as_str()) {
                    (VersionState::Ready, _) => "+",
                    (VersionState::Loading, _) => "?",
                    (_, "unloaded") => "-",
                    _ => "!",
                };
                let number = if *number == 1 { String::new() } else { format!("/{number}") };
                words.push(format!("{sign}{name}{number}"));
            }
        }
        words.join(" ")
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn config(line: &str) -> (&str, String) {
    let tensors = |dims: &str| {
        let one = |kind, name| {
            format!("{kind} {{ name: \"{name}\" data_type: TYPE_FP32 dims: [ {dims} ] }}\n")
        };
        one("input", "X") + &one("output", "Y")
    };
    if let Some((name, steps)) = line.split_once(':') {
        let (name, dims) = name.split_once(" dims=").unwrap_or((name, "4"));
        let mut text = tensors(dims) + "platform: \"ensemble\"\nensemble_scheduling {\n";
        let steps: Vec<_> = steps.split_whitespace().collect();
        for (index, step) in steps.iter().enumerate() {
            let (model, version) = step.split_once('/').unwrap_or((step, "-1"));
            let from = if index == 0 { "X".to_owned() } else { format!("t{index}") };
            let last = index + 1 == steps.len();
            let to = if last { "Y".to_owned() } else { format!("t{}", index + 1) };
            text += &format!(
                "step {{ model_name: \"{model}\" model_version: {version} \
                 input_map {{ key: \"X\" value: \"{from}\" }} \
                 output_map {{ key: \"Y\" value: \"{to}\" }} }}\n"
            );
        }
        return (name, text + "}\n");
    }
    let mut words = line.split(' ');
    let name = words.next().unwrap();
    let native = if line.contains("backend=native") { "native" } else { "fake" };
    let mut text = format!("backend: \"{native}\"\n");
    let mut dims = "4";
    if line.contains(" /") {
        text += "version_policy { all {} }\n";
    }
    for word in words {
        match word.split_once('=') {
            Some(("dims", value)) => dims = value,
            Some(("specific", it)) => {
                text += &format!("version_policy {{ specific {{ versions: [ {it} ] }} }}\n");
            }
            _ => (),
        }
        text += &format!("# {word}\n");
        if matches!(word, "fail" | "gate") {
            let error = "it raised";
            text += &format!(
                "parameters {{ key: \"{word}\" value {{ string_value: \"{error}\" }} }}\n"
            );
        }
    }
    (name, text + &tensors(dims))
}
