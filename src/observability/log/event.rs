//! A log record: the message of a `tracing` event, its fields, and its source location.

use std::fmt::{self, Write};

use tracing::{
    Event, Level,
    field::{Field, Visit},
};

/// Bytes of a message and of a field; longer ones are cut.
const MAX_MESSAGE_BYTES: usize = 64 << 10;
const MAX_FIELD_BYTES: usize = 8 << 10;

/// One record of the log.
pub(super) struct LogRecord {
    pub(super) level: Level,
    pub(super) target: &'static str,
    /// `file.rs:12`; for a Python model the line of its call; or a name without a line.
    pub(super) place: String,
    pub(super) message: String,
    /// Fields in their order.
    pub(super) fields: Vec<(&'static str, FieldValue)>,
}

/// The value of a field, by how it is written.
pub enum FieldValue {
    /// A text, in quotation marks where they are needed.
    Text(String),
    /// A number or a truth value, written as it is in all formats.
    Plain(String),
    /// A value with a form of its own in JSON.
    Both {
        /// For the other formats.
        text: String,
        /// Valid JSON.
        json: String,
    },
}

impl From<&str> for FieldValue {
    fn from(text: &str) -> FieldValue {
        FieldValue::Text(bounded(format_args!("{text}"), MAX_FIELD_BYTES))
    }
}

impl From<u64> for FieldValue {
    fn from(number: u64) -> FieldValue {
        FieldValue::Plain(number.to_string())
    }
}

impl LogRecord {
    pub(super) fn of(event: &Event<'_>) -> LogRecord {
        let metadata = event.metadata();
        let mut record = LogRecord {
            level: *metadata.level(),
            target: metadata.target(),
            place: String::new(),
            message: String::new(),
            fields: Vec::new(),
        };
        event.record(&mut record);
        if record.place.is_empty() {
            let file = metadata.file().unwrap_or("unknown");
            let name = file.rsplit('/').next().unwrap_or(file);
            // Writing to a string cannot fail.
            let _ = write!(record.place, "{name}:{}", metadata.line().unwrap_or(0));
        }
        record
    }

    fn text(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        match field.name() {
            "message" => self.message = bounded(value, MAX_MESSAGE_BYTES),
            // The location of a call from another language.
            "place" => self.place = bounded(value, MAX_FIELD_BYTES),
            name => self.fields.push((name, FieldValue::Text(bounded(value, MAX_FIELD_BYTES)))),
        }
    }

    fn plain(&mut self, field: &Field, value: String) {
        self.fields.push((field.name(), FieldValue::Plain(value)));
    }
}

impl Visit for LogRecord {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, format_args!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, format_args!("{value}"));
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.plain(field, value.to_string());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.plain(field, value.to_string());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no other numbers.
        if value.is_finite() {
            self.plain(field, value.to_string());
        } else {
            self.text(field, format_args!("{value}"));
        }
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.plain(field, value.to_string());
    }
}

/// The text, cut to `max_bytes`.
pub(super) fn bounded(text: fmt::Arguments<'_>, max_bytes: usize) -> String {
    let mut bounded = BoundedText { text: String::new(), max_bytes };
    // An error means that it was cut.
    let _ = bounded.write_fmt(text);
    bounded.text
}

struct BoundedText {
    text: String,
    max_bytes: usize,
}

impl Write for BoundedText {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = self.max_bytes - self.text.len();
        if more.len() <= room {
            self.text.push_str(more);
            return Ok(());
        }
        let fits = more.char_indices().map(|(at, letter)| at + letter.len_utf8());
        let end = fits.take_while(|end| *end <= room).last().unwrap_or(0);
        self.text.push_str(&more[..end]);
        self.text.push('…');
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_letters() {
        assert_eq!(bounded(format_args!("{}{}", "ab", "cd"), 4), "abcd");
        assert_eq!(bounded(format_args!("{}{}", "ab", "cde"), 4), "abcd…");
        assert_eq!(bounded(format_args!("{}{}", "aé", "é"), 4), "aé…");
        assert_eq!(
            bounded(format_args!("{}", "x".repeat(1 << 20)), MAX_MESSAGE_BYTES).len(),
            MAX_MESSAGE_BYTES + 3
        );
    }
}
