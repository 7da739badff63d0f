//! The mailbox of a model's batcher: what the rest of the server holds instead of the actors.

use std::sync::{Arc, atomic::Ordering};

use actix::Addr;
use futures_util::future::BoxFuture;

use super::{
    actor::Batcher,
    autoscaler::AutoscalerSlot,
    readiness::{self, Checkup},
    scaling::{self, Scaler},
    shards::Shards,
    stateful::{Succeed, Succeeded},
    stateful_parts::SequenceCount,
};
use crate::{
    engines::{Neighbourhood, PerThread},
    instance::ImmediateKey,
};
use troupe_base::{
    config::ModelConfig,
    error::Result,
    model::{Infer, Model, Readiness, warmup::WarmupSample},
    request::{Pending, Reply, Request},
    statistics::Statistics,
};

/// Asks a model; dropping it ends the model.
pub struct Mailbox {
    pub(super) model: Arc<str>,
    pub(super) batchers: PerThread<BatcherShard>,
    /// Has its instances.
    pub(super) scaler: Arc<Scaler>,
    pub(super) autoscaler: AutoscalerSlot,
    pub(super) stats: Arc<Statistics>,
    /// For models with sequences.
    pub(super) sequences: Arc<SequenceCount>,
    /// For models that have a say in whether they are ready.
    pub(super) checkup: Option<Arc<Checkup>>,
    /// Held, so that others come to the same thread.
    pub(super) _neighbours: Option<Arc<Neighbourhood>>,
}

/// A batcher of the model: the only one, or that of one thread.
#[derive(Clone)]
pub(super) struct BatcherShard {
    pub(super) batcher: Addr<Batcher>,
    /// Its instances execute what is short at once on its thread: there they need not be asked by
    /// message.
    pub(super) immediate: Option<ImmediateKey>,
    /// What several batchers share, and which of them this is.
    pub(super) shared: Option<(Arc<Shards>, usize)>,
}

impl Mailbox {
    /// Runs the samples on all instances, in parallel; ends with the first failure.
    ///
    /// To be called before the model is published: an instance that is busy would be given more.
    pub async fn warm_up(&self, samples: &[WarmupSample]) -> Result<()> {
        // Those that come later are warmed up in the same way.
        let _ = self.scaler.samples.set(samples.into());
        let instances = self.scaler.instances.lock().clone();
        scaling::warm_up(&self.model, &instances, samples).await
    }
}

impl Infer for Mailbox {
    fn infer(&self, request: Request, reply: Reply) {
        let BatcherShard { batcher, immediate, shared } = self.batchers.here();
        let mut asked = Some(Pending { request, reply });
        if let Some(key) = immediate {
            key.run(&mut asked);
        }
        let Some(pending) = asked else { return };
        if !batcher.connected() {
            // It has panicked: dropping the reply answers it, and nobody would ever count down.
            return drop(pending);
        }
        if let Some((shards, home)) = shared {
            return shards.ask(*home, pending, &self.stats);
        }
        self.stats.pending.fetch_add(1, Ordering::Relaxed);
        batcher.do_send(pending);
    }

    fn sequences(&self) -> usize {
        self.sequences.all()
    }

    fn succeed(&self, predecessor: &Arc<Model>) {
        self.batchers.here().batcher.do_send(Succeed(predecessor.clone()));
    }

    fn succeeded(&self, age: usize) {
        self.batchers.here().batcher.do_send(Succeeded { age });
    }

    fn readiness(&self) -> Option<Readiness> {
        let checkup = self.checkup.clone()?;
        let instances = self.scaler.instances.lock();
        let instances = instances.iter().map(|instance| &instance.address);
        Some(readiness::ask(self.model.clone(), instances, checkup))
    }

    fn scale(&self, config: &ModelConfig) -> Option<BoxFuture<'static, Result<()>>> {
        let scaled = self.scaler.scale(config)?;
        let (scaler, autoscaler) = (self.scaler.clone(), self.autoscaler.clone());
        Some(Box::pin(async move {
            scaled.await?;
            autoscaler.start_if_wanted(&scaler);
            Ok(())
        }))
    }
}
