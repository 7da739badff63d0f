//! CORS: web pages of which origins may ask this server.

use clap::Args;

/// Which web pages may ask.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Network")]
pub struct Cors {
    /// Let web pages of this origin (`https://app.example`, or `*` for all) send requests over HTTP
    /// and read the answers; may be given more than once, or as a list with commas. They infer and
    /// read; what changes the server stays refused to them
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', value_parser = origin)]
    pub http_allow_origin: Vec<AllowedOrigin>,
}

/// Pages whose requests are answered so that they can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedOrigin {
    /// All of them.
    Any,
    /// Those of this origin, as browsers write it: in lower case, without a path.
    One(String),
}

/// Says what to write where the address of a page was given.
fn origin(text: &str) -> Result<AllowedOrigin, String> {
    if text == "*" {
        return Ok(AllowedOrigin::Any);
    }
    let wrong = |why: String| {
        Err(format!(
            "{why}; an origin is `https://app.example`, with `:PORT` behind it unless it is the usual one, or `*` for all"
        ))
    };
    let Some((scheme, rest)) = text.split_once("://").filter(|it| !it.0.is_empty()) else {
        return wrong(format!("`{text}` has no scheme"));
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if host.is_empty()
        || host.contains(|it: char| it.is_whitespace() || it.is_control() || it == '@')
    {
        return wrong(format!("`{text}` has no host"));
    }
    let written = format!("{scheme}://{host}").to_ascii_lowercase();
    if host.len() < rest.len() {
        return wrong(format!("`{text}` has a path: write `{written}`"));
    }
    // Browsers leave out the port that the scheme implies.
    let short = match scheme.to_ascii_lowercase().as_str() {
        "http" => written.strip_suffix(":80"),
        "https" => written.strip_suffix(":443"),
        _ => None,
    };
    Ok(AllowedOrigin::One(short.unwrap_or(&written).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_what_browsers_send() {
        let one = |text: &str| Ok(AllowedOrigin::One(text.to_owned()));
        for (text, expected) in [
            ("*", Ok(AllowedOrigin::Any)),
            ("https://app.example", one("https://app.example")),
            ("HTTP://Localhost:3000", one("http://localhost:3000")),
            ("https://app.example:443", one("https://app.example")),
            ("http://app.example:80", one("http://app.example")),
            ("http://app.example:443", one("http://app.example:443")),
            ("app.example", Err("`app.example` has no scheme")),
            ("null", Err("`null` has no scheme")),
            ("", Err("`` has no scheme")),
            ("https://", Err("`https://` has no host")),
            ("https://me@app.example", Err("has no host")),
            ("https://app.example/", Err("write `https://app.example`")),
            ("https://app.example/page", Err("write `https://app.example`")),
        ] {
            match (origin(text), expected) {
                (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
                (got, expected) => assert_eq!(got, expected.map_err(str::to_owned), "{text}"),
            }
        }
    }
}
