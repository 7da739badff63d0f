//! The response cache of one model: whether its answers are kept, how long, and in how many bytes.

use std::time::Duration;

use super::report::ConfigReport;
use crate::config::types::ResponseCachePolicy;
use troupe_proto::inference::{ModelConfig, model_config::SchedulingChoice};

/// What Triton says of a model whose answers cannot be kept; `why` is what it has.
pub fn uncacheable(model: &str, why: Uncacheable) -> String {
    let why = match why {
        Uncacheable::Sequences => "sequence batching scheduler",
        Uncacheable::Decoupled => "'decoupled' transaction policy",
    };
    format!(
        "Response Cache does not currently support model {model} with {why}. Please disable the \
         response cache."
    )
}

/// Why answers cannot be kept.
#[derive(Clone, Copy, Debug)]
pub enum Uncacheable {
    /// They depend on the requests before.
    Sequences,
    /// There is any number of them.
    Decoupled,
}

/// `None` where answers are not kept.
pub(super) fn policy(
    config: &ModelConfig,
    report: &mut ConfigReport<'_>,
) -> Option<ResponseCachePolicy> {
    let cache = config.response_cache.as_ref().filter(|it| it.enable)?;
    let is_decoupled = config.model_transaction_policy.as_ref().is_some_and(|it| it.decoupled);
    let problem = match &config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(_)) => Some(Uncacheable::Sequences),
        _ => is_decoupled.then_some(Uncacheable::Decoupled),
    };
    if let Some(why) = problem {
        report.add("response_cache", uncacheable(report.model, why));
    }
    for (field, is_zero) in [
        ("ttl_seconds", cache.ttl_seconds == Some(0)),
        ("max_byte_size", cache.max_byte_size == Some(0)),
    ] {
        if is_zero {
            let text = format!("'{field}' must be greater than 0 for {}", report.model);
            report.add(&format!("response_cache.{field}"), text);
        }
    }
    Some(ResponseCachePolicy {
        ttl: cache.ttl_seconds.map(|it| Duration::from_secs(it.into())),
        max_bytes: cache.max_byte_size,
    })
}
