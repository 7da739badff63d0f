//! Error responses of gRPC: statuses that every client can receive.

use std::{collections::HashMap, fmt::Write};

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::{
    access::{Denied, FOREIGN_PAGE, ONLY_PAGE},
    error_details::{self, StepDetails},
    status::{reason, status},
};
use troupe_base::error::{Error, ErrorKind};

/// Clients refuse trailers of more than 8 KiB, and the text is percent-encoded on its way.
const MAX_ENCODED_TEXT: usize = 6 << 10;
/// Beside details the text is there twice: clients check that they are about the same.
const MAX_TEXT_BESIDE_DETAILS: usize = 2560;
/// Bytes of a field; all of them are names.
const MAX_FIELD: usize = 128;

/// The status that says `error`, and in `google.rpc.ErrorInfo` in which step of an ensemble.
pub(super) fn refuse(error: Error) -> Status {
    if error.kind() == ErrorKind::DeadlineExceeded {
        return deadline_exceeded();
    }
    let (code, text) = (code(&error), error.to_string());
    let Some(provenance) = error_details::of(&error) else {
        return Status::new(code, short(text, MAX_ENCODED_TEXT));
    };
    let mut details = ErrorDetails::new();
    details.set_error_info(reason(error.kind()), "troupe", fields(&provenance));
    Status::with_error_details(code, short(text, MAX_TEXT_BESIDE_DETAILS), details)
}

fn fields(provenance: &StepDetails<'_>) -> HashMap<String, String> {
    let cut = |text: String| {
        let fits = |(start, letter): &(usize, char)| start + letter.len_utf8() <= MAX_FIELD;
        text.char_indices().take_while(fits).map(|(_, letter)| letter).collect()
    };
    provenance.texts().into_iter().map(|(name, text)| (name.to_owned(), cut(text))).collect()
}

/// What a client gets whose deadline is over, wherever that was noticed.
pub(super) fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("Deadline Exceeded")
}

/// The status code of `error`.
pub(super) fn code(error: &Error) -> Code {
    Code::from(status(error.kind()).grpc)
}

/// The text for new requests once the server is exiting.
pub(super) const SHUTTING_DOWN: &str =
    "GRPC server is shutting down and has stopped accepting new requests.";

/// What new requests get once the server is exiting.
pub(super) fn shutting_down() -> Error {
    Error::unavailable(SHUTTING_DOWN)
}

/// Why a call may not ask for what it asks.
pub(super) fn denied(denied: Denied) -> Status {
    match denied {
        Denied::Restricted(header) => {
            Status::unavailable(format!("This protocol is restricted, expecting header '{header}'"))
        }
        Denied::ForeignPage => Status::permission_denied(FOREIGN_PAGE),
        Denied::OnlyPage => Status::permission_denied(ONLY_PAGE),
    }
}

/// A feature that has no room yet.
pub(super) fn not_supported(what: &str) -> Status {
    refuse(Error::unsupported(format!("{what} is not supported yet")))
}

/// Cuts a text whose encoded form would be too long for trailers.
fn short(mut text: String, most: usize) -> String {
    let mut encoded = 0;
    let end = text.char_indices().find(|(_, letter)| {
        // Each byte of anything else becomes `%XX`.
        let is_plain = letter.is_ascii_graphic() && !"\"#%<>`?{}".contains(*letter);
        encoded += if is_plain { 1 } else { 3 * letter.len_utf8() };
        most < encoded
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
    use troupe_base::error::StepError;

    #[test]
    fn every_kind_has_its_code() {
        for (error, expected) in [
            (Error::invalid("x"), Code::InvalidArgument),
            (Error::internal("x"), Code::Internal),
            (Error::not_found("x"), Code::NotFound),
            (Error::unavailable("x"), Code::Unavailable),
            (Error::unsupported("x"), Code::Unimplemented),
            (Error::cancelled(), Code::Cancelled),
            (Error::deadline_exceeded(), Code::DeadlineExceeded),
        ] {
            assert_eq!(refuse(error).code(), expected);
        }
    }

    #[test]
    fn errors_of_steps_have_details_and_fit_into_trailers() {
        let at = |name: &str, source| {
            let name: std::sync::Arc<str> = name.into();
            let (ensemble, model, request_id) = (name.clone(), name.clone(), name);
            let step = StepError { ensemble, step: 3, model, version: 1, request_id, source };
            Error::Step(std::sync::Arc::new(step))
        };
        let status = refuse(at("m", Error::unavailable("x").at_instance(&"m_0".into())));
        let details = status.get_details_error_info().unwrap();
        assert_eq!((&*details.domain, &*details.reason), ("troupe", "UNAVAILABLE"));
        let mut fields: Vec<_> =
            details.metadata.iter().map(|it| format!("{}={}", it.0, it.1)).collect();
        fields.sort();
        let expected = "ensemble=m instance=m_0 model=m path=m[3] request_id=m step=3 version=1";
        assert_eq!(fields.join(" "), expected);
        assert!(refuse(Error::unavailable("x")).details().is_empty());
        // As if the deadline had ended the call before a step of its ensemble saw it.
        let late = refuse(at("m", Error::deadline_exceeded()));
        assert_eq!((late.code(), late.message()), (Code::DeadlineExceeded, "Deadline Exceeded"));
        assert!(late.details().is_empty());
        for letter in ["a", "ä", "\n", "…"] {
            let long = letter.repeat(10_000);
            let error =
                at(&long, at(&long, Error::internal(long.clone()).at_instance(&(*long).into())));
            let response = refuse(error).into_http::<()>();
            let size: usize =
                response.headers().iter().map(|it| it.0.as_str().len() + it.1.len() + 32).sum();
            assert!(size < 8 << 10, "{size} bytes for {letter:?}");
        }
    }

    #[test]
    fn long_texts_are_cut_so_that_trailers_stay_small() {
        for (letters, times, kept) in [("a", 6144, 6144), ("a", 6145, 6144), ("ä\n", 1000, 2048)] {
            let text = letters.repeat(times);
            let left = text.len() - kept;
            let more = if left == 0 { String::new() } else { format!("… ({left} more bytes)") };
            let cut = short(text.clone(), MAX_ENCODED_TEXT);
            assert_eq!(cut, format!("{}{more}", &text[..kept]));
        }
    }
}
