//! The names of an output's classes, one per line of a file.

use std::sync::Arc;

use super::{Model, OutputLabels};

/// The labels of an output by class, in the bytes of the file they came from.
#[derive(Debug)]
pub struct ClassLabels {
    text: Vec<u8>,
    /// Where each line begins.
    starts: Vec<usize>,
}

impl ClassLabels {
    /// Line `n` names class `n`; the ends of lines are those of Unix or of Windows.
    pub fn new(text: Vec<u8>) -> ClassLabels {
        let breaks = text.iter().enumerate().filter(|it| *it.1 == b'\n');
        let starts = std::iter::once(0).chain(breaks.map(|it| it.0 + 1)).collect();
        ClassLabels { text, starts }
    }

    /// The label of a class; none for an empty line and behind the last one.
    pub fn get(&self, class: usize) -> Option<&[u8]> {
        let line = &self.text[*self.starts.get(class)?..];
        let line = line.split(|it| *it == b'\n').next()?;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        (!line.is_empty()).then_some(line)
    }
}

impl Model {
    /// The same with names for the classes of its outputs.
    pub fn with_labels(self, labels: OutputLabels) -> Model {
        Model { labels, ..self }
    }

    /// The names of an output's classes.
    pub fn labels(&self, output: usize) -> Option<&Arc<ClassLabels>> {
        self.labels.get(output)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_the_label_of_its_number() {
        for text in ["cat\n\nbig dog\n", "cat\r\n\r\nbig dog", "cat\n\nbig dog\n\n"] {
            let labels = ClassLabels::new(text.into());
            let all: Vec<_> = (0..5).map(|it| labels.get(it)).collect();
            assert_eq!(all, [Some(&b"cat"[..]), None, Some(b"big dog"), None, None], "{text:?}");
        }
        assert_eq!(ClassLabels::new(Vec::new()).get(0), None);
        assert_eq!(ClassLabels::new(b"gr\xfcn".to_vec()).get(0), Some(&b"gr\xfcn"[..]));
    }
}
