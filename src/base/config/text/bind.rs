//! Binds the syntax tree to a message type: finds fields in the descriptor and converts values.

use std::collections::{HashMap, HashSet};

use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage,
    Value as Bindable,
};

use super::syntax::{SyntaxField, SyntaxNode, SyntaxValue};
use super::token::MAX_PROBLEMS;
use super::value;
use crate::config::problem::{LineColumn, SourceMap, suggesting};

/// A key to which a map gives two values; protobuf keeps the last one.
#[derive(Clone, Debug)]
pub(in crate::config) struct MapConflict {
    /// `ensemble_scheduling.step[0].input_map`.
    pub(in crate::config) map: String,
    pub(in crate::config) key: String,
    /// Of the second entry.
    pub(in crate::config) at: LineColumn,
}

/// A message, where its fields stood, and what was wrong with the text.
pub(super) struct BoundMessage {
    pub(super) message: DynamicMessage,
    pub(super) source_map: SourceMap,
    pub(super) conflicts: Vec<MapConflict>,
    pub(super) problems: Vec<(LineColumn, String)>,
}

/// Reads the fields of a whole text; what is wrong is noted and left out.
pub(super) fn bind(
    fields: &[SyntaxField<'_>],
    kind: MessageDescriptor,
    source_map: SourceMap,
) -> BoundMessage {
    let message = DynamicMessage::new(kind.clone());
    let mut bound =
        BoundMessage { message, source_map, conflicts: Vec::new(), problems: Vec::new() };
    bound.message = bound.read(fields, kind, "");
    bound
}

impl BoundMessage {
    fn read(
        &mut self,
        fields: &[SyntaxField<'_>],
        kind: MessageDescriptor,
        path: &str,
    ) -> DynamicMessage {
        let mut message = DynamicMessage::new(kind.clone());
        let mut seen = HashSet::new();
        for field in fields {
            let descriptor = match self.find(field, &kind) {
                Ok(descriptor) => descriptor,
                Err((at, text)) => {
                    self.problem(at, text);
                    continue;
                }
            };
            let path = match path {
                "" => field.name.clone(),
                _ => format!("{path}.{}", field.name),
            };
            self.source_map.insert(path.clone(), field.at);
            if descriptor.is_list() || descriptor.is_map() {
                self.read_repeated(field, &descriptor, &path, message.get_field_mut(&descriptor));
            } else if !seen.insert(field.name.as_str()) {
                let name = &field.name;
                let text = format!("Non-repeated field \"{name}\" is specified multiple times.");
                self.problem(field.at, text);
            } else if let Some(text) = excluded(&descriptor, &message) {
                self.problem(field.at, text);
            } else if let Some(value) = self.read_one(&field.node, &descriptor, &path) {
                message.set_field(&descriptor, value);
            }
        }
        message
    }

    fn problem(&mut self, at: LineColumn, text: String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push((at, text));
        }
    }

    fn find(
        &self,
        field: &SyntaxField<'_>,
        kind: &MessageDescriptor,
    ) -> Result<FieldDescriptor, (LineColumn, String)> {
        let descriptor = kind
            .get_field_by_name(&field.name)
            .ok_or_else(|| (field.at, unknown_field(&field.name, kind)))?;
        if !field.colon && !matches!(descriptor.kind(), Kind::Message(_)) {
            let text = format!("Expected \":\", found \"{}\".", field.node.first);
            return Err((field.node.at, text));
        }
        Ok(descriptor)
    }

    /// A value, or a list of them; both add to what earlier fields of the name gave.
    fn read_repeated(
        &mut self,
        field: &SyntaxField<'_>,
        descriptor: &FieldDescriptor,
        path: &str,
        target: &mut Bindable,
    ) {
        let one = (field.at, &field.node);
        let nodes: &mut dyn Iterator<Item = (LineColumn, &SyntaxNode<'_>)> = match &field.node.value
        {
            SyntaxValue::List(nodes) => &mut nodes.iter().map(|node| (node.at, node)),
            _ => &mut std::iter::once(one),
        };
        for (at, node) in nodes {
            match target {
                Bindable::List(values) => {
                    let path = format!("{path}[{}]", values.len());
                    let value = self.read_one(node, descriptor, &path);
                    // Numbers are not remembered one by one: a list may hold millions.
                    if matches!(value, Some(Bindable::Message(_))) {
                        self.source_map.insert(path, at);
                    }
                    values.extend(value);
                }
                Bindable::Map(entries) => {
                    let path = format!("{path}[{}]", entries.len());
                    if let Some(Bindable::Message(entry)) = self.read_one(node, descriptor, &path) {
                        self.add_entry(at, path, entry, entries);
                    }
                }
                _ => {}
            }
        }
    }

    fn add_entry(
        &mut self,
        at: LineColumn,
        path: String,
        entry: DynamicMessage,
        entries: &mut HashMap<MapKey, Bindable>,
    ) {
        let kind = entry.descriptor();
        let key = entry.get_field(&kind.map_entry_key_field()).into_owned();
        let value = entry.get_field(&kind.map_entry_value_field()).into_owned();
        let Some(key) = key.into_map_key() else { return };
        let map = path.rsplit_once('[').map_or("", |(map, _)| map).to_owned();
        let text = match &key {
            MapKey::String(text) => text.clone(),
            other => format!("{other:?}"),
        };
        match entries.insert(key, value.clone()) {
            None => {
                self.source_map.insert(format!("{map}[\"{text}\"]"), at);
                self.source_map.insert(path, at);
            }
            Some(earlier) if earlier != value => {
                self.conflicts.push(MapConflict { map, key: text, at });
            }
            Some(_) => {}
        }
    }

    fn read_one(
        &mut self,
        node: &SyntaxNode<'_>,
        descriptor: &FieldDescriptor,
        path: &str,
    ) -> Option<Bindable> {
        if let (Kind::Message(kind), SyntaxValue::Message(fields)) =
            (descriptor.kind(), &node.value)
        {
            return Some(Bindable::Message(self.read(fields, kind, path)));
        }
        match value::scalar(node, &descriptor.kind(), descriptor.name()) {
            Ok(value) => Some(value),
            Err(text) => {
                self.problem(node.at, text);
                None
            }
        }
    }
}

/// Why a field may not stand beside what the message already has.
fn excluded(descriptor: &FieldDescriptor, message: &DynamicMessage) -> Option<String> {
    let choice = descriptor.containing_oneof()?;
    let other = choice.fields().find(|field| message.has_field(field))?;
    Some(format!(
        "Field \"{}\" is specified along with field \"{}\", another member of oneof \"{}\".",
        descriptor.name(),
        other.name(),
        choice.name()
    ))
}

fn unknown_field(name: &str, kind: &MessageDescriptor) -> String {
    let message = kind.full_name();
    if let Some(extension) = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        return format!(
            "Extension \"{extension}\" is not defined or is not an extension of \"{message}\"."
        );
    }
    let known: Vec<String> = kind.fields().map(|field| field.name().to_owned()).collect();
    let text = format!("Message type \"{message}\" has no field named \"{name}\".");
    suggesting(text, name, known.iter().map(String::as_str))
}
