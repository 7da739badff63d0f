//! `troupe logs`: the last lines of a running server's log that are about one model.

use std::{fmt::Write, time::Duration};

use serde::Deserialize;

use super::{http, models::block_on};
use troupe_options::LogsArguments;

/// Between two questions of `--follow`.
const FOLLOW_PAUSE: Duration = Duration::from_millis(500);

#[derive(Deserialize)]
struct LogsAnswer {
    lines: Vec<LoggedText>,
    next: u64,
}

#[derive(Deserialize)]
struct LoggedText {
    text: String,
}

/// Prints what is logged about a model; goes on until the server ends if it is to follow.
pub fn logs(
    arguments: &LogsArguments,
    print: &dyn Fn(&str) -> Result<(), String>,
) -> Result<(), String> {
    block_on(async {
        let to = &arguments.connection;
        let client = http::HttpClient::new(to)?;
        let model = path_segment(&arguments.model);
        let mut after = 0;
        loop {
            let body = client.get(&format!("/v2/models/{model}/logs?after={after}")).await?;
            let body: LogsAnswer = serde_json::from_slice(&body)
                .map_err(|error| format!("no answer of a troupe from {}: {error}", to.url))?;
            let lines: String = body.lines.iter().fold(String::new(), |mut all, it| {
                // Writing to a string cannot fail.
                let _ = writeln!(all, "{}", it.text);
                all
            });
            print(&lines)?;
            if !arguments.follow {
                return Ok(());
            }
            after = body.next;
            tokio::time::sleep(FOLLOW_PAUSE).await;
        }
    })
}

/// A name as a part of a path: other bytes than letters, digits and `-._~` as `%` and two digits.
fn path_segment(name: &str) -> String {
    name.bytes().fold(String::new(), |mut path, byte| {
        // Writing to a string cannot fail.
        let _ = match byte {
            b'-' | b'.' | b'_' | b'~' => path.write_char(byte.into()),
            _ if byte.is_ascii_alphanumeric() => path.write_char(byte.into()),
            _ => write!(path, "%{byte:02X}"),
        };
        path
    })
}

#[cfg(test)]
mod tests {
    use super::path_segment;

    #[test]
    fn names_stay_one_part_of_a_path() {
        assert_eq!(path_segment("a-b_c.1~"), "a-b_c.1~");
        assert_eq!(path_segment("a/b?c d%é"), "a%2Fb%3Fc%20d%25%C3%A9");
    }
}
