//! Sizes as people write them: `512M`.

/// `512M` in bytes; the letters K, M and G stand for powers of 1024. `None` where it is not
/// positive.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit = |letter| match letter {
        'K' => Some(1 << 10),
        'M' => Some(1 << 20),
        'G' => Some(1 << 30),
        _ => None,
    };
    let (number, unit) = match text.chars().next_back().and_then(unit) {
        Some(unit) => (&text[..text.len() - 1], unit),
        None => (text, 1),
    };
    number.parse::<u64>().ok()?.checked_mul(unit).filter(|it| 0 < *it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_is_a_power_of_1024() {
        for (text, expected) in [
            ("4096", Some(4096)),
            ("8K", Some(8 << 10)),
            (" 512M ", Some(512 << 20)),
            ("3G", Some(3 << 30)),
            ("0", None),
            ("0K", None),
            ("-1", None),
            ("G", None),
            ("1T", None),
            ("1.5G", None),
            ("99999999999G", None),
            ("", None),
        ] {
            assert_eq!(parse_bytes(text), expected, "{text:?}");
        }
    }
}
