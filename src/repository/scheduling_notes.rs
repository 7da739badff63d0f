//! Notes of `troupe check` on schedulers: what is right, and yet not what everybody expects.

use troupe_base::config::{
    Batching, ModelConfig, PriorityLevels, Problem, SequenceBatching, SequenceStrategy,
};

/// At most one for each scheduler of the model.
pub(crate) fn notes(config: &ModelConfig) -> Vec<Problem> {
    let note = |(path, text): (&str, String)| config.source_map.problem(path, text);
    let of_batching = match &config.batching {
        Batching::Direct => None,
        Batching::Dynamic(dynamic) => queues(&config.name, &dynamic.queues),
        Batching::Sequence(batching) => Some(slots(config, batching)),
    };
    let all = [of_batching, resources(config), cache(config)];
    all.into_iter().flatten().map(note).collect()
}

fn slots(config: &ModelConfig, batching: &SequenceBatching) -> (&'static str, String) {
    let each = batching.slots(config.max_batch_size);
    let field = match &batching.strategy {
        SequenceStrategy::Oldest(oldest) if oldest.max_candidates != 0 => "max_candidate_sequences",
        _ => "max_batch_size",
    };
    let instances = config.instances();
    let (slots, plural) = (each as usize * instances, if instances == 1 { "" } else { "s" });
    let text = format!(
        "'{}' has slots for {slots} sequences: {instances} instance{plural} × {each} (`{field}`); those \
         beyond them wait until one ends",
        config.name
    );
    ("sequence_batching", text)
}

/// Of a model with several levels, at least one of which has a limit.
fn queues(name: &str, queues: &PriorityLevels) -> Option<(&'static str, String)> {
    let of_level = queues.policies.range(1..=queues.levels.max(1)).map(|(_, it)| it.max_size);
    let own: Vec<u32> = of_level.collect();
    let others = queues.levels.saturating_sub(own.len() as u64);
    let default = queues.default_policy.max_size;
    let has_limit = own.iter().any(|it| *it != 0) || (default != 0 && others != 0);
    if queues.levels < 2 || !has_limit {
        return None;
    }
    let is_whole = own.iter().all(|it| *it != 0) && (default != 0 || others == 0);
    let sum = own.iter().map(|it| u64::from(*it)).sum::<u64>();
    let sum = sum.saturating_add(others.saturating_mul(default.into()));
    let levels = queues.levels;
    let text = match is_whole {
        true => format!(
            "{sum} requests of '{name}' may wait: each of the {levels} levels has a queue, and \
             `max_queue_size` is that of one"
        ),
        false => format!(
            "some of the {levels} levels of '{name}' have no `max_queue_size`: what another level says \
             is no limit of theirs"
        ),
    };
    Some(("dynamic_batching.default_queue_policy", text))
}

fn resources(config: &ModelConfig) -> Option<(&'static str, String)> {
    let claims = |it: &troupe_base::config::InstanceGroup| !it.rate_limits.resources.is_empty();
    config.instance_groups.iter().any(claims).then(|| {
        let text = format!(
            "executions of '{}' wait for resources only with --rate-limit=execution_count; without \
             --rate-limit-resource there is as much of each as the instance needs that needs most",
            config.name
        );
        ("instance_group", text)
    })
}

fn cache(config: &ModelConfig) -> Option<(&'static str, String)> {
    config.response_cache.is_some().then(|| {
        let text =
            format!("answers of '{}' are kept only by a server with --cache-config", config.name);
        ("response_cache", text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::config::{ServerFeatures, read_text};

    #[test]
    fn what_schedulers_come_to_is_noted_at_their_lines() {
        let sized = "default_queue_policy { max_queue_size: 100 }";
        let levels = "dynamic_batching { priority_levels: 3 default_priority_level: 1";
        let own = "priority_queue_policy { key: 2 value { max_queue_size: 7 } }";
        let none = "priority_queue_policy { key: 2 value { } }";
        let two = "instance_group { count: 2 kind: KIND_CPU }";
        for (more, expected) in [
            (String::new(), vec![]),
            (format!("dynamic_batching {{ {sized} }}"), vec![]),
            (format!("{levels} }}"), vec![]),
            (format!("{levels} {sized} }}"), vec!["300 requests of 'm' may wait: each of the 3"]),
            (format!("{levels} {sized} {own} }}"), vec!["207 requests of 'm' may wait"]),
            (format!("{levels} {sized} {none} }}"), vec!["some of the 3 levels of 'm' have no"]),
            (format!("{levels} {own} }}"), vec!["some of the 3 levels of 'm' have no"]),
            (
                "sequence_batching { direct { } }".to_owned(),
                vec!["'m' has slots for 4 sequences: 1 instance × 4 (`max_batch_size`)"],
            ),
            (
                format!("{two} sequence_batching {{ oldest {{ max_candidate_sequences: 9 }} }}"),
                vec!["'m' has slots for 18 sequences: 2 instances × 9 (`max_candidate_sequences`)"],
            ),
            (
                "response_cache { enable: true } instance_group { rate_limiter { resources { \
                 name: \"R\" count: 4 } } }"
                    .to_owned(),
                vec!["executions of 'm' wait for resources only", "answers of 'm' are kept only"],
            ),
        ] {
            let text = format!(
                "name: \"m\" backend: \"native\" max_batch_size: 4 \
                 input {{ name: \"x\" data_type: TYPE_FP32 dims: 1 }} \
                 output {{ name: \"y\" data_type: TYPE_FP32 dims: 1 }}\n{more}"
            );
            let config = read_text(&text, "m/config.pbtxt").unwrap();
            let notes = notes(&config.finish(&ServerFeatures::default()).unwrap());
            assert_eq!(notes.len(), expected.len(), "{more}: {notes:?}");
            for (note, expected) in notes.iter().zip(expected) {
                assert!(note.text.starts_with(expected), "{note}");
                assert_eq!(note.position.line, 2, "{note}");
            }
        }
    }
}
