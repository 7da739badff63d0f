//! How wide a text is drawn, and how long names are cut.

/// Names longer than this are cut: a picture is to be looked at.
pub(super) const MAX_NAME_LETTERS: usize = 48;

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
    shorter(name, MAX_NAME_LETTERS)
}

/// The same with at most so many letters.
pub(super) fn shorter(name: &str, max_letters: usize) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= max_letters {
        return name.to_owned();
    }
    let half = max_letters / 2;
    let ends = [&letters[..half], &letters[letters.len() - half + 1..]];
    ends.map(String::from_iter).join("…")
}
