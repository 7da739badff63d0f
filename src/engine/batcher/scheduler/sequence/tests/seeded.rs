//! Random sequences: nothing is lost, reordered or run twice, and no slot stays taken.

use std::collections::HashMap;

use super::{
    super::{super::decision::Scheduler, Sequences},
    play::{Play, Stage},
};

/// A generator of numbers that are random enough.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn play(seed: u64) {
    let mut numbers = Numbers(seed);
    let strategies = [
        "direct { }",
        "direct { minimum_slot_utilization: 0.5 max_queue_delay_microseconds: 5000 }",
        "oldest { max_candidate_sequences: 3 }",
        "oldest { max_candidate_sequences: 6 preferred_batch_size: [2] \
         max_queue_delay_microseconds: 4000 }",
    ];
    let strategy = strategies[numbers.below(4) as usize];
    let play = Play {
        strategy,
        batch: 2 + numbers.below(3) as u32,
        instances: 1 + numbers.below(3) as usize,
        takes: numbers.below(7),
        idle: 50,
    };
    let mut stage = Stage::new(&play);
    // Requests left to send of each sequence that has begun.
    let mut live: HashMap<char, u64> = HashMap::new();
    let mut sent = 0;
    // Which sequence each request is of: ids come again.
    let mut sequences: HashMap<String, usize> = HashMap::new();
    let mut counts: HashMap<char, (usize, usize)> = HashMap::new();
    for ms in 0..5000 {
        stage.release(ms);
        if ms < 300 {
            for name in 'A'..='L' {
                if numbers.below(10) != 0 {
                    continue;
                }
                sent += 1;
                let width = 1 + numbers.below(2);
                let left = live.get(&name).copied();
                let left = left.unwrap_or_else(|| 1 + numbers.below(5));
                let start = if live.contains_key(&name) { "" } else { "+" };
                let (requests, begun) = counts.entry(name).or_default();
                *requests += 1;
                *begun += usize::from(!start.is_empty());
                sequences.insert(format!("{name}{requests}"), *begun);
                let end = if left == 1 { "!" } else { "" };
                match left {
                    1 => live.remove(&name),
                    _ => live.insert(name, left - 1),
                };
                stage.arrive(ms, &format!("{name}{start}{end}*{width}"));
            }
        }
        stage.run(ms);
    }
    assert_eq!(stage.scheduler.len(), 0, "{seed}: {strategy}");
    let rejected = stage.seen.iter().filter(|it| it.contains(": ")).count();
    assert_eq!(stage.rows.len() + rejected, sent, "{seed}: every request runs once or is refused");
    let mut last: HashMap<(char, usize), (u64, usize)> = HashMap::new();
    for (ms, _, _, id) in &stage.rows {
        let (name, number) = (id.chars().next().unwrap(), id[1..].parse().unwrap());
        let before = last.insert((name, sequences[id]), (*ms, number));
        let is_later = before.is_none_or(|it| it.1 < number && it.0 + play.takes <= *ms);
        assert!(is_later, "{seed}: {id} at {ms} ms follows {before:?}");
    }
    if strategy.starts_with("oldest") {
        assert_eq!(stage.nulls, 0);
    }
    // Everybody has ended, or was idle for long: all slots are free again.
    assert!(stage.scheduler.is_unused(), "{seed}: {strategy}");
}

impl Sequences {
    /// Is nothing known of any sequence?
    fn is_unused(&self) -> bool {
        self.slots.taken().is_empty() && self.table.next_look().is_none() && self.waiting == 0
    }
}

#[test]
fn nothing_is_lost_and_no_slot_stays_taken() {
    (0..300).for_each(play);
}
