//! Compresses answers for clients that take gzip, on a thread that may be held up.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use tokio::task::spawn_blocking;
use tonic::{
    Status,
    codegen::http::{HeaderMap, Request, header::HeaderName},
};

use super::prefix::{PREFIX_BYTES, Prefix};
use troupe_base::budget::{Charge, Kind};
use troupe_options::GrpcCompression;

const ACCEPTED: HeaderName = HeaderName::from_static("grpc-accept-encoding");
/// Less is compressed in less time than another thread takes to begin.
const MAX_COMPRESSED_HERE_BYTES: usize = 4 << 10;

/// How well to compress the answer of a call; `None`: not at all, as its client wants or the server.
pub(crate) fn compression_of<B>(call: &Request<B>, level: GrpcCompression) -> Option<Compression> {
    let level = match level {
        GrpcCompression::None => return None,
        GrpcCompression::Low => Compression::fast(),
        GrpcCompression::Medium => Compression::default(),
        GrpcCompression::High => Compression::best(),
    };
    takes_gzip(call.headers()).then_some(level)
}

/// Does the client of these headers take gzip?
fn takes_gzip(headers: &HeaderMap) -> bool {
    let lists = headers.get_all(ACCEPTED).into_iter().filter_map(|it| it.to_str().ok());
    lists.flat_map(|it| it.split(',')).any(|it| it.trim() == "gzip")
}

/// The same message compressed, where that makes it smaller.
pub(super) async fn compress(
    message: Vec<Bytes>,
    level: Compression,
    charge: &Charge,
) -> Result<Vec<Bytes>, Status> {
    let length: usize = message.iter().map(Bytes::len).sum();
    let compressed = if length <= MAX_COMPRESSED_HERE_BYTES {
        compress_here(&message, level)
    } else {
        let parts = message.clone();
        let compressed = spawn_blocking(move || compress_here(&parts, level)).await;
        compressed.map_err(|_| Status::unavailable("no thread is left to compress an answer"))?
    };
    let compressed = compressed.map_err(|error| Status::internal(error.to_string()))?;
    match compressed.len() < length {
        true => Ok(vec![charge.over(Kind::Responses, compressed.into())]),
        false => Ok(message),
    }
}

/// The message in `parts` with its prefix, in one part with a prefix of its own.
fn compress_here(parts: &[Bytes], level: Compression) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(vec![0; PREFIX_BYTES], level);
    let mut prefix = PREFIX_BYTES;
    for part in parts {
        let skipped = prefix.min(part.len());
        prefix -= skipped;
        encoder.write_all(&part[skipped..])?;
    }
    let mut written = encoder.finish()?;
    let prefix = Prefix { is_compressed: true, length: written.len() - PREFIX_BYTES };
    written[..PREFIX_BYTES].copy_from_slice(&prefix.bytes());
    Ok(written)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[tokio::test]
    async fn what_gets_smaller_is_compressed() {
        for (length, is_compressed) in [(3, false), (100, true), (100_000, true)] {
            let body = vec![7; length];
            let prefix = [&[0][..], &(length as u32).to_be_bytes()].concat();
            let parts = vec![prefix.into(), Bytes::from(body.clone())];
            let charge = Charge::default();
            let sent = compress(parts, Compression::fast(), &charge).await.unwrap();
            let sent = sent.concat();
            assert_eq!(sent[0], u8::from(is_compressed), "{length}");
            let rest = &sent[PREFIX_BYTES..];
            assert_eq!(sent[1..PREFIX_BYTES], (rest.len() as u32).to_be_bytes());
            let mut inflated = Vec::new();
            match is_compressed {
                true => drop(flate2::read::GzDecoder::new(rest).read_to_end(&mut inflated)),
                false => inflated.extend(rest),
            }
            assert_eq!(inflated, body);
        }
    }

    #[test]
    fn clients_say_that_they_take_gzip() {
        for (value, expected) in [
            ("gzip", true),
            ("identity, deflate, gzip", true),
            ("identity,deflate", false),
            ("gzipped", false),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPTED, value.parse().unwrap())]);
            assert_eq!(takes_gzip(&headers), expected, "{value}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }
}
