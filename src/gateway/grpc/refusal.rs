//! Turns errors into gRPC statuses that every client can receive.

use std::fmt::Write;

use tonic::{Code, Status};

use crate::{error::Error, gateway::status::status};

/// Clients refuse trailers of more than 8 KiB, and the text is percent-encoded on its way.
const MAX_ENCODED_TEXT: usize = 6 << 10;

/// The status that says `error`.
pub(super) fn refuse(error: Error) -> Status {
    Status::new(code(&error), short(error.to_string()))
}

/// The status code of `error`.
pub(super) fn code(error: &Error) -> Code {
    Code::from(status(error.kind()).grpc)
}

/// What new requests hear once the server is exiting.
pub(super) fn shutting_down() -> Error {
    Error::unavailable("GRPC server is shutting down and has stopped accepting new requests.")
}

/// A feature that has no room yet.
pub(super) fn not_supported(what: &str) -> Status {
    refuse(Error::unsupported(format!("{what} is not supported yet")))
}

/// Cuts a text whose encoded form would be too long for trailers.
fn short(mut text: String) -> String {
    let mut encoded = 0;
    let end = text.char_indices().find(|(_, letter)| {
        // Each byte of anything else becomes `%XX`.
        let is_plain = letter.is_ascii_graphic() && !"\"#%<>`?{}".contains(*letter);
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
        for (letters, times, kept) in [("a", 6144, 6144), ("a", 6145, 6144), ("ä\n", 1000, 2048)] {
            let text = letters.repeat(times);
            let left = text.len() - kept;
            let more = if left == 0 { String::new() } else { format!("… ({left} more bytes)") };
            assert_eq!(short(text.clone()), format!("{}{more}", &text[..kept]));
        }
    }
}
