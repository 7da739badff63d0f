//! Walks a message before anything is allocated for it: it has so many fields and no more.

use super::wire::{Fields, Malformed, WireValue};
use troupe_base::error::Error;

/// Most fields that a message of any method but those of inference has, those of its messages
/// counted: in memory each of them is many times larger than on the wire.
const MAX_FIELDS: usize = 4096;

/// Which fields of a message are messages; all others are only counted.
pub(super) struct Schema(&'static [(u32, &'static Schema)]);

const FLAT: Schema = Schema(&[]);
/// An entry of a map with messages as values.
const ENTRY: Schema = Schema(&[(2, &FLAT)]);

/// The requests of a method of the inference service, or of any other.
pub(super) fn schema_of(method: &str) -> &'static Schema {
    match method {
        "RepositoryModelLoad" | "RepositoryModelUnload" => &Schema(&[(3, &ENTRY)]),
        "TraceSetting" | "LogSettings" => &Schema(&[(1, &ENTRY)]),
        _ => &FLAT,
    }
}

/// INVALID_ARGUMENT if `message` has too many fields, INTERNAL if it is no message.
pub(super) fn check(message: &[u8], schema: &Schema) -> Result<(), Error> {
    let mut left = MAX_FIELDS;
    if walk(message, schema, &mut left)? {
        return Ok(());
    }
    Err(Error::invalid(format!("a message has more than {MAX_FIELDS} fields")))
}

/// Goes as deep as the schema does; `false` once more than `left` fields were seen.
fn walk(message: &[u8], schema: &Schema, left: &mut usize) -> Result<bool, Malformed> {
    let mut fields = Fields::of(message);
    while let Some((number, value)) = fields.next()? {
        let Some(fewer) = left.checked_sub(1) else { return Ok(false) };
        *left = fewer;
        let inner = schema.0.iter().find(|(it, _)| *it == number);
        if let (Some((_, inner)), WireValue::Bytes(bytes)) = (inner, value)
            && !walk(bytes, inner, left)?
        {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_on_every_level() {
        // A map's entries, each with a value that has two fields: four in all.
        let entry = b"\x0a\x06\x12\x04\x0a\x00\x0a\x00";
        let nested = schema_of("TraceSetting");
        for (entries, schema, is_right) in
            [(1024, nested, true), (1025, nested, false), (4096, &FLAT, true), (4097, &FLAT, false)]
        {
            let result = check(&entry.repeat(entries), schema);
            assert_eq!(result.is_ok(), is_right, "{entries}");
        }
        let error = check(b"\x0a\x03\x12\x05\x0a", nested).unwrap_err();
        assert_eq!(error.to_string(), "failed to decode Protobuf message: buffer underflow");
        // Where no message is expected, any bytes are right.
        check(b"\x0a\x03\x12\x05\x0a", &FLAT).unwrap();
    }
}
