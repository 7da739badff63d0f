//! Turns one value of the tree into the scalar its field asks for.

use prost_reflect::{EnumDescriptor, Kind as Type, Value as Scalar};

use super::literal;
use super::syntax::{SyntaxNode, SyntaxValue};
use super::token::TokenKind;
use crate::config::problem::suggesting;

/// The value, or what is wrong with it in protobuf's words.
pub(super) fn scalar(node: &SyntaxNode<'_>, kind: &Type, field: &str) -> Result<Scalar, String> {
    match kind {
        Type::Bool => boolean(node, field).map(Scalar::Bool),
        Type::Int32 | Type::Sint32 | Type::Sfixed32 => {
            signed(node, i32::MAX as u64).map(|value| Scalar::I32(value as i32))
        }
        Type::Int64 | Type::Sint64 | Type::Sfixed64 => {
            signed(node, i64::MAX as u64).map(Scalar::I64)
        }
        Type::Uint32 | Type::Fixed32 => {
            unsigned(node, u32::MAX.into()).map(|value| Scalar::U32(value as u32))
        }
        Type::Uint64 | Type::Fixed64 => unsigned(node, u64::MAX).map(Scalar::U64),
        Type::Float => float(node).map(|value| Scalar::F32(value as f32)),
        Type::Double => float(node).map(Scalar::F64),
        Type::String => String::from_utf8(bytes(node)?)
            .map(Scalar::String)
            .map_err(|_| format!("String field \"{field}\" contains invalid UTF-8.")),
        Type::Bytes => bytes(node).map(|value| Scalar::Bytes(value.into())),
        Type::Enum(enumeration) => enumerated(node, enumeration, field).map(Scalar::EnumNumber),
        Type::Message(_) => Err(format!("Expected \"{{\", found \"{}\".", node.first)),
    }
}

fn unsigned(node: &SyntaxNode<'_>, most: u64) -> Result<u64, String> {
    match &node.value {
        SyntaxValue::Scalar { minus: false, token } if token.kind == TokenKind::Integer => {
            in_range(token.text, most)
        }
        _ => Err(format!("Expected integer, got: {}", node.first)),
    }
}

fn signed(node: &SyntaxNode<'_>, most: u64) -> Result<i64, String> {
    let SyntaxValue::Scalar { minus: true, token } = &node.value else {
        return unsigned(node, most).map(|value| value as i64);
    };
    if token.kind != TokenKind::Integer {
        return Err(format!("Expected integer, got: {}", token.text));
    }
    // There is one more negative number than positive ones.
    in_range(token.text, most + 1).map(|value| (value as i64).wrapping_neg())
}

fn in_range(text: &str, most: u64) -> Result<u64, String> {
    let value = literal::integer(text).filter(|value| *value <= most);
    value.ok_or_else(|| format!("Integer out of range ({text})"))
}

fn float(node: &SyntaxNode<'_>) -> Result<f64, String> {
    let SyntaxValue::Scalar { minus, token } = &node.value else {
        return Err(format!("Expected double, got: {}", node.first));
    };
    if token.kind == TokenKind::Integer && token.text.starts_with('0') && token.text.len() > 1 {
        return Err(format!("Expect a decimal number, got: {}", token.text));
    }
    let value = match token.kind {
        TokenKind::Identifier | TokenKind::Integer | TokenKind::Float => literal::float(token.text),
        _ => None,
    };
    let value = value.ok_or_else(|| format!("Expected double, got: {}", token.text))?;
    Ok(if *minus { -value } else { value })
}

fn boolean(node: &SyntaxNode<'_>, field: &str) -> Result<bool, String> {
    match &node.value {
        SyntaxValue::Scalar { minus: false, token } if token.kind == TokenKind::Integer => {
            in_range(token.text, 1).map(|value| value == 1)
        }
        SyntaxValue::Scalar { minus: false, token } if token.kind == TokenKind::Identifier => {
            match token.text {
                "true" | "True" | "t" => Ok(true),
                "false" | "False" | "f" => Ok(false),
                other => {
                    Err(format!("Invalid value for boolean field \"{field}\". Value: \"{other}\"."))
                }
            }
        }
        _ => Err(format!("Expected identifier, got: {}", node.first)),
    }
}

fn bytes(node: &SyntaxNode<'_>) -> Result<Vec<u8>, String> {
    let SyntaxValue::Strings(parts) = &node.value else {
        return Err(format!("Expected string, got: {}", node.first));
    };
    let mut out = Vec::new();
    for part in parts {
        // A wrong escape or a missing quote has been reported by the lexer.
        let inside = part.get(1..part.len().saturating_sub(1)).unwrap_or_default();
        out.extend(literal::unescape(inside).unwrap_or_default());
    }
    Ok(out)
}

fn enumerated(
    node: &SyntaxNode<'_>,
    enumeration: &EnumDescriptor,
    field: &str,
) -> Result<i32, String> {
    let unknown =
        |value: &str| format!("Unknown enumeration value of \"{value}\" for field \"{field}\".");
    match &node.value {
        SyntaxValue::Scalar { minus: false, token } if token.kind == TokenKind::Identifier => {
            let value = enumeration.get_value_by_name(token.text);
            value.map(|value| value.number()).ok_or_else(|| {
                let known: Vec<_> =
                    enumeration.values().map(|value| value.name().to_owned()).collect();
                let usual = usual_name(token.text);
                if known.contains(&usual) {
                    return format!("{} Did you mean `{usual}`?", unknown(token.text));
                }
                suggesting(unknown(token.text), token.text, known.iter().map(String::as_str))
            })
        }
        SyntaxValue::Scalar { token, .. } if token.kind == TokenKind::Integer => {
            let number = signed(node, i32::MAX as u64)? as i32;
            let value = enumeration.get_value(number);
            value.map(|value| value.number()).ok_or_else(|| unknown(&number.to_string()))
        }
        _ => Err(format!("Expected integer or identifier, got: {}", node.first)),
    }
}

/// The name here of a data type that is called otherwise elsewhere: in numpy, in ONNX, in requests.
fn usual_name(written: &str) -> String {
    let written = written.to_ascii_uppercase();
    let name = match written.strip_prefix("TYPE_").unwrap_or(&written) {
        "BYTES" | "STR" | "TEXT" | "OBJECT" => "STRING",
        "FLOAT" | "FLOAT32" => "FP32",
        "DOUBLE" | "FLOAT64" => "FP64",
        "HALF" | "FLOAT16" => "FP16",
        "BFLOAT16" => "BF16",
        "LONG" => "INT64",
        "INT" => "INT32",
        "BOOLEAN" => "BOOL",
        other => other,
    };
    format!("TYPE_{name}")
}
