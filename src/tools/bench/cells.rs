//! The columns of the report's tables, for the terminal and for HTML alike.

use super::{
    format::{digits, percent, plain, time},
    level::{LoadLevel, StepLoad},
    report::BenchReport,
};

/// Where a column is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    /// A terminal has room for the columns that matter most.
    Terminal,
    Html,
}

/// One column of a table with a row for each `T`.
struct Column<T> {
    title: &'static str,
    text: fn(&T) -> String,
    shown: Shown,
}

/// When a column is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Always,
    InHtml,
    /// In HTML, when a request failed.
    InHtmlWithErrors,
    /// For decoupled models.
    Decoupled,
}

/// A header, and a row of cells for each thing.
pub(super) struct Cells {
    pub(super) header: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
}

const fn column<T>(title: &'static str, text: fn(&T) -> String, shown: Shown) -> Column<T> {
    Column { title, text, shown }
}

const LEVELS: &[Column<LoadLevel>] = &[
    column("In flight", |level| level.in_flight.to_string(), Shown::Always),
    column("Infer/s", |level| digits(level.throughput()), Shown::Always),
    column("±", |level| level.spread.map_or_else(|| "-".to_owned(), percent), Shown::Always),
    column("p50", |level| time(level.seen.latency.percentile(50.0)), Shown::Always),
    column("p90", |level| time(level.seen.latency.percentile(90.0)), Shown::Always),
    column("p95", |level| time(level.seen.latency.percentile(95.0)), Shown::Always),
    column("p99", |level| time(level.seen.latency.percentile(99.0)), Shown::Always),
    column("Longest", |level| time(level.seen.latency.max()), Shown::InHtml),
    column("Responses/s", |level| digits(level.response_rate()), Shown::Decoupled),
    column("First p50", |level| time(level.seen.first.percentile(50.0)), Shown::Decoupled),
    column("First p99", |level| time(level.seen.first.percentile(99.0)), Shown::Decoupled),
    column("Failed", |level| level.seen.failed.to_string(), Shown::Always),
    column(
        "First error",
        |level| level.error.as_deref().map(plain).unwrap_or_default(),
        Shown::InHtmlWithErrors,
    ),
];

const STEPS: &[Column<StepLoad>] = &[
    column("Step", |step| plain(&step.member.key.name), Shown::Always),
    column("Instances", |step| step.member.instances.to_string(), Shown::Always),
    column("Busy", |step| percent(step.utilisation), Shown::Always),
    column("At most", |step| format!("{}/s", digits(step.capacity)), Shown::Always),
    column("Waiting", |step| digits(step.waiting), Shown::Always),
    column("Executions", |step| step.counts.executions.to_string(), Shown::InHtml),
    column("Rows", |step| digits(step.counts.mean_batch()), Shown::Always),
    column("Queue", |step| time(step.counts.each(step.counts.queue_ns)), Shown::Always),
    column("Input", |step| time(step.counts.each(step.counts.input_ns)), Shown::Always),
    column("Infer", |step| time(step.counts.each(step.counts.infer_ns)), Shown::Always),
    column("Output", |step| time(step.counts.each(step.counts.output_ns)), Shown::Always),
    column("Failed", |step| step.counts.failed.to_string(), Shown::InHtml),
];

/// A row for each level.
pub(super) fn levels(report: &BenchReport<'_>, medium: Medium) -> Cells {
    let has_errors = report.levels.iter().any(|level| level.error.is_some());
    let is_shown = |shown| match shown {
        Shown::Always => true,
        Shown::InHtml => medium == Medium::Html,
        Shown::InHtmlWithErrors => medium == Medium::Html && has_errors,
        Shown::Decoupled => report.is_decoupled,
    };
    cells(LEVELS, &report.levels, is_shown)
}

/// A row for each step.
pub(super) fn steps(steps: &[StepLoad], medium: Medium) -> Cells {
    cells(STEPS, steps, |shown| shown == Shown::Always || medium == Medium::Html)
}

fn cells<T>(columns: &[Column<T>], rows: &[T], is_shown: impl Fn(Shown) -> bool) -> Cells {
    let columns: Vec<_> = columns.iter().filter(|column| is_shown(column.shown)).collect();
    let row = |thing| columns.iter().map(|column| (column.text)(thing)).collect();
    Cells {
        header: columns.iter().map(|column| column.title).collect(),
        rows: rows.iter().map(row).collect(),
    }
}
