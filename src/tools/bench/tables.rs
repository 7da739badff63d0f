//! The report for a terminal.

use super::{
    Report,
    format::{digits, percent, plain, time},
    level::{Level, Step},
};
use troupe_base::table::table;

/// Levels, steps, advice.
pub(super) fn text(report: &Report<'_>) -> String {
    let mut text = levels(report);
    let Some(advice) = &report.advice else { return text };
    let level = &report.levels[advice.level];
    if !advice.steps.is_empty() {
        text += &format!("\nWith {} in flight, times of a request on average:\n", level.in_flight);
        text += &steps(&advice.steps);
    }
    text += &format!("\n{}\n", advice.headline);
    advice.reasons.iter().for_each(|it| text += &format!("{it}\n"));
    advice.doubts.iter().for_each(|it| text += &format!("Note: {it}\n"));
    text
}

fn levels(report: &Report<'_>) -> String {
    let mut header = vec!["In flight", "Infer/s", "±", "p50", "p90", "p95", "p99"];
    if report.is_decoupled {
        header.extend(["Responses/s", "First p50", "First p99"]);
    }
    header.push("Failed");
    let row = |level: &Level| {
        let spread = level.spread.map_or_else(|| "-".to_owned(), percent);
        let mut row = vec![level.in_flight.to_string(), digits(level.throughput()), spread];
        let latency = [50.0, 90.0, 95.0, 99.0];
        row.extend(latency.map(|it| time(level.seen.latency.percentile(it))));
        if report.is_decoupled {
            row.push(digits(level.response_rate()));
            row.extend([50.0, 99.0].map(|it| time(level.seen.first.percentile(it))));
        }
        row.push(level.seen.failed.to_string());
        row
    };
    table(&header, &report.levels.iter().map(row).collect::<Vec<_>>())
}

fn steps(steps: &[Step]) -> String {
    let header = [
        "Step",
        "Instances",
        "Busy",
        "At most",
        "Waiting",
        "Rows",
        "Queue",
        "Input",
        "Infer",
        "Output",
    ];
    let row = |step: &Step| {
        let counts = &step.counts;
        let times = [counts.queue_ns, counts.input_ns, counts.infer_ns, counts.output_ns];
        let mut row = vec![
            plain(&step.member.key.name),
            step.member.instances.to_string(),
            percent(step.utilisation),
            format!("{}/s", digits(step.capacity)),
            digits(step.waiting),
            digits(counts.mean_batch()),
        ];
        row.extend(times.map(|it| time(counts.each(it))));
        row
    };
    table(&header, &steps.iter().map(row).collect::<Vec<_>>())
}
