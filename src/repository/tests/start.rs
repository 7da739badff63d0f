//! Starting, several repositories, loads beside each other, and files that come with a load.

use std::{fs, sync::atomic::Ordering};

use super::{ControlMode, Fixture, Overrides, Settings};

fn rows(fixture: &Fixture, summary: &super::Summary) -> Vec<String> {
    let version = |it: Option<i64>| it.map_or("-".to_owned(), |it| it.to_string());
    let row = |it: &crate::SummaryRow| {
        let text = format!("{} | {} | {}", it.model, version(it.version), it.status);
        text.replace(fixture.folder.to_str().unwrap(), "")
    };
    summary.rows.iter().map(row).collect()
}

#[actix::test]
async fn the_startup_table_says_why_a_model_is_not_ready() {
    let mut fixture = Fixture::new("table", &["a", "b fail", "e: a b", "none", "twice", "i: x"]);
    let other = fixture.folder.join("other");
    fs::create_dir_all(other.join("twice/1")).unwrap();
    fs::create_dir_all(fixture.models().join(".git")).unwrap();
    fs::remove_dir(fixture.models().join("none/1")).unwrap();
    fs::write(fixture.models().join("i/config.pbtxt"), "max_batch_size: x").unwrap();
    let mut settings = Settings { mode: ControlMode::None, ..fixture.settings() };
    settings.repositories.extend([other, fixture.folder.join("nowhere")]);
    let summary = fixture.start(settings).await;
    let found = rows(&fixture, &summary);
    let expected = [
        "a | 1 | READY",
        "b | 1 | UNAVAILABLE: it raised",
        "e | 1 | UNAVAILABLE: ensemble 'e' depends on 'b' which has no loaded version. Model 'b' \
         loading failed with error: version 1 is at UNAVAILABLE state: it raised; \
         (/models/e/config.pbtxt:6:8)",
        "i | - | Not loaded: Expected integer, got: x (/models/i/config.pbtxt:1:17)",
        "none | - | Not loaded: No model version was found",
        "twice | - | Not loaded: model appears in two or more repositories",
    ];
    assert_eq!(found, expected);
    assert!(!summary.is_ok);
    assert!(!fixture.repository.as_ref().unwrap().catalog.load().is_ready());
}

#[actix::test]
async fn a_slow_load_does_not_hold_up_others() {
    let mut fixture = Fixture::new("slow", &["slow gate", "a", "e: slow a", "other"]);
    let settings = fixture.settings();
    fixture.start(settings).await;
    let control = fixture.repository.as_ref().unwrap().control.clone();
    let slow = actix_rt::spawn(control.load("e".into(), Overrides::default()));
    fixture.waiting.notified().await;
    assert_eq!(fixture.act("load other").await, "ok");
    assert_eq!(fixture.act("unload other").await, "ok");
    assert!(fixture.index().ends_with("-other ?slow"), "{}", fixture.index());
    // Related, so it waits its turn.
    let related = actix_rt::spawn(control.unload("a".into(), false));
    fixture.gate.notify_one();
    assert_eq!(slow.await.unwrap(), Ok(()));
    assert_eq!(related.await.unwrap(), Ok(()));
    assert_eq!(fixture.index(), "-a !e -other +slow");
}

#[actix::test]
async fn a_version_is_unloading_until_nobody_uses_it() {
    let mut fixture = Fixture::new("unloading", &["a"]);
    let settings = fixture.settings();
    fixture.start(settings).await;
    assert_eq!(fixture.act("load a").await, "ok");
    let repository = fixture.repository.clone().unwrap();
    let state = || {
        let catalog = repository.catalog.load();
        let version = &catalog.entries["a"].versions[&1];
        (version.state.as_str(), version.reason.clone())
    };
    let running = repository.catalog.load().get("a", None).unwrap();
    assert_eq!(fixture.act("unload a").await, "ok");
    assert_eq!(state(), ("UNLOADING", "unloaded".to_owned()));
    assert!(repository.catalog.load().get("a", None).is_err());
    drop(running);
    while state().0 != "UNAVAILABLE" {
        tokio::task::yield_now().await;
    }
}

fn overrides(config: Option<&str>, files: &[(&str, &str)]) -> Overrides {
    let file = |(path, data): &(&str, &str)| ((*path).to_owned(), data.as_bytes().to_vec());
    Overrides { config: config.map(str::to_owned), files: files.iter().map(file).collect() }
}

#[actix::test]
async fn a_load_may_bring_its_config_and_files() {
    let mut fixture = Fixture::new("overrides", &["a", "e: a"]);
    let settings = fixture.settings();
    fixture.start(settings).await;
    let repository = fixture.repository.clone().unwrap();
    let load = async |name: &str, overrides| {
        let result = repository.control.load(name.to_owned(), overrides).await;
        result.map_or_else(|it| it.to_string(), |()| String::new())
    };
    let batch = || repository.catalog.load().get("a", None).unwrap().config.max_batch_size;
    let config = r#"{"backend": "fake", "max_batch_size": 8,
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": ["4"]}]}"#;
    let scratch = || fs::read_dir(fixture.folder.join("scratch")).unwrap().count();

    assert_eq!(load("a", overrides(None, &[])).await, "");
    let refused = load("a", overrides(Some("{"), &[])).await;
    assert!(refused.starts_with("Invalid config override: "), "{refused}");
    let refused = load("a", overrides(None, &[("1/x", "")])).await;
    assert_eq!(refused, "Load parameter 'config' must be specified for model file override");
    let refused = load("a", overrides(Some(config), &[("../x", "")])).await;
    assert_eq!(
        refused,
        "Invalid file parameter 'file:../x' with normalized path '../x' must stay within model \
         directory."
    );
    assert_eq!((batch(), scratch(), fixture.index()), (0, 0, "+a".to_owned()));

    assert_eq!(load("a", overrides(Some(config), &[])).await, "");
    assert_eq!((batch(), scratch()), (8, 0));
    // An ensemble takes its step as it is.
    assert_eq!(load("e", overrides(None, &[])).await, "");
    assert_eq!(batch(), 8);
    assert_eq!(load("a", overrides(Some(config), &[("2/model.py", "pass")])).await, "");
    assert_eq!((scratch(), fixture.index()), (1, "-a +a/2 +e".to_owned()));
    assert_eq!(load("a", overrides(None, &[])).await, "");
    assert_eq!((batch(), scratch(), fixture.index()), (0, 0, "+a +e".to_owned()));
    assert_eq!(load("new", overrides(Some(config), &[("1/model.py", "pass")])).await, "");
    assert_eq!(fixture.act("unload new").await, "ok");
    drop(repository);
}

#[actix::test]
async fn a_config_that_is_deleted_while_it_loads_is_an_error() {
    let mut fixture = Fixture::new("deleted", &["a"]);
    let settings = fixture.settings();
    fixture.start(settings).await;
    let config = fixture.models().join("a/config.pbtxt");
    fs::remove_file(&config).unwrap();
    std::os::unix::fs::symlink("/nowhere", &config).unwrap();
    assert!(fixture.act("load a").await.starts_with("failed to load 'a', "));
    fs::remove_file(&config).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &config, 0o600.into()).unwrap();
    let found = fixture.act("load a").await;
    assert!(found.contains("not a regular file"), "{found}");
    fs::remove_file(&config).unwrap();
    fs::write(&config, vec![b' '; (16 << 20) + 1]).unwrap();
    let found = fixture.act("load a").await;
    assert!(found.contains("larger than 16777216 bytes"), "{found}");
    let mut text = super::config("a").1;
    text += &"# padding\n".repeat(1 << 20);
    fs::write(&config, text).unwrap();
    assert_eq!(fixture.act("load a").await, "ok");
}

#[actix::test]
async fn a_failed_load_is_tried_again_as_often_as_asked() {
    let mut fixture = Fixture::new("retry", &["a fail"]);
    let settings = Settings { retry_count: 2, ..fixture.settings() };
    fixture.start(settings).await;
    assert_ne!(fixture.act("load a").await, "ok");
    assert_eq!(fixture.opened.load(Ordering::Relaxed), 3);
}

#[actix::test]
async fn a_bad_override_is_forgotten() {
    let mut fixture = Fixture::new("forgotten", &["a", "e: a"]);
    let settings = fixture.settings();
    fixture.start(settings).await;
    assert_eq!(fixture.act("load a").await, "ok");
    let config = r#"{"backend": "fake", "parameters": {"fail": {"string_value": "no"}}}"#;
    let control = fixture.repository.as_ref().unwrap().control.clone();
    let error = control.load("a".into(), overrides(Some(config), &[])).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "load failed for model 'a': version 1 is at UNAVAILABLE state: no;\n"
    );
    assert_eq!(fixture.act("unload a").await, "ok");
    assert_eq!(fixture.act("load e").await, "ok");
    assert_eq!(fixture.index(), "+a +e");
}
