//! The page of the HTML report: advice, key figures, charts, tables.

use std::time::SystemTime;

use super::{
    super::{
        format::{count, date, digits, percent, plain, time},
        level::{LoadLevel, StepLoad},
        report::BenchReport,
    },
    bars::{self, steps, suggestions},
    chart::{Across, Chart, ChartSeries, chart, round},
    parts::{level_table, step_table},
};
use troupe_base::text::escape_markup;

/// Steps drawn as lines; more cannot be told apart.
const MAX_LINES: usize = 6;

/// Characters of a name in a chart.
const MAX_NAME_CHARS: usize = 24;

/// The page.
pub(in super::super) fn page(report: &BenchReport<'_>) -> String {
    let model = escape_markup(&report.arguments.model);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>troupe bench {model}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n\
         <header>\n<p class=\"kind\">troupe bench</p>\n<h1>{model}</h1>\n<p class=\"soft\">{}</p>\n\
         </header>\n{}{}<div class=\"charts\">\n{}</div>\n{}{}</main>\n</body>\n</html>\n",
        include_str!("style.css"),
        subtitle(report),
        advice(report),
        figures(report),
        charts(report),
        times(report),
        details(report),
    )
}

fn subtitle(report: &BenchReport<'_>) -> String {
    let arguments = report.arguments;
    let mut parts = vec![arguments.connection.url.clone(), report.server.clone()];
    if 1 < arguments.batch_size {
        parts.push(format!("{} rows a request", arguments.batch_size));
    }
    parts.extend(
        report.sequence_length.map(|it| format!("sequences of {}", count(it.into(), "request"))),
    );
    parts.push(format!("{} a level", round(&time(arguments.seconds.as_secs_f64() * 1e9))));
    parts.push(date(SystemTime::now()));
    parts
        .iter()
        .filter(|it| !it.is_empty())
        .map(|it| escape_markup(it))
        .collect::<Vec<_>>()
        .join(" · ")
}

fn advice(report: &BenchReport<'_>) -> String {
    let Some(advice) = &report.advice else { return String::new() };
    let reasons: String =
        advice.reasons.iter().map(|it| format!("<p>{}</p>\n", marked(it))).collect();
    let doubts: String =
        advice.doubts.iter().map(|it| format!("<li>{}</li>\n", marked(it))).collect();
    let doubts = if doubts.is_empty() { doubts } else { format!("<ul>\n{doubts}</ul>\n") };
    format!(
        "<section class=\"card advice {}\">\n<h2>{}</h2>\n{reasons}{}{doubts}</section>\n",
        advice.limit.as_str(),
        marked(&advice.headline),
        suggestions(&advice.suggestions),
    )
}

/// The numbers one looks for first.
fn figures(report: &BenchReport<'_>) -> String {
    let Some(advice) = &report.advice else { return String::new() };
    let best = &report.levels[advice.best];
    let latency = |percent| time(best.seen.latency.percentile(percent));
    let failed: u64 = report.levels.iter().map(|it| it.seen.failed).sum();
    let mut figures = vec![
        (
            "Best throughput",
            format!("{} <small>infer/s</small>", digits(best.throughput())),
            format!("with {} in flight", best.in_flight),
        ),
        ("Latency there", latency(50.0), format!("p50; p99 is {}", latency(99.0))),
    ];
    if let Some(step) = advice.steps.first() {
        let name = escape_markup(&plain(&step.member.key.name));
        let name = format!("{name}, {} an inference", time(step.demand_ns));
        figures.push(("Slowest step", format!("{} <small>busy</small>", step.busy()), name));
    }
    let sent: u64 = report.levels.iter().map(|it| it.answered() + it.seen.failed).sum();
    figures.push(("Failed", failed.to_string(), format!("of {sent} requests")));
    let one = |(title, value, note): &(&str, String, String)| {
        format!(
            "<div class=\"card\"><h3>{title}</h3><p class=\"value\">{value}</p><p class=\"soft\">{note}</p></div>\n"
        )
    };
    format!(
        "<section class=\"figures\">\n{}</section>\n",
        figures.iter().map(one).collect::<String>()
    )
}

fn charts(report: &BenchReport<'_>) -> String {
    let levels = &report.levels;
    let x: Vec<usize> = levels.iter().map(|it| it.in_flight).collect();
    let line = |name: &str, colour, of: &dyn Fn(&LoadLevel) -> Option<f64>| ChartSeries {
        name: name.to_owned(),
        colour,
        values: levels.iter().map(of).collect(),
    };
    let limit = report.advice.as_ref().and_then(|it| it.steps.first());
    let across = |value, text, colour| Some(Across { value, text, colour });
    let limit = limit.and_then(|it| {
        let name = short(&plain(&it.member.key.name));
        across(it.capacity, format!("{name} allows {}/s", digits(it.capacity)), 5)
    });
    let mut throughput = vec![line("inferences/s", 1, &|it| Some(it.throughput()))];
    if report.is_decoupled {
        throughput.push(line("responses/s", 4, &|it| Some(it.response_rate())));
    }
    let at = |percent: f64| move |it: &LoadLevel| Some(it.seen.latency.percentile(percent));
    let mut latency =
        vec![line("p50", 1, &at(50.0)), line("p90", 2, &at(90.0)), line("p99", 5, &at(99.0))];
    if report.is_decoupled {
        latency.push(line("first response, p50", 4, &|it| Some(it.seen.first.percentile(50.0))));
    }
    let cores = vec![
        line("server", 1, &|it| it.used.server),
        line("this command", 4, &|it| Some(it.used.client)),
        line("all programs", 3, &|it| it.used.machine),
    ];
    let all = report.machine.cores as f64;
    let draw = |title, series, limit, write: fn(f64) -> String| {
        chart(&Chart { title, x: &x, series, limit, write })
    };
    [
        draw("Throughput", throughput, limit, digits),
        draw("Latency", latency, None, time),
        draw("How busy each step is", busy(report), across(1.0, String::new(), 6), percent),
        draw("Cores at work", cores, across(all, format!("{all} cores"), 6), digits),
    ]
    .concat()
}

/// A long name without its middle: names that differ do so at the ends.
fn short(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    match letters.len() {
        0..=MAX_NAME_CHARS => name.to_owned(),
        length => {
            let ends =
                [&letters[..MAX_NAME_CHARS / 2], &letters[length - MAX_NAME_CHARS / 2 + 1..]];
            ends.map(String::from_iter).join("…")
        }
    }
}

/// A line for each of the slowest steps.
fn busy(report: &BenchReport<'_>) -> Vec<ChartSeries> {
    let slowest = report.advice.iter().flat_map(|it| &it.steps).take(MAX_LINES);
    let levels: Vec<Vec<StepLoad>> =
        report.levels.iter().map(|it| it.steps(&report.members)).collect();
    let line = |(index, step): (usize, &StepLoad)| {
        let of = |steps: &Vec<StepLoad>| {
            steps.iter().find(|it| it.member.key == step.member.key).map(|it| it.utilisation)
        };
        let name = plain(&step.member.key.name);
        ChartSeries {
            name,
            colour: [5, 1, 3, 4, 2, 6][index],
            values: levels.iter().map(of).collect(),
        }
    };
    slowest.enumerate().map(line).collect()
}

/// Bars of queue and compute for every level, the one looked at open.
fn times(report: &BenchReport<'_>) -> String {
    let looked_at = report.advice.as_ref().map(|it| it.level);
    let one = |(index, level): (usize, &LoadLevel)| {
        let mut found = level.steps(&report.members);
        // As the request meets them.
        found.sort_by_key(|it| report.members.iter().position(|member| *member == it.member));
        let open = if looked_at == Some(index) { " open" } else { "" };
        (!found.is_empty()).then(|| {
            let latency = time(level.seen.latency.percentile(50.0));
            let (in_flight, rate) = (level.in_flight, digits(level.throughput()));
            let title = format!(
                "{in_flight} in flight <span class=\"soft\">{rate} infer/s, p50 {latency}</span>"
            );
            format!("<details{open}><summary>{title}</summary>\n{}</details>\n", steps(&found))
        })
    };
    let all: String = report.levels.iter().enumerate().filter_map(one).collect();
    if all.is_empty() {
        return all;
    }
    format!(
        "<section class=\"card\">\n<h2>Where a request's time goes in each step</h2>\n{}{all}\
         </section>\n",
        bars::LEGEND
    )
}

fn details(report: &BenchReport<'_>) -> String {
    let mut text = format!("<section class=\"card\">\n<h2>Levels</h2>\n{}", level_table(report));
    if let Some(advice) = report.advice.as_ref().filter(|it| !it.steps.is_empty()) {
        let in_flight = report.levels[advice.level].in_flight;
        text +=
            &format!("<h2>Steps with {in_flight} in flight</h2>\n{}", step_table(&advice.steps));
    }
    let process = match &report.process {
        Some((pid, name)) => format!(
            "The server's cores are those of process {pid} ({}) and of those it started.",
            escape_markup(name)
        ),
        None => {
            "The server's process was not found on this machine: its use of cores is not known."
                .to_owned()
        }
    };
    text + &format!(
        "<p class=\"soft\">Each level keeps its number of requests in flight: one is sent when \
         another is answered. <b>Busy</b> is the share of time in which an instance was executing, \
         from the server's statistics; <b>at most</b> is what its instances could do if they never \
         waited; <b>waiting</b> is how many requests waited for an instance on average. {process}\
         </p>\n</section>\n"
    )
}

/// Names in backticks become code.
fn marked(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts
        .map(|(index, part)| match index % 2 {
            0 => escape_markup(part),
            _ => format!("<code>{}</code>", escape_markup(part)),
        })
        .collect()
}

#[cfg(test)]
mod tests;
