//! Numbers as people read them: three digits and a unit.

use std::time::{SystemTime, UNIX_EPOCH};

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
    let minutes = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60;
    let (mut day, mut year) = (minutes / 1440, 1970);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let days = |year| if is_leap(year) { 366 } else { 365 };
    while days(year) <= day {
        day -= days(year);
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    let (hour, minute) = (minutes / 60 % 24, minutes % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02} UTC", day + 1)
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
