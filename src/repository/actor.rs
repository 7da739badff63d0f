//! Takes turns: operations on related models run one after another, others beside each other.

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
    node::Node,
    operation::{self, Nodes, Results},
    poll::{Action, Kept, Polled, poll},
    world::World,
};
use troupe_base::error::{Error, Result};

/// Asks for an operation.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Do {
    /// What to do.
    pub(super) action: Action,
    /// Told at the end, even if it failed in part.
    pub(super) reply: oneshot::Sender<Result<Done>>,
    /// The model that is being loaded and waits for this.
    pub(super) within: Option<Arc<str>>,
}

/// Lets go of everything.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct End;

/// How an operation ended.
pub(super) struct Done {
    /// By model.
    pub(super) results: Results,
    /// Repositories that cannot be read.
    pub(super) problems: Vec<String>,
    /// What was asked for.
    pub(super) targets: BTreeSet<Arc<str>>,
}

/// Owns what is known of all models; an operation is lent the ones it may touch.
pub(super) struct Keeper {
    world: Rc<World>,
    /// Those that are not lent.
    nodes: Nodes,
    pub(super) waiting: BTreeMap<Number, Waiting>,
    /// Names lent to operations that run; also those that have no node yet.
    pub(super) lent: BTreeMap<Number, BTreeSet<Arc<str>>>,
    /// Operations that a model asked for while another operation loaded it.
    pub(super) within: BTreeMap<Number, Number>,
    next: Number,
}

/// Operations in the order they came.
pub(super) type Number = u64;

pub(super) struct Waiting {
    action: Action,
    pub(super) reply: oneshot::Sender<Result<Done>>,
    /// What it touches, as of its last look at the disk.
    pub(super) scope: Option<BTreeSet<Arc<str>>>,
}

impl Keeper {
    /// Knows no model yet.
    pub(super) fn new(world: World) -> Keeper {
        Keeper {
            world: Rc::new(world),
            nodes: Nodes::new(),
            waiting: BTreeMap::new(),
            lent: BTreeMap::new(),
            within: BTreeMap::new(),
            next: 0,
        }
    }

    fn look(&self, number: Number, ctx: &mut Context<Self>) {
        let Some(waiting) = self.waiting.get(&number) else { return };
        let (settings, action) = (self.world.settings.clone(), waiting.action.clone());
        let overridden = |node: &Node| node.definition.clone().filter(|it| it.is_override);
        let kept: Kept = self
            .nodes
            .iter()
            .filter_map(|(name, node)| Some((name.clone(), overridden(node)?)))
            .collect();
        let polled = spawn_blocking(move || poll(&settings, &action, &kept));
        let polled = polled.into_actor(self);
        ctx.spawn(polled.map(move |polled, keeper, ctx| keeper.looked(number, polled, ctx)));
    }

    fn looked(
        &mut self,
        number: Number,
        polled: Result<Polled, JoinError>,
        ctx: &mut Context<Self>,
    ) {
        let mut polled = match polled {
            Ok(polled) => polled,
            Err(_) => {
                let error = Error::internal("reading the model repository panicked");
                self.within.remove(&number);
                if let Some(waiting) = self.waiting.remove(&number) {
                    // A client that has gone needs no answer.
                    let _ = waiting.reply.send(Err(error));
                }
                return;
            }
        };
        let scope = polled.scope(&self.nodes);
        let Some(waiting) = self.waiting.get_mut(&number) else { return };
        waiting.scope = Some(scope.clone());
        if !self.blockers(number).is_empty() {
            return self.refuse_circle(number);
        }
        let Some(Waiting { action, reply, .. }) = self.waiting.remove(&number) else { return };
        let lend = |name: &Arc<str>| self.nodes.remove_entry(name);
        let nodes: Nodes = scope.iter().filter_map(lend).collect();
        polled.keep_overrides(&nodes);
        self.lent.insert(number, scope);
        let world = self.world.clone();
        let run = async move {
            let (problems, targets) = (polled.problems.clone(), polled.targets.clone());
            let (nodes, results) = operation::run(&world, nodes, polled, &action).await;
            (nodes, Done { results, problems, targets }, reply)
        };
        let run =
            run.into_actor(self).map(move |(nodes, done, reply), keeper: &mut Keeper, ctx| {
                keeper.nodes.extend(nodes);
                keeper.lent.remove(&number);
                keeper.within.remove(&number);
                // A client that has gone needs no answer.
                let _ = reply.send(Ok(done));
                keeper.look_again(ctx);
            });
        ctx.spawn(run);
    }

    /// The disk may have changed while an operation waited.
    fn look_again(&mut self, ctx: &mut Context<Self>) {
        let waited = self.waiting.iter_mut().filter(|it| it.1.scope.is_some());
        let waited: Vec<Number> = waited.map(|(number, _)| *number).collect();
        for number in waited {
            self.look(number, ctx);
        }
    }
}

impl Actor for Keeper {
    type Context = Context<Self>;
}

impl Handler<End> for Keeper {
    type Result = ();

    fn handle(&mut self, _: End, ctx: &mut Context<Self>) {
        self.nodes.clear();
        self.waiting.clear();
        ctx.stop();
    }
}

impl Handler<Do> for Keeper {
    type Result = ();

    fn handle(&mut self, Do { action, reply, within }: Do, ctx: &mut Context<Self>) {
        let number = self.next;
        self.next += 1;
        if let Some(parent) = within.and_then(|it| self.loading(&it)) {
            self.within.insert(number, parent);
        }
        self.waiting.insert(number, Waiting { action, reply, scope: None });
        self.look(number, ctx);
    }
}
