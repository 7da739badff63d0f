//! Reads protobuf text format into a message, and remembers where everything stood.

mod bind;
mod literal;
mod syntax;
mod token;
mod value;

use prost_reflect::{DynamicMessage, MessageDescriptor};

use super::problem::{Position, Problem, SourceMap};

/// Larger texts are not read.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// More problems of one kind are not kept: a file that is no configuration has millions.
const MAX_PROBLEMS: usize = 1000;

/// A text that has been understood.
pub(super) struct Parsed {
    pub(super) message: DynamicMessage,
    pub(super) source_map: SourceMap,
    pub(super) conflicts: Vec<Conflict>,
}

/// A key a map gives two values; protobuf keeps the last one.
#[derive(Clone, Debug)]
pub(super) struct Conflict {
    /// `ensemble_scheduling.step[0].input_map`.
    pub(super) map: String,
    pub(super) key: String,
    /// Of the second entry.
    pub(super) at: Position,
}

/// Reads `text` as a message of the given type, or says everything that is wrong with it.
pub(super) fn read(
    text: &str,
    descriptor: MessageDescriptor,
    file: &str,
) -> Result<Parsed, Vec<Problem>> {
    let source_map = SourceMap::whole_file(file);
    if text.len() > MAX_BYTES {
        let text = format!("the file has {} bytes, expected at most {MAX_BYTES}", text.len());
        return Err(vec![source_map.problem("", text)]);
    }
    let tree = syntax::parse(text);
    let mut bound = bind::bind(&tree.fields, descriptor, source_map);
    bound.problems.extend(tree.problems);
    if bound.problems.is_empty() {
        let bind::Bound { message, source_map, conflicts, .. } = bound;
        return Ok(Parsed { message, source_map, conflicts });
    }
    bound.problems.sort();
    let place = |position| bound.source_map.at(position);
    let problems = bound.problems.into_iter();
    Err(problems.map(|(position, text)| Problem { position: place(position), text }).collect())
}

#[cfg(test)]
mod tests;
