//! Content codings: inflating requests up to a limit, compressing answers for those who ask.

use std::io::Write;

use actix_web::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderMap};
use bytes::Bytes;
use flate2::{
    Compression,
    write::{GzEncoder, ZlibEncoder},
};

use super::{
    limits::{SizeLimit, on_other_thread},
    refusal::Refusal,
};
pub(super) use crate::inflate::Coding;
use crate::inflate::{self, InflateError, MAX_INFLATED_HERE_BYTES};
use troupe_base::{budget::Charge, error::Error};

/// How the request's body is coded.
pub(super) fn of_request(headers: &HeaderMap) -> Result<Coding, Refusal> {
    let Some(value) = headers.get(CONTENT_ENCODING) else { return Ok(Coding::Identity) };
    let name = value.to_str().map_err(|_| Refusal::Coding)?.trim();
    if name.is_empty() { Ok(Coding::Identity) } else { Coding::parse(name).ok_or(Refusal::Coding) }
}

/// How the answer shall be coded: the highest weight, the first of equals.
pub(super) fn of_answer(headers: &HeaderMap) -> Coding {
    let Some(value) = headers.get(ACCEPT_ENCODING) else { return Coding::Identity };
    let mut best = (Coding::Identity, 0.0);
    for item in value.to_str().unwrap_or("").split(',') {
        let mut parts = item.split(';').map(str::trim);
        let Some(coding) = parts.next().and_then(Coding::parse) else { continue };
        let weight = parts.find_map(|it| it.strip_prefix("q="));
        let weight: f32 = weight.map_or(1.0, |it| it.trim().parse().unwrap_or(0.0));
        if best.1 < weight {
            best = (coding, weight);
        }
    }
    best.0
}

/// The body as it was before the client compressed it.
pub(super) async fn inflate(
    coding: Coding,
    body: Bytes,
    limit: SizeLimit,
    charge: &Charge,
) -> Result<Bytes, Refusal> {
    let is_small = body.len() <= MAX_INFLATED_HERE_BYTES;
    let charge = charge.clone();
    let work = move || {
        inflate::inflate(coding, body, limit.bytes(), &charge).map_err(|it| wrong(it, limit))
    };
    Ok(if is_small { work()? } else { on_other_thread(work).await? })
}

fn wrong(error: InflateError, limit: SizeLimit) -> Error {
    match error {
        InflateError::Invalid(error) => {
            Error::invalid(format!("failed to decompress the request body: {error}"))
        }
        InflateError::TooLarge(size) => limit.too_large(size),
        InflateError::Exhausted(error) => error,
    }
}

/// All parts, one after the other, compressed; `None` if that fails.
pub(super) fn deflate(coding: Coding, parts: &[Bytes]) -> Option<Vec<u8>> {
    let fast = Compression::fast();
    match coding {
        Coding::Identity => None,
        Coding::Gzip => {
            let mut to = GzEncoder::new(Vec::new(), fast);
            parts.iter().try_for_each(|it| to.write_all(it)).ok()?;
            to.finish().ok()
        }
        Coding::Deflate => {
            let mut to = ZlibEncoder::new(Vec::new(), fast);
            parts.iter().try_for_each(|it| to.write_all(it)).ok()?;
            to.finish().ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderValue;

    use super::*;

    #[test]
    fn the_highest_weight_wins() {
        for (accept, expected) in [
            ("", Coding::Identity),
            ("gzip", Coding::Gzip),
            ("gzip, deflate", Coding::Gzip),
            ("gzip;q=0.5, deflate;q=1", Coding::Deflate),
            ("gzip ; q=0.5,identity;q=0.7", Coding::Identity),
            ("gzip;q=0", Coding::Identity),
            ("br, *;q=0.1", Coding::Identity),
            ("gzip;q=nonsense", Coding::Identity),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(accept));
            assert_eq!(of_answer(&headers), expected, "{accept}");
        }
    }
}
