//! A problem of a configuration, and its position in the source: file, line and column.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A point in a file; line 0 means the whole file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcePosition {
    pub file: String,
    pub line: u32,
    pub column: u32,
}

/// Something wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub position: SourcePosition,
    pub text: String,
}

/// Line and column, from 1; 0 and 0 mean the whole file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LineColumn {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// Where each field of a configuration stood.
///
/// A path is `ensemble_scheduling.step[1].input_map[0]`; an entry of a map is also found by its
/// key, `input_map["X"]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceMap {
    file: Arc<str>,
    known: BTreeMap<String, LineColumn>,
}

impl SourceMap {
    /// Knows no field: every position is the whole file.
    pub fn whole_file(file: &str) -> SourceMap {
        SourceMap { file: file.into(), known: BTreeMap::new() }
    }

    /// The position of the field or, when it was not written, of its nearest known ancestor.
    pub fn locate(&self, path: &str) -> SourcePosition {
        let mut path = path;
        loop {
            if let Some(position) = self.known.get(path) {
                return self.at(*position);
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = &path[..end],
                None => return self.at(LineColumn::default()),
            }
        }
    }

    /// A problem at the position of a field.
    pub fn problem(&self, path: &str, text: impl Into<String>) -> Problem {
        Problem { position: self.locate(path), text: text.into() }
    }

    /// The map of a text that was made from another file: `lines` has, for each line of the text, the
    /// one of `file` that it comes from.
    pub fn of_origin(mut self, file: &str, lines: &[u32]) -> SourceMap {
        self.file = file.into();
        for position in self.known.values_mut() {
            let made = (position.line as usize).checked_sub(1);
            let line = made.and_then(|it| lines.get(it)).copied().unwrap_or_default();
            *position = LineColumn { line, column: 1 };
        }
        self
    }

    /// The line and column of a field, if it was written.
    pub(crate) fn position(&self, path: &str) -> Option<LineColumn> {
        self.known.get(path).copied()
    }

    /// Remembers the first position of a field.
    pub(crate) fn insert(&mut self, path: String, position: LineColumn) {
        self.known.entry(path).or_insert(position);
    }

    /// A point of this file.
    pub(crate) fn at(&self, position: LineColumn) -> SourcePosition {
        let LineColumn { line, column } = position;
        SourcePosition { file: self.file.to_string(), line, column }
    }
}

impl fmt::Display for SourcePosition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(out, "{}", self.file),
            line => write!(out, "{}:{line}:{}", self.file, self.column),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.position, self.text)
    }
}

impl std::error::Error for Problem {}

impl Problem {
    /// The text first, because clients match on it, and where it was written if it was.
    pub fn message(&self) -> String {
        match self.position.line {
            0 => self.text.clone(),
            _ => format!("{} ({})", self.text, self.position),
        }
    }
}

/// Texts of one model that an error lists; of the others it tells the number.
const MAX_LISTED: usize = 100;

/// The problems in one line, the first of them if there are many.
pub fn join_messages(problems: &[Problem]) -> String {
    join_texts(problems.iter().map(Problem::message))
}

/// The same of texts. A small config can have a hundred thousand problems, which must be no error of
/// megabytes.
pub fn join_texts(texts: impl ExactSizeIterator<Item = String>) -> String {
    let more = texts.len().saturating_sub(MAX_LISTED);
    let mut listed: Vec<String> = texts.take(MAX_LISTED).collect();
    if 0 < more {
        listed.push(format!("and {more} more"));
    }
    listed.join("; ")
}

/// The candidate a misspelled name was probably meant to be.
pub fn did_you_mean<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let length = name.chars().count();
    if !(2..=100).contains(&length) {
        return None;
    }
    let allowed = (length / 3).clamp(1, 3);
    let nearest = candidates
        .into_iter()
        .filter(|candidate| candidate.chars().count().abs_diff(length) <= allowed)
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min();
    nearest.map(|(_, candidate)| candidate)
}

/// Names that `instead` lists.
const MAX_LISTED_NAMES: usize = 20;

/// How a guess begins.
pub(crate) const DID_YOU_MEAN: &str = "did you mean";

/// A text in protobuf's or Triton's words, and a guess at what was meant.
pub fn suggesting<'a>(
    text: String,
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> String {
    match did_you_mean(name, candidates) {
        Some(candidate) if text.ends_with('.') => format!("{text} Did you mean `{candidate}`?"),
        Some(candidate) => format!("{text}, {DID_YOU_MEAN} `{candidate}`?"),
        None => text,
    }
}

/// A text about a name that its owner does not have, and behind it which of those that it has was
/// probably meant, or all of them; `kind` is what they are names of, in the plural.
pub fn instead<'a>(
    text: String,
    name: &str,
    kind: &str,
    names: impl Iterator<Item = &'a str> + Clone,
) -> String {
    match did_you_mean(name, names.clone()) {
        Some(meant) => format!("{text}, {DID_YOU_MEAN} `{meant}`?"),
        None if names.clone().next().is_none() => format!("{text} (it has no {kind})"),
        None => {
            let names: Vec<&str> = names.take(MAX_LISTED_NAMES).collect();
            format!("{text} (its {kind}: {})", names.join(", "))
        }
    }
}

/// Insertions, deletions, replacements and swaps of neighbours between two words.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=right.len()).collect()];
    for (i, l) in left.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, r) in right.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(l != r);
            let mut least = replaced.min(row[j] + 1).min(rows[i][j + 1] + 1);
            if 0 < i && 0 < j && *l == right[j - 1] && left[i - 1] == *r {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source_map() -> SourceMap {
        let mut source_map = SourceMap::whole_file("m/config.pbtxt");
        source_map.insert("input[0]".into(), LineColumn { line: 3, column: 7 });
        source_map.insert("input[0].name".into(), LineColumn { line: 4, column: 9 });
        source_map
    }

    #[test]
    fn a_field_that_was_not_written_stands_at_its_nearest_ancestor() {
        for (path, expected) in [
            ("input[0].name", "m/config.pbtxt:4:9"),
            ("input[0].dims[2]", "m/config.pbtxt:3:7"),
            ("input[0].reshape.shape", "m/config.pbtxt:3:7"),
            ("input[1].name", "m/config.pbtxt"),
            ("name", "m/config.pbtxt"),
        ] {
            assert_eq!(source_map().locate(path).to_string(), expected, "{path}");
        }
    }

    #[test]
    fn a_text_that_was_made_tells_the_lines_it_comes_from() {
        let origin = source_map().of_origin("m/pipeline.py", &[1, 1, 7]);
        for (path, expected) in [
            ("input[0]", "m/pipeline.py:7:1"),
            ("input[0].name", "m/pipeline.py"),
            ("name", "m/pipeline.py"),
        ] {
            assert_eq!(origin.locate(path).to_string(), expected, "{path}");
        }
    }

    #[test]
    fn a_problem_prints_as_compilers_do() {
        let problem = source_map().problem("input[0]", "no such thing");
        assert_eq!(problem.to_string(), "m/config.pbtxt:3:7: no such thing");
    }

    #[test]
    fn of_many_problems_the_first_are_listed() {
        let all = |count: usize| {
            let problems: Vec<_> = (0..count).map(|_| source_map().problem("", "no")).collect();
            join_messages(&problems)
        };
        assert_eq!(all(2), "no; no");
        assert_eq!(all(MAX_LISTED), ["no"; MAX_LISTED].join("; "));
        assert_eq!(all(100_000), ["no"; MAX_LISTED].join("; ") + "; and 99900 more");
    }

    #[test]
    fn a_suggestion_is_close_or_absent() {
        let known = ["input", "output", "optimization"];
        assert_eq!(did_you_mean("inputs", known), Some("input"));
        assert_eq!(did_you_mean("outptu", known), Some("output"));
        assert_eq!(did_you_mean("zebra", known), None);
        assert_eq!(did_you_mean("", known), None);
        assert_eq!(did_you_mean("a", ["b"]), None);
    }
}
