//! Checks that pages hold what they need, and nothing that a name could bring in.

use std::{sync::Arc, time::Duration, time::Instant};

use super::*;
use crate::testing::{self, Nobody};
use troupe_base::{
    config::{ServerFeatures, read_text},
    model::{Model, ModelParts},
};
use troupe_repository::{Catalog, ModelEntry, VersionEntry, VersionState};

const NAME: &str = "<script>alert('m')</script>\"&";

fn model() -> Arc<Model> {
    let name = NAME.replace('"', "\\\"");
    let text = format!(
        "name: \"{name}\" backend: \"native\" \
         input {{ name: \"<i>\" data_type: TYPE_INT32 dims: 1 }} \
         output {{ name: \"<b>\" data_type: TYPE_INT32 dims: 1 }}"
    );
    let config =
        read_text(&text, "config.pbtxt").unwrap().finish(&ServerFeatures::default()).unwrap();
    let parts = ModelParts {
        config: Arc::new(config),
        version: 7,
        stats: Arc::default(),
        health: Arc::default(),
        steps: Vec::new(),
    };
    Arc::new(Model::new(parts, Arc::new(Nobody)))
}

/// A model that is ready, and one that failed to load.
fn state(model: &Arc<Model>) -> ServerState {
    let ready = VersionEntry {
        model: Some(model.clone()),
        state: VersionState::Ready,
        reason: String::new(),
    };
    let failed = VersionEntry {
        model: None,
        state: VersionState::Unavailable,
        reason: "<u>no weights</u>".into(),
    };
    let entry = |number, version| ModelEntry {
        versions: [(number, version)].into(),
        ..ModelEntry::default()
    };
    let entries = [(NAME.into(), entry(7, ready)), ("down".into(), entry(1, failed))];
    testing::state("<here>", Catalog { entries: entries.into() }, Arc::new(Nobody))
}

#[track_caller]
fn holds(html: &str, parts: &[&str]) {
    for part in parts {
        assert!(html.contains(part), "no {part} in {html}");
    }
    // The one script is the page's own, and there is no way to write another.
    assert_eq!(html.matches("<script").count(), 1, "{html}");
    for tag in ["<here>", "<i>", "<u>", "alert('m')</script>", "javascript:", " style="] {
        assert!(!html.contains(tag), "{tag} in {html}");
    }
    let elsewhere = html.replace("http://www.w3.org/2000/svg", "");
    assert!(!elsewhere.contains("http:") && !elsewhere.contains("https:"), "{html}");
}

#[test]
fn the_first_page_lists_models_with_their_state() {
    let html = index::page(&state(&model())).html("");
    let name = "&lt;script&gt;alert(&#39;m&#39;)&lt;/script&gt;&quot;&amp;";
    let address = "/model/%3Cscript%3Ealert%28%27m%27%29%3C%2Fscript%3E%22%26?version=7";
    holds(
        &html,
        &[
            &format!("<a href=\"{address}\">{name}</a>"),
            "<span class=\"state ready\">READY</span>",
            "<span class=\"state down\">UNAVAILABLE</span><p class=\"reason\">&lt;u&gt;no weights",
            "1 of 2 ready",
            "&lt;here&gt;",
            "<noscript><meta http-equiv=\"refresh\"",
        ],
    );
}

#[test]
fn a_models_page_has_a_picture_numbers_and_the_last_error() {
    let model = model();
    let state = state(&model);
    let error = troupe_base::error::Error::internal("<i>boom</i>\n  at \"line\" 2");
    model.stats.recent.ended(Some(&error), Duration::ZERO, Instant::now());
    let html = model::page(&state, NAME, None).unwrap().html("");
    holds(
        &html,
        &[
            "<svg ",
            "id=\"n1-p50\"",
            "<a href=\"#dn1\" id=\"n1\"",
            "<section class=\"panel detail first\" id=\"dn1\"",
            "<pre tabindex=\"0\">&lt;i&gt;boom&lt;/i&gt;\n  at &quot;line&quot; 2</pre>",
            "<title>&lt;script&gt;",
        ],
    );
    let news = model::update(&state, NAME, Some(7)).unwrap();
    assert!(html.contains(&format!("data-structure=\"{}\"", news.structure)), "{html}");
    let changes = serde_json::to_value(&news.changes).unwrap();
    for change in changes.as_array().unwrap() {
        // What the narrow form leaves out is told all the same.
        let id = change[0].as_str().unwrap();
        let is_there = html.contains(&format!("id=\"{id}\""));
        assert!(is_there || id.starts_with("mn1-"), "no {id} in {html}");
        if change[1] == "html" {
            assert!(!change[2].as_str().unwrap().contains("<i>"), "{change}");
        }
    }
}

#[test]
fn a_model_that_is_not_ready_says_why() {
    let state = state(&model());
    let error = model::page(&state, "down", None).err().unwrap();
    let html = model::missing(&state, "down", Some(None), &error).html("");
    holds(&html, &["has no available versions", "&lt;u&gt;no weights&lt;/u&gt;"]);
    // It follows the load that is to come.
    assert!(html.contains("http-equiv"), "{html}");
    let error = model::page(&state, "<i>", Some(1)).err().unwrap();
    assert_eq!(error.to_string(), "Request for unknown model: '<i>' is not found");
    holds(
        &model::missing(&state, "<i>", None, &error).html(""),
        &["&#39;&lt;i&gt;&#39; is not found"],
    );
}

#[test]
fn a_reload_is_another_structure() {
    let (state, other) = (state(&model()), state(&model()));
    assert_eq!(index::update(&state).structure, index::update(&state).structure);
    assert_ne!(index::update(&state).structure, index::update(&other).structure);
}

#[test]
fn nothing_is_fetched_from_elsewhere() {
    for text in [SCRIPT, STYLE, &draw::style()] {
        assert!(!text.contains("://") && !text.contains("@import") && !text.contains("url("));
    }
    assert!(!SCRIPT.contains("eval(") && !SCRIPT.contains("new Function"));
    assert!(
        web_page::POLICY.starts_with("default-src 'none'; script-src 'self'; style-src 'self';")
    );
}
