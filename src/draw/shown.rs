//! What a drawing says about a step or a tensor right now, as short texts.

use super::{
    graph::Edge,
    numbers,
    step::{Health, Numbers, Step},
};
use troupe_base::tensor::shape_text;

/// Where the graph of a step's model is.
pub type Link<'a> = &'a dyn Fn(&Step) -> String;

/// A step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shown {
    pub(super) health: Health,
    /// The share of time that its instances work.
    pub(super) busy: f64,
    pub(super) cells: Cells,
    /// All of it in a sentence.
    pub(super) title: String,
    /// Where its own graph is.
    pub(super) link: Option<String>,
}

/// Two rows of four.
pub type Cells = [Cell; 8];

/// A number and what it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Its name in markup.
    pub key: &'static str,
    /// Its name for people.
    pub label: &'static str,
    /// Itself.
    pub value: String,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Carried {
    /// Its type and shape.
    pub(super) note: String,
    /// Bytes per second; empty if they are not counted.
    pub(super) rate: String,
    /// How fast it is drawn to flow, up to 5; 0 if nothing does.
    pub(super) level: usize,
}

impl Shown {
    pub(super) fn of(step: &Step, link: Option<String>) -> Shown {
        Shown {
            health: step.health,
            busy: step.numbers.utilization.unwrap_or(0.0),
            cells: cells(&step.numbers),
            title: title(step),
            link,
        }
    }
}

impl Carried {
    pub(super) fn of(edge: &Edge) -> Carried {
        Carried {
            note: format!("{} {}", edge.datatype, shape_text(&edge.shape)).trim().to_owned(),
            rate: numbers::bytes_rate(edge.bytes_per_second),
            level: level(edge.bytes_per_second.unwrap_or(0.0)),
        }
    }
}

impl Health {
    /// Its name in markup.
    pub fn class(self) -> &'static str {
        match self {
            Health::Unavailable => "unavailable",
            Health::Failing => "failing",
            Health::Saturated => "saturated",
            Health::Working => "working",
            Health::Idle => "idle",
        }
    }

    /// Its name for people.
    pub fn word(self) -> &'static str {
        match self {
            Health::Unavailable => "not ready",
            Health::Failing => "failing",
            Health::Saturated => "saturated",
            Health::Working => "working",
            Health::Idle => "idle",
        }
    }
}

/// What is most worth knowing, as texts.
pub fn cells(of: &Numbers) -> Cells {
    let cell = |key, label, value| Cell { key, label, value };
    [
        cell("p50", "p50", numbers::duration(of.p50_us)),
        cell("p99", "p99", numbers::duration(of.p99_us)),
        cell("rate", "requests", numbers::rate(of.requests_per_second)),
        cell("busy", "busy", numbers::percent(of.utilization)),
        cell("queue", "queue", numbers::count(of.queue_depth + of.window_waiting)),
        cell("flight", "in flight", numbers::count(of.in_flight)),
        cell("batch", "batch", numbers::mean(of.mean_batch())),
        cell("errors", "errors", numbers::count(of.errors)),
    ]
}

/// A step in a sentence, for those who cannot see it.
pub fn title(step: &Step) -> String {
    let numbers = cells(&step.numbers).map(|it| format!("{} {}", it.label, it.value)).join(", ");
    let (model, index, health) = (&step.model, step.step, step.health.word());
    format!("{model}, step {index}, {health}: {numbers}")
}

fn level(bytes_per_second: f64) -> usize {
    let steps = [f64::MIN_POSITIVE, 1e3, 1e5, 1e7, 1e9];
    steps.iter().take_while(|it| **it <= bytes_per_second).count()
}
