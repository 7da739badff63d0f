//! Priority levels and queue policies of configs.

use std::time::Duration;

use super::finish;
use crate::config::{Batching, PriorityLevels, QueuePolicy, scheduling_warnings};

/// A model with this dynamic batching.
fn dynamic(text: &str) -> String {
    format!("name: 'm' backend: 'python'\ndynamic_batching {{ {text} }}")
}

fn levels(text: &str) -> PriorityLevels {
    let config = finish(&dynamic(text)).unwrap();
    let Batching::Dynamic(batching) = config.batching else { panic!("it is dynamic") };
    batching.queues
}

#[test]
fn levels_and_their_policies_are_read() {
    assert_eq!(levels(""), PriorityLevels::default());
    let short = QueuePolicy {
        delays: true,
        timeout: Duration::from_micros(200),
        allows_override: true,
        max_size: 4,
    };
    let expected = PriorityLevels {
        levels: 18446744073709551615,
        default_level: 18446744073709551615,
        default_policy: QueuePolicy { max_size: 9, ..QueuePolicy::default() },
        policies: [(2, short)].into(),
    };
    let text = "priority_levels: 18446744073709551615 default_priority_level: 18446744073709551615
        default_queue_policy { max_queue_size: 9 }
        priority_queue_policy { key: 2 value { timeout_action: DELAY max_queue_size: 4
            default_timeout_microseconds: 200 allow_timeout_override: true } }";
    assert_eq!(levels(text), expected);
    assert!(expected.is_timed());
    assert_eq!(expected.policy_of(1).max_size, 9);
}

#[test]
fn levels_that_do_not_go_together_are_refused_in_tritons_words() {
    let delay = "{ timeout_action: DELAY default_timeout_microseconds: 1 }";
    for (text, expected) in [
        (
            "priority_levels: 2".to_owned(),
            "default priority level must be in range [1, 2] for m: it is 0",
        ),
        (
            "priority_levels: 2 default_priority_level: 3".to_owned(),
            "default priority level must be in range [1, 2] for m: it is 3",
        ),
        (
            "priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } }"
                .to_owned(),
            "priority queue policy must have priority level in range [1, 2] for m: it has one for 3",
        ),
        (
            "priority_levels: 2 default_priority_level: 1 preserve_ordering: true".to_owned(),
            "Only one priority level is allowed when 'preserve_ordering' is true for m",
        ),
        (
            format!("preserve_ordering: true default_queue_policy {delay}"),
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
        ),
        (
            format!(
                "preserve_ordering: true priority_levels: 1 default_priority_level: 1
                 priority_queue_policy {{ key: 1 value {delay} }}"
            ),
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
        ),
    ] {
        let problems = finish(&dynamic(&text)).unwrap_err();
        let texts: Vec<_> = problems.iter().map(|it| &*it.text).collect();
        assert_eq!(texts, [expected], "{text}");
    }
}

#[test]
fn what_has_no_effect_is_warned_of() {
    let never = "it allows an override of `default_timeout_microseconds`, which is 0";
    for (text, expected) in [
        ("", None),
        ("priority_levels: 1 default_priority_level: 1", None),
        ("default_queue_policy { max_queue_size: 1 }", None),
        (
            "default_queue_policy { allow_timeout_override: true }",
            Some(("default_queue_policy", never)),
        ),
        (
            "priority_levels: 1 default_priority_level: 1
             priority_queue_policy { key: 1 value { allow_timeout_override: true } }",
            Some(("priority_queue_policy", never)),
        ),
        ("default_priority_level: 2", Some(("default_priority_level", "`priority_levels` is 0"))),
        (
            "priority_queue_policy { key: 1 value { } }",
            Some(("priority_queue_policy", "`priority_levels` is 0")),
        ),
    ] {
        let config = finish(&dynamic(text)).unwrap();
        let warnings = scheduling_warnings(&config);
        assert_eq!(warnings.len(), usize::from(expected.is_some()), "{text}: {warnings:?}");
        if let Some((field, why)) = expected {
            let said = &warnings[0].text;
            assert!(said.starts_with(&format!("`{field}` of 'm' has no effect: {why}")), "{said}");
        }
    }
}
