//! The status of a step or a tensor right now, as the short texts a picture shows.

use super::{
    numbers,
    step::{StepHealth, StepView, WorkNumbers},
};
use troupe_base::tensor::shape_text;

/// Where the graph of a step's model is.
pub type GraphLink<'a> = &'a dyn Fn(&StepView) -> String;

/// What a picture shows of a step at work.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LiveStep {
    pub(super) health: StepHealth,
    /// The share of time that its instances work.
    pub(super) busy: f64,
    pub(super) figures: Figures,
    /// Rows of their own, below the figures that every step has.
    pub(super) more: Vec<Vec<Figure>>,
    /// All of it in a sentence.
    pub(super) title: String,
    /// Where its own graph is.
    pub(super) link: Option<String>,
}

/// Two rows of four.
pub type Figures = [Figure; 8];

/// A number and what it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Its name in markup.
    pub key: &'static str,
    /// Its name for people.
    pub label: &'static str,
    /// Itself.
    pub value: String,
}

/// What a picture shows of a tensor on its way.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LiveTensor {
    /// Its type and shape.
    pub(super) note: String,
    /// Bytes per second; empty if they are not counted.
    pub(super) rate: String,
    /// How fast it is drawn to flow, up to 5; 0 if nothing does.
    pub(super) level: usize,
}

impl LiveStep {
    pub(super) fn of(step: &StepView, link: Option<String>) -> LiveStep {
        LiveStep {
            health: step.health,
            busy: step.numbers.utilization.unwrap_or(0.0),
            figures: figures(&step.numbers),
            more: scheduler_figures(&step.numbers),
            title: step_title(step),
            link,
        }
    }
}

impl LiveTensor {
    /// Bytes are `None` where they are not counted.
    pub(super) fn of(datatype: &str, shape: &[i64], bytes_per_second: Option<f64>) -> LiveTensor {
        LiveTensor {
            note: format!("{datatype} {}", shape_text(shape)).trim().to_owned(),
            rate: numbers::bytes_rate(bytes_per_second),
            level: level(bytes_per_second.unwrap_or(0.0)),
        }
    }
}

impl StepHealth {
    /// Its name in markup.
    pub fn class(self) -> &'static str {
        match self {
            StepHealth::Unavailable => "unavailable",
            StepHealth::Failing => "failing",
            StepHealth::Saturated => "saturated",
            StepHealth::Working => "working",
            StepHealth::Idle => "idle",
        }
    }

    /// Its name for people.
    pub fn word(self) -> &'static str {
        match self {
            StepHealth::Unavailable => "not ready",
            StepHealth::Failing => "failing",
            StepHealth::Saturated => "saturated",
            StepHealth::Working => "working",
            StepHealth::Idle => "idle",
        }
    }
}

/// What is most worth knowing, as texts.
pub fn figures(of: &WorkNumbers) -> Figures {
    let figure = |key, label, value| Figure { key, label, value };
    [
        figure("p50", "p50", numbers::duration(of.p50_us)),
        figure("p99", "p99", numbers::duration(of.p99_us)),
        figure("rate", "requests", numbers::rate(of.requests_per_second)),
        figure("busy", "busy", numbers::percent(of.utilization)),
        figure("queue", "queue", numbers::count(of.queue_depth + of.window_waiting)),
        figure("flight", "in flight", numbers::count(of.in_flight)),
        figure("batch", "batch", numbers::mean(of.mean_batch())),
        figure("errors", "errors", numbers::count(of.errors)),
    ]
}

/// What only steps with such schedulers have, a row for each: sequence slots, the response cache.
pub fn scheduler_figures(of: &WorkNumbers) -> Vec<Vec<Figure>> {
    let figure = |key, label, value| Figure { key, label, value };
    let count = |it: usize| numbers::count(it as u64);
    let sequences = of.sequences.map(|it| {
        vec![
            figure("taken", "slots taken", count(it.taken)),
            figure("slots", "slots", count(it.slots)),
            figure("backlog", "backlog", count(it.backlog)),
        ]
    });
    let cache = of.cache.map(|it| {
        let rate = (it.hits + it.misses != 0).then_some(it.hit_rate);
        vec![
            figure("cache", "cache hits", numbers::percent(rate)),
            figure("hits", "hits", numbers::count(it.hits)),
            figure("misses", "misses", numbers::count(it.misses)),
            figure("coalesced", "coalesced", numbers::count(it.coalesced)),
        ]
    });
    [sequences, cache].into_iter().flatten().collect()
}

/// A step in a sentence, for those who cannot see it.
pub fn step_title(step: &StepView) -> String {
    let more = scheduler_figures(&step.numbers).into_iter().flatten();
    let all = figures(&step.numbers).into_iter().chain(more);
    let all: Vec<String> = all.map(|it| format!("{} {}", it.label, it.value)).collect();
    let numbers = all.join(", ");
    let (model, index, health) = (&step.model, step.step, step.health.word());
    format!("{model}, step {index}, {health}: {numbers}")
}

fn level(bytes_per_second: f64) -> usize {
    let steps = [f64::MIN_POSITIVE, 1e3, 1e5, 1e7, 1e9];
    steps.iter().take_while(|it| **it <= bytes_per_second).count()
}
