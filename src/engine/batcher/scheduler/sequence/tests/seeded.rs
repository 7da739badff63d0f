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

/// A request as it was sent.
struct Sent {
    ms: u64,
    name: char,
    /// `A1` is the first one of `A`.
    id: String,
    begins: bool,
    ends: bool,
}

/// Of the sequence that is known by one name: its requests, and when the last of them came.
type Known = (Vec<String>, u64);

/// What is to be refused: requests of sequences that were idle for too long, which is from their
/// last request on, or from the end of its execution; and nothing else.
fn refusals(play: &Play, sent: &[Sent], rows: &[(u64, usize, usize, String)]) -> Vec<String> {
    // An execution that takes no time is through in the next millisecond.
    let ends: HashMap<&str, u64> =
        rows.iter().map(|(ms, _, _, id)| (&**id, ms + play.takes.max(1))).collect();
    let mut known: HashMap<char, Known> = HashMap::new();
    let mut refused = Vec::new();
    for Sent { ms, name, id, begins, ends: is_last } in sent {
        if *begins {
            known.insert(*name, (Vec::new(), *ms));
        }
        let is_idle = |(requests, came): &Known| {
            let ends = requests.iter().map(|it| ends.get(&**it).copied().unwrap_or(u64::MAX));
            let since = ends.max().unwrap_or(0).max(*came);
            // At the very end of that time requests come before the look.
            since.saturating_add(play.idle) < *ms
        };
        if known.get(name).is_some_and(is_idle) {
            known.remove(name);
        }
        match known.get_mut(name) {
            Some((requests, came)) => {
                requests.push(id.clone());
                *came = *ms;
            }
            None => refused.push(format!(
                "{ms} {id}: inference request for sequence {name} to model 'm' must specify the \
                 START flag on the first request of the sequence"
            )),
        }
        if *is_last {
            known.remove(name);
        }
    }
    refused
}

/// How many requests were refused.
fn play(seed: u64) -> usize {
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
    let mut sent = Vec::new();
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
                let width = 1 + numbers.below(2);
                let left = live.get(&name).copied();
                let left = left.unwrap_or_else(|| 1 + numbers.below(5));
                let start = if live.contains_key(&name) { "" } else { "+" };
                let (requests, begun) = counts.entry(name).or_default();
                *requests += 1;
                *begun += usize::from(!start.is_empty());
                let (id, begins, ends) = (format!("{name}{requests}"), start == "+", left == 1);
                sequences.insert(id.clone(), *begun);
                sent.push(Sent { ms, name, id, begins, ends });
                let end = if ends { "!" } else { "" };
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
    let rejected: Vec<_> = stage.seen.iter().filter(|it| it.contains(": ")).cloned().collect();
    assert_eq!(rejected, refusals(&play, &sent, &stage.rows), "{seed}: {strategy}");
    let ran = stage.rows.len() + rejected.len();
    assert_eq!(ran, sent.len(), "{seed}: every request runs once or is refused");
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
    rejected.len()
}

impl Sequences {
    /// Is nothing known of any sequence?
    fn is_unused(&self) -> bool {
        self.slots.taken().is_empty() && self.table.next_look().is_none() && self.waiting == 0
    }
}

#[test]
fn nothing_is_lost_and_no_slot_stays_taken() {
    let refused: usize = (0..300).map(play).sum();
    assert_ne!(refused, 0, "nobody was idle for too long");
}
