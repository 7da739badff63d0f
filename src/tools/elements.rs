//! The elements of a tensor one by one, as text for people and as JSON.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Serialize;

use half::{bf16, f16};
use troupe_base::tensor::{DataType, Tensor};

/// A tensor whose elements can be looked up.
pub(super) struct Elements<'a> {
    tensor: &'a Tensor,
    /// Those of BYTES tensors.
    strings: Vec<&'a [u8]>,
}

/// One element.
enum ElementValue<'a> {
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    /// Printed as shortly as tells it from its neighbours.
    Single(f32),
    Double(f64),
    Text(&'a [u8]),
}

impl<'a> Elements<'a> {
    /// Looks where strings begin.
    pub(super) fn new(tensor: &'a Tensor) -> Elements<'a> {
        let is_text = tensor.dtype() == DataType::Bytes;
        let strings = if is_text { tensor.strings().collect() } else { Vec::new() };
        Elements { tensor, strings }
    }

    /// How far two elements of the same type are apart; `None` for strings. Not a number where one
    /// of them is none.
    pub(super) fn distance(&self, other: &Elements<'_>, index: usize) -> Option<f64> {
        match (self.get(index)?, other.get(index)?) {
            (ElementValue::Bool(a), ElementValue::Bool(b)) => Some(f64::from(u8::from(a != b))),
            (ElementValue::Unsigned(a), ElementValue::Unsigned(b)) => Some(a.abs_diff(b) as f64),
            (ElementValue::Signed(a), ElementValue::Signed(b)) => Some(a.abs_diff(b) as f64),
            (ElementValue::Single(a), ElementValue::Single(b)) => {
                Some((f64::from(a) - f64::from(b)).abs())
            }
            (ElementValue::Double(a), ElementValue::Double(b)) => Some((a - b).abs()),
            _ => None,
        }
    }

    /// Strings are cut after `limit` characters; their control characters are escaped.
    pub(super) fn text(&self, index: usize, limit: usize) -> String {
        match self.get(index) {
            None => String::new(),
            Some(ElementValue::Bool(it)) => it.to_string(),
            Some(ElementValue::Unsigned(it)) => it.to_string(),
            Some(ElementValue::Signed(it)) => it.to_string(),
            Some(ElementValue::Single(it)) => format!("{it:?}"),
            Some(ElementValue::Double(it)) => format!("{it:?}"),
            Some(ElementValue::Text(it)) => escaped(it, limit),
        }
    }

    /// Numbers that JSON does not have are strings, bytes that are no text are `{"b64": …}`.
    pub(super) fn json(&self, index: usize) -> String {
        match self.get(index) {
            None => "null".to_owned(),
            Some(ElementValue::Bool(it)) => it.to_string(),
            Some(ElementValue::Unsigned(it)) => it.to_string(),
            Some(ElementValue::Signed(it)) => it.to_string(),
            Some(ElementValue::Single(it)) => float(it),
            Some(ElementValue::Double(it)) => float(it),
            Some(ElementValue::Text(it)) => match std::str::from_utf8(it) {
                Ok(text) => serde_json::Value::from(text).to_string(),
                Err(_) => serde_json::json!({"b64": STANDARD.encode(it)}).to_string(),
            },
        }
    }

    fn get(&self, index: usize) -> Option<ElementValue<'a>> {
        use DataType::*;
        Some(match self.tensor.dtype() {
            Bool => ElementValue::Bool(self.bytes::<1>(index)? != [0]),
            Uint8 => ElementValue::Unsigned(u8::from_le_bytes(self.bytes(index)?).into()),
            Uint16 => ElementValue::Unsigned(u16::from_le_bytes(self.bytes(index)?).into()),
            Uint32 => ElementValue::Unsigned(u32::from_le_bytes(self.bytes(index)?).into()),
            Uint64 => ElementValue::Unsigned(u64::from_le_bytes(self.bytes(index)?)),
            Int8 => ElementValue::Signed(i8::from_le_bytes(self.bytes(index)?).into()),
            Int16 => ElementValue::Signed(i16::from_le_bytes(self.bytes(index)?).into()),
            Int32 => ElementValue::Signed(i32::from_le_bytes(self.bytes(index)?).into()),
            Int64 => ElementValue::Signed(i64::from_le_bytes(self.bytes(index)?)),
            Fp16 => ElementValue::Single(f16::from_le_bytes(self.bytes(index)?).to_f32()),
            Bf16 => ElementValue::Single(bf16::from_le_bytes(self.bytes(index)?).to_f32()),
            Fp32 => ElementValue::Single(f32::from_le_bytes(self.bytes(index)?)),
            Fp64 => ElementValue::Double(f64::from_le_bytes(self.bytes(index)?)),
            Bytes => ElementValue::Text(self.strings.get(index)?),
        })
    }

    fn bytes<const N: usize>(&self, index: usize) -> Option<[u8; N]> {
        self.tensor.data().as_chunks::<N>().0.get(index).copied()
    }
}

fn float<T: Copy + Into<f64> + Serialize>(value: T) -> String {
    let wide: f64 = value.into();
    if wide.is_nan() {
        "\"NaN\"".to_owned()
    } else if wide.is_infinite() {
        if 0.0 < wide { "\"Infinity\"" } else { "\"-Infinity\"" }.to_owned()
    } else {
        // A finite number can always be written.
        serde_json::to_string(&value).unwrap_or_default()
    }
}

/// Text that cannot move the cursor or look like a line's end; `\xff` for what is no text.
fn escaped(bytes: &[u8], limit: usize) -> String {
    let mut text = String::new();
    let mut left = limit;
    for chunk in bytes.utf8_chunks() {
        for it in chunk.valid().chars() {
            if left == 0 {
                text.push('…');
                return text;
            }
            left -= 1;
            if it.is_control() || matches!(it, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
                text.extend(it.escape_default());
            } else {
                text.push(it);
            }
        }
        for it in chunk.invalid() {
            if left == 0 {
                text.push('…');
                return text;
            }
            left -= 1;
            text += &format!("\\x{it:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check((dtype, data): (DataType, &[u8]), text: &str, json: &str) {
        let size = dtype.size().map_or(1, |it| data.len() / it);
        let shape = [size as i64].into_iter().collect();
        let tensor = Tensor::new(dtype, shape, data.to_vec().into()).unwrap();
        let elements = Elements::new(&tensor);
        let all = |of: &dyn Fn(usize) -> String| (0..size).map(of).collect::<Vec<_>>().join(" ");
        assert_eq!(all(&|it| elements.text(it, 5)), text);
        assert_eq!(all(&|it| elements.json(it)), json);
    }

    #[test]
    fn every_type_has_its_text() {
        use DataType::*;
        check((Bool, &[0, 1]), "false true", "false true");
        check((Uint8, &[255]), "255", "255");
        check((Uint16, &[255, 255]), "65535", "65535");
        check((Uint32, &[255; 4]), "4294967295", "4294967295");
        check((Uint64, &[255; 8]), "18446744073709551615", "18446744073709551615");
        for (dtype, size) in [(Int8, 1), (Int16, 2), (Int32, 4), (Int64, 8)] {
            check((dtype, &vec![255; size]), "-1", "-1");
        }
        check((Fp16, &[0, 60, 0, 124]), "1.0 inf", "1.0 \"Infinity\"");
        check((Bf16, &[128, 63, 192, 255]), "1.0 NaN", "1.0 \"NaN\"");
        check((Fp32, &0.1f32.to_le_bytes()), "0.1", "0.1");
        check((Fp64, &f64::NEG_INFINITY.to_le_bytes()), "-inf", "\"-Infinity\"");
        check((Bytes, b"\x03\0\0\0a\"\n"), "a\"\\n", r#""a\"\n""#);
        check((Bytes, b"\x02\0\0\0a\xff"), "a\\xff", r#"{"b64":"Yf8="}"#);
        check((Bytes, b"\x06\0\0\0aaaaaa"), "aaaaa…", r#""aaaaaa""#);
        check(
            (Bytes, b"\x06\0\0\0\xff\xff\xff\xff\xff\xff"),
            r"\xff\xff\xff\xff\xff…",
            r#"{"b64":"////////"}"#,
        );
    }

    #[test]
    fn nothing_in_a_text_moves_the_cursor() {
        let text = "\u{1b}[2J\r\u{9b}\u{202e}x";
        assert_eq!(escaped(text.as_bytes(), 99), r"\u{1b}[2J\r\u{9b}\u{202e}x");
    }
}
