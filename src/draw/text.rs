//! How wide a text is drawn, and how it is written where markup is read.

/// Names longer than this are cut: a picture is to be looked at.
const LONGEST: usize = 48;

/// Widths in units of the font's size, a little more than the widest usual sans-serif font needs.
const WIDTHS: &[(&str, f64)] = &[
    ("ijl.,:;'|!`", 0.32),
    ("ftrI()[]{}/\\- \"", 0.42),
    ("mwMW%@#", 0.95),
    ("ABCDEFGHKNOPQRSTUVXYZ&_+=<>~", 0.74),
];

/// The width of a text in a sans-serif font of this size.
pub(super) fn width(text: &str, size: f64) -> f64 {
    let one = |letter: char| match WIDTHS.iter().find(|row| row.0.contains(letter)) {
        Some((_, width)) => *width,
        None if letter.is_ascii() => 0.64,
        None => 1.05,
    };
    text.chars().map(one).sum::<f64>() * size
}

/// A long name without its middle: names that differ do so at the ends.
pub(super) fn short(name: &str) -> String {
    shorter(name, LONGEST)
}

/// The same with so many letters.
pub(super) fn shorter(name: &str, longest: usize) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= longest {
        return name.to_owned();
    }
    let half = longest / 2;
    let ends = [&letters[..half], &letters[letters.len() - half + 1..]];
    ends.map(String::from_iter).join("…")
}

/// Text as XML and HTML take it, also between double quotes.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML has no way to write these.
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            control if control.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

/// A name as one segment of a path.
pub fn encoded(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            other => out += &format!("%{other:02X}"),
        }
    }
    out
}
