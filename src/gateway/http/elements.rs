//! Tensor elements between JSON text and bytes.

use std::{borrow::Cow, str::FromStr};

use serde::Serialize;

use super::json::end_of_string;
use troupe_base::{
    error::{Error, Result},
    tensor::{DataType, Tensor},
    text::shortened,
};

/// Letters of a wrong element that an error shows.
const MAX_SHOWN_CHARS: usize = 40;

/// What a `data` member is read as.
pub(super) struct ElementSpec<'a> {
    /// The input's name, for messages.
    pub(super) name: &'a str,
    /// What its elements are.
    pub(super) dtype: DataType,
    /// How many its shape says there are.
    pub(super) elements: usize,
    /// Bytes the result may take.
    pub(super) limit: usize,
}

/// Row-major bytes of a flat or nested array. `text` is well-formed JSON.
pub(super) fn read(wanted: &ElementSpec<'_>, text: &str) -> Result<Vec<u8>> {
    if !text.starts_with('[') {
        let hint = format!(": 'data' of input '{}' is a list", wanted.name);
        return Err(unable("attempt to access JSON non-array as array").with_hint(&hint));
    }
    read_flat(wanted, text)
}

/// How many elements a lone value or a flat array has; `None` if arrays nest. `text` is well-formed
/// JSON.
pub(super) fn count_flat(text: &str) -> Option<usize> {
    if !text.starts_with('[') {
        return Some(1);
    }
    let bytes = text.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = end_of_string(bytes, at),
            b'[' => return None,
            _ => at += 1,
        }
    }
    Some(tokens(text).count())
}

/// Bytes of a lone value or an array. `text` is well-formed JSON.
pub(super) fn read_flat(wanted: &ElementSpec<'_>, text: &str) -> Result<Vec<u8>> {
    use DataType::*;
    check_size(wanted, wanted.elements.saturating_mul(wanted.dtype.size().unwrap_or(4)))?;
    match wanted.dtype {
        Bool => each(wanted, text, |it| it.parse().ok().map(|it: bool| [u8::from(it)])),
        Uint8 => each(wanted, text, |it| number(it, u8::to_le_bytes)),
        Uint16 => each(wanted, text, |it| number(it, u16::to_le_bytes)),
        Uint32 => each(wanted, text, |it| number(it, u32::to_le_bytes)),
        Uint64 => each(wanted, text, |it| number(it, u64::to_le_bytes)),
        Int8 => each(wanted, text, |it| number(it, i8::to_le_bytes)),
        Int16 => each(wanted, text, |it| number(it, i16::to_le_bytes)),
        Int32 => each(wanted, text, |it| number(it, i32::to_le_bytes)),
        Int64 => each(wanted, text, |it| number(it, i64::to_le_bytes)),
        Fp32 => each(wanted, text, |it| float(it, f32::is_infinite, f32::to_le_bytes)),
        Fp64 => each(wanted, text, |it| float(it, f64::is_infinite, f64::to_le_bytes)),
        Bytes => strings(wanted, text),
        Fp16 | Bf16 => Err(Error::invalid(format!(
            "receiving {} data via JSON is not supported. Please use the binary data format for \
             input {}",
            wanted.dtype.as_str(),
            wanted.name
        ))),
    }
}

fn number<T: FromStr, const N: usize>(token: &str, bytes: fn(T) -> [u8; N]) -> Option<[u8; N]> {
    token.parse().ok().map(bytes)
}

fn float<T: FromStr + Copy, const N: usize>(
    token: &str,
    is_infinite: fn(T) -> bool,
    bytes: fn(T) -> [u8; N],
) -> Option<[u8; N]> {
    let quoted = match token {
        "\"NaN\"" => Some("NaN"),
        "\"Infinity\"" => Some("inf"),
        "\"-Infinity\"" => Some("-inf"),
        _ => None,
    };
    let value: T = quoted.unwrap_or(token).parse().ok()?;
    // Rust reads `inf` where JSON has it quoted only, and too large a number as infinite.
    (quoted.is_some() || !is_infinite(value)).then(|| bytes(value))
}

/// The tokens between brackets and commas, in order.
fn tokens(text: &str) -> impl Iterator<Item = &str> {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        let is_between = |it: &u8| matches!(it, b'[' | b']' | b',' | b' ' | b'\n' | b'\r' | b'\t');
        at += bytes[at..].iter().position(|it| !is_between(it))?;
        let end = match bytes[at] {
            b'"' => end_of_string(bytes, at),
            _ => {
                let rest = &bytes[at..];
                at + rest.iter().position(is_between).unwrap_or(rest.len())
            }
        };
        let token = text.get(at..end)?;
        at = end;
        Some(token)
    })
}

fn each<const N: usize>(
    wanted: &ElementSpec<'_>,
    text: &str,
    read: impl Fn(&str) -> Option<[u8; N]>,
) -> Result<Vec<u8>> {
    // Grows with the text, not with the shape the client claims.
    let mut bytes = Vec::with_capacity(wanted.elements.min(text.len() / 2 + 1) * N);
    let mut left = wanted.elements;
    for token in tokens(text) {
        left = left.checked_sub(1).ok_or_else(|| wrong_count(wanted, text))?;
        let element = read(token).ok_or_else(|| wrong_element(wanted, token))?;
        bytes.extend_from_slice(&element);
    }
    if left == 0 { Ok(bytes) } else { Err(wrong_count(wanted, text)) }
}

fn strings(wanted: &ElementSpec<'_>, text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len().min(wanted.limit));
    let mut left = wanted.elements;
    for token in tokens(text) {
        left = left.checked_sub(1).ok_or_else(|| wrong_count(wanted, text))?;
        if !token.starts_with('"') {
            return Err(wrong_element(wanted, token));
        }
        let element = unescaped(token)?;
        bytes.extend_from_slice(&(element.len() as u32).to_le_bytes());
        bytes.extend_from_slice(element.as_bytes());
        check_size(wanted, bytes.len())?;
    }
    if left == 0 { Ok(bytes) } else { Err(wrong_count(wanted, text)) }
}

fn unescaped(token: &str) -> Result<Cow<'_, str>> {
    if !token.contains('\\') {
        return Ok(Cow::Borrowed(&token[1..token.len() - 1]));
    }
    serde_json::from_str(token).map(Cow::Owned).map_err(|it| unable(&it.to_string()))
}

fn check_size(wanted: &ElementSpec<'_>, size: usize) -> Result<()> {
    if size <= wanted.limit {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "JSON input '{}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of \
         {} bytes. Use --http-max-input-size to increase the limit.",
        wanted.name, wanted.limit
    )))
}

fn wrong_count(wanted: &ElementSpec<'_>, text: &str) -> Error {
    let ElementSpec { name, elements, .. } = wanted;
    let got = tokens(text).count();
    Error::internal(format!(
        "Unable to parse 'data': Shape does not match true shape of 'data' field: the shape of input \
         '{name}' has {elements} elements, its data {got}"
    ))
}

fn unable(why: &str) -> Error {
    Error::invalid(format!("Unable to parse 'data': {why}"))
}

fn wrong_element(wanted: &ElementSpec<'_>, token: &str) -> Error {
    use DataType::*;
    let expected = match wanted.dtype {
        Bool => "boolean",
        Bytes => "string",
        Fp16 | Bf16 | Fp32 | Fp64 => "number",
        Uint8 | Uint16 | Uint32 | Uint64 => "unsigned-integer",
        Int8 | Int16 | Int32 | Int64 => "signed-integer",
    };
    let is_integer = token.bytes().all(|it| it.is_ascii_digit() || it == b'-');
    let is_number = token.starts_with(|it: char| it.is_ascii_digit() || it == '-');
    let is_right = match expected {
        "boolean" | "string" => false,
        "number" => is_number,
        "unsigned-integer" => is_integer && !token.starts_with('-'),
        _ => is_integer,
    };
    let (name, dtype) = (wanted.name, wanted.dtype.as_str());
    let shown = shortened(token, MAX_SHOWN_CHARS);
    if is_right {
        return unable(&format!("value {shown} of input '{name}' is out of range for {dtype}"));
    }
    unable(&format!(
        "attempt to access JSON non-{expected} as {expected}: input '{name}' is {dtype}, got {shown}"
    ))
}

/// The most bytes that `write` appends, brackets included.
pub(super) fn max_text_bytes(tensor: &Tensor) -> usize {
    use DataType::*;
    // With the comma.
    let each = match tensor.dtype() {
        Fp16 | Bf16 => 0,
        Uint8 => 4,
        Int8 => 5,
        Bool | Uint16 => 6,
        Int16 => 7,
        Uint32 => 11,
        Int32 => 12,
        Fp32 => 17,
        Uint64 | Int64 => 21,
        Fp64 => 26,
        // Quotes and comma take less than the escaped length before each.
        Bytes => return 2 + tensor.data().iter().map(|it| escaped_bytes(*it)).sum::<usize>(),
    };
    let size = tensor.dtype().size().unwrap_or(1);
    2 + tensor.data().len() / size * each
}

/// The most that JSON takes for a byte of a string.
fn escaped_bytes(byte: u8) -> usize {
    match byte {
        0..0x20 => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    }
}

/// Appends the elements of an output as one flat JSON array.
pub(super) fn write(name: &str, tensor: &Tensor, json: &mut Vec<u8>) -> Result<()> {
    use DataType::*;
    let data = tensor.data();
    json.push(b'[');
    match tensor.dtype() {
        Bool => put(data, json, |[it]: [u8; 1]| it != 0),
        Uint8 => put(data, json, u8::from_le_bytes),
        Uint16 => put(data, json, u16::from_le_bytes),
        Uint32 => put(data, json, u32::from_le_bytes),
        Uint64 => put(data, json, u64::from_le_bytes),
        Int8 => put(data, json, i8::from_le_bytes),
        Int16 => put(data, json, i16::from_le_bytes),
        Int32 => put(data, json, i32::from_le_bytes),
        Int64 => put(data, json, i64::from_le_bytes),
        Fp32 => put(data, json, |it| JsonFloat(f32::from_le_bytes(it))),
        Fp64 => put(data, json, |it| JsonFloat(f64::from_le_bytes(it))),
        Bytes => put_strings(name, tensor, json)?,
        Fp16 | Bf16 => {
            return Err(Error::invalid(format!(
                "sending {} data via JSON is not supported. Please use the binary data format for \
                 output {name}",
                tensor.dtype().as_str()
            )));
        }
    }
    json.push(b']');
    Ok(())
}

/// A value that can be put behind others in an array.
trait JsonElement {
    fn put(self, json: &mut Vec<u8>);
}

macro_rules! plain {
    ($($type:ty)*) => {$(
        impl JsonElement for $type {
            fn put(self, json: &mut Vec<u8>) {
                append(&self, json);
            }
        }
    )*};
}

plain!(bool u8 u16 u32 u64 i8 i16 i32 i64);

/// Printed as the shortest text that reads back the same; not-a-number as Python writes it.
struct JsonFloat<T>(T);

impl<T: Copy + Into<f64> + Serialize> JsonElement for JsonFloat<T> {
    fn put(self, json: &mut Vec<u8>) {
        let wide: f64 = self.0.into();
        if wide.is_finite() {
            append(&self.0, json);
        } else if wide.is_nan() {
            json.extend_from_slice(b"NaN");
        } else {
            json.extend_from_slice(if 0.0 < wide { b"Infinity" } else { b"-Infinity" });
        }
    }
}

/// Appends any value as JSON.
pub(super) fn append(value: &(impl Serialize + ?Sized), json: &mut Vec<u8>) {
    // Writing to a vector cannot fail, and what is written here has no map keys.
    let _ = serde_json::to_writer(json, value);
}

fn put<T: JsonElement, const N: usize>(data: &[u8], json: &mut Vec<u8>, read: fn([u8; N]) -> T) {
    let (elements, _) = data.as_chunks::<N>();
    for (index, element) in elements.iter().enumerate() {
        if index != 0 {
            json.push(b',');
        }
        read(*element).put(json);
    }
}

fn put_strings(name: &str, tensor: &Tensor, json: &mut Vec<u8>) -> Result<()> {
    for (index, element) in tensor.strings().enumerate() {
        if index != 0 {
            json.push(b',');
        }
        let text = std::str::from_utf8(element).map_err(|_| {
            Error::invalid(format!(
                "output '{name}' holds bytes that are not UTF-8 and cannot be sent via JSON. \
                 Please use the binary data format for output {name}"
            ))
        })?;
        append(text, json);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use troupe_base::tensor::{Shape, Tensor};

    use super::*;

    #[test]
    fn no_text_is_longer_than_was_said() {
        let longest: [(DataType, Vec<u8>); 13] = [
            (DataType::Bool, vec![0]),
            (DataType::Uint8, vec![255]),
            (DataType::Uint16, u16::MAX.to_le_bytes().into()),
            (DataType::Uint32, u32::MAX.to_le_bytes().into()),
            (DataType::Uint64, u64::MAX.to_le_bytes().into()),
            (DataType::Int8, i8::MIN.to_le_bytes().into()),
            (DataType::Int16, i16::MIN.to_le_bytes().into()),
            (DataType::Int32, i32::MIN.to_le_bytes().into()),
            (DataType::Int64, i64::MIN.to_le_bytes().into()),
            (DataType::Fp32, (-1.175_494_4e-38_f32).to_le_bytes().into()),
            (DataType::Fp64, (-2.225_073_858_507_201_4e-308_f64).to_le_bytes().into()),
            (DataType::Bytes, vec![4, 0, 0, 0, 1, b'"', b'\\', b'a']),
            (DataType::Bytes, vec![0; 4]),
        ];
        for (dtype, element) in longest {
            for count in [0, 1, 5] {
                let shape = Shape::from_slice(&[count as i64]);
                let tensor = Tensor::new(dtype, shape, element.repeat(count).into()).unwrap();
                let mut text = Vec::new();
                write("x", &tensor, &mut text).unwrap();
                let most = max_text_bytes(&tensor);
                assert!(text.len() <= most, "{dtype:?}: {} > {most}", text.len());
                assert!(most <= 8 * text.len() + 64, "{dtype:?}: {most}, {}", text.len());
            }
        }
    }
}
