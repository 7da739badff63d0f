//! Reads a text as a message, or reports everything that is wrong with it.

use prost_reflect::{DynamicMessage, MessageDescriptor};

use super::bind::{self, BoundMessage, MapConflict};
use super::syntax;
use crate::config::problem::{Problem, SourceMap};

/// Larger texts are not read.
pub(super) const MAX_TEXT_BYTES: usize = 16 * 1024 * 1024;

/// A text that has been understood.
pub(in crate::config) struct ParsedText {
    pub(in crate::config) message: DynamicMessage,
    pub(in crate::config) source_map: SourceMap,
    pub(in crate::config) conflicts: Vec<MapConflict>,
}

/// Reads `text` as a message of the given type, or says everything that is wrong with it.
pub(in crate::config) fn read(
    text: &str,
    descriptor: MessageDescriptor,
    file: &str,
) -> Result<ParsedText, Vec<Problem>> {
    let source_map = SourceMap::whole_file(file);
    if text.len() > MAX_TEXT_BYTES {
        let text = format!("the file has {} bytes, expected at most {MAX_TEXT_BYTES}", text.len());
        return Err(vec![source_map.problem("", text)]);
    }
    let tree = syntax::parse(text);
    let mut bound = bind::bind(&tree.fields, descriptor, source_map);
    bound.problems.extend(tree.problems);
    if bound.problems.is_empty() {
        let BoundMessage { message, source_map, conflicts, .. } = bound;
        return Ok(ParsedText { message, source_map, conflicts });
    }
    bound.problems.sort();
    let source_map = bound.source_map;
    let problems = bound.problems.into_iter();
    Err(problems.map(|(at, text)| Problem { position: source_map.at(at), text }).collect())
}
