//! `--spin`: whether threads spin, which is to poll before they sleep, and for how long.

use std::time::Duration;

/// Longer spins would be a busy loop.
const MAX_SPIN_MICROS: u64 = 100_000;

/// Whether the server's threads spin for the next frame or request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spin {
    /// Where it pays: for what usually comes soon, on a machine that has a core to spare.
    #[default]
    Auto,
    /// Never.
    Off,
    /// For what comes soon, at most so long at a time, whether a core is free or not.
    For(Duration),
}

pub(crate) fn spin(text: &str) -> Result<Spin, String> {
    match text {
        "auto" => Ok(Spin::Auto),
        "off" => Ok(Spin::Off),
        _ => match text.parse() {
            Ok(micros @ 1..=MAX_SPIN_MICROS) => Ok(Spin::For(Duration::from_micros(micros))),
            _ => Err(format!(
                "expected `auto`, `off` or microseconds from 1 to {MAX_SPIN_MICROS}, got `{text}`"
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_to_spin_is_said_in_a_word_or_in_microseconds() {
        let micros = |it| Ok(Spin::For(Duration::from_micros(it)));
        for (text, expected) in [
            ("auto", Ok(Spin::Auto)),
            ("off", Ok(Spin::Off)),
            ("1", micros(1)),
            ("100000", micros(100_000)),
        ] {
            assert_eq!(spin(text), expected, "{text}");
        }
        for text in ["", "0", "on", "-1", "100001", "5us", "99999999999999999999"] {
            let problem = spin(text).unwrap_err();
            assert!(problem.ends_with(&format!("from 1 to 100000, got `{text}`")), "{problem}");
        }
    }
}
