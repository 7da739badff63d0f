//! The repository from its door: scripts of loads and unloads, and what the index says after each.

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
    Mode, Overrides, Repository, Settings, State, Summary,
    control::start_with,
    definition::{Content, Definition},
    load::{self, Open},
};
use crate::{
    config::Draft,
    ensemble,
    error::{Error, Result},
    model::{Infer, Model, Parts},
    request::{Reply, Request},
};

/// A repository in a folder of its own, whose models open as their configs say.
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

impl Open for Fake {
    fn single(
        &self,
        definition: Arc<Definition>,
        version: i64,
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
            Ok(Arc::new(Model::new(load::parts(Arc::new(config), version), Arc::new(Silent))))
        })
    }

    fn ensemble(&self, parts: Parts) -> LocalBoxFuture<'static, Result<Arc<Model>, Vec<String>>> {
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
            mode: Mode::Explicit,
            scratch: self.folder.join("scratch"),
            ..Settings::default()
        }
    }

    async fn start(&mut self, settings: Settings) -> Summary {
        let (opened, gate, waiting) =
            (self.opened.clone(), self.gate.clone(), self.waiting.clone());
        let started = start_with(Arc::new(settings), Box::new(Fake { opened, gate, waiting }));
        self.repository = Some(started.repository);
        started.initial.await
    }

    fn models(&self) -> PathBuf {
        self.folder.join("models")
    }

    /// `m`, `m fail` (parameters), `m dims=2`, `e: a b/2` (a chain), `m /2` (has that version).
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
                    (State::Ready, _) => "+",
                    (State::Loading, _) => "?",
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
        let mut text = tensors("4") + "platform: \"ensemble\"\nensemble_scheduling {\n";
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
    let mut text = "backend: \"fake\"\n".to_owned();
    let mut dims = "4";
    for word in words {
        match word.split_once('=') {
            Some(("dims", value)) => dims = value,
            _ if word.starts_with('/') => text += "version_policy { all {} }\n# ",
            Some(("policy", value)) => text += &format!("version_policy {{ {value} }}\n"),
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

/// Runs each line of a script in explicit mode, and compares answer and index.
async fn check(name: &str, models: &[&str], script: &[(&str, &str, &str)]) {
    let mut fixture = Fixture::new(name, models);
    let settings = fixture.settings();
    assert_eq!(fixture.start(settings).await, Summary::default());
    for (line, answer, index) in script {
        let found = fixture.act(line).await;
        assert_eq!((&*found, &*fixture.index()), (*answer, *index), "{name}: {line}");
    }
}

const MODELS: &[&str] = &["a", "b", "c", "e: a b"];

#[actix::test]
async fn loading_an_ensemble_loads_its_steps() {
    check("implicit", MODELS, &[("load e", "ok", "+a +b +e"), ("load e", "ok", "+a +b +e")]).await;
}

#[actix::test]
async fn an_ensemble_goes_down_with_its_step_and_comes_back_with_it() {
    check(
        "down-and-up",
        &["a", "b", "e: a b", "outer: e b"],
        &[
            ("load outer", "ok", "+a +b +e +outer"),
            ("unload a", "ok", "-a +b !e !outer"),
            ("load a", "ok", "+a +b +e +outer"),
            ("unload outer", "ok", "+a +b +e -outer"),
            ("unload e", "ok", "+a +b -e -outer"),
            ("unload a", "ok", "-a +b -e -outer"),
            ("load a", "ok", "+a +b -e -outer"),
        ],
    )
    .await;
}

#[actix::test]
async fn only_implicitly_loaded_steps_are_unloaded_with_their_ensemble() {
    check(
        "dependents",
        &["a", "b", "c", "e: a b", "f: b c"],
        &[
            ("load a", "ok", "+a"),
            ("load e", "ok", "+a +b +e"),
            ("load f", "ok", "+a +b +c +e +f"),
            ("unload all f", "ok", "+a +b -c +e -f"),
            ("unload all e", "ok", "+a -b -c -e -f"),
            ("unload nothing", "ok", "+a -b -c -e -f"),
        ],
    )
    .await;
}

#[actix::test]
async fn a_failed_reload_keeps_the_old_one_serving() {
    let failed = "version 1 is at UNAVAILABLE state: it raised;\n";
    check("reload", MODELS, &[
        ("load e", "ok", "+a +b +e"),
        ("write a fail", "ok", "+a +b +e"),
        ("load a", &format!("load failed for model 'a': {failed}"), "+a +b +e"),
        ("load e", "ok", "+a +b +e"),
        ("unload a", "ok", "-a +b !e"),
        ("load a", &format!("load failed for model 'a': {failed}"), "!a +b !e"),
        (
            "load e",
            "load failed for model 'e': ensemble 'e' depends on 'a' which has no loaded version. \
             Model 'a' loading failed with error: version 1 is at UNAVAILABLE state: it raised; \
             (/models/e/config.pbtxt:5:20)\n",
            "!a +b !e",
        ),
        ("write a", "ok", "!a +b !e"),
        ("load a", "ok", "+a +b +e"),
        ("write e: a c", "ok", "+a +b +e"),
        ("remove c", "ok", "+a +b +e"),
        (
            "load e",
            "load failed for model 'e': ensemble e contains models that are not available or \
             ambiguous: c (/models/e/config.pbtxt:6:20)\n",
            "+a +b +e",
        ),
    ])
    .await;
}

#[actix::test]
async fn a_step_that_changed_is_checked_against_its_ensembles_again() {
    check(
        "recheck",
        MODELS,
        &[
            ("load e", "ok", "+a +b +e"),
            ("write a dims=2,2", "ok", "+a +b +e"),
            ("load a", "ok", "+a +b !e"),
            ("write a", "ok", "+a +b !e"),
            ("load a", "ok", "+a +b +e"),
        ],
    )
    .await;
}

#[actix::test]
async fn versions_come_and_go_by_policy() {
    let none = "at least one version must be available under the version policy of model 'm'";
    check("versions", &["m /1 /3 /03", "n /7", "e: m/1", "f: m/2"], &[
        ("load m", "ok", "+m +m/3"),
        ("load e", "ok", "+e +m +m/3"),
        (
            "load f",
            "load failed for model 'f': ensemble 'f' depends on 'm' whose required version 2 is \
             not loaded. (/models/f/config.pbtxt:5:20)\n",
            "+e !f +m +m/3",
        ),
        ("write m /2", "ok", "+e !f +m +m/3"),
        ("load m", "ok", "+e +f +m +m/2 +m/3"),
        ("remove m/1", "ok", "+e +f +m +m/2 +m/3"),
        ("load m", "ok", "!e +f -m +m/2 +m/3"),
        ("write n policy=specific{versions:[1]}", "ok", "!e +f -m +m/2 +m/3"),
        ("remove n/1", "ok", "!e +f -m +m/2 +m/3"),
        (
            "load n",
            &format!("load failed for model 'n': {}\n", none.replace("'m'", "'n'")),
            "!e +f -m +m/2 +m/3 !n",
        ),
        ("unload n", "ok", "!e +f -m +m/2 +m/3"),
    ])
    .await;
}

#[actix::test]
async fn names_and_missing_models_are_refused() {
    let empty = "Model name cannot be empty. Please enter a valid name to deploy.";
    let dots = "invalid model name '../a', model name must not contain path traversal characters";
    check(
        "names",
        MODELS,
        &[
            ("load  ", empty, ""),
            ("load ../a", dots, ""),
            ("unload ../a", dots, ""),
            ("load nope", "failed to load 'nope', failed to poll from model repository", ""),
            ("load a", "ok", "+a"),
            ("remove a", "ok", "+a"),
            ("load a", "failed to load 'a', failed to poll from model repository", "+a"),
            ("unload a", "ok", "-a"),
        ],
    )
    .await;
}

#[actix::test]
async fn rings_are_told_to_each_of_their_ensembles() {
    let ring = "circular dependency between ensembles: p -> ... -> q -> p";
    check(
        "rings",
        &["a", "p: q a", "q: p", "over: p"],
        &[(
            "load over",
            &format!(
                "load failed for model 'over': ensemble 'over' depends on 'p' which is not valid. \
             Model 'p' failed with error: {ring} (/models/over/config.pbtxt:5:20)\n"
            ),
            "+a !over !p !q",
        )],
    )
    .await;
}

#[actix::test]
async fn an_unchanged_model_is_not_loaded_again() {
    let mut fixture = Fixture::new("unchanged", MODELS);
    let settings = Settings { mode: Mode::None, ..fixture.settings() };
    let summary = fixture.start(settings).await;
    assert_eq!(summary.problems, [""; 0]);
    let text = "explicit model load / unload is not allowed if polling is enabled";
    assert_eq!(fixture.act("load a").await, text);
    assert_eq!(fixture.act("unload a").await, text);

    let settings = Settings { load_models: vec!["e".into()], ..fixture.settings() };
    fixture.opened.store(0, Ordering::Relaxed);
    fixture.start(settings).await;
    for (line, opened) in [
        ("load e", 3),
        ("load a", 3),
        ("write a dims=-1", 3),
        // The step and its ensemble.
        ("load a", 5),
        ("load e", 5),
        ("write b /2", 5),
        ("load b", 8),
    ] {
        assert_eq!(fixture.act(line).await, "ok");
        assert_eq!(fixture.opened.load(Ordering::Relaxed), opened, "{line}");
    }
}
