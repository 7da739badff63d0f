//! Reads protobuf text format into a message, and remembers where everything stood.
//!
//! In a line: `token` → `syntax` (a tree that knows no types) → `bind` (to a message type) →
//! `read`.

mod bind;
mod literal;
mod read;
mod syntax;
#[cfg(test)]
mod tests;
mod token;
mod value;

pub(super) use self::{bind::MapConflict, read::read};
