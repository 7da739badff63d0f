//! What an event says: its message, its fields, and where it comes from.

use std::fmt::{self, Write};

use tracing::{
    Event, Level,
    field::{Field, Visit},
};

/// Longer messages are cut, and longer fields too.
const LONGEST: usize = 64 << 10;
const LONGEST_FIELD: usize = 8 << 10;

/// One event.
pub(super) struct LogRecord {
    pub(super) level: Level,
    pub(super) target: &'static str,
    /// `file.rs:12`; of a Python model's line that of its call; or something else without a line.
    pub(super) place: String,
    pub(super) message: String,
    /// In their order.
    pub(super) fields: Vec<(&'static str, FieldValue)>,
}

/// A field's value, by how it is written.
pub enum FieldValue {
    /// In quotation marks where they are needed.
    Text(String),
    /// JSON has it as it is: a number or a truth value.
    Plain(String),
    /// JSON has another form of it, as it is.
    Both {
        /// For the other formats.
        text: String,
        /// Valid JSON.
        json: String,
    },
}

impl From<&str> for FieldValue {
    fn from(text: &str) -> FieldValue {
        FieldValue::Text(bounded(format_args!("{text}"), LONGEST_FIELD))
    }
}

impl From<u64> for FieldValue {
    fn from(number: u64) -> FieldValue {
        FieldValue::Plain(number.to_string())
    }
}

impl LogRecord {
    pub(super) fn of(event: &Event<'_>) -> LogRecord {
        let about = event.metadata();
        let mut said = LogRecord {
            level: *about.level(),
            target: about.target(),
            place: String::new(),
            message: String::new(),
            fields: Vec::new(),
        };
        event.record(&mut said);
        if said.place.is_empty() {
            let file = about.file().unwrap_or("unknown");
            let name = file.rsplit('/').next().unwrap_or(file);
            // Writing to a string cannot fail.
            let _ = write!(said.place, "{name}:{}", about.line().unwrap_or(0));
        }
        said
    }

    fn text(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        match field.name() {
            "message" => self.message = bounded(value, LONGEST),
            // Where code in another language called from.
            "place" => self.place = bounded(value, LONGEST_FIELD),
            name => self.fields.push((name, FieldValue::Text(bounded(value, LONGEST_FIELD)))),
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

/// The text up to so many bytes.
fn bounded(text: fmt::Arguments<'_>, most: usize) -> String {
    let mut bounded = Bounded { text: String::new(), most };
    // An error means that it was cut.
    let _ = bounded.write_fmt(text);
    bounded.text
}

struct Bounded {
    text: String,
    most: usize,
}

impl Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = self.most - self.text.len();
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
        assert_eq!(bounded(format_args!("{}", "x".repeat(1 << 20)), LONGEST).len(), LONGEST + 3);
    }
}
