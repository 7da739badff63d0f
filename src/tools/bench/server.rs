//! Questions to the server beside the load: configs, statistics, its name.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::counts::{Counts, ModelKey};
use crate::client::{Client, Headers, error_text, with};
use tokio::time::timeout;
use tonic::{Response, Status};
use troupe_proto::inference::{
    ModelConfig, ModelConfigRequest, ModelStatisticsRequest, ServerMetadataRequest,
};

/// Under any load a server has time for a question.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A connection for questions; load has its own.
#[derive(Clone)]
pub(super) struct ServerClient {
    client: Client,
    headers: Headers,
    url: String,
}

/// Counters of all models, and when they were read.
pub(super) struct CountsSnapshot {
    /// By name and version.
    pub(super) counts: BTreeMap<ModelKey, Counts>,
    /// Half way between the question and its answer.
    pub(super) at: Instant,
}

impl ServerClient {
    /// Asks over this connection.
    pub(super) fn new(client: Client, headers: Headers, url: &str) -> ServerClient {
        ServerClient { client, headers, url: url.to_owned() }
    }

    /// Its name and version.
    pub(super) async fn name(&mut self) -> Result<String, String> {
        let question = with(ServerMetadataRequest {}, &self.headers);
        let answer = answered(&self.url, self.client.server_metadata(question)).await?;
        Ok(format!("{} {}", answer.name, answer.version))
    }

    /// The config of a version of a model; `""` for the latest.
    pub(super) async fn config(
        &mut self,
        name: &str,
        version: &str,
    ) -> Result<ModelConfig, String> {
        let question = ModelConfigRequest { name: name.to_owned(), version: version.to_owned() };
        let question = with(question, &self.headers);
        let answer = answered(&self.url, self.client.model_config(question)).await?;
        Ok(answer.config.unwrap_or_default())
    }

    /// The counters of all ready models.
    pub(super) async fn statistics(&mut self) -> Result<CountsSnapshot, String> {
        let question = with(ModelStatisticsRequest::default(), &self.headers);
        let begun = Instant::now();
        let answer = answered(&self.url, self.client.model_statistics(question)).await?;
        let at = begun + begun.elapsed() / 2;
        let counts =
            answer.model_stats.iter().map(|it| (ModelKey::of(it), Counts::of(it))).collect();
        Ok(CountsSnapshot { counts, at })
    }
}

async fn answered<T>(
    url: &str,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, String> {
    let late = |_| format!("{url} does not answer questions: none in {ANSWER_TIMEOUT:?}");
    let answer = timeout(ANSWER_TIMEOUT, answer).await.map_err(late)?;
    Ok(answer.map_err(|it| error_text(url, &it))?.into_inner())
}
