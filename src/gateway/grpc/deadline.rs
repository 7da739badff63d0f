//! The deadline that a client sends with a call (`grpc-timeout`). tonic would answer CANCELLED when
//! it is over.

use std::time::Duration;

use tokio::time::Instant;
use tonic::codegen::http::HeaderMap;

/// When the call is to be over; `None` if the client does not say, or says it wrongly.
pub(super) fn of(headers: &HeaderMap) -> Option<Instant> {
    let timeout = headers.get("grpc-timeout")?.to_str().ok().and_then(parse)?;
    Instant::now().checked_add(timeout)
}

/// Up to eight digits and a unit.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = (1..=8).contains(&digits.len()) && digits.bytes().all(|it| it.is_ascii_digit());
    let number: u64 = digits.parse().ok().filter(|_| is_number)?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_a_unit() {
        assert_eq!(parse("200m"), Some(Duration::from_millis(200)));
        assert_eq!(parse("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for wrong in ["", "5", "m", "+5m", "-5m", "123456789n", "5x", "5é"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
