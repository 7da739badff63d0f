//! The report for a terminal.

use super::{
    cells::{self, Cells, Medium},
    format::{count, plain},
    report::BenchReport,
};
use troupe_base::table::table;

/// Levels, steps, advice.
pub(super) fn text(report: &BenchReport<'_>) -> String {
    let mut text = terminal(&cells::levels(report, Medium::Terminal));
    if let Some(length) = report.sequence_length {
        text += &format!("In flight are sequences of {} each.\n", count(length.into(), "request"));
    }
    let Some(advice) = &report.advice else { return text };
    let level = &report.levels[advice.level];
    if !advice.steps.is_empty() {
        text += &format!("\nWith {} in flight, times of a request on average:\n", level.in_flight);
        text += &terminal(&cells::steps(&advice.steps, Medium::Terminal));
    }
    text += &format!("\n{}\n", advice.headline);
    advice.reasons.iter().for_each(|it| text += &format!("{it}\n"));
    for it in &advice.suggestions {
        let (name, count) = (plain(&it.key.name), it.then);
        let or = match it.is_python {
            true => format!(" (of a plain function: @model(instances={count}))"),
            false => String::new(),
        };
        text +=
            &format!("In the config of `{name}`: instance_group [ {{ count: {count} }} ]{or}\n");
    }
    advice.doubts.iter().for_each(|it| text += &format!("Note: {it}\n"));
    text
}

fn terminal(cells: &Cells) -> String {
    table(&cells.header, &cells.rows)
}
