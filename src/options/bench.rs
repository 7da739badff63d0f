//! The command line of `troupe bench`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::connection::ConnectionArguments;

/// At most this many levels in one run.
const MAX_LEVELS: usize = 64;

/// At most this many requests in flight: one machine has ports and memory for no more.
pub const MAX_IN_FLIGHT: usize = 4096;

/// Load on a running server, and what to report.
#[derive(Clone, Debug, Args)]
pub struct BenchArguments {
    /// The model's name
    pub model: String,
    /// Requests kept in flight, one level after the other: numbers with commas between them, or
    /// ranges `START:END[:STEP]`
    #[arg(
        long,
        visible_alias = "concurrency-range",
        value_name = "LEVELS",
        default_value = "1,2,4,8,16",
        value_parser = levels
    )]
    pub concurrency: Levels,
    /// How long to measure at each level
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = super::infer::seconds)]
    pub seconds: Duration,
    /// How long each level runs before it is measured
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds_or_none)]
    pub warmup: Duration,
    /// What an input gets, as `troupe infer` takes it; may be given more than once [default: random
    /// data]
    #[arg(long, short, value_name = "NAME=VALUE", allow_hyphen_values = true)]
    pub input: Vec<String>,
    /// Dimensions of an input without those of the batch, where the model's config leaves them
    /// open; may be given more than once
    #[arg(long, value_name = "NAME:3,224,224", allow_hyphen_values = true)]
    pub shape: Vec<String>,
    /// Zeros and empty strings where no `--input` is given
    #[arg(long, short)]
    pub zero_input: bool,
    /// Characters of a random string
    #[arg(
        long,
        value_name = "LENGTH",
        default_value = "128",
        value_parser = clap::value_parser!(u32).range(..=1 << 20)
    )]
    pub string_length: u32,
    /// Rows of each request, for models that take batches
    #[arg(
        long,
        short,
        value_name = "ROWS",
        default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=1 << 20)
    )]
    pub batch_size: u32,
    /// Requests of each sequence, where the model or a step of it has `sequence_batching`: what is kept
    /// in flight are then sequences, each with one request at a time [default: 20]
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub sequence_length: Option<u32>,
    /// The throughput to suggest instance counts for [default: what the next slowest step allows]
    #[arg(long, value_name = "INFER/S", value_parser = rate)]
    pub target: Option<f64>,
    /// Write the levels as CSV in perf_analyzer's columns, and those of each step's model to
    /// `MODEL_vVERSION.FILE` beside it
    #[arg(long, short = 'f', value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a report with charts, one HTML file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write all measurements and the advice as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// A version of the model [default: the latest]
    #[arg(long, value_name = "VERSION", default_value = "", hide_default_value = true)]
    pub model_version: String,
    /// How the server is reached.
    #[command(flatten)]
    pub connection: ConnectionArguments,
}

/// Requests in flight at each level, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Levels(pub Vec<usize>);

fn levels(text: &str) -> Result<Levels, String> {
    let mut levels = Vec::new();
    for part in text.split(',') {
        let (start, end, step) = range(part.trim()).ok_or_else(|| {
            format!("expected numbers or START:END[:STEP] with commas between them, got `{text}`")
        })?;
        if !(1..=MAX_IN_FLIGHT).contains(&start) || !(start..=MAX_IN_FLIGHT).contains(&end) {
            return Err(format!(
                "`{part}`: expected numbers from 1 to {MAX_IN_FLIGHT}, the start not above the end"
            ));
        }
        levels.extend((start..=end).step_by(step.max(1)));
    }
    levels.sort_unstable();
    levels.dedup();
    if MAX_LEVELS < levels.len() {
        return Err(format!("{} levels, expected at most {MAX_LEVELS}", levels.len()));
    }
    Ok(Levels(levels))
}

/// Start, end and step.
fn range(text: &str) -> Option<(usize, usize, usize)> {
    let numbers = text.split(':').map(|it| it.trim().parse().ok());
    match numbers.collect::<Option<Vec<usize>>>()?[..] {
        [only] => Some((only, only, 1)),
        [start, end] => Some((start, end, 1)),
        [start, end, step] if 0 < step => Some((start, end, step)),
        _ => None,
    }
}

fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|it| Duration::try_from_secs_f64(it).ok());
    seconds.ok_or_else(|| format!("expected a number of seconds, got `{text}`"))
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|it: &f64| it.is_finite() && 0.0 < *it);
    rate.ok_or_else(|| format!("expected a number greater than 0, got `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_numbers_and_ranges() {
        for (text, expected) in [
            ("1,2,4", &[1, 2, 4][..]),
            ("4", &[4]),
            ("1:4", &[1, 2, 3, 4]),
            ("1:16:5", &[1, 6, 11, 16]),
            ("2:3, 1 ,8:16:8", &[1, 2, 3, 8, 16]),
            ("4,1,4", &[1, 4]),
        ] {
            assert_eq!(levels(text).unwrap().0, expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_level_is_refused() {
        for (text, expected) in [
            ("", "expected numbers or START:END[:STEP] with commas between them, got ``"),
            ("1,x", "expected numbers or START:END[:STEP] with commas between them, got `1,x`"),
            ("1:8:0", "expected numbers or START:END[:STEP]"),
            ("1:2:3:4", "expected numbers or START:END[:STEP]"),
            ("0", "`0`: expected numbers from 1 to 4096, the start not above the end"),
            ("8:1", "`8:1`: expected numbers from 1 to 4096, the start not above the end"),
            ("5000", "`5000`: expected numbers from 1 to 4096"),
            ("1:100", "100 levels, expected at most 64"),
            ("99999999999999999999", "expected numbers or START:END[:STEP]"),
        ] {
            let error = levels(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
