//! Turns errors into gRPC statuses that every client can receive.

use std::fmt::Write;

use tonic::{Code, Status};

use crate::{error::Error, gateway::status::status};

/// Clients refuse trailers of more than 8 KiB, and the text is percent-encoded on its way.
const MAX_ENCODED_TEXT: usize = 6 << 10;

/// The status that says `error`.
pub fn refuse(error: Error) -> Status {
    Status::new(code(&error), short(error.to_string()))
}

/// The status code of `error`.
pub fn code(error: &Error) -> Code {
    Code::from(status(error.kind()).grpc)
}

/// What new requests hear once the server is exiting.
pub fn shutting_down() -> Error {
    Error::unavailable("GRPC server is shutting down and has stopped accepting new requests.")
}

/// A feature that has no room yet.
pub fn not_supported(what: &str) -> Status {
    refuse(Error::unsupported(format!("{what} is not supported yet")))
}

/// Cuts a text whose encoded form would be too long for trailers.
fn short(mut text: String) -> String {
    let mut encoded = 0;
    let end = text.char_indices().find(|(_, letter)| {
        // What is not printable ASCII becomes `%XX` per byte.
        let is_plain = (' '..='~').contains(letter) && *letter != '%';
        encoded += if is_plain { 1 } else { 3 * letter.len_utf8() };
        MAX_ENCODED_TEXT < encoded
    });
    if let Some((end, _)) = end {
        let left = text.len() - end;
        text.truncate(end);
        // Writing to a string cannot fail.
        let _ = write!(text, "… ({left} more bytes)");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_code() {
        for (error, expected) in [
            (Error::invalid("x"), Code::InvalidArgument),
            (Error::internal("x"), Code::Internal),
            (Error::not_found("x"), Code::NotFound),
            (Error::unavailable("x"), Code::Unavailable),
            (Error::unsupported("x"), Code::Unimplemented),
            (Error::cancelled(), Code::Cancelled),
        ] {
            assert_eq!(refuse(error).code(), expected);
        }
    }

    #[test]
    fn long_texts_are_cut_so_that_trailers_stay_small() {
        for (text, expected) in [
            ("a".repeat(6144), "a".repeat(6144)),
            ("a".repeat(6145), format!("{}… (1 more bytes)", "a".repeat(6144))),
            ("ä\n".repeat(1000), format!("{}… (954 more bytes)", "ä\n".repeat(682))),
        ] {
            assert_eq!(short(text), expected);
        }
    }
}
