//! Formats a log line: Triton's two formats, or a JSON object.

use std::{
    fmt::{self, Display, Write},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use time::UtcDateTime;
use tracing::Level;

use super::{
    event::{FieldValue, LogRecord},
    settings::Switches,
};
use troupe_options::LogFormat;

/// The time of a log record: since the Unix epoch.
#[derive(Clone, Copy)]
pub(super) struct Timestamp(Duration);

impl Timestamp {
    pub(super) fn now() -> Timestamp {
        Timestamp(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }
}

/// The line of a record, with its line break.
pub(super) fn write(record: &LogRecord, switches: &Switches, moment: Timestamp) -> String {
    let mut line = String::with_capacity(128 + record.message.len());
    // Writing to a string cannot fail.
    let _ = match switches.format() {
        LogFormat::Json => object(&mut line, record, moment),
        LogFormat::Default => default_head(&mut line, record, moment)
            .and_then(|()| text(&mut line, record, switches.quotes)),
        LogFormat::Iso8601 => iso_head(&mut line, record, moment)
            .and_then(|()| text(&mut line, record, switches.quotes)),
    };
    line.push('\n');
    line
}

/// `I0131 12:34:56.123456 4711`.
fn default_head(line: &mut String, record: &LogRecord, Timestamp(now): Timestamp) -> fmt::Result {
    let time = utc(now);
    let (month, day) = (u8::from(time.month()), time.day());
    let (hours, minutes, seconds) = time.as_hms();
    write!(
        line,
        "{}{month:02}{day:02} {hours:02}:{minutes:02}:{seconds:02}.{:06} {}",
        letter(record.level),
        now.subsec_micros(),
        std::process::id()
    )
}

/// `2024-01-31T12:34:56Z I 4711`.
fn iso_head(line: &mut String, record: &LogRecord, Timestamp(now): Timestamp) -> fmt::Result {
    write!(line, "{}Z {} {}", IsoTime(utc(now)), letter(record.level), std::process::id())
}

/// ` file.rs:12] "message" name=value`.
fn text(line: &mut String, record: &LogRecord, quotes: bool) -> fmt::Result {
    write!(line, " {}] ", Escaped(&record.place, false))?;
    if quotes {
        write!(line, "\"{}\"", Escaped(&record.message, true))?;
    } else {
        write!(line, "{}", Escaped(&record.message, false))?;
    }
    for (name, value) in &record.fields {
        match value {
            FieldValue::Plain(value) => write!(line, " {name}={value}")?,
            FieldValue::Both { text, .. } => write!(line, " {name}={}", Escaped(text, false))?,
            FieldValue::Text(value) if is_word(value) => write!(line, " {name}={value}")?,
            FieldValue::Text(value) => write!(line, " {name}=\"{}\"", Escaped(value, true))?,
        }
    }
    Ok(())
}

/// Whether the text needs no quotation marks.
fn is_word(text: &str) -> bool {
    let is_special = |it: char| it.is_whitespace() || it == '"' || it == '\\' || moves_text(it);
    !text.is_empty() && !text.chars().any(is_special)
}

/// What is written of a target, in two parts: all our targets begin with `troupe::`, whichever
/// crate of the workspace logs, so that filters of logs need not know the crates.
fn public_target(target: &str) -> (&'static str, &str) {
    match target.strip_prefix("troupe_") {
        Some(rest) => ("troupe::", rest),
        None => ("", target),
    }
}

fn object(line: &mut String, record: &LogRecord, Timestamp(now): Timestamp) -> fmt::Result {
    let (prefix, target) = public_target(record.target);
    write!(
        line,
        "{{\"time\":\"{}.{:06}Z\",\"level\":\"{}\",\"pid\":{},\"target\":\"{prefix}{}\"",
        IsoTime(utc(now)),
        now.subsec_micros(),
        record.level,
        std::process::id(),
        Escaped(target, true)
    )?;
    if let Some((file, number)) = record.place.rsplit_once(':') {
        let number = number.parse::<u32>().unwrap_or(0);
        write!(line, ",\"file\":\"{}\",\"line\":{number}", Escaped(file, true))?;
    }
    write!(line, ",\"message\":\"{}\"", Escaped(&record.message, true))?;
    for (name, value) in &record.fields {
        match value {
            FieldValue::Plain(value) | FieldValue::Both { json: value, .. } => {
                write!(line, ",\"{name}\":{value}")?;
            }
            FieldValue::Text(value) => write!(line, ",\"{name}\":\"{}\"", Escaped(value, true))?,
        }
    }
    line.write_char('}')
}

/// Characters that end a line, move the cursor, colour the terminal, or change the order in which the
/// characters around them are shown.
fn moves_text(letter: char) -> bool {
    let is_separator = matches!(letter, '\u{2028}' | '\u{2029}');
    let is_direction = matches!(
        letter,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    letter.is_control() || is_separator || is_direction
}

/// A text with the characters of `moves_text` escaped: it can neither end the line, nor move the
/// cursor, nor colour the terminal, nor look like another text. `true` also escapes quotation marks
/// and backslashes, for the inside of a JSON string. `serde_json` would leave DEL and the C1 control
/// characters as they are.
struct Escaped<'a>(&'a str, bool);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '"' | '\\' if self.1 => write!(f, "\\{letter}")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                letter if moves_text(letter) => write!(f, "\\u{:04x}", letter as u32)?,
                letter => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

fn letter(level: Level) -> char {
    match level {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        Level::INFO => 'I',
        // Triton marks verbose messages like this.
        Level::DEBUG | Level::TRACE => 'I',
    }
}

/// The date and time of day in UTC; the first day of 1970 for clocks beyond the year 9999.
fn utc(now: Duration) -> UtcDateTime {
    UtcDateTime::from_unix_timestamp(now.as_secs() as i64).unwrap_or(UtcDateTime::UNIX_EPOCH)
}

/// `2024-01-31T12:34:56`, without fractions of a second.
struct IsoTime(UtcDateTime);

impl Display for IsoTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (date, time) = (self.0.date(), self.0.time());
        let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
        let (hour, minute, second) = time.as_hms();
        write!(f, "{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::LogChange;

    const WHEN: Timestamp = Timestamp(Duration::new(1_706_704_496, 123_456_000));

    fn record(message: &str, fields: Vec<(&'static str, FieldValue)>) -> LogRecord {
        let (target, place) = ("troupe::x", "file.rs:12".to_owned());
        LogRecord { level: Level::WARN, target, place, message: message.to_owned(), fields }
    }

    #[track_caller]
    fn check(format: LogFormat, record: &LogRecord, expected: &str) {
        let switches = Switches::default();
        switches.change(&LogChange { format: Some(format), ..LogChange::default() });
        let pid = format!("{}", std::process::id());
        assert_eq!(write(record, &switches, WHEN), expected.replace("PID", &pid) + "\n");
    }

    #[test]
    fn a_line_has_the_form_of_its_format() {
        let fields = || {
            let text = |it: &str| FieldValue::Text(it.to_owned());
            vec![
                ("model", text("m")),
                ("why", text("a \"b\"")),
                ("none", text("")),
                ("count", FieldValue::Plain("3".to_owned())),
            ]
        };
        let record = record("two words", fields());
        let rest = r#" PID file.rs:12] "two words" model=m why="a \"b\"" none="" count=3"#;
        check(LogFormat::Default, &record, &format!("W0131 12:34:56.123456{rest}"));
        check(LogFormat::Iso8601, &record, &format!("2024-01-31T12:34:56Z W{rest}"));
        let json = r#"{"time":"2024-01-31T12:34:56.123456Z","level":"WARN","pid":PID,"target":"troupe::x","file":"file.rs","line":12,"message":"two words","model":"m","why":"a \"b\"","none":"","count":3}"#;
        check(LogFormat::Json, &record, json);
    }

    #[test]
    fn targets_do_not_tell_which_crate_logs() {
        for (target, expected) in [
            ("troupe::server::drain", "troupe::server::drain"),
            ("troupe_repository::operation::run", "troupe::repository::operation::run"),
            ("hyper::client", "hyper::client"),
        ] {
            let switches = Switches::default();
            let format = Some(LogFormat::Json);
            switches.change(&LogChange { format, ..LogChange::default() });
            let line = write(&LogRecord { target, ..record("", Vec::new()) }, &switches, WHEN);
            assert!(line.contains(&format!("\"target\":\"{expected}\"")), "{line}");
        }
    }

    #[test]
    fn nobody_can_forge_a_line_or_paint_the_terminal() {
        let evil = "a\nW0131 b\r\t\u{1b}[31m\0\u{9b}\u{7f}\u{2028}\u{202e}\"\\";
        let record = record(evil, vec![("x", FieldValue::Text(evil.to_owned()))]);
        let escaped = r#"a\nW0131 b\r\t\u001b[31m\u0000\u009b\u007f\u2028\u202e\"\\"#;
        let head = "W0131 12:34:56.123456 PID file.rs:12]";
        check(LogFormat::Default, &record, &format!("{head} \"{escaped}\" x=\"{escaped}\""));
        let switches = Switches::default();
        switches.change(&LogChange { format: Some(LogFormat::Json), ..LogChange::default() });
        let line: serde_json::Value =
            serde_json::from_str(&write(&record, &switches, WHEN)).unwrap();
        assert_eq!((&line["message"], &line["x"]), (&evil.into(), &evil.into()));
        let mut plain = Switches::default();
        plain.quotes = false;
        let line = write(&record, &plain, WHEN);
        let bare = r#"] a\nW0131 b\r\t\u001b[31m\u0000\u009b\u007f\u2028\u202e"\ x="#;
        assert!(line.contains(bare), "{line}");
        assert_eq!(line.matches(char::is_control).collect::<String>(), "\n");
    }

    #[test]
    fn days_have_dates() {
        let of = |day: u64| {
            let date = utc(Duration::from_secs(day * 86_400));
            (date.year(), u8::from(date.month()), date.day())
        };
        assert_eq!(of(0), (1970, 1, 1));
        assert_eq!(of(19_782), (2024, 2, 29));
        assert_eq!(of(20_778), (2026, 11, 21));
    }
}
