//! The mailbox of a model's batcher: what the rest of the server holds instead of the actors.

use std::sync::{Arc, atomic::Ordering};

use actix::Addr;
use futures_util::future::try_join_all;

use super::{
    actor::Batcher,
    readiness::{self, Checkup},
};
use crate::{
    engines::PerThread,
    instance::{InstanceActor, WarmUp},
};
use troupe_base::{
    error::Result,
    model::{
        Infer, Readiness,
        warmup::{self, WarmupSample},
    },
    request::{Pending, Reply, Request},
    statistics::Statistics,
};

/// Asks a model; dropping it ends the model.
pub struct Mailbox {
    pub(super) model: Arc<str>,
    pub(super) batchers: PerThread<Addr<Batcher>>,
    pub(super) instances: Vec<InstanceMailbox>,
    pub(super) stats: Arc<Statistics>,
    /// For models that have a say in whether they are ready.
    pub(super) checkup: Option<Arc<Checkup>>,
}

/// An instance of the model.
pub(super) struct InstanceMailbox {
    pub(super) name: String,
    pub(super) address: Addr<InstanceActor>,
}

impl Mailbox {
    /// Runs the samples on all instances, in parallel; ends with the first failure.
    ///
    /// To be called before the model is published: an instance that is busy would be given more.
    pub async fn warm_up(&self, samples: &[WarmupSample]) -> Result<()> {
        let each = self.instances.iter().map(|instance| async move {
            let target = format!("model '{}' instance {}", self.model, instance.name);
            let run = |group| instance.address.do_send(WarmUp(group));
            warmup::run(samples, &target, run).await
        });
        try_join_all(each).await.map(|_| ())
    }
}

impl Infer for Mailbox {
    fn infer(&self, request: Request, reply: Reply) {
        let batcher = self.batchers.here();
        if !batcher.connected() {
            // It has panicked: dropping the reply answers it, and nobody would ever count down.
            return drop(reply);
        }
        self.stats.pending.fetch_add(1, Ordering::Relaxed);
        batcher.do_send(Pending { request, reply });
    }

    fn readiness(&self) -> Option<Readiness> {
        let checkup = self.checkup.clone()?;
        let instances = self.instances.iter().map(|instance| &instance.address);
        Some(readiness::ask(self.model.clone(), instances, checkup))
    }
}
