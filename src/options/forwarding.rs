//! Header forwarding: which headers of a request become its parameters.

use clap::Args;
use regex::{Regex, RegexBuilder};

/// Which headers become parameters.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Network")]
pub struct Forwarding {
    /// Headers of HTTP whose names hold this become parameters of the request; a regular
    /// expression, upper and lower case alike
    #[arg(long, value_name = "REGEX", value_parser = pattern)]
    pub http_header_forward_pattern: Option<HeaderPattern>,
    /// The same for the metadata of gRPC
    #[arg(long, value_name = "REGEX", value_parser = pattern)]
    pub grpc_header_forward_pattern: Option<HeaderPattern>,
}

/// A pattern of names.
#[derive(Clone, Debug, Default)]
pub struct HeaderPattern(Option<Regex>);

impl HeaderPattern {
    /// Does it match any name at all?
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Is a header of this name forwarded?
    pub fn matches(&self, name: &str) -> bool {
        self.0.as_ref().is_some_and(|it| it.is_match(name))
    }
}

/// An empty pattern forwards nothing, as in Triton.
fn pattern(text: &str) -> Result<HeaderPattern, String> {
    if text.is_empty() {
        return Ok(HeaderPattern(None));
    }
    let built = RegexBuilder::new(text).case_insensitive(true).build();
    built.map(|it| HeaderPattern(Some(it))).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_matched_anywhere_in_any_case() {
        for (text, name, expected) in [
            ("", "x-a", false),
            ("^x-", "X-A", true),
            ("^x-", "ax-", false),
            ("tenant|user", "x-user-id", true),
            ("x-[a-c]$", "x-d", false),
        ] {
            assert_eq!(pattern(text).unwrap().matches(name), expected, "{text} {name}");
        }
        assert!(pattern("(").is_err());
        assert!(pattern("").unwrap().is_empty());
    }
}
