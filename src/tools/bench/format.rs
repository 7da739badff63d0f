//! Numbers as people read them: three digits and a unit.

use std::time::{SystemTime, UNIX_EPOCH};

use time::UtcDateTime;

/// Nanoseconds.
pub(super) fn time(ns: f64) -> String {
    match ns {
        _ if ns <= 0.0 => "0".to_owned(),
        _ if 999.5e6 <= ns => format!("{} s", digits(ns / 1e9)),
        _ if 999.5e3 <= ns => format!("{} ms", digits(ns / 1e6)),
        _ => format!("{} µs", digits(ns / 1e3)),
    }
}

/// Three digits, all of those before the point.
pub(super) fn digits(value: f64) -> String {
    match value.abs() {
        it if 99.95 <= it => format!("{value:.0}"),
        it if 9.995 <= it => format!("{value:.1}"),
        it if 0.0 < it => format!("{value:.2}"),
        _ => "0".to_owned(),
    }
}

/// A share as a whole number of hundredths.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// `1 request`, `2 requests`.
pub(super) fn count(number: u64, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// What a server says, unable to move the cursor or to look like a line's end.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for it in text.chars() {
        if it.is_control() || matches!(it, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
            plain.extend(it.escape_default());
        } else {
            plain.push(it);
        }
    }
    plain
}

/// `2026-11-21 08:30 UTC`.
pub(super) fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    // Clocks beyond the year 9999 show the first day of 1970.
    let date = UtcDateTime::from_unix_timestamp(seconds as i64).unwrap_or(UtcDateTime::UNIX_EPOCH);
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", date.hour(), date.minute())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn three_digits_are_enough() {
        for (ns, expected) in [
            (0.0, "0"),
            (812.0, "0.81 µs"),
            (8_120.0, "8.12 µs"),
            (812_345.0, "812 µs"),
            (999_999.0, "1.00 ms"),
            (8.126e6, "8.13 ms"),
            (81.26e6, "81.3 ms"),
            (2.5e9, "2.50 s"),
        ] {
            assert_eq!(time(ns), expected);
        }
        assert_eq!((digits(12_345.6), percent(0.987)), ("12346".to_owned(), "99 %".to_owned()));
        assert_eq!((count(1, "row"), count(2, "row")), ("1 row".to_owned(), "2 rows".to_owned()));
    }

    #[test]
    fn days_have_dates() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (1_709_164_800 + 3_661, "2024-02-29 01:01 UTC"),
            (1_709_251_200, "2024-03-01 00:00 UTC"),
            (1_798_761_599, "2026-12-31 23:59 UTC"),
        ] {
            assert_eq!(date(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn nothing_moves_the_cursor() {
        assert_eq!(plain("a\u{1b}[2J\r\u{202e}ü"), r"a\u{1b}[2J\r\u{202e}ü");
    }
}
