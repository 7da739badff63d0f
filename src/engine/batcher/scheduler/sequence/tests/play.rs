//! Plays arrivals against a sequence scheduler, in virtual milliseconds.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use super::super::{
    super::{
        decision::{Decision, Rejected, Scheduler},
        testing::waiting,
    },
    Sequences,
};
use crate::instance::FreeSlots;
use troupe_base::{
    config::{ModelConfig, ServerFeatures, read_text},
    request::{Context, Correlation, Pending, SEQUENCE_END, SEQUENCE_START},
};

/// How long a play goes on.
pub(super) const END: u64 = 200;

/// A model, and how long its executions take.
#[derive(Clone)]
pub(super) struct Play {
    pub(super) strategy: &'static str,
    pub(super) batch: u32,
    pub(super) instances: usize,
    /// Milliseconds.
    pub(super) takes: u64,
    /// Milliseconds.
    pub(super) idle: u64,
}

impl Default for Play {
    fn default() -> Play {
        Play { strategy: "direct { }", batch: 1, instances: 1, takes: 1, idle: 1000 }
    }
}

/// `0:A+` is a request of sequence `A` at 0 ms that begins it, `!` ends it; `*2` has inputs of that
/// width, `#2` so many rows, `~9` a timeout in milliseconds, and `%` is cancelled from the beginning.
/// `?` has no sequence. Expected are executions, `ms@instance` and the requests of each row, `A1` the
/// first one of `A`, and rejections, `ms A1: text`.
pub(super) fn check(play: &Play, arrivals: &str, expected: &[&str]) {
    let mut stage = Stage::new(play);
    let arrivals: Vec<(u64, &str)> = arrivals.split_whitespace().map(arrival).collect();
    for ms in 0..END {
        stage.release(ms);
        for (_, text) in arrivals.iter().filter(|it| it.0 == ms) {
            stage.arrive(ms, text);
        }
        stage.run(ms);
    }
    assert_eq!(stage.seen, expected, "{arrivals:?}");
}

fn arrival(text: &str) -> (u64, &str) {
    let (ms, request) = text.split_once(':').unwrap();
    (ms.parse().unwrap(), request)
}

/// The config as executors see it.
pub(super) fn config(play: &Play) -> ModelConfig {
    let Play { strategy, batch, idle, .. } = play;
    let text = format!(
        "name: 'm' backend: 'native' max_batch_size: {batch} \
         input {{ name: 'x' data_type: TYPE_UINT8 dims: -1 }} \
         output {{ name: 'y' data_type: TYPE_UINT8 dims: -1 }} \
         sequence_batching {{ max_sequence_idle_microseconds: {idle}000 {strategy} \
         control_input {{ name: 'ready' control {{ kind: CONTROL_SEQUENCE_READY \
         int32_false_true: [0, 1] }} }} }}"
    );
    let config = read_text(&text, "f").unwrap().finish(&ServerFeatures::default()).unwrap();
    config.for_executor().unwrap()
}

/// A scheduler and what was seen of it.
pub(super) struct Stage {
    begin: Instant,
    takes: u64,
    pub(super) scheduler: Sequences,
    /// When each instance is through; `None`: it rests.
    pub(super) busy: Vec<Option<u64>>,
    /// How many requests each sequence has had.
    numbers: HashMap<String, usize>,
    pub(super) seen: Vec<String>,
    /// Executed rows: when, instance, row, request.
    pub(super) rows: Vec<(u64, usize, usize, String)>,
    pub(super) nulls: usize,
    /// Those of the last execution of each instance.
    pub(super) in_flight: Vec<Vec<Pending>>,
}

impl Stage {
    pub(super) fn new(play: &Play) -> Stage {
        let (begin, config) = (Instant::now(), config(play));
        let batching = config.sequences().unwrap();
        Stage {
            begin,
            takes: play.takes,
            scheduler: Sequences::new(&config, batching, play.instances, begin).unwrap(),
            busy: vec![None; play.instances],
            numbers: HashMap::new(),
            seen: Vec::new(),
            rows: Vec::new(),
            nulls: 0,
            in_flight: (0..play.instances).map(|_| Vec::new()).collect(),
        }
    }

    pub(super) fn at(&self, ms: u64) -> Instant {
        self.begin + Duration::from_millis(ms)
    }

    /// The executions that end now.
    pub(super) fn release(&mut self, ms: u64) {
        for instance in 0..self.busy.len() {
            if self.busy[instance].is_some_and(|end| end <= ms) {
                self.release_one(instance, ms);
            }
        }
    }

    pub(super) fn release_one(&mut self, instance: usize, ms: u64) {
        self.busy[instance] = None;
        self.in_flight[instance].clear();
        self.scheduler.released(instance, self.at(ms));
    }

    pub(super) fn arrive(&mut self, ms: u64, text: &str) {
        let correlation = match &text[..1] {
            "?" => Correlation::None,
            name => Correlation::Text(name.into()),
        };
        self.arrive_as(ms, text, correlation);
    }

    /// The same for a sequence with any id.
    pub(super) fn arrive_as(&mut self, ms: u64, text: &str, correlation: Correlation) {
        let name = &text[..1];
        let number = self.numbers.entry(name.to_owned()).or_default();
        *number += 1;
        let id = format!("{name}{number}");
        let after = |sign: char| -> u64 {
            let Some((_, rest)) = text.split_once(sign) else { return 0 };
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().unwrap()
        };
        let rows = after('#').max(1) as u32;
        let mut pending = waiting(rows, after('*').max(1) as i64, self.at(ms));
        let flag = |sign, flag| if text.contains(sign) { flag } else { 0 };
        let flags = flag('+', SEQUENCE_START) | flag('!', SEQUENCE_END);
        let timeout_us = 1000 * after('~');
        let context = Context { id, correlation, flags, timeout_us, ..Context::default() };
        if text.contains('%') {
            context.cancel();
        }
        pending.request.context = Arc::new(context);
        let at = self.at(ms);
        if let Err(rejected) = self.scheduler.push(pending, at) {
            self.note(ms, [*rejected]);
        }
    }

    /// Begins what can run.
    pub(super) fn run(&mut self, ms: u64) {
        let at = self.at(ms);
        for instance in 0..self.busy.len() {
            while self.busy[instance].is_none() {
                match self.scheduler.next(at, &FreeSlots::only(instance)) {
                    Decision::Run { batch, slot, null_rows } => {
                        assert_eq!(slot, Some(instance));
                        self.begin(ms, instance, batch, null_rows);
                    }
                    Decision::Reject(rejected) => self.note(ms, rejected),
                    Decision::Delay { until, .. } => {
                        assert!(at < until);
                        break;
                    }
                    Decision::Idle => break,
                }
            }
        }
        if self.scheduler.next_due().is_some_and(|due| due <= at) {
            let rejected = self.scheduler.expire(at);
            self.note(ms, rejected);
            assert!(self.scheduler.next_due().is_none_or(|due| at < due), "it would never sleep");
        }
    }

    fn begin(&mut self, ms: u64, instance: usize, batch: Vec<Pending>, null_rows: usize) {
        let mut text = format!("{ms}@{instance}");
        for (row, pending) in batch.iter().enumerate() {
            let context = &pending.request.context;
            let ready = pending.request.inputs[1].as_ref().unwrap();
            assert_eq!(ready.data()[0], u8::from(!context.is_null));
            match context.is_null {
                true => text += " -",
                false => {
                    text = format!("{text} {}", context.id);
                    self.rows.push((ms, instance, row, context.id.clone()));
                }
            }
        }
        let nulls = batch.iter().filter(|it| it.request.context.is_null).count();
        assert_eq!(nulls, null_rows);
        self.nulls += nulls;
        self.seen.push(text);
        self.in_flight[instance] = batch;
        self.busy[instance] = Some(ms + self.takes);
    }

    pub(super) fn note(&mut self, ms: u64, rejected: impl IntoIterator<Item = Rejected>) {
        for Rejected { pending, error } in rejected {
            self.seen.push(format!("{ms} {}: {error}", pending.request.context.id));
        }
    }
}
