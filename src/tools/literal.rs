//! Inputs written on the command line: JSON, or text as it is.

use serde_json::Value;

use half::{bf16, f16};
use troupe_base::tensor::{DataType, Shape};

/// Elements, and the shape they were written in.
#[derive(Debug, PartialEq)]
pub(super) struct Literal {
    pub(super) shape: Shape,
    pub(super) count: usize,
    pub(super) data: Vec<u8>,
}

/// The elements that `text` writes for an input of this type.
///
/// For BYTES, what is neither a JSON string nor an array of them is one element as it stands.
pub(super) fn read(dtype: DataType, text: &str) -> Result<Literal, String> {
    let value = serde_json::from_str::<Value>(text);
    if dtype == DataType::Bytes {
        let literal = value.ok().and_then(|it| literal(dtype, &it).ok());
        return literal.map_or_else(|| plain(text), Ok);
    }
    let value = value.map_err(|error| {
        format!("expected JSON or, behind `@`, a file, got `{}` ({error})", shown(text))
    })?;
    literal(dtype, &value)
}

/// Lengths of BYTES elements have 32 bits.
pub(super) fn push_string(text: &[u8], data: &mut Vec<u8>) -> Result<(), String> {
    let length = u32::try_from(text.len());
    let length = length.map_err(|_| format!("an element of {} bytes is too long", text.len()))?;
    data.extend_from_slice(&length.to_le_bytes());
    data.extend_from_slice(text);
    Ok(())
}

fn plain(text: &str) -> Result<Literal, String> {
    let mut data = Vec::new();
    push_string(text.as_bytes(), &mut data)?;
    Ok(Literal { shape: Shape::new(), count: 1, data })
}

fn literal(dtype: DataType, value: &Value) -> Result<Literal, String> {
    let mut shape = Shape::new();
    let mut inner = value;
    while let Value::Array(items) = inner {
        shape.push(items.len() as i64);
        let Some(first) = items.first() else { break };
        inner = first;
    }
    let mut literal = Literal { shape: Shape::new(), count: 0, data: Vec::new() };
    collect(dtype, value, &shape, &mut literal)?;
    literal.shape = shape;
    Ok(literal)
}

fn collect(
    dtype: DataType,
    value: &Value,
    shape: &[i64],
    into: &mut Literal,
) -> Result<(), String> {
    match (value, shape) {
        (Value::Array(items), [length, rest @ ..]) if items.len() as i64 == *length => {
            items.iter().try_for_each(|it| collect(dtype, it, rest, into))
        }
        (Value::Array(_), _) | (_, [_, ..]) => {
            Err("expected an array whose rows are all as long".to_owned())
        }
        (value, []) => {
            into.count += 1;
            push(dtype, value, &mut into.data).ok_or_else(|| {
                format!("expected {}, got `{}`", dtype.as_str(), shown(&value.to_string()))
            })
        }
    }
}

/// One element; `None` if the value is of another type or out of range.
fn push(dtype: DataType, value: &Value, data: &mut Vec<u8>) -> Option<()> {
    match dtype {
        DataType::Bool => data.push(u8::from(value.as_bool()?)),
        DataType::Uint8 => data.extend(u8::try_from(value.as_u64()?).ok()?.to_le_bytes()),
        DataType::Uint16 => data.extend(u16::try_from(value.as_u64()?).ok()?.to_le_bytes()),
        DataType::Uint32 => data.extend(u32::try_from(value.as_u64()?).ok()?.to_le_bytes()),
        DataType::Uint64 => data.extend(value.as_u64()?.to_le_bytes()),
        DataType::Int8 => data.extend(i8::try_from(value.as_i64()?).ok()?.to_le_bytes()),
        DataType::Int16 => data.extend(i16::try_from(value.as_i64()?).ok()?.to_le_bytes()),
        DataType::Int32 => data.extend(i32::try_from(value.as_i64()?).ok()?.to_le_bytes()),
        DataType::Int64 => data.extend(value.as_i64()?.to_le_bytes()),
        DataType::Fp16 => data.extend(f16::from_f32(float(value, 65_520.0)?).to_le_bytes()),
        DataType::Bf16 => data.extend(bf16::from_f32(float(value, 3.396e38)?).to_le_bytes()),
        DataType::Fp32 => data.extend(float(value, 3.402_823_567_797_336_6e38)?.to_le_bytes()),
        DataType::Fp64 => data.extend(wide(value)?.to_le_bytes()),
        DataType::Bytes => push_string(value.as_str()?.as_bytes(), data).ok()?,
    }
    Some(())
}

/// A finite value must be below the `limit`, from which on it would be rounded to infinity.
fn float(value: &Value, limit: f64) -> Option<f32> {
    let value = wide(value)?;
    (!value.is_finite() || value.abs() < limit).then_some(value as f32)
}

/// A number, or one of the three that JSON does not have, as a string.
fn wide(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some("NaN") => Some(f64::NAN),
        Some("Infinity") => Some(f64::INFINITY),
        Some("-Infinity") => Some(f64::NEG_INFINITY),
        Some(_) => None,
        None => value.as_f64(),
    }
}

fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use DataType::*;

    #[track_caller]
    fn check(dtype: DataType, text: &str, shape: &[i64], data: &[u8]) {
        let literal = read(dtype, text).unwrap();
        assert_eq!((&literal.shape[..], &literal.data[..]), (shape, data));
        assert_eq!(literal.count as i64, shape.iter().product::<i64>());
    }

    #[test]
    fn the_shape_is_that_of_the_nesting() {
        check(Uint8, "7", &[], &[7]);
        check(Uint8, "[]", &[0], &[]);
        check(Uint8, "[[1,2],[3,4],[5,6]]", &[3, 2], &[1, 2, 3, 4, 5, 6]);
        check(Uint8, "[[],[]]", &[2, 0], &[]);
        check(Bool, "[true,false]", &[2], &[1, 0]);
        check(Int16, "[-1]", &[1], &[255, 255]);
        check(Fp32, "[1,\"-Infinity\"]", &[2], &[0, 0, 128, 63, 0, 0, 128, 255]);
        check(Fp16, "[1]", &[1], &[0, 60]);
        check(Bf16, "[1]", &[1], &[128, 63]);
        check(Fp64, "0.5", &[], &0.5f64.to_le_bytes());
        check(Uint64, "[18446744073709551615]", &[1], &[255; 8]);
    }

    #[test]
    fn texts_are_strings_or_just_text() {
        check(Bytes, r#""a\n""#, &[], b"\x02\0\0\0a\n");
        check(Bytes, r#"["a",""]"#, &[2], b"\x01\0\0\0a\0\0\0\0");
        for text in ["hello", "5", "[1,2]", r#"["a",1]"#, r#"{"a":1}"#, "[a", r#"[["a"],[]]"#] {
            let expected = [&[text.len() as u8, 0, 0, 0], text.as_bytes()].concat();
            check(Bytes, text, &[], &expected);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (dtype, text, expected) in [
            (Fp32, "[1,]", "expected JSON or, behind `@`, a file, got `[1,]` ("),
            (Fp32, "[1,[2]]", "expected an array whose rows are all as long"),
            (Fp32, "[[1],2]", "expected an array whose rows are all as long"),
            (Fp32, "[[1],[2,3]]", "expected an array whose rows are all as long"),
            (Fp32, "[\"x\"]", "expected FP32, got `\"x\"`"),
            (Fp32, "1e39", "expected FP32, got `1e+39`"),
            (Fp16, "65520", "expected FP16, got `65520`"),
            (Bf16, "3.4e38", "expected BF16, got `3.4e+38`"),
            (Uint8, "256", "expected UINT8, got `256`"),
            (Uint8, "-1", "expected UINT8, got `-1`"),
            (Int8, "1.0", "expected INT8, got `1.0`"),
            (Bool, "1", "expected BOOL, got `1`"),
            (Int32, "null", "expected INT32, got `null`"),
        ] {
            let error = read(dtype, text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn values_are_rounded_to_the_nearest() {
        for (value, fp16, bf16) in [
            (0.0, 0, 0),
            (-0.0, 0x8000, 0x8000),
            (1.0, 0x3c00, 0x3f80),
            (-2.5, 0xc100, 0xc020),
            (65504.0, 0x7bff, 0x4780),
            (65519.0, 0x7bff, 0x4780),
            (65520.0, 0x7c00, 0x4780),
            (1e9, 0x7c00, 0x4e6e),
            (f32::NEG_INFINITY, 0xfc00, 0xff80),
            (1.000_488_3, 0x3c00, 0x3f80),
            (1.001_464_8, 0x3c02, 0x3f80),
            (5.960_464_5e-8, 1, 0x3380),
            (2e-8, 0, 0x32ac),
            (6.1e-5, 0x3ff, 0x3880),
            (6.103_515_6e-5, 0x400, 0x3880),
        ] {
            assert_eq!(
                (f16::from_f32(value).to_bits(), bf16::from_f32(value).to_bits()),
                (fp16, bf16),
                "{value}"
            );
        }
        assert!(f16::from_f32(f32::NAN).is_nan() && bf16::from_f32(f32::NAN).is_nan());
    }

    #[test]
    fn all_of_them_survive_the_way_there_and_back() {
        for bits in 0..=u16::MAX {
            let (fp16, bf16) = (f16::from_bits(bits).to_f32(), bf16::from_bits(bits).to_f32());
            assert!(fp16.is_nan() || f16::from_f32(fp16).to_bits() == bits, "{bits:x}");
            assert!(bf16.is_nan() || bf16::from_f32(bf16).to_bits() == bits, "{bits:x}");
        }
    }
}
