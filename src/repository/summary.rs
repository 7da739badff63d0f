//! How the start went: the rows of the startup table, and what failed.

use std::sync::Arc;

use super::{
    actor::OperationOutcome,
    catalog::{Catalog, VersionState},
    failure::{LoadFailure, NO_VERSION},
};
use troupe_base::{config::did_you_mean, failure_log::on_one_line, text::shortened};

/// One row of the startup table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryRow {
    /// The model.
    pub model: Arc<str>,
    /// `None` is shown as `-`.
    pub version: Option<i64>,
    /// `READY`, or why not.
    pub status: String,
}

/// How the start went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// One per version, or per model without one.
    pub rows: Vec<SummaryRow>,
    /// Everything asked for at the start is loaded.
    pub is_ok: bool,
    /// Why not, one line each, causes before consequences.
    pub failures: Vec<String>,
}

/// Letters of a reason that the last line of a failed start has: above it is all of it.
const MAX_REASON_CHARS: usize = 1000;

/// What became of the models asked for at the start.
pub(super) fn summary(catalog: &Catalog, outcome: &OperationOutcome) -> Summary {
    let mut rows = rows(catalog);
    outcome.problems.iter().for_each(|problem| tracing::error!("{problem}"));
    let (mut failures, mut consequences) = (outcome.problems.to_vec(), Vec::new());
    for name in &outcome.targets {
        let Some(Err(failure)) = outcome.results.get(name) else { continue };
        let reason = on_one_line(failure.reason().trim_end_matches(';'));
        let mut reason = shortened(&reason, MAX_REASON_CHARS);
        if *failure == LoadFailure::Missing {
            reason += &guess(catalog, name);
        }
        let text = format!("'{name}' did not load: {reason}");
        if *failure == LoadFailure::Missing {
            let status = format!("Not loaded: {reason}");
            rows.push(SummaryRow { model: name.clone(), version: None, status });
        }
        match failure {
            LoadFailure::Invalid(_) => consequences.push(text),
            _ => failures.push(text),
        }
    }
    failures.append(&mut consequences);
    Summary { rows, is_ok: failures.is_empty(), failures }
}

/// What a model that is in no repository was probably meant to be.
fn guess(catalog: &Catalog, name: &str) -> String {
    let others = catalog.entries.keys().map(|it| &**it).filter(|it| *it != name);
    did_you_mean(name, others).map_or_else(String::new, |it| format!(", did you mean `{it}`?"))
}

/// The table of all models somebody tried to load, in Triton's words.
pub(super) fn rows(catalog: &Catalog) -> Vec<SummaryRow> {
    let mut rows = Vec::new();
    for (name, entry) in &catalog.entries {
        let row = |version, status| SummaryRow { model: name.clone(), version, status };
        if entry.versions.is_empty() && entry.reason.starts_with(NO_VERSION) {
            rows.push(row(None, "Not loaded: No model version was found".to_owned()));
        } else if entry.versions.is_empty() && !entry.reason.is_empty() {
            rows.push(row(None, format!("Not loaded: {}", entry.reason)));
        }
        for (number, version) in &entry.versions {
            let status = match version.state {
                VersionState::Ready => VersionState::Ready.as_str().to_owned(),
                state => format!("{}: {}", state.as_str(), version.reason),
            };
            rows.push(row(Some(*number), status));
        }
    }
    rows
}
