//! The tables of the page.

use super::{
    super::{
        Report,
        format::{digits, percent, plain, time},
        level::{Level, Step},
    },
    escaped,
};

/// A row for each level.
pub(super) fn level_table(report: &Report<'_>) -> String {
    let mut header = vec!["In flight", "Infer/s", "±", "p50", "p90", "p95", "p99", "Longest"];
    if report.is_decoupled {
        header.extend(["Responses/s", "First p50", "First p99"]);
    }
    header.extend(["Failed", "First error"]);
    let has_errors = report.levels.iter().any(|it| it.error.is_some());
    if !has_errors {
        header.pop();
    }
    let row = |level: &Level| {
        let latency = &level.seen.latency;
        let spread = level.spread.map_or_else(|| "–".to_owned(), percent);
        let mut row = vec![level.in_flight.to_string(), digits(level.throughput()), spread];
        row.extend([50.0, 90.0, 95.0, 99.0].map(|it| time(latency.percentile(it))));
        row.push(time(latency.max()));
        if report.is_decoupled {
            row.push(digits(level.response_rate()));
            row.extend([50.0, 99.0].map(|it| time(level.seen.first.percentile(it))));
        }
        row.push(level.seen.failed.to_string());
        if has_errors {
            row.push(level.error.as_deref().map(plain).unwrap_or_default());
        }
        row
    };
    table(&header, &report.levels.iter().map(row).collect::<Vec<_>>())
}

/// A row for each step.
pub(super) fn step_table(steps: &[Step]) -> String {
    let header = [
        "Step",
        "Instances",
        "Busy",
        "At most",
        "Waiting",
        "Executions",
        "Rows",
        "Queue",
        "Input",
        "Infer",
        "Output",
        "Failed",
    ];
    let row = |step: &Step| {
        let counts = &step.counts;
        let mut row = vec![
            plain(&step.member.key.name),
            step.member.instances.to_string(),
            percent(step.utilisation),
            format!("{}/s", digits(step.capacity)),
            digits(step.waiting),
            counts.executions.to_string(),
            digits(counts.mean_batch()),
        ];
        let times = [counts.queue_ns, counts.input_ns, counts.infer_ns, counts.output_ns];
        row.extend(times.map(|it| time(counts.each(it))));
        row.push(counts.failed.to_string());
        row
    };
    table(&header, &steps.iter().map(row).collect::<Vec<_>>())
}

fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let cells =
        |row: &Vec<String>| row.iter().map(|it| format!("<td>{}</td>", escaped(it))).collect();
    let line = |cells: String| format!("<tr>{cells}</tr>\n");
    let head: String = header.iter().map(|it| format!("<th>{it}</th>")).collect();
    let body: String = rows.iter().map(|it| line(cells(it))).collect();
    format!(
        "<div class=\"wide\"><table>\n<thead>{}</thead>\n<tbody>\n{body}</tbody>\n</table></div>\n",
        line(head)
    )
}
