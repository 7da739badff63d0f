//! How a line looks: Triton's two formats, and an object of JSON.

use std::{
    fmt::{self, Display, Write},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tracing::Level;

use super::{
    event::{FieldValue, LogRecord},
    settings::Switches,
};
use troupe_options::LogFormat;

/// When something was said, since 1970.
#[derive(Clone, Copy)]
pub(super) struct Timestamp(Duration);

impl Timestamp {
    pub(super) fn now() -> Timestamp {
        Timestamp(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }
}

/// One line and its end.
pub(super) fn write(said: &LogRecord, switches: &Switches, moment: Timestamp) -> String {
    let mut line = String::with_capacity(128 + said.message.len());
    // Writing to a string cannot fail.
    let _ = match switches.format() {
        LogFormat::Json => object(&mut line, said, moment),
        LogFormat::Default => default_head(&mut line, said, moment)
            .and_then(|()| text(&mut line, said, switches.quotes)),
        LogFormat::Iso8601 => {
            iso_head(&mut line, said, moment).and_then(|()| text(&mut line, said, switches.quotes))
        }
    };
    line.push('\n');
    line
}

/// `I0131 12:34:56.123456 4711`.
fn default_head(line: &mut String, said: &LogRecord, Timestamp(now): Timestamp) -> fmt::Result {
    let (_, month, day) = date(now);
    let [hours, minutes, seconds] = time(now);
    write!(
        line,
        "{}{month:02}{day:02} {hours:02}:{minutes:02}:{seconds:02}.{:06} {}",
        letter(said.level),
        now.subsec_micros(),
        std::process::id()
    )
}

/// `2024-01-31T12:34:56Z I 4711`.
fn iso_head(line: &mut String, said: &LogRecord, Timestamp(now): Timestamp) -> fmt::Result {
    let (year, month, day) = date(now);
    let [hours, minutes, seconds] = time(now);
    write!(
        line,
        "{year}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}Z {} {}",
        letter(said.level),
        std::process::id()
    )
}

/// ` file.rs:12] "message" name=value`.
fn text(line: &mut String, said: &LogRecord, quotes: bool) -> fmt::Result {
    write!(line, " {}] ", Escaped(&said.place, false))?;
    if quotes {
        write!(line, "\"{}\"", Escaped(&said.message, true))?;
    } else {
        write!(line, "{}", Escaped(&said.message, false))?;
    }
    for (name, value) in &said.fields {
        match value {
            FieldValue::Plain(value) => write!(line, " {name}={value}")?,
            FieldValue::Both { text, .. } => write!(line, " {name}={}", Escaped(text, false))?,
            FieldValue::Text(value) if is_word(value) => write!(line, " {name}={value}")?,
            FieldValue::Text(value) => write!(line, " {name}=\"{}\"", Escaped(value, true))?,
        }
    }
    Ok(())
}

/// Needs no quotation marks.
fn is_word(text: &str) -> bool {
    let is_plain = |it: char| !it.is_control() && !it.is_whitespace() && it != '"' && it != '\\';
    !text.is_empty() && text.chars().all(is_plain)
}

fn object(line: &mut String, said: &LogRecord, Timestamp(now): Timestamp) -> fmt::Result {
    let (year, month, day) = date(now);
    let [hours, minutes, seconds] = time(now);
    write!(
        line,
        "{{\"time\":\"{year}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{:06}Z\",\
         \"level\":\"{}\",\"pid\":{},\"target\":\"{}\"",
        now.subsec_micros(),
        said.level,
        std::process::id(),
        Escaped(said.target, true)
    )?;
    if let Some((file, number)) = said.place.rsplit_once(':') {
        let number = number.parse::<u32>().unwrap_or(0);
        write!(line, ",\"file\":\"{}\",\"line\":{number}", Escaped(file, true))?;
    }
    write!(line, ",\"message\":\"{}\"", Escaped(&said.message, true))?;
    for (name, value) in &said.fields {
        match value {
            FieldValue::Plain(value) | FieldValue::Both { json: value, .. } => {
                write!(line, ",\"{name}\":{value}")?;
            }
            FieldValue::Text(value) => write!(line, ",\"{name}\":\"{}\"", Escaped(value, true))?,
        }
    }
    line.write_char('}')
}

/// A text in which nothing moves the cursor, ends the line or paints the terminal; as the inside of
/// a JSON string, or else with nothing escaped but control characters.
struct Escaped<'a>(&'a str, bool);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '"' | '\\' if self.1 => write!(f, "\\{letter}")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                letter if letter.is_control() => write!(f, "\\u{:04x}", letter as u32)?,
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
        // As Triton marks what is verbose.
        Level::DEBUG | Level::TRACE => 'I',
    }
}

/// Hours, minutes and seconds.
fn time(now: Duration) -> [u64; 3] {
    let second = now.as_secs() % 86_400;
    [second / 3600, second / 60 % 60, second % 60]
}

/// Year, month and day, by the usual rule of leap years.
fn date(now: Duration) -> (i64, u32, u32) {
    let shifted = (now.as_secs() / 86_400) as i64 + 719_468;
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
    use crate::log::LogChange;

    const WHEN: Timestamp = Timestamp(Duration::new(1_706_704_496, 123_456_000));

    fn said(message: &str, fields: Vec<(&'static str, FieldValue)>) -> LogRecord {
        let (target, place) = ("troupe::x", "file.rs:12".to_owned());
        LogRecord { level: Level::WARN, target, place, message: message.to_owned(), fields }
    }

    #[track_caller]
    fn check(format: LogFormat, said: &LogRecord, expected: &str) {
        let switches = Switches::default();
        switches.change(&LogChange { format: Some(format), ..LogChange::default() });
        let pid = format!("{}", std::process::id());
        assert_eq!(write(said, &switches, WHEN), expected.replace("PID", &pid) + "\n");
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
        let said = said("two words", fields());
        let rest = r#" PID file.rs:12] "two words" model=m why="a \"b\"" none="" count=3"#;
        check(LogFormat::Default, &said, &format!("W0131 12:34:56.123456{rest}"));
        check(LogFormat::Iso8601, &said, &format!("2024-01-31T12:34:56Z W{rest}"));
        let json = r#"{"time":"2024-01-31T12:34:56.123456Z","level":"WARN","pid":PID,"target":"troupe::x","file":"file.rs","line":12,"message":"two words","model":"m","why":"a \"b\"","none":"","count":3}"#;
        check(LogFormat::Json, &said, json);
    }

    #[test]
    fn nobody_can_forge_a_line_or_paint_the_terminal() {
        let evil = "a\nW0131 b\r\t\u{1b}[31m\0\u{9b}\u{7f}\"\\";
        let said = said(evil, vec![("x", FieldValue::Text(evil.to_owned()))]);
        let escaped = r#"a\nW0131 b\r\t\u001b[31m\u0000\u009b\u007f\"\\"#;
        let head = "W0131 12:34:56.123456 PID file.rs:12]";
        check(LogFormat::Default, &said, &format!("{head} \"{escaped}\" x=\"{escaped}\""));
        let switches = Switches::default();
        switches.change(&LogChange { format: Some(LogFormat::Json), ..LogChange::default() });
        let line: serde_json::Value = serde_json::from_str(&write(&said, &switches, WHEN)).unwrap();
        assert_eq!((&line["message"], &line["x"]), (&evil.into(), &evil.into()));
        let mut plain = Switches::default();
        plain.quotes = false;
        let line = write(&said, &plain, WHEN);
        let bare = r#"] a\nW0131 b\r\t\u001b[31m\u0000\u009b\u007f"\ x="#;
        assert!(line.contains(bare), "{line}");
        assert_eq!(line.matches(char::is_control).collect::<String>(), "\n");
    }

    #[test]
    fn days_have_dates() {
        let of = |day: u64| date(Duration::from_secs(day * 86_400));
        assert_eq!(of(0), (1970, 1, 1));
        assert_eq!(of(19_782), (2024, 2, 29));
        assert_eq!(of(20_778), (2026, 11, 21));
    }
}
