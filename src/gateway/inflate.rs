//! Inflates what a client compressed: counted before there is more of it, up to a limit. The same for
//! both protocols.

use std::io::{self, Read};

use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};

use troupe_base::{
    budget::{Charge, Kind, Reason},
    error::Error,
};

/// Even a small body may inflate a thousandfold: more than this is inflated on another thread.
pub(crate) const MAX_INFLATED_HERE_BYTES: usize = 1 << 10;
/// Memory for at least so much is taken at a time.
const INFLATED_AT_ONCE_BYTES: usize = 64 << 10;

/// How bytes are coded, as clients name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Identity,
    Gzip,
    Deflate,
}

impl Coding {
    /// As headers spell it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Coding::Identity => "identity",
            Coding::Gzip => "gzip",
            Coding::Deflate => "deflate",
        }
    }

    /// What a header names.
    pub(crate) fn parse(name: &str) -> Option<Coding> {
        [Coding::Identity, Coding::Gzip, Coding::Deflate]
            .into_iter()
            .find(|it| it.as_str().eq_ignore_ascii_case(name))
    }
}

/// Why something was not inflated.
pub(crate) enum InflateError {
    /// It is not what its coding says.
    Invalid(io::Error),
    /// It has more bytes than the limit; so many were seen.
    TooLarge(usize),
    /// There is no memory for more of it.
    Exhausted(Error),
}

/// `data` as it was before it was coded: at most `limit` bytes, which `charge` counts as long as any
/// are in use.
pub(crate) fn inflate(
    coding: Coding,
    data: Bytes,
    limit: usize,
    charge: &Charge,
) -> Result<Bytes, InflateError> {
    match coding {
        Coding::Identity => Ok(data),
        Coding::Gzip => read_all(MultiGzDecoder::new(&data[..]), limit, charge),
        Coding::Deflate => read_all(ZlibDecoder::new(&data[..]), limit, charge),
    }
}

fn read_all(mut from: impl Read, limit: usize, charge: &Charge) -> Result<Bytes, InflateError> {
    let (mut hold, mut inflated) = (charge.hold(Kind::Received), Vec::new());
    loop {
        if inflated.capacity() - inflated.len() < INFLATED_AT_ONCE_BYTES {
            // Both memories are there while the bytes move.
            let larger = (2 * inflated.capacity()).max(INFLATED_AT_ONCE_BYTES);
            let larger = larger.min(limit.saturating_add(1)).max(inflated.len() + 1);
            let mut of_larger = charge.hold(Kind::Received);
            of_larger.grow(larger).map_err(InflateError::Exhausted)?;
            let mut moved = Vec::with_capacity(larger);
            moved.extend_from_slice(&inflated);
            (hold, inflated) = (of_larger, moved);
        }
        let most = inflated.capacity() - inflated.len();
        let mut part = from.by_ref().take(most as u64);
        let more = part.read_to_end(&mut inflated).map_err(InflateError::Invalid)?;
        if limit < inflated.len() {
            charge.count_refusal(Reason::Size);
            return Err(InflateError::TooLarge(inflated.len()));
        }
        if more == 0 {
            hold.settle(inflated.len());
            return Ok(hold.over(inflated.into()));
        }
    }
}
