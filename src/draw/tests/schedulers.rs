//! Checks what pictures say of schedulers: what configs ask for, and what happens.

use std::time::{Duration, Instant};

use super::{ADD_SUB, ENSEMBLE, config, live::model, meet};
use crate::{
    layout::PictureLayout,
    live_picture::live_picture,
    variant::{CARD_HEADER, CELL, FACT, Variant},
    *,
};
use std::sync::Arc;
use troupe_base::{
    metrics::activity::EnsembleActivity,
    model::Model,
    statistics::{
        CacheStatistics, OptionalStatistics, SequenceStatistics, SequenceUsage, Statistics,
    },
};

const MUL: &str = include_str!("../../../model_repository/mul/config.pbtxt");

/// A model that takes batches, with more of a config.
fn batched(more: &str) -> String {
    format!(
        "name: \"m\" backend: \"native\" max_batch_size: 4 \
         input {{ name: \"x\" data_type: TYPE_FP32 dims: 1 }} \
         output {{ name: \"y\" data_type: TYPE_FP32 dims: 1 }} {more}"
    )
}

#[test]
fn what_a_config_says_of_scheduling_is_told_in_a_few_words() {
    let state = "state { input_name: \"s\" output_name: \"t\" data_type: TYPE_FP32 dims: 1 }";
    let sequences =
        format!("sequence_batching {{ oldest {{ max_candidate_sequences: 9 }} {state} }}");
    for (more, expected) in [
        ("", &[][..]),
        ("dynamic_batching { preferred_batch_size: 4 }", &[]),
        (
            "dynamic_batching { priority_levels: 3 default_priority_level: 2 \
             default_queue_policy { max_queue_size: 100 default_timeout_microseconds: 200000 } }",
            &["3 levels, ≤ 100 waiting, 200 ms"],
        ),
        (
            "dynamic_batching { default_queue_policy { default_timeout_microseconds: 1500 \
             timeout_action: DELAY } }",
            &["1.50 ms, then behind the others"],
        ),
        (
            "dynamic_batching { priority_levels: 3 default_priority_level: 2 \
             default_queue_policy { max_queue_size: 100 default_timeout_microseconds: 200000 \
             timeout_action: DELAY } }",
            &["3 levels, ≤ 100 waiting, 200 ms,", "then behind the others"],
        ),
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 2 \
             default_queue_policy { max_queue_size: 7 } \
             priority_queue_policy { key: 1 value { } } }",
            &["2 levels, ≤ 7 waiting", "level 1: no limit"],
        ),
        ("sequence_batching { direct { } }", &["sequences: direct, 4 slots each"]),
        (&sequences, &["sequences: oldest, 9 slots each", "state kept by the server"]),
        (
            "sequence_batching { iterative_sequence: true oldest { } }",
            &["iterative sequences: oldest, 4 slots each"],
        ),
        (
            "instance_group { count: 2 rate_limiter { priority: 3 \
             resources { name: \"R\" count: 4 } resources { name: \"S\" global: true count: 1 } } }",
            &["needs 4 × R, 1 × S, priority 3"],
        ),
        ("response_cache { enable: true }", &["answers are kept"]),
        (
            "response_cache { enable: true ttl_seconds: 300 max_byte_size: 1000000 }",
            &["answers are kept for 300 s, ≤ 1 MB"],
        ),
    ] {
        let text = batched(more);
        assert_eq!(scheduling::facts(&config(&text)), expected, "{more}");
        for format in [GraphFormat::Svg, GraphFormat::Dot, GraphFormat::Mermaid] {
            let drawn = command(&text, "m/config.pbtxt", format, &|_| None).unwrap();
            for fact in expected {
                assert!(drawn.contains(fact), "no {fact} in {drawn}");
            }
        }
    }
}

#[test]
fn steps_are_told_of_by_the_configs_beside_the_ensemble() {
    let sequences = ADD_SUB.to_owned() + " max_batch_size: 2 sequence_batching { direct { } }";
    let label = "some/ensemble/config.pbtxt";
    let beside = |model: &str| match model {
        "add_sub" => Some(sequences.clone()),
        _ => Some("no config".to_owned()),
    };
    let drawn = command(ENSEMBLE, label, GraphFormat::Dot, &beside).unwrap();
    assert_eq!(drawn.matches("direct, 2 slots each").count(), 1, "{drawn}");
    let alone = command(ENSEMBLE, label, GraphFormat::Dot, &|_| None).unwrap();
    assert!(!alone.contains("slots"), "{alone}");
}

/// The ensemble of the examples, whose steps have sequences and answers that are kept.
fn ensemble() -> Arc<Model> {
    let queues = "response_cache { enable: true } max_batch_size: 8 dynamic_batching { \
                  priority_levels: 3 default_priority_level: 1 default_queue_policy { \
                  max_queue_size: 100 default_timeout_microseconds: 200000 } \
                  priority_queue_policy { key: 3 value { max_queue_size: 1000 } } }";
    let step = |text: String, extra: OptionalStatistics| {
        let mut parts = model(config(&text), Vec::new(), None);
        let it = Arc::get_mut(&mut parts).unwrap();
        it.stats = Arc::new(Statistics::new(extra));
        it.health.join();
        parts
    };
    let sequences = SequenceStatistics::default();
    sequences.show(SequenceUsage { slots: 9000, taken: 8999, backlog: 12 });
    let cache = CacheStatistics::new(false);
    cache.miss(Duration::ZERO);
    (0..3).for_each(|_| cache.hit(Duration::ZERO));
    cache.coalesced();
    let first = step(
        ADD_SUB.to_owned() + " max_batch_size: 2 sequence_batching { direct { } }",
        OptionalStatistics { sequences: Some(sequences.into()), ..Default::default() },
    );
    let second = step(
        MUL.to_owned() + queues,
        OptionalStatistics { cache: Some(cache.into()), ..Default::default() },
    );
    let live = Arc::new(EnsembleActivity::new(2, std::collections::HashMap::new()));
    model(config(ENSEMBLE), vec![first, second], Some(live))
}

#[test]
fn a_step_shows_its_slots_and_how_much_the_cache_answered() {
    let now = Instant::now();
    let model = ensemble();
    let graph = LiveGraph::of(&model, now);
    let json = serde_json::to_value(&graph).unwrap();
    let (first, second) = (&json["nodes"][2], &json["nodes"][3]);
    let slots = serde_json::json!({ "slots": 9000, "taken": 8999, "backlog": 12 });
    assert_eq!((&first["sequences"], first.get("cache")), (&slots, None));
    let kept = serde_json::json!({ "hit_rate": 0.75, "hits": 3, "misses": 1, "coalesced": 1 });
    assert_eq!((&second["cache"], second.get("sequences")), (&kept, None));
    assert_eq!(first["scheduling"][0], "sequences: direct, 2 slots each");
    // Sequences wait, though no instance has much to do.
    assert_eq!(first["health"], "saturated");
    let link = |_: &StepView| String::new();
    for (format, parts) in [
        (GraphFormat::Mermaid, ["slots taken 8999 · slots 9000 · backlog 12", "cache hits 75 %"]),
        (GraphFormat::Dot, ["<td>backlog 12</td>", "<td>coalesced 1</td>"]),
        (GraphFormat::Svg, ["id=\"n2-taken\"", "≤ 100 waiting, 200 ms</text>"]),
    ] {
        let drawn = live(&graph, &model.config, format, &link);
        for part in parts {
            assert!(drawn.contains(part), "no {part} in {drawn}");
        }
    }
    let part = EmbeddedPicture::of(&graph, &model.config, &link);
    let mut changes = PageUpdates::default();
    part.updates("x", &mut changes);
    let changes = serde_json::to_string(&changes).unwrap();
    for id in ["xn2-taken", "xn2-backlog", "xn3-cache", "xn3-coalesced"] {
        assert!(changes.contains(&format!("\"{id}\"")), "{id}: {changes}");
        for drawn in [part.cards("x"), part.narrow("x")] {
            assert!(drawn.contains(&format!("id=\"{id}\"")), "no {id} in {drawn}");
        }
    }
}

#[test]
fn cards_have_room_for_what_they_say_of_schedulers() {
    let model = ensemble();
    let graph = LiveGraph::of(&model, Instant::now());
    let picture = live_picture(&model.config, &graph, &|_| String::new());
    for (variant, rows, facts) in
        [(Variant::Cards, [3, 3], [1, 3]), (Variant::NarrowCards, [3, 3], [0, 0])]
    {
        let layout = PictureLayout::of(&picture, variant);
        for (index, node) in layout.nodes.iter().enumerate() {
            assert_eq!(layout.nodes[..index].iter().find(|it| meet(node, it)), None);
        }
        for step in [0, 1] {
            let least =
                CARD_HEADER + CELL.1 * f64::from(rows[step]) + FACT * f64::from(facts[step]);
            let node = layout.nodes[2 + step];
            assert!(least + 8.0 <= node.height && node.height < least + CELL.1, "{node:?}");
        }
    }
}
