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
struct ReportColumn<T> {
    title: &'static str,
    text: fn(&T) -> String,
    shown: ColumnShown,
}

/// When a column is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnShown {
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

const fn column<T>(
    title: &'static str,
    text: fn(&T) -> String,
    shown: ColumnShown,
) -> ReportColumn<T> {
    ReportColumn { title, text, shown }
}

const LEVELS: &[ReportColumn<LoadLevel>] = &[
    column("In flight", |level| level.in_flight.to_string(), ColumnShown::Always),
    column("Infer/s", |level| digits(level.throughput()), ColumnShown::Always),
    column("±", |level| level.spread.map_or_else(|| "-".to_owned(), percent), ColumnShown::Always),
    column("p50", |level| time(level.seen.latency.percentile(50.0)), ColumnShown::Always),
    column("p90", |level| time(level.seen.latency.percentile(90.0)), ColumnShown::Always),
    column("p95", |level| time(level.seen.latency.percentile(95.0)), ColumnShown::Always),
    column("p99", |level| time(level.seen.latency.percentile(99.0)), ColumnShown::Always),
    column("Longest", |level| time(level.seen.latency.max()), ColumnShown::InHtml),
    column("Responses/s", |level| digits(level.response_rate()), ColumnShown::Decoupled),
    column("First p50", |level| time(level.seen.first.percentile(50.0)), ColumnShown::Decoupled),
    column("First p99", |level| time(level.seen.first.percentile(99.0)), ColumnShown::Decoupled),
    column("Failed", |level| level.seen.failed.to_string(), ColumnShown::Always),
    column(
        "First error",
        |level| level.error.as_deref().map(plain).unwrap_or_default(),
        ColumnShown::InHtmlWithErrors,
    ),
];

const STEPS: &[ReportColumn<StepLoad>] = &[
    column("Step", |step| plain(&step.member.key.name), ColumnShown::Always),
    column("Instances", |step| step.member.instances.to_string(), ColumnShown::Always),
    column("Busy", StepLoad::busy, ColumnShown::Always),
    column("At most", |step| format!("{}/s", digits(step.capacity)), ColumnShown::Always),
    column("Waiting", |step| digits(step.waiting), ColumnShown::Always),
    column("Executions", |step| step.counts.executions.to_string(), ColumnShown::InHtml),
    column("Rows", |step| digits(step.counts.mean_batch()), ColumnShown::Always),
    column("Queue", |step| time(step.counts.each(step.counts.queue_ns)), ColumnShown::Always),
    column("Input", |step| time(step.counts.each(step.counts.input_ns)), ColumnShown::Always),
    column("Infer", |step| time(step.counts.each(step.counts.infer_ns)), ColumnShown::Always),
    column("Output", |step| time(step.counts.each(step.counts.output_ns)), ColumnShown::Always),
    column("Failed", |step| step.counts.failed.to_string(), ColumnShown::InHtml),
];

/// A row for each level.
pub(super) fn levels(report: &BenchReport<'_>, medium: Medium) -> Cells {
    let has_errors = report.levels.iter().any(|level| level.error.is_some());
    let is_shown = |shown| match shown {
        ColumnShown::Always => true,
        ColumnShown::InHtml => medium == Medium::Html,
        ColumnShown::InHtmlWithErrors => medium == Medium::Html && has_errors,
        ColumnShown::Decoupled => report.is_decoupled,
    };
    cells(LEVELS, &report.levels, is_shown)
}

/// A row for each step.
pub(super) fn steps(steps: &[StepLoad], medium: Medium) -> Cells {
    cells(STEPS, steps, |shown| shown == ColumnShown::Always || medium == Medium::Html)
}

fn cells<T>(
    columns: &[ReportColumn<T>],
    rows: &[T],
    is_shown: impl Fn(ColumnShown) -> bool,
) -> Cells {
    let columns: Vec<_> = columns.iter().filter(|column| is_shown(column.shown)).collect();
    let row = |thing| columns.iter().map(|column| (column.text)(thing)).collect();
    Cells {
        header: columns.iter().map(|column| column.title).collect(),
        rows: rows.iter().map(row).collect(),
    }
}
