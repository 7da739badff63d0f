//! The repository's actor: runs loads and unloads, those of related models one after another.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
};

use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, WrapFuture,
};
use tokio::{
    sync::oneshot,
    task::{JoinError, spawn_blocking},
};

use super::{
    action::Action,
    disk::snapshot::{DiskSnapshot, OverrideDefinitions},
    locks::{LockTable, OperationId},
    operation::{
        record::Records,
        run::{self, Results},
        versions::LoadContext,
    },
};
use troupe_base::error::{Error, Result};

/// Asks for an operation.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct RunOperation {
    /// What to do.
    pub(super) action: Action,
    /// Answered at the end, even if it failed in part.
    pub(super) reply: oneshot::Sender<Result<OperationOutcome>>,
    /// The model that asks and waits, if it may itself be loading.
    pub(super) within: Option<Arc<str>>,
}

/// Releases all models: the server ends.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct ReleaseAll;

/// How an operation ended.
pub(super) struct OperationOutcome {
    /// By model.
    pub(super) results: Results,
    /// Repositories that cannot be read.
    pub(super) problems: Vec<String>,
    /// What was asked for.
    pub(super) targets: BTreeSet<Arc<str>>,
}

/// Owns the records of all models. An operation scans the disk, locks the models it may touch,
/// takes their records with it, and gives them back at its end.
pub(super) struct RepositoryActor {
    context: Rc<LoadContext>,
    /// Of the models that no operation has locked.
    records: Records,
    locks: LockTable,
    /// Operations that do not run yet: their scan is under way, or they wait for locks.
    queued: BTreeMap<OperationId, QueuedOperation>,
    next: OperationId,
}

struct QueuedOperation {
    action: Action,
    reply: oneshot::Sender<Result<OperationOutcome>>,
}

impl RepositoryActor {
    /// Knows no model yet.
    pub(super) fn new(context: LoadContext) -> RepositoryActor {
        RepositoryActor {
            context: Rc::new(context),
            records: Records::new(),
            locks: LockTable::default(),
            queued: BTreeMap::new(),
            next: 0,
        }
    }

    /// Reads the disk on a blocking thread; [`Self::scanned`] goes on from there.
    fn scan(&self, id: OperationId, ctx: &mut Context<Self>) {
        let Some(queued) = self.queued.get(&id) else { return };
        let (settings, action) = (self.context.settings.clone(), queued.action.clone());
        let overrides: OverrideDefinitions = self
            .records
            .iter()
            .filter_map(|(name, record)| Some((name.clone(), record.override_definition()?)))
            .collect();
        let snapshot = spawn_blocking(move || DiskSnapshot::read(&settings, &action, &overrides));
        let snapshot = snapshot.into_actor(self);
        ctx.spawn(snapshot.map(move |snapshot, actor, ctx| actor.scanned(id, snapshot, ctx)));
    }

    fn scanned(
        &mut self,
        id: OperationId,
        snapshot: Result<DiskSnapshot, JoinError>,
        ctx: &mut Context<Self>,
    ) {
        let Ok(snapshot) = snapshot else {
            return self.refuse(id, Error::internal("reading the model repository panicked"));
        };
        if !self.queued.contains_key(&id) {
            return;
        }
        let scope = run::scope(&snapshot, &self.records);
        self.locks.await_scope(id, scope.clone());
        if self.locks.is_deadlocked(id) {
            let text = "a model that is being loaded cannot wait for a model that is loaded with \
                        it or waits for it";
            return self.refuse(id, Error::unavailable(text));
        }
        if self.locks.is_blocked(id) {
            return;
        }
        let Some(QueuedOperation { action, reply }) = self.queued.remove(&id) else { return };
        self.locks.lock(id);
        let records = scope.iter().filter_map(|name| self.records.remove_entry(name)).collect();
        let context = self.context.clone();
        let run = async move {
            let (problems, targets) = (snapshot.problems.clone(), snapshot.targets.clone());
            let (records, results) = run::run(&context, records, snapshot, &action).await;
            (records, OperationOutcome { results, problems, targets }, reply)
        };
        let run =
            run.into_actor(self).map(move |(records, outcome, reply), actor: &mut Self, ctx| {
                actor.records.extend(records);
                actor.locks.release(id);
                // A client that has gone needs no answer.
                let _ = reply.send(Ok(outcome));
                actor.scan_again(ctx);
            });
        ctx.spawn(run);
    }

    /// The disk may have changed while operations waited for their locks.
    fn scan_again(&mut self, ctx: &mut Context<Self>) {
        for id in self.locks.waiting() {
            self.scan(id, ctx);
        }
    }

    fn refuse(&mut self, id: OperationId, error: Error) {
        self.locks.release(id);
        if let Some(queued) = self.queued.remove(&id) {
            // A client that has gone needs no answer.
            let _ = queued.reply.send(Err(error));
        }
    }
}

impl Actor for RepositoryActor {
    type Context = Context<Self>;
}

impl Handler<ReleaseAll> for RepositoryActor {
    type Result = ();

    fn handle(&mut self, _: ReleaseAll, ctx: &mut Context<Self>) {
        self.records.clear();
        self.queued.clear();
        ctx.stop();
    }
}

impl Handler<RunOperation> for RepositoryActor {
    type Result = ();

    fn handle(&mut self, message: RunOperation, ctx: &mut Context<Self>) {
        let RunOperation { action, reply, within } = message;
        let id = self.next;
        self.next += 1;
        if let Some(model) = within {
            self.locks.asked_by(id, &model);
        }
        self.queued.insert(id, QueuedOperation { action, reply });
        self.scan(id, ctx);
    }
}
