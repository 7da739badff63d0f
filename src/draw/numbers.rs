//! Numbers as people read them: short, with a unit.

/// What stands where there is no number.
pub const NONE: &str = "–";

/// A duration of so many microseconds.
pub fn duration(microseconds: Option<f64>) -> String {
    let Some(us) = microseconds else { return NONE.to_owned() };
    match us {
        _ if us < 999.5 => format!("{us:.0} µs"),
        _ if us < 999_500.0 => format!("{} ms", digits(us / 1e3)),
        _ => format!("{} s", digits(us / 1e6)),
    }
}

/// How many in all.
pub fn count(count: u64) -> String {
    if count < 10_000 { count.to_string() } else { scaled(count as f64, "").replace(' ', "") }
}

/// How many per second.
pub fn rate(per_second: f64) -> String {
    match per_second {
        0.0 => "0/s".to_owned(),
        _ if per_second < 0.05 => "<0.1/s".to_owned(),
        _ if per_second < 9.95 => format!("{per_second:.1}/s"),
        _ => format!("{}/s", scaled(per_second, "").replace(' ', "")),
    }
}

/// Bytes per second; nothing where they are not counted.
pub fn bytes_rate(per_second: Option<f64>) -> String {
    per_second.map(|it| scaled(it, "B/s")).unwrap_or_default()
}

/// Bytes in all.
pub fn bytes(count: u64) -> String {
    scaled(count as f64, "B")
}

/// A share of one.
pub fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| NONE.to_owned(), |it| format!("{:.0} %", it * 100.0))
}

/// A mean, as of batch sizes.
pub fn mean(mean: Option<f64>) -> String {
    mean.map_or_else(|| NONE.to_owned(), digits)
}

fn scaled(number: f64, unit: &str) -> String {
    let scales = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    // What would be rounded up to 1000 of a unit is 1 of the next.
    let scale = scales.iter().find(|it| it.0 * 0.9995 <= number);
    match scale {
        Some((scale, letter)) => format!("{} {letter}{unit}", digits(number / scale)),
        None => format!("{number:.0} {unit}"),
    }
    .trim_end()
    .to_owned()
}

/// Three digits.
fn digits(number: f64) -> String {
    match number {
        _ if number < 9.995 => {
            format!("{number:.2}").trim_end_matches("00").trim_end_matches('.').to_owned()
        }
        _ if number < 99.95 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let rows = [
            (duration(None), "–"),
            (duration(Some(0.4)), "0 µs"),
            (duration(Some(999.4)), "999 µs"),
            (duration(Some(999.6)), "1 ms"),
            (duration(Some(1234.0)), "1.23 ms"),
            (duration(Some(45_670.0)), "45.7 ms"),
            (duration(Some(3_000_000.0)), "3 s"),
            (count(9999), "9999"),
            (count(12_345), "12.3k"),
            (count(1_999_999), "2M"),
            (rate(0.0), "0/s"),
            (rate(0.01), "<0.1/s"),
            (rate(3.21), "3.2/s"),
            (rate(9.97), "10/s"),
            (rate(65_432.0), "65.4k/s"),
            (bytes_rate(None), ""),
            (bytes_rate(Some(0.0)), "0 B/s"),
            (bytes_rate(Some(999.7)), "1 kB/s"),
            (bytes_rate(Some(12_345_678.0)), "12.3 MB/s"),
            (bytes(16), "16 B"),
            (percent(Some(0.456)), "46 %"),
            (mean(Some(1.0)), "1"),
            (mean(Some(4.25)), "4.25"),
        ];
        for (got, expected) in rows {
            assert_eq!(got, expected);
        }
    }
}
