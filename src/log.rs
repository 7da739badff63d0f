//! Log lines: one line an event whatever it says, levels by the command line's switches.

use std::{
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::{
    Layer,
    filter::filter_fn,
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use crate::options;

/// Longer messages are cut.
const LONGEST: usize = 64 << 10;

/// Sends events to stderr. Does nothing when a subscriber is set already.
pub fn start(options: &options::Log) {
    let options = options.clone();
    let is_wanted = move |event: &Metadata<'_>| {
        let is_ours = event.target().starts_with("troupe");
        match *event.level() {
            Level::ERROR => options.log_error,
            Level::WARN => options.log_warning,
            Level::INFO => options.log_info && is_ours,
            Level::DEBUG => 1 <= options.log_verbose && is_ours,
            Level::TRACE => 2 <= options.log_verbose && is_ours,
        }
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .event_format(Line)
        .with_filter(filter_fn(is_wanted));
    // A second start in one process keeps the first subscriber.
    let _ = tracing_subscriber::registry().with(lines).try_init();
}

struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let letter = event.metadata().level().as_str().chars().next().unwrap_or('?');
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (day, second) = (now.as_secs() / 86_400, now.as_secs() % 86_400);
        let (_, month, day) = date(day as i64);
        write!(
            writer,
            "{letter}{month:02}{day:02} {:02}:{:02}:{:02}.{:06} {}] ",
            second / 3600,
            second / 60 % 60,
            second % 60,
            now.subsec_micros(),
            std::process::id()
        )?;
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        writeln!(writer, "{}", one_line(&text))
    }
}

/// Control characters escaped, so that nobody can forge lines or paint the terminal.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for char in text.chars() {
        if LONGEST < line.len() {
            line.push('…');
            break;
        }
        match char {
            char if char.is_control() => line.extend(char.escape_default()),
            char => line.push(char),
        }
    }
    line
}

/// Year, month and day of a day since 1970, by the usual rule of leap years.
fn date(day: i64) -> (i64, u32, u32) {
    let shifted = day + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = (of_year - (153 * month + 2) / 5 + 1) as u32;
    let month = if month < 10 { month + 3 } else { month - 9 } as u32;
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_stays_on_its_line() {
        assert_eq!(one_line("a\nb\u{1b}[31m\0"), "a\\nb\\u{1b}[31m\\u{0}");
        assert!(one_line(&"x".repeat(1 << 20)).len() < LONGEST + 10);
    }

    #[test]
    fn days_have_dates() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(19_782), (2024, 2, 29));
        assert_eq!(date(20_778), (2026, 11, 21));
    }
}
