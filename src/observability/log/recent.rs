//! The last lines of the log, kept for clients that ask what was logged about a model.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;

use super::event::{FieldValue, LogRecord, bounded};

/// Lines that are kept; older ones go.
const MAX_LINES: usize = 4000;
/// Bytes of all lines that are kept.
const MAX_BYTES: usize = 1 << 20;
/// Bytes of one; longer ones are cut.
const MAX_LINE_BYTES: usize = 16 << 10;
/// What a line takes beside its text.
const LINE_OVERHEAD_BYTES: usize = 96;

/// Words before a name in quotation marks that make it the name of a model: inputs, flags and files
/// are in such marks too.
const WORDS_BEFORE_MODELS: &[&str] = &["model ", "model: ", "ensemble ", "of "];

/// A line of the log that is kept.
pub struct RecentLine {
    /// Lines are counted from 1.
    pub number: u64,
    /// Without its line break.
    pub text: String,
    /// The model that its record names in a field.
    model: Option<String>,
}

impl RecentLine {
    /// Whether it is about a model: its record says so, or else its text names the model.
    fn is_about(&self, model: &str) -> bool {
        match &self.model {
            Some(name) => name == model,
            None => names(&self.text, model),
        }
    }

    fn bytes(&self) -> usize {
        let model = self.model.as_ref().map_or(0, String::len);
        self.text.len() + model + LINE_OVERHEAD_BYTES
    }
}

/// The last lines, bounded by their number and their bytes.
#[derive(Default)]
pub(super) struct RecentLines(Mutex<KeptLines>);

#[derive(Default)]
struct KeptLines {
    /// Their numbers follow each other.
    lines: VecDeque<Arc<RecentLine>>,
    bytes: usize,
    /// The number of the last line, 0 before the first.
    last: u64,
}

impl RecentLines {
    /// Keeps the line of a record.
    pub(super) fn push(&self, record: &LogRecord, line: &str) {
        let model = record.fields.iter().find_map(|(name, value)| match value {
            FieldValue::Text(text) if *name == "model" => Some(text.clone()),
            _ => None,
        });
        let text = bounded(format_args!("{}", line.trim_end_matches('\n')), MAX_LINE_BYTES);
        let mut line = RecentLine { number: 0, text, model };
        let mut kept = self.0.lock();
        kept.last += 1;
        kept.bytes += line.bytes();
        line.number = kept.last;
        kept.lines.push_back(Arc::new(line));
        while MAX_LINES < kept.lines.len() || MAX_BYTES < kept.bytes {
            let Some(oldest) = kept.lines.pop_front() else { return };
            kept.bytes -= oldest.bytes();
        }
    }

    /// The lines about a model behind the line `after`, and the number of the last line of all. A
    /// number that no line has yet is of an earlier process: all lines are behind it.
    pub(super) fn about(&self, model: &str, after: u64) -> (Vec<Arc<RecentLine>>, u64) {
        let (mut lines, last) = {
            let kept = self.0.lock();
            let after = if kept.last < after { 0 } else { after };
            let begin = kept.lines.partition_point(|it| it.number <= after);
            (kept.lines.range(begin..).cloned().collect::<Vec<_>>(), kept.last)
        };
        // Whoever logs does not wait for this.
        lines.retain(|it| it.is_about(model));
        (lines, last)
    }
}

/// Whether a text names a model as log lines do: `` `name` `` or `model 'name'`.
fn names(text: &str, model: &str) -> bool {
    let quoted = format!("'{model}'");
    let is_model = |at| WORDS_BEFORE_MODELS.iter().any(|word| text[..at].ends_with(word));
    text.contains(&format!("`{model}`")) || text.match_indices(&quoted).any(|it| is_model(it.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(model: Option<&str>) -> LogRecord {
        LogRecord {
            level: tracing::Level::INFO,
            target: "troupe",
            place: String::new(),
            message: String::new(),
            fields: model.map(|it| ("model", it.into())).into_iter().collect(),
        }
    }

    fn texts(lines: &RecentLines, model: &str, after: u64) -> Vec<String> {
        lines.about(model, after).0.iter().map(|it| it.text.clone()).collect()
    }

    #[test]
    fn lines_are_about_the_model_that_a_field_or_the_text_names() {
        for (field, text, expected) in [
            (Some("m"), "anything", true),
            (Some("other"), "loaded `m`", false),
            (None, "loaded `m` version 1", true),
            (None, "loaded `mm` version 1", false),
            (None, "parameter 'x' of model 'm' has no effect", true),
            (None, "no timer for the batcher of 'm'", true),
            (None, "unexpected input 'm' of model 'x'", false),
            (None, "m", false),
        ] {
            let lines = RecentLines::default();
            lines.push(&record(field), &format!("{text}\n"));
            assert_eq!(lines.about("m", 0).0.len(), usize::from(expected), "{field:?} {text}");
        }
    }

    #[test]
    fn each_answer_goes_on_behind_the_last() {
        let lines = RecentLines::default();
        for text in ["a", "b"] {
            lines.push(&record(Some("m")), text);
        }
        lines.push(&record(None), "nobody's");
        assert_eq!(texts(&lines, "m", 0), ["a", "b"]);
        assert_eq!(texts(&lines, "m", 1), ["b"]);
        let (more, last) = lines.about("m", 2);
        assert_eq!((more.len(), last), (0, 3));
        lines.push(&record(Some("m")), "c");
        assert_eq!(texts(&lines, "m", last), ["c"]);
        assert_eq!(texts(&lines, "m", 99), ["a", "b", "c"], "of an earlier process");
    }

    #[test]
    fn the_oldest_lines_go_first() {
        let lines = RecentLines::default();
        for number in 0..MAX_LINES + 10 {
            lines.push(&record(Some("m")), &number.to_string());
        }
        let (kept, last) = lines.about("m", 0);
        assert_eq!((kept.len(), last), (MAX_LINES, MAX_LINES as u64 + 10));
        assert_eq!((&*kept[0].text, kept[0].number), ("10", 11));
        let long = "x".repeat(1 << 20);
        for _ in 0..100 {
            lines.push(&record(Some("m")), &long);
        }
        let kept = lines.about("m", 0).0;
        assert!(kept.iter().map(|it| it.bytes()).sum::<usize>() <= MAX_BYTES);
        assert!((60..100).contains(&kept.len()), "{}", kept.len());
        assert_eq!(lines.about("m", 0).0.len(), kept.len());
    }
}
