//! `troupe models` and `troupe reload`: what a running server has loaded, and loading it again.

use std::collections::HashMap;

use tokio::runtime::Builder;
use tonic::Status;

use super::client::{Client, Headers, connect, error_text, headers, with};
use troupe_base::{config::suggesting, table::table};
use troupe_options::{ConnectionArguments, ModelsArguments, ReloadArguments};
use troupe_proto::inference::{
    RepositoryIndexRequest, RepositoryModelLoadRequest, repository_index_response::ModelIndex,
};

/// Letters of a reason in a line of the table.
const REASON_LETTERS: usize = 80;

/// A table of models, versions, states and reasons.
pub fn models(arguments: &ModelsArguments) -> Result<String, String> {
    block_on(async {
        let headers = headers(&arguments.connection.header)?;
        let mut client = connect(&arguments.connection).await?;
        let index = index(&mut client, &headers, &arguments.connection).await?;
        let missing =
            arguments.models.iter().find(|name| !index.iter().any(|it| it.name == **name));
        if let Some(missing) = missing {
            let text = format!("there is no model `{missing}`");
            let text = suggesting(text, missing, index.iter().map(|it| &*it.name));
            return Err(format!("{text} (all: `troupe models`)"));
        }
        let is_asked =
            |it: &&ModelIndex| arguments.models.is_empty() || arguments.models.contains(&it.name);
        Ok(shown(index.iter().filter(is_asked)))
    })
}

/// Loads models again, one after the other; their states afterwards, or all failures.
pub fn reload(arguments: &ReloadArguments) -> Result<String, String> {
    block_on(async {
        let to = &arguments.connection;
        let headers = headers(&to.header)?;
        let mut client = connect(to).await?;
        let mut failures = load(&mut client, &headers, &arguments.models).await;
        let again = to_try_again(&arguments.models, &failures);
        failures.retain(|(name, _)| !again.contains(name));
        failures.extend(load(&mut client, &headers, &again).await);
        if !failures.is_empty() {
            let told = failures.iter().map(|(_, status)| failed(to, status));
            return Err(told.collect::<Vec<_>>().join("\n"));
        }
        let index = index(&mut client, &headers, to).await?;
        Ok(shown(index.iter().filter(|it| arguments.models.contains(&it.name))))
    })
}

/// Those that failed before one that loaded: some fit only once it is there. A load may take
/// minutes, so that others are not tried in vain.
fn to_try_again(models: &[String], failures: &[(String, Status)]) -> Vec<String> {
    let has_failed = |name: &&String| failures.iter().any(|(failed, _)| failed == *name);
    let last = models.iter().rposition(|name| !has_failed(&name)).unwrap_or(0);
    models[..last].iter().filter(has_failed).cloned().collect()
}

/// Those that failed.
async fn load(client: &mut Client, headers: &Headers, models: &[String]) -> Vec<(String, Status)> {
    let mut failures = Vec::new();
    for model in models {
        let (model_name, parameters) = (model.clone(), HashMap::new());
        let request =
            RepositoryModelLoadRequest { model_name, parameters, repository_name: String::new() };
        if let Err(status) = client.repository_model_load(with(request, headers)).await {
            failures.push((model.clone(), status));
        }
    }
    failures
}

/// Waits for the outcome on a runtime of its own.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| format!("cannot start: {error}"))?.block_on(work)
}

async fn index(
    client: &mut Client,
    headers: &Headers,
    to: &ConnectionArguments,
) -> Result<Vec<ModelIndex>, String> {
    let request = with(RepositoryIndexRequest::default(), headers);
    let index = client.repository_index(request).await;
    Ok(index.map_err(|status| failed(to, &status))?.into_inner().models)
}

fn failed(to: &ConnectionArguments, status: &Status) -> String {
    error_text(&to.url, status).trim_end().to_owned()
}

fn shown<'a>(models: impl Iterator<Item = &'a ModelIndex>) -> String {
    let row = |it: &ModelIndex| {
        let or_dash = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
        vec![it.name.clone(), or_dash(&it.version), or_dash(&it.state), wrapped(&it.reason)]
    };
    let rows: Vec<_> = models.map(row).collect();
    match rows.iter().all(|row| row[3].is_empty()) {
        true => {
            let rows: Vec<_> = rows.into_iter().map(|row| row[..3].to_vec()).collect();
            table(&["Model", "Version", "State"], &rows)
        }
        false => table(&["Model", "Version", "State", "Reason"], &rows),
    }
}

/// Lines of about as many letters, broken between words.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + word.len() < REASON_LETTERS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::{REASON_LETTERS, Status, to_try_again, wrapped};

    #[test]
    fn only_what_failed_before_another_loaded_is_tried_again() {
        for (models, failed, expected) in [
            ("a b c", "a c", "a"),
            ("a b c", "a b", "a b"),
            ("a b", "b", ""),
            ("a b", "a b", ""),
            ("a b", "", ""),
        ] {
            let models: Vec<String> = models.split(' ').map(str::to_owned).collect();
            let failed = failed.split_whitespace();
            let failed: Vec<_> = failed.map(|it| (it.to_owned(), Status::internal(""))).collect();
            assert_eq!(to_try_again(&models, &failed).join(" "), expected, "{models:?}");
        }
    }

    #[test]
    fn long_reasons_are_broken_between_words() {
        let text = "word ".repeat(40);
        let broken = wrapped(text.trim());
        assert!(broken.lines().all(|line| line.len() <= REASON_LETTERS), "{broken}");
        assert_eq!(broken.replace('\n', " "), text.trim());
        assert_eq!(wrapped(""), "");
    }
}
