//! What a model's config says of scheduling, in a few words: queues, sequences, resources.

use std::{collections::BTreeMap, time::Duration};

use super::{numbers, text_width::MAX_NAME_LETTERS};
use troupe_base::config::{
    Batching, ModelConfig, PriorityLevels, QueuePolicy, ResponseCachePolicy, SequenceBatching,
    SequenceStrategy,
};

/// Levels with a policy of their own that are told one by one.
const MAX_LEVELS: usize = 3;

/// A line for each; none for a model that has nothing but plain queues.
pub(super) fn facts(config: &ModelConfig) -> Vec<String> {
    let mut facts = match &config.batching {
        Batching::Direct => Vec::new(),
        Batching::Dynamic(dynamic) => queues(&dynamic.queues),
        Batching::Sequence(batching) => sequences(batching, config.max_batch_size),
    };
    facts.extend(resources(config));
    facts.extend(config.response_cache.as_ref().map(cache));
    facts.iter().flat_map(|it| lines(it)).collect()
}

/// A long fact in lines that no picture cuts, each ended by a comma of it.
fn lines(fact: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in fact.split_inclusive(", ") {
        match lines.last_mut() {
            Some(line)
                if (line.chars().count() + part.trim_end().chars().count()) <= MAX_NAME_LETTERS =>
            {
                line.push_str(part);
            }
            _ => lines.push(part.to_owned()),
        }
    }
    lines.into_iter().map(|it| it.trim_end().to_owned()).collect()
}

/// `3 levels, ≤ 100 waiting, 200 ms`, and the levels that differ.
fn queues(queues: &PriorityLevels) -> Vec<String> {
    let levels = match queues.levels {
        0 => None,
        1 => Some("1 level".to_owned()),
        levels => Some(format!("{levels} levels")),
    };
    let all: Vec<String> = levels.into_iter().chain(policy(&queues.default_policy)).collect();
    let differs = |it: &(&u64, &QueuePolicy)| *it.1 != queues.default_policy;
    let mut others = queues.policies.iter().filter(differs);
    let own = others.by_ref().take(MAX_LEVELS).map(|(level, own)| {
        let told: Vec<String> = policy(own).collect();
        let told = if told.is_empty() { "no limit".to_owned() } else { told.join(", ") };
        format!("level {level}: {told}")
    });
    let mut lines: Vec<String> = [all.join(", ")].into_iter().chain(own).collect();
    lines.retain(|it| !it.is_empty());
    let left = others.count();
    if left != 0 {
        lines.push(format!("{left} more levels with limits of their own"));
    }
    lines
}

fn policy(of: &QueuePolicy) -> impl Iterator<Item = String> {
    let size = (of.max_size != 0).then(|| format!("≤ {} waiting", of.max_size));
    let behind = if of.delays { ", then behind the others" } else { "" };
    let timeout = (!of.timeout.is_zero()).then(|| format!("{}{behind}", duration(of.timeout)));
    size.into_iter().chain(timeout)
}

fn sequences(batching: &SequenceBatching, max_batch_size: u32) -> Vec<String> {
    let strategy = match &batching.strategy {
        SequenceStrategy::Direct(_) => "direct",
        SequenceStrategy::Oldest(_) => "oldest",
    };
    let kind = if batching.is_iterative { "iterative sequences" } else { "sequences" };
    let slots = batching.slots(max_batch_size);
    let each = if slots == 1 { "slot each" } else { "slots each" };
    let states = match batching.states.len() {
        0 => None,
        1 => Some("state kept by the server".to_owned()),
        count => Some(format!("{count} states kept by the server")),
    };
    let first = format!("{kind}: {strategy}, {slots} {each}");
    [first].into_iter().chain(states).collect()
}

/// What one execution claims, by the groups of instances that differ.
fn resources(config: &ModelConfig) -> Vec<String> {
    let mut told = BTreeMap::new();
    for (index, group) in config.instance_groups.iter().enumerate() {
        let limits = &group.rate_limits;
        let claims = limits.resources.iter().map(|it| format!("{} × {}", it.count, it.name));
        let claims: Vec<String> = claims.collect();
        let needs = (!claims.is_empty()).then(|| format!("needs {}", claims.join(", ")));
        let priority = (1 < limits.priority).then(|| format!("priority {}", limits.priority));
        let all: Vec<String> = needs.into_iter().chain(priority).collect();
        if !all.is_empty() {
            told.entry(all.join(", ")).or_insert(index);
        }
    }
    let mut lines: Vec<(usize, String)> = told.into_iter().map(|(line, at)| (at, line)).collect();
    lines.sort();
    lines.into_iter().map(|(_, line)| line).take(MAX_LEVELS).collect()
}

fn cache(policy: &ResponseCachePolicy) -> String {
    let ttl = policy.ttl.map(|it| format!(" for {}", duration(it)));
    let bytes = policy.max_bytes.map(|it| format!(", ≤ {}", numbers::bytes(it)));
    format!("answers are kept{}{}", ttl.unwrap_or_default(), bytes.unwrap_or_default())
}

fn duration(duration: Duration) -> String {
    numbers::duration(Some(duration.as_secs_f64() * 1e6))
}
