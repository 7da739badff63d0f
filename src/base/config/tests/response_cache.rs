//! Which models' answers are kept, and how.

use std::time::Duration;

use super::{check, good};
use crate::config::json;

fn model(fields: &str) -> String {
    format!(
        "name: 'm' backend: 'python'\n{fields}\n\
         input {{ name: 'x' data_type: TYPE_FP32 dims: 1 }}\n\
         output {{ name: 'y' data_type: TYPE_FP32 dims: 1 }}"
    )
}

#[test]
fn answers_are_kept_where_the_config_says_so_and_as_long_as_it_says() {
    let policy = |fields: &str| {
        let policy = good(&model(fields)).response_cache?;
        Some((policy.ttl.map(|it| it.as_secs()), policy.max_bytes))
    };
    assert_eq!(policy(""), None);
    assert_eq!(policy("response_cache { }"), None);
    assert_eq!(policy("response_cache { enable: false ttl_seconds: 5 }"), None);
    assert_eq!(policy("response_cache { enable: true }"), Some((None, None)));
    let both = "response_cache { enable: true ttl_seconds: 5 max_byte_size: 1000 }";
    assert_eq!(policy(both), Some((Some(5), Some(1000))));
    let longest = good(&model("response_cache { enable: true ttl_seconds: 4294967295 }"));
    let ttl = longest.response_cache.and_then(|it| it.ttl);
    assert_eq!(ttl, Some(Duration::from_secs(u32::MAX.into())));
}

#[test]
fn a_config_without_fields_of_ours_is_printed_as_triton_prints_it() {
    let print = |fields: &str| {
        let text = json::print(&good(&model(fields)).proto);
        text.contains("\"response_cache\":{\"enable\":true}")
    };
    assert!(print("response_cache { enable: true }"));
    assert!(!print("response_cache { enable: true ttl_seconds: 5 }"));
}

#[test]
fn answers_that_cannot_be_kept_are_refused_in_tritons_words() {
    let refused = |why: &str| {
        format!(
            "2:1: Response Cache does not currently support model m with {why}. Please disable the \
             response cache."
        )
    };
    let cached = "response_cache { enable: true }";
    check(
        &model(&format!("{cached} model_transaction_policy {{ decoupled: true }}")),
        &[&refused("'decoupled' transaction policy")],
    );
    let sequences = super::finish(&model(&format!("{cached} sequence_batching {{ }}")));
    let texts: Vec<String> = sequences.unwrap_err().iter().map(|it| it.text.clone()).collect();
    let expected = refused("sequence batching scheduler").replace("2:1: ", "");
    assert!(texts.contains(&expected), "{texts:?}");
    check(
        &model("response_cache { enable: true ttl_seconds: 0 max_byte_size: 0 }"),
        &[
            "2:31: 'ttl_seconds' must be greater than 0 for m",
            "2:46: 'max_byte_size' must be greater than 0 for m",
        ],
    );
}
