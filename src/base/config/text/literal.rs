//! Reads the literals of protobuf text format: numbers and escaped strings.

/// The value of an integer token; `None` when it does not fit in 64 bits.
pub(super) fn integer(text: &str) -> Option<u64> {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    u64::from_str_radix(digits, radix).ok()
}

/// The value of an integer or float token, or of the words protobuf reads as numbers.
pub(super) fn float(text: &str) -> Option<f64> {
    match text.to_ascii_lowercase().as_str() {
        "inf" | "infinity" => Some(f64::INFINITY),
        "nan" => Some(f64::NAN),
        number if number.starts_with(|first: char| first.is_ascii_digit() || first == '.') => {
            number.strip_suffix('f').unwrap_or(number).parse().ok()
        }
        _ => None,
    }
}

/// The bytes of a string without its quotes.
pub(super) fn unescape(text: &str) -> Result<Vec<u8>, &'static str> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(escape) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..escape]);
        rest = unescape_one(&rest[escape + 1..], &mut out)?;
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

/// Reads what follows one backslash; returns what follows the escape.
fn unescape_one<'a>(text: &'a str, out: &mut Vec<u8>) -> Result<&'a str, &'static str> {
    let kind = text.chars().next().ok_or("Invalid escape sequence in string literal.")?;
    let rest = &text[kind.len_utf8()..];
    let plain = match kind {
        'a' => 0x07,
        'b' => 0x08,
        'f' => 0x0c,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 0x0b,
        '\\' | '?' | '\'' | '"' => kind as u8,
        '0'..='7' => {
            let (value, rest) = digits(text, 8, 3);
            // Three octal digits may exceed a byte; protobuf keeps the low eight bits.
            out.push(value as u8);
            return Ok(rest);
        }
        'x' | 'X' => {
            let (value, after) = digits(rest, 16, 2);
            if after.len() == rest.len() {
                return Err("Expected hex digits for escape sequence.");
            }
            out.push(value as u8);
            return Ok(after);
        }
        'u' => return unicode(rest, 4, out),
        'U' => return unicode(rest, 8, out),
        _ => return Err("Invalid escape sequence in string literal."),
    };
    out.push(plain);
    Ok(rest)
}

/// A code point of exactly `length` hex digits; a surrogate takes its partner with it.
fn unicode<'a>(text: &'a str, length: usize, out: &mut Vec<u8>) -> Result<&'a str, &'static str> {
    let wrong = match length {
        4 => "Expected four hex digits for \\u escape sequence.",
        _ => "Expected eight hex digits up to 10ffff for \\U escape sequence",
    };
    let (mut code, mut rest) = digits(text, 16, length);
    if text.len() - rest.len() != length {
        return Err(wrong);
    }
    if let (0xd800..=0xdbff, Some(partner)) = (code, rest.strip_prefix("\\u")) {
        let (low, after) = digits(partner, 16, 4);
        if (0xdc00..=0xdfff).contains(&low) {
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            rest = after;
        }
    }
    let character = char::from_u32(code).ok_or(wrong)?;
    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    Ok(rest)
}

/// The value of up to `most` digits, and what follows them.
fn digits(text: &str, radix: u32, most: usize) -> (u32, &str) {
    let count = text.chars().take(most).take_while(|digit| digit.is_digit(radix)).count();
    let (digits, rest) = text.split_at(count);
    (u32::from_str_radix(digits, radix).unwrap_or(0), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_decimal_hex_or_octal() {
        for (text, expected) in [
            ("0", Some(0)),
            ("42", Some(42)),
            ("0x2A", Some(42)),
            ("052", Some(42)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
        ] {
            assert_eq!(integer(text), expected, "{text}");
        }
    }

    #[test]
    fn floats_may_have_a_suffix_or_be_words() {
        for (text, expected) in [
            ("1.5", Some(1.5)),
            ("2f", Some(2.0)),
            (".5e1F", Some(5.0)),
            ("Inf", Some(f64::INFINITY)),
        ] {
            assert_eq!(float(text), expected, "{text}");
        }
        assert!(float("nan").is_some_and(f64::is_nan));
        assert_eq!(float("f"), None);
        assert_eq!(float("half"), None);
    }

    #[test]
    fn every_escape_is_read() {
        for (text, expected) in [
            (r"a\n\t\\\'\x41\101\0", Ok(b"a\n\t\\'AA\0".to_vec())),
            (r"\u00e9\U0001F600", Ok("é😀".as_bytes().to_vec())),
            (r"\ud83d\ude00", Ok("😀".as_bytes().to_vec())),
            (r"\377", Ok(vec![255])),
            (r"\xg", Err("Expected hex digits for escape sequence.")),
            (r"\q", Err("Invalid escape sequence in string literal.")),
            (r"\u12", Err("Expected four hex digits for \\u escape sequence.")),
            (r"\U00110000", Err("Expected eight hex digits up to 10ffff for \\U escape sequence")),
        ] {
            assert_eq!(unescape(text), expected, "{text}");
        }
    }
}
