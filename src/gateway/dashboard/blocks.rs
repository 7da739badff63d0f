//! Pieces of pages: numbers, little charts, batch sizes and errors, as markup.

use std::{collections::HashSet, fmt::Write, time::Instant};

use troupe_base::statistics::{
    recent::{HistoryPoint, RecentFailure},
    sliding_window::{SLOT_DURATION, SLOTS},
};
use troupe_base::text::escape_markup;
use troupe_draw::{
    LiveGraph, StepView, numbers,
    status::{self, Figure},
    step::WorkNumbers,
};

/// Batch sizes shown, those executed most often.
const BATCH_SIZES: usize = 8;

/// Numbers with their names; the id of each begins with `id`.
pub(super) fn figures(id: &str, cells: &[Figure]) -> String {
    let figure = |it: &Figure| {
        let Figure { key, label, value } = it;
        format!("<div><dt>{label}</dt><dd id=\"{id}-{key}\" class=\"{key}\">{value}</dd></div>")
    };
    cells.iter().map(figure).collect()
}

/// What counts up, beside what a card of a step has.
pub(super) fn totals(of: &WorkNumbers) -> Vec<Figure> {
    let cell = |key, label, value| Figure { key, label, value: numbers::count(value) };
    let mut cells = vec![
        cell("total", "requests in all", of.requests),
        cell("cancelled", "cancelled", of.cancelled),
        cell("window", "held back", of.window_waiting),
    ];
    cells.extend(status::scheduler_figures(of).into_iter().flatten());
    cells
}

/// Requests of the last minute as bars, failures at their feet.
pub(super) fn bars(history: &[HistoryPoint; SLOTS]) -> String {
    let most = history.iter().map(|it| it.requests).max().unwrap_or(0);
    let title =
        format!("requests of the last minute, at most {most} in {} s", SLOT_DURATION.as_secs());
    let mut out = chart(&title);
    for (index, it) in history.iter().enumerate() {
        let height = |count: u64| 40.0 * count as f64 / most.max(1) as f64;
        // A span without requests is a line at the foot.
        let (all, failed) = (height(it.requests).max(0.6), height(it.errors));
        let now = if index == SLOTS - 1 { " now" } else { "" };
        let x = index * 10 + 1;
        let _ = write!(
            out,
            "<rect class=\"hill{now}\" x=\"{x}\" y=\"{:.1}\" width=\"8\" height=\"{all:.1}\" rx=\"1\"/>",
            40.0 - all,
        );
        if it.errors != 0 {
            let _ = write!(
                out,
                "<rect class=\"fault\" x=\"{x}\" y=\"{:.1}\" width=\"8\" height=\"{failed:.1}\" \
                 rx=\"1\"/>",
                40.0 - failed,
            );
        }
    }
    out + "</svg>"
}

/// The p99 of the last minute as a line.
pub(super) fn line(history: &[HistoryPoint; SLOTS]) -> String {
    let us = |it: &HistoryPoint| it.p99.map(|it| it.as_nanos() as f64 / 1e3);
    let most = history.iter().filter_map(us).fold(0.0, f64::max);
    let told = numbers::duration((0.0 < most).then_some(most));
    let mut out = chart(&format!("p99 of the last minute, at most {told}"));
    let mut path = String::new();
    let mut pen = 'M';
    for (index, it) in history.iter().enumerate() {
        let Some(us) = us(it) else {
            pen = 'M';
            continue;
        };
        let (x, y) = (index * 10 + 5, 38.0 - 35.0 * us / most.max(1.0));
        let _ = write!(path, "{pen}{x} {y:.1}");
        let _ = write!(out, "<circle class=\"spot\" cx=\"{x}\" cy=\"{y:.1}\" r=\"1.6\"/>");
        pen = 'L';
    }
    let _ = write!(out, "<path class=\"trend\" d=\"{path}\"/>");
    out + "</svg>"
}

fn chart(title: &str) -> String {
    format!(
        "<svg class=\"chart\" viewBox=\"0 0 120 40\" preserveAspectRatio=\"none\" role=\"img\">\
         <title>{title}</title>"
    )
}

/// The two charts of a step.
pub(super) fn minute(step: &StepView) -> String {
    let most = step.history.iter().map(|it| it.requests).max().unwrap_or(0);
    let slowest = step.history.iter().filter_map(|it| it.p99).max();
    let slowest = numbers::duration(slowest.map(|it| it.as_nanos() as f64 / 1e3));
    let rate = numbers::rate(most as f64 / SLOT_DURATION.as_secs_f64());
    format!(
        "<figure>{}<figcaption>requests <span>up to {rate}</span></figcaption></figure>\
         <figure>{}<figcaption>p99 <span>up to {slowest}</span></figcaption></figure>",
        bars(&step.history),
        line(&step.history)
    )
}

/// Executed batch sizes, the share of each as a bar.
pub(super) fn batches(of: &WorkNumbers) -> String {
    let mut sizes = of.batch_sizes.clone();
    sizes.sort_by_key(|it| std::cmp::Reverse(it.count));
    sizes.truncate(BATCH_SIZES);
    sizes.sort_by_key(|it| it.size);
    let all: u64 = of.batch_sizes.iter().map(|it| it.count).sum();
    if sizes.is_empty() {
        return "<p class=\"none\">Nothing has been executed yet.</p>".to_owned();
    }
    let row = |it: &troupe_draw::step::BatchSize| {
        let share = 100.0 * it.count as f64 / all as f64;
        format!(
            "<tr><th scope=\"row\">{}</th><td class=\"share\"><svg height=\"8\" aria-hidden=\"true\">\
             <rect class=\"track\" width=\"100%\" height=\"8\" rx=\"4\"/>\
             <rect class=\"bar\" width=\"{share:.1}%\" height=\"8\" rx=\"4\"/></svg></td>\
             <td>{}</td></tr>",
            it.size,
            numbers::count(it.count)
        )
    };
    let rows: String = sizes.iter().map(row).collect();
    format!(
        "<table class=\"batches\"><thead><tr><th scope=\"col\">rows</th><th></th>\
         <th scope=\"col\">times</th></tr></thead><tbody>{rows}</tbody></table>"
    )
}

/// How the last request of a model, or of a step of an ensemble, failed.
pub(super) fn last_error(of: &WorkNumbers, is_step: bool) -> String {
    let none = if is_step { "This step has not failed." } else { "No request has failed." };
    match &of.last_error {
        None => format!("<p class=\"none\">{none}</p>"),
        Some(it) => format!(
            "<p class=\"when\">{}</p><pre tabindex=\"0\">{}</pre>",
            ago(it.seconds_ago),
            escaped_lines(&it.text)
        ),
    }
}

/// How requests of a model failed, the last one first.
pub(super) fn failures(all: &[RecentFailure], now: Instant) -> String {
    if all.is_empty() {
        return "<p class=\"none\">No request has failed.</p>".to_owned();
    }
    let item = |it: &RecentFailure| {
        let refused =
            if it.is_counted { "" } else { ", refused before the model saw it, not counted" };
        let times = match it.times {
            1 => String::new(),
            times => format!(", {} times in a row", numbers::count(times)),
        };
        format!(
            "<p class=\"when\">{}{times}{refused}</p><pre tabindex=\"0\">{}</pre>",
            ago(now.saturating_duration_since(it.at).as_secs()),
            escaped_lines(&it.text)
        )
    };
    all.iter().rev().map(item).collect()
}

/// What a step reads and writes.
pub(super) fn tensors(graph: &LiveGraph, node: &str) -> String {
    let mut rows = String::new();
    let mut written = HashSet::new();
    for edge in graph.edges.iter().filter(|it| it.to == node || it.from == node) {
        let is_read = edge.to == node;
        // What several read is written once.
        if !is_read && !written.insert(&edge.tensor) {
            continue;
        }
        let (way, port) = if is_read { ("reads", &edge.input) } else { ("writes", &edge.output) };
        let shape = troupe_base::tensor::shape_text(&edge.shape);
        let _ = write!(
            rows,
            "<tr><td>{way}</td><td><b>{}</b>{}</td><td>{} {shape}</td><td>{}</td></tr>",
            escape_markup(&edge.tensor),
            if *port == edge.tensor {
                String::new()
            } else {
                format!(" as {}", escape_markup(port))
            },
            edge.datatype,
            numbers::bytes_rate(edge.bytes_per_second),
        );
    }
    format!("<table class=\"tensors\"><tbody>{rows}</tbody></table>")
}

/// So long before now.
fn ago(seconds: u64) -> String {
    match seconds {
        0 => "just now".to_owned(),
        1..=119 => format!("{seconds} s ago"),
        120..=7199 => format!("{} min ago", seconds / 60),
        _ => format!("{} h ago", seconds / 3600),
    }
}

/// Escapes a text of several lines for markup. Tabs are spaces, as markup has no way to show other
/// control characters.
pub(super) fn escaped_lines(text: &str) -> String {
    let line = |it: &str| escape_markup(&it.replace('\t', "    "));
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}
