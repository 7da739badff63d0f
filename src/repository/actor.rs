//! The repository's actor: runs loads and unloads, those of related models one after another.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
};

use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, WrapFuture,
};
use tokio::{sync::oneshot, task::spawn_blocking};

use super::{
    action::Action,
    disk::snapshot::{DiskSnapshot, FolderScan, OverrideDefinitions},
    locks::{LockTable, OperationId},
    operation::{
        record::Records,
        run::{self, Results},
        versions::LoadContext,
    },
};
use troupe_base::error::{Error, Result};

/// Loads and unloads that may wait: more are refused.
const MAX_QUEUED: usize = 1024;

/// Told how an operation ended, as all who asked for the same are.
pub(super) type OperationReply = oneshot::Sender<Result<Arc<OperationOutcome>>>;

/// Asks for an operation.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct RunOperation {
    /// What to do.
    pub(super) action: Action,
    /// Answered at the end, even if it failed in part.
    pub(super) reply: OperationReply,
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
    pub(super) problems: Arc<[String]>,
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
    /// Those that wait for the folders of the repositories to be read, which began before they came.
    unscanned: Vec<OperationId>,
    is_scanning: bool,
    next: OperationId,
}

struct QueuedOperation {
    action: Action,
    /// Of all who asked for the same before it began.
    replies: Vec<OperationReply>,
    /// It has looked at the disk, waits for its locks, and will look again before it begins: those
    /// who ask for the same can join it.
    is_open: bool,
    /// A model that may itself be loading waits for it.
    is_within: bool,
}

/// Reading the disk panicked.
struct ReadPanic;

impl RepositoryActor {
    /// Knows no model yet.
    pub(super) fn new(context: LoadContext) -> RepositoryActor {
        RepositoryActor {
            context: Rc::new(context),
            records: Records::new(),
            locks: LockTable::default(),
            queued: BTreeMap::new(),
            unscanned: Vec::new(),
            is_scanning: false,
            next: 0,
        }
    }

    /// Reads the disk on blocking threads; [`Self::scanned`] goes on from there.
    fn scan(&mut self, id: OperationId, ctx: &mut Context<Self>) {
        let Some(queued) = self.queued.get_mut(&id) else { return };
        queued.is_open = false;
        self.unscanned.push(id);
        self.scan_folders(ctx);
    }

    /// Reads the folders of the repositories, once for all that ask meanwhile: hundreds of loads at
    /// once would each look into the folders of all models.
    fn scan_folders(&mut self, ctx: &mut Context<Self>) {
        if self.is_scanning || self.unscanned.is_empty() {
            return;
        }
        self.is_scanning = true;
        let (ids, settings) = (std::mem::take(&mut self.unscanned), self.context.settings.clone());
        let folders = spawn_blocking(move || FolderScan::read(&settings)).into_actor(self);
        ctx.spawn(folders.map(move |folders, actor, ctx| {
            actor.is_scanning = false;
            for id in ids {
                match &folders {
                    Ok(folders) => actor.read(id, folders.clone(), ctx),
                    Err(_) => actor.scanned(id, Err(ReadPanic), ctx),
                }
            }
            actor.scan_folders(ctx);
        }));
    }

    /// Reads what one operation is about.
    fn read(&mut self, id: OperationId, folders: FolderScan, ctx: &mut Context<Self>) {
        let Some(queued) = self.queued.get(&id) else { return };
        let (settings, action) = (self.context.settings.clone(), queued.action.clone());
        let overrides: OverrideDefinitions = self
            .records
            .iter()
            .filter_map(|(name, record)| Some((name.clone(), record.override_definition()?)))
            .collect();
        let read = move || DiskSnapshot::read(&settings, folders, &action, &overrides);
        let snapshot = spawn_blocking(read).into_actor(self);
        ctx.spawn(snapshot.map(move |snapshot, actor, ctx| {
            actor.scanned(id, snapshot.map_err(|_| ReadPanic), ctx);
        }));
    }

    fn scanned(
        &mut self,
        id: OperationId,
        snapshot: Result<DiskSnapshot, ReadPanic>,
        ctx: &mut Context<Self>,
    ) {
        let Ok(snapshot) = snapshot else {
            let text = "reading the model repository panicked";
            return self.refuse(id, Error::internal(text), ctx);
        };
        if !self.queued.contains_key(&id) {
            return;
        }
        let scope = run::scope(&snapshot, &self.records);
        self.locks.await_scope(id, scope.clone());
        if self.locks.is_deadlocked(id) {
            let text = "a model that is being loaded cannot wait for a model that is loaded with \
                        it or waits for it";
            return self.refuse(id, Error::unavailable(text), ctx);
        }
        if self.locks.is_blocked(id) {
            return self.wait(id, ctx);
        }
        let Some(QueuedOperation { action, replies, .. }) = self.queued.remove(&id) else { return };
        self.locks.lock(id);
        let records = scope.iter().filter_map(|name| self.records.remove_entry(name)).collect();
        let context = self.context.clone();
        let run = async move {
            let (problems, targets) = (snapshot.problems.clone(), snapshot.targets.clone());
            let (records, results) = run::run(&context, records, snapshot, &action).await;
            (records, OperationOutcome { results, problems, targets }, replies)
        };
        let run =
            run.into_actor(self).map(move |(records, outcome, replies), actor: &mut Self, ctx| {
                actor.records.extend(records);
                actor.locks.release(id);
                let outcome = Arc::new(outcome);
                for reply in replies {
                    // A client that has gone needs no answer.
                    let _ = reply.send(Ok(outcome.clone()));
                }
                actor.scan_again(ctx);
            });
        ctx.spawn(run);
    }

    /// Operations that wait no longer for others: the disk may have changed meanwhile.
    fn scan_again(&mut self, ctx: &mut Context<Self>) {
        for id in self.locks.waiting() {
            let is_open = self.queued.get(&id).is_some_and(|queued| queued.is_open);
            if is_open && !self.locks.is_blocked(id) {
                self.scan(id, ctx);
            }
        }
    }

    /// Leaves the operation to wait for its locks, or has those who asked for it wait for one that
    /// does the same.
    fn wait(&mut self, id: OperationId, ctx: &mut Context<Self>) {
        let Some(mut queued) = self.queued.remove(&id) else { return };
        match self.joinable(&queued.action, queued.is_within) {
            Some(same) => {
                same.replies.append(&mut queued.replies);
                self.locks.release(id);
                self.scan_again(ctx);
            }
            None => {
                queued.is_open = true;
                self.queued.insert(id, queued);
            }
        }
    }

    /// An operation that does the same, and has not begun.
    fn joinable(&mut self, action: &Action, is_within: bool) -> Option<&mut QueuedOperation> {
        // What a loading model waits for is related to its load, which others are not.
        let is_same =
            |it: &&mut QueuedOperation| it.is_open && !it.is_within && it.action.is_same(action);
        self.queued.values_mut().filter(|_| !is_within).find(is_same)
    }

    fn refuse(&mut self, id: OperationId, error: Error, ctx: &mut Context<Self>) {
        self.locks.release(id);
        for reply in self.queued.remove(&id).into_iter().flat_map(|queued| queued.replies) {
            // A client that has gone needs no answer.
            let _ = reply.send(Err(error.clone()));
        }
        self.scan_again(ctx);
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
        if let Some(same) = self.joinable(&action, within.is_some()) {
            return same.replies.push(reply);
        }
        if MAX_QUEUED <= self.queued.len() {
            let text = format!("{MAX_QUEUED} loads and unloads wait already, try again later");
            // A client that has gone needs no answer.
            let _ = reply.send(Err(Error::unavailable(text)));
            return;
        }
        let id = self.next;
        self.next += 1;
        if let Some(model) = &within {
            self.locks.asked_by(id, model);
        }
        let (replies, is_within) = (vec![reply], within.is_some());
        self.queued.insert(id, QueuedOperation { action, replies, is_open: false, is_within });
        self.scan(id, ctx);
    }
}
