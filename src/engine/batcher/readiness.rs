//! Asks a model's own readiness check, `is_ready()`, on all of its instances.

use std::{sync::Arc, time::Duration};

use actix::Addr;
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::timeout};

use crate::instance::{CheckReady, InstanceActor};
use troupe_base::{
    error::{Error, Result},
    failure_log::on_one_line,
    model::Readiness,
};

/// How long `is_ready()` may take.
const READY_TIMEOUT: Duration = Duration::from_secs(5);

/// The last result of a model's readiness check.
#[derive(Default)]
pub(super) struct Checkup {
    /// Why it was not ready, when it was last asked.
    refusal: Mutex<Option<String>>,
}

/// Asks all instances at once; every one has to agree.
pub(super) fn ask<'a>(
    model: Arc<str>,
    instances: impl Iterator<Item = &'a Addr<InstanceActor>>,
    checkup: Arc<Checkup>,
) -> Readiness {
    let check = |instance: &Addr<InstanceActor>| {
        let (sender, answer) = oneshot::channel();
        instance.do_send(CheckReady(sender));
        answer
    };
    let answers: Vec<_> = instances.map(check).collect();
    Box::pin(async move {
        let answers = answers.into_iter().map(|answer| async move {
            answer.await.unwrap_or_else(|_| Err(Error::unavailable("the model was unloaded")))
        });
        let late = || Error::unavailable("Timed out waiting for user-defined is_ready() response");
        let answers = timeout(READY_TIMEOUT, try_join_all(answers)).await;
        let verdict = answers.unwrap_or_else(|_| Err(late())).map(|_| ());
        checkup.note(&model, &verdict);
        verdict
    })
}

impl Checkup {
    /// Logs what is new: health is asked for again and again.
    fn note(&self, model: &str, verdict: &Result<()>) {
        let text = verdict.as_ref().err().map(ToString::to_string);
        let before = std::mem::replace(&mut *self.refusal.lock(), text.clone());
        match text {
            Some(text) if before.as_ref() != Some(&text) => {
                tracing::warn!(model, "{}", on_one_line(&text));
            }
            None if before.is_some() => tracing::info!(model, "is_ready() succeeds again"),
            _ => (),
        }
    }
}
