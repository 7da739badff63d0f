//! Parses JSON that strangers send (bounded depth, NaN and Infinity as Python writes them), and
//! answers with JSON.

use std::{borrow::Cow, fmt};

use actix_web::HttpResponse;
use memchr::memchr2_iter;
use serde::{Deserialize, Serialize};

use super::refusal::Refusal;
use troupe_base::error::{Error, Result};

const MAX_DEPTH: usize = 100;

/// Letters of a text that an error shows where it is no JSON.
const MAX_SHOWN_CHARS: usize = 20;

/// Reads `text` as a `T` that borrows from it.
pub(super) fn parse<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T> {
    check_depth(text)?;
    // Checked at once, and not again for each string in it.
    let text = std::str::from_utf8(text).map_err(|error| no_json(&error))?;
    serde_json::from_str(text)
        .map_err(|error| no_json(&error).with_hint(&near(text, error.line(), error.column())))
}

/// What stands where a text is no JSON, behind a separator.
fn near(text: &str, line: usize, column: usize) -> String {
    if text.trim().is_empty() {
        return ": the body is empty".to_owned();
    }
    let line = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    // Columns count bytes, from 1 on.
    let rest = line.char_indices().skip_while(|(start, _)| start + 1 < column);
    let found: String = rest.map(|(_, letter)| letter).take(MAX_SHOWN_CHARS).collect();
    if found.is_empty() { String::new() } else { format!(", at `{found}`") }
}

fn no_json(error: &dyn fmt::Display) -> Error {
    Error::invalid(format!("failed to parse the request JSON buffer: {error}"))
}

/// The same text, or a copy in which bare `NaN` and `Infinity` are strings, which tensors accept.
pub(super) fn quote_non_finite(text: &[u8]) -> Cow<'_, [u8]> {
    let mut quoted = Vec::new();
    let mut copied = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at] == b'"' {
            at = end_of_string(text, at);
            continue;
        }
        let token = [&b"NaN"[..], b"Infinity", b"-Infinity"];
        let Some(token) = token.into_iter().find(|it| text[at..].starts_with(it)) else {
            at += 1;
            continue;
        };
        quoted.extend_from_slice(&text[copied..at]);
        quoted.push(b'"');
        quoted.extend_from_slice(token);
        quoted.push(b'"');
        at += token.len();
        copied = at;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    quoted.extend_from_slice(&text[copied..]);
    Cow::Owned(quoted)
}

/// Where the string that opens at `start` is over.
pub(super) fn end_of_string(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < text.len() {
        match text[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

fn check_depth(text: &[u8]) -> Result<()> {
    // Most bodies have too few brackets to be deep.
    if memchr2_iter(b'[', b'{', text).nth(MAX_DEPTH).is_none() {
        return Ok(());
    }
    let mut depth = 0usize;
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'"' => {
                at = end_of_string(text, at);
                continue;
            }
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => (),
        }
        if MAX_DEPTH < depth {
            return Err(Error::invalid(format!(
                "JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})"
            )));
        }
        at += 1;
    }
    Ok(())
}

/// 200 with a value as JSON.
pub(super) fn respond(value: &impl Serialize) -> Result<HttpResponse, Refusal> {
    let text = serde_json::to_string(value).map_err(|it| Error::internal(it.to_string()))?;
    Ok(respond_text(text))
}

/// The same of a text that is JSON.
pub(super) fn respond_text(text: String) -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_finite_numbers_become_strings_outside_strings() {
        for (text, expected) in [
            (r#"{"data":[1,2]}"#, r#"{"data":[1,2]}"#),
            (r#"[NaN,-Infinity,Infinity]"#, r#"["NaN","-Infinity","Infinity"]"#),
            (r#"["a\"NaN",NaN]"#, r#"["a\"NaN","NaN"]"#),
            (r#"["NaN"#, r#"["NaN"#),
        ] {
            assert_eq!(String::from_utf8_lossy(&quote_non_finite(text.as_bytes())), expected);
        }
    }

    #[test]
    fn depth_is_counted_outside_strings() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(check_depth(nested(100).as_bytes()).is_ok());
        assert!(check_depth(nested(101).as_bytes()).is_err());
        assert!(check_depth(format!("[\"{}\"]", nested(500)).as_bytes()).is_ok());
        assert!(check_depth("[]".repeat(500).as_bytes()).is_ok());
    }
}
