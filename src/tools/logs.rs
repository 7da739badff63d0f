//! `troupe logs`: the last lines of a running server's log that are about one model.

use std::{fmt::Write, time::Duration};

use serde::Deserialize;

use super::{
    http::{HttpClient, NoAnswer},
    models::block_on,
};
use troupe_base::text::encode_path_segment;
use troupe_options::{ConnectionArguments, LogsArguments};

/// Between two questions of `--follow`.
const FOLLOW_PAUSE: Duration = Duration::from_millis(500);

#[derive(Deserialize)]
struct LogsAnswer {
    lines: Vec<LoggedText>,
    /// What to ask for next.
    next: u64,
}

impl LogsAnswer {
    fn text(&self) -> String {
        self.lines.iter().fold(String::new(), |mut all, it| {
            // Writing to a string cannot fail.
            let _ = writeln!(all, "{}", it.text);
            all
        })
    }
}

#[derive(Deserialize)]
struct LoggedText {
    text: String,
}

/// Prints what is logged about a model; goes on until it is interrupted if it is to follow.
pub fn logs(
    arguments: &LogsArguments,
    print: &dyn Fn(&str) -> Result<(), String>,
) -> Result<(), String> {
    block_on(async {
        let to = &arguments.connection;
        let client = HttpClient::new(to)?;
        let model = encode_path_segment(&arguments.model);
        let mut answer = ask(&client, to, &model, 0).await?;
        let most = arguments.tail.unwrap_or(usize::MAX);
        answer.lines.drain(..answer.lines.len().saturating_sub(most));
        print(&answer.text())?;
        if !arguments.follow {
            return Ok(());
        }
        let (mut is_there, mut after) = (true, answer.next);
        loop {
            tokio::time::sleep(FOLLOW_PAUSE).await;
            match ask(&client, to, &model, after).await {
                Ok(answer) => {
                    if !is_there {
                        eprintln!("{} answers again", to.url);
                    }
                    is_there = true;
                    print(&answer.text())?;
                    after = answer.next;
                }
                Err(NoAnswer::Refused(text)) if is_there => return Err(text),
                Err(why) => {
                    if is_there {
                        eprintln!("{} does not answer; waiting for it to come back", to.url);
                    }
                    is_there = false;
                    // Another process counts its lines from 1.
                    if matches!(why, NoAnswer::Absent(_)) {
                        after = 0;
                    }
                }
            }
        }
    })
}

/// The lines behind a number.
async fn ask(
    client: &HttpClient<'_>,
    to: &ConnectionArguments,
    model: &str,
    after: u64,
) -> Result<LogsAnswer, NoAnswer> {
    let body = client.get(&format!("/v2/models/{model}/logs?after={after}")).await?;
    serde_json::from_slice(&body).map_err(|error| {
        NoAnswer::Refused(format!("no answer of a troupe from {}: {error}", to.url))
    })
}
