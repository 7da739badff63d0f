//! Collects the problems of one model.

use crate::config::problem::{Problem, SourceMap};

/// The problems found so far.
pub(super) struct ConfigReport<'a> {
    pub(super) model: &'a str,
    pub(super) source_map: &'a SourceMap,
    pub(super) problems: Vec<Problem>,
}

impl ConfigReport<'_> {
    /// A problem at the position of a field.
    pub(super) fn add(&mut self, path: &str, text: impl Into<String>) {
        self.problems.push(self.source_map.problem(path, text));
    }

    /// Refuses the fields that ask for something; `parent` is the path before their names.
    pub(super) fn refuse(&mut self, parent: &str, asked: &[(&str, bool)]) {
        for (field, _) in asked.iter().filter(|(_, is_asked)| *is_asked) {
            let path = format!("{parent}{field}");
            let without_index: String =
                path.split(']').map(|part| part.split('[').next().unwrap_or("")).collect();
            self.add(&path, format!("`{without_index}` is not supported yet"));
        }
    }
}

/// A message that only repeats the defaults asks for nothing.
pub(super) fn asks<T: Default + PartialEq>(message: Option<&T>) -> bool {
    message.is_some_and(|message| *message != T::default())
}
