//! Scripts of loads and unloads, and what the index says after each.

use std::sync::atomic::Ordering;

use super::{ControlMode, Fixture, Settings, Summary};

/// Runs each line of a script in explicit mode, and compares answer and index.
async fn check(name: &str, models: &[&str], script: &[(&str, &str, &str)]) {
    let mut fixture = Fixture::new(name, models);
    let settings = fixture.settings();
    assert_eq!(fixture.start(settings).await, Summary { is_ok: true, ..Summary::default() });
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
        (
            "load e",
            "load failed for model 'e': 'a', which it runs, was not loaded: version 1 is at \
             UNAVAILABLE state: it raised;. What was loaded before serves on\n",
            "+a +b +e",
        ),
        ("unload a", "ok", "-a +b !e"),
        ("load a", &format!("load failed for model 'a': {failed}"), "!a +b !e"),
        (
            "load e",
            "load failed for model 'e': ensemble 'e' depends on 'a' which has no loaded version. \
             Model 'a' loading failed with error: version 1 is at UNAVAILABLE state: it raised; \
             (/models/e/config.pbtxt:5:8)\n",
            "!a +b !e",
        ),
        ("write a", "ok", "!a +b !e"),
        ("load a", "ok", "+a +b +e"),
        ("write e: a c", "ok", "+a +b +e"),
        ("remove c", "ok", "+a +b +e"),
        (
            "load e",
            "load failed for model 'e': ensemble e contains models that are not available or \
             ambiguous: c (/models/e/config.pbtxt:6:8)\n",
            "+a +b +e",
        ),
    ])
    .await;
}

/// The answer to a load of `model` that `ensemble`, which runs it, forbids.
fn unfit(model: &str, ensemble: &str, why: &str) -> String {
    format!(
        "load failed for model '{model}': ensemble '{ensemble}', which serves, would not work with \
         it: {why}. Change '{ensemble}' or its other models to fit and load '{ensemble}', which also \
         loads those; or unload it first. What was loaded before serves on\n"
    )
}

#[actix::test]
async fn a_step_is_not_replaced_by_one_that_its_ensembles_could_not_run() {
    let why = "in ensemble e, ensemble tensor X: inconsistent shape: [4] is inferred from model e \
               while [2,2] is inferred from model a (/models/e/config.pbtxt:5:42); in ensemble e, ensemble \
               tensor t1: inconsistent shape: [2,2] is inferred from model a while [4] is inferred from \
               model b (/models/e/config.pbtxt:6:42)";
    let ready = "+a +b +e +outer";
    let run_by_e = "model 'e': 'a', which it runs, was not loaded: ";
    check(
        "recheck",
        &["a", "b", "e: a b", "outer: e"],
        &[
            ("load outer", "ok", ready),
            ("write a dims=2,2", "ok", ready),
            ("load a", &unfit("a", "e", why), ready),
            ("load e", &unfit("a", "e", why).replacen("model 'a': ", run_by_e, 1), ready),
            ("write a", "ok", ready),
            ("load a", "ok", ready),
            // Taken out, it takes its ensembles along, and then it may be any.
            ("unload a", "ok", "-a +b !e !outer"),
            ("write a dims=2,2", "ok", "-a +b !e !outer"),
            ("load a", "ok", "+a +b !e !outer"),
            ("write a", "ok", "+a +b !e !outer"),
            ("load a", "ok", ready),
        ],
    )
    .await;
}

#[actix::test]
async fn steps_and_ensembles_that_changed_together_are_replaced_together() {
    let ready = "+a +b +e +f";
    check(
        "together",
        &["a", "b", "e: a b", "f: b"],
        &[
            ("load e", "ok", "+a +b +e"),
            ("load f", "ok", ready),
            // Whichever is asked for first.
            ("write f dims=2: b", "ok", ready),
            ("write e: a", "ok", ready),
            ("write b dims=2", "ok", ready),
            ("load b", "ok", ready),
            ("load f", "ok", ready),
            ("write a dims=3", "ok", ready),
            ("write e dims=3: a", "ok", ready),
            ("load e", "ok", ready),
            ("load a", "ok", ready),
        ],
    )
    .await;
}

#[actix::test]
async fn all_ensembles_that_could_not_run_a_step_are_told() {
    let why = |name: &str| {
        format!(
            "ensemble '{name}', which serves, would not work with it: in ensemble {name}, ensemble \
             tensor X: inconsistent shape: [4] is inferred from model {name} while [3] is inferred \
             from model a (/models/{name}/config.pbtxt:5:42); in ensemble {name}, ensemble tensor Y: \
             inconsistent shape: [4] is inferred from model {name} while [3] is inferred from model a \
             (/models/{name}/config.pbtxt:5:76)"
        )
    };
    let text = format!(
        "load failed for model 'a': {}; {}. Change 'e', 'f' or their other models to fit and load \
         them, which also loads those; or unload them first. What was loaded before serves on\n",
        why("e"),
        why("f")
    );
    let script = [
        ("load e", "ok", "+a +e"),
        ("load f", "ok", "+a +e +f"),
        ("write a dims=3", "ok", "+a +e +f"),
        ("load a", &text, "+a +e +f"),
    ];
    check("several", &["a", "e: a", "f: a"], &script).await;
}

#[actix::test]
async fn an_ensemble_that_runs_another_model_since_is_replaced_with_its_step() {
    check(
        "another",
        &["a", "b dims=-1", "e: a", "f: a b"],
        &[
            ("load f", "ok", "+a +b +f"),
            ("load e", "ok", "+a +b +e +f"),
            ("unload f", "ok", "+a +b +e -f"),
            ("write a dims=3", "ok", "+a +b +e -f"),
            ("write e dims=3: a b", "ok", "+a +b +e -f"),
            ("load a", "ok", "+a +b +e -f"),
        ],
    )
    .await;
}

#[actix::test]
async fn an_ensemble_is_not_replaced_by_one_that_its_ensembles_could_not_run() {
    let why = "in ensemble outer, ensemble tensor X: inconsistent shape: [4] is inferred from model \
               outer while [2] is inferred from model e (/models/outer/config.pbtxt:5:42); in ensemble \
               outer, ensemble tensor t1: inconsistent shape: [2] is inferred from model e while [4] is \
               inferred from model b (/models/outer/config.pbtxt:6:42)";
    let ready = "+a +b +e +outer";
    check(
        "nested",
        &["a dims=-1", "b", "e: a", "outer: e b"],
        &[
            ("load outer", "ok", ready),
            ("write e dims=2: a", "ok", ready),
            ("load e", &unfit("e", "outer", why), ready),
            ("write b dims=2", "ok", ready),
            ("write outer dims=2: e b", "ok", ready),
            ("load outer", "ok", ready),
        ],
    )
    .await;
}

#[actix::test]
async fn versions_come_and_go_by_policy() {
    let none = "at least one version must be available under the version policy of model 'n': \
                version_policy names version 1, and there is version 7";
    check("versions", &["m /1 /3 /03", "n /7", "e: m/1", "f: m/2"], &[
        ("load m", "ok", "+m +m/3"),
        ("load e", "ok", "+e +m +m/3"),
        (
            "load f",
            "load failed for model 'f': ensemble 'f' depends on 'm' whose required version 2 is \
             not loaded. (/models/f/config.pbtxt:5:8)\n",
            "+e !f +m +m/3",
        ),
        ("write m /2", "ok", "+e !f +m +m/3"),
        ("load m", "ok", "+e +f +m +m/2 +m/3"),
        ("remove m/1", "ok", "+e +f +m +m/2 +m/3"),
        (
            "load m",
            &unfit(
                "m",
                "e",
                "ensemble 'e' depends on 'm' whose required version 1 is not loaded. \
                 (/models/e/config.pbtxt:5:8)",
            ),
            "+e +f +m +m/2 +m/3",
        ),
        ("unload e", "ok", "-e +f +m +m/2 +m/3"),
        ("load m", "ok", "-e +f +m/2 +m/3"),
        ("write n specific=1", "ok", "-e +f +m/2 +m/3"),
        ("remove n/1", "ok", "-e +f +m/2 +m/3"),
        (
            "load n",
            &format!("load failed for model 'n': {none}\n"),
            "-e +f +m/2 +m/3 !n",
        ),
        ("unload n", "ok", "-e +f +m/2 +m/3"),
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
            ("load nope", "failed to load 'nope', failed to poll from model repository: there is no such folder", ""),
            ("load a", "ok", "+a"),
            ("remove a", "ok", "+a"),
            ("load a", "failed to load 'a', failed to poll from model repository: there is no such folder", "+a"),
            ("unload a", "ok", ""),
        ],
    )
    .await;
}

#[actix::test]
async fn cycles_are_reported_for_each_of_their_ensembles() {
    let cycle = "circular dependency between ensembles: p -> ... -> q -> p: p runs q, which runs p";
    check(
        "cycles",
        &["a", "p: q a", "q: p", "over: p"],
        &[(
            "load over",
            &format!(
                "load failed for model 'over': ensemble 'over' depends on 'p' which is not valid. \
             Model 'p' failed with error: {cycle} (/models/p/config.pbtxt:4:1) \
             (/models/over/config.pbtxt:5:8)\n"
            ),
            "+a !over !p !q",
        )],
    )
    .await;
}

#[actix::test]
async fn an_unchanged_model_is_not_loaded_again() {
    let mut fixture = Fixture::new("unchanged", MODELS);
    let settings = Settings { mode: ControlMode::None, ..fixture.settings() };
    let summary = fixture.start(settings).await;
    assert!(summary.is_ok);
    let text = "explicit model load / unload is not allowed if polling is enabled; start \
         the server with --model-control-mode=explicit to allow it";
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
