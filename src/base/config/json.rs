//! Prints a configuration as clients know it from Triton: proto names, defaults, plain numbers.

use std::collections::BTreeMap;

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage, Value};

use troupe_proto::{self as proto, inference};

/// The JSON of GET config, and of the `model_config` a Python model is given.
///
/// Fields come in the order of the .proto file; unset messages and choices are left out.
pub fn print(config: &inference::ModelConfig) -> String {
    let mut message = DynamicMessage::new(proto::model_config());
    message.transcode_from(config).expect("the type was generated from this descriptor");
    let mut out = String::new();
    print_message(&message, &mut out);
    out
}

fn print_message(message: &DynamicMessage, out: &mut String) {
    let descriptor = message.descriptor();
    let declared = descriptor.descriptor_proto().field.iter();
    let fields: Vec<FieldDescriptor> = declared
        .filter_map(|field| descriptor.get_field_by_name(field.name()))
        .filter(|field| !field.supports_presence() || message.has_field(field))
        .collect();
    separated('{', '}', &fields, out, |field, out| {
        print_string(field.name(), out);
        out.push(':');
        print_value(&message.get_field(field), &field.kind(), out);
    });
}

fn print_value(value: &Value, kind: &Kind, out: &mut String) {
    match value {
        Value::Bool(value) => out.push_str(&value.to_string()),
        Value::I32(value) => out.push_str(&value.to_string()),
        Value::I64(value) => out.push_str(&value.to_string()),
        Value::U32(value) => out.push_str(&value.to_string()),
        Value::U64(value) => out.push_str(&value.to_string()),
        Value::F32(value) => print_float(f64::from(*value), value.to_string(), out),
        Value::F64(value) => print_float(*value, value.to_string(), out),
        Value::String(value) => print_string(value, out),
        Value::Bytes(value) => print_string(&String::from_utf8_lossy(value), out),
        Value::EnumNumber(number) => print_enum(*number, kind, out),
        Value::Message(message) => print_message(message, out),
        Value::List(values) => {
            separated('[', ']', values, out, |value, out| print_value(value, kind, out));
        }
        Value::Map(entries) => {
            let Kind::Message(entry) = kind else { return };
            let kind = entry.map_entry_value_field().kind();
            // The reflection keeps maps in random order.
            let sorted: BTreeMap<&MapKey, &Value> = entries.iter().collect();
            let sorted: Vec<_> = sorted.into_iter().collect();
            separated('{', '}', &sorted, out, |(key, value), out| {
                print_string(&key_text(key), out);
                out.push(':');
                print_value(value, &kind, out);
            });
        }
    }
}

fn separated<T>(
    open: char,
    close: char,
    items: &[T],
    out: &mut String,
    print: impl Fn(&T, &mut String),
) {
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        print(item, out);
    }
    out.push(close);
}

/// JSON has no literal for what is not finite.
fn print_float(value: f64, text: String, out: &mut String) {
    match value {
        _ if value.is_finite() => out.push_str(&text),
        _ if value.is_nan() => out.push_str("\"NaN\""),
        _ if value > 0.0 => out.push_str("\"Infinity\""),
        _ => out.push_str("\"-Infinity\""),
    }
}

fn print_enum(number: i32, kind: &Kind, out: &mut String) {
    match kind.as_enum().and_then(|kind| kind.get_value(number)) {
        Some(value) => print_string(value.name(), out),
        None => out.push_str(&number.to_string()),
    }
}

fn print_string(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}
