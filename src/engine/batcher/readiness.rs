//! Asks the instances of a model whether they are ready by their own account.

use std::{sync::Arc, time::Duration};

use actix::{Context, Handler, Message};
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::timeout};

use super::{Batcher, Mailbox, Seat};
use troupe_base::{
    error::{Error, Result},
    model::Readiness,
};

/// How long a model may take to say that it is ready.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a model with a check of its own last said.
#[derive(Default)]
pub(super) struct Checkup {
    /// Why it was not ready, when it was last asked.
    refusal: Mutex<Option<String>>,
}

/// One sender per seat.
#[derive(Message)]
#[rtype(result = "()")]
struct Check(Vec<oneshot::Sender<Result<()>>>);

/// Asks all instances at once; every one has to agree.
pub(super) fn ask(mailbox: &Mailbox, checkup: Arc<Checkup>) -> Readiness {
    let asked = mailbox.instances.iter().map(|_| oneshot::channel());
    let (senders, answers): (Vec<_>, Vec<_>) = asked.unzip();
    mailbox.batcher.do_send(Check(senders));
    let model = mailbox.model.clone();
    Box::pin(async move {
        let said = answers.into_iter().map(|answer| async move {
            answer.await.unwrap_or_else(|_| Err(Error::unavailable("the model was unloaded")))
        });
        let late = || Error::unavailable("Timed out waiting for user-defined is_ready() response");
        let said = timeout(PATIENCE, try_join_all(said)).await;
        let verdict = said.unwrap_or_else(|_| Err(late())).map(|_| ());
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
                tracing::warn!(model, "{}", text.replace('\n', " | "));
            }
            None if before.is_some() => tracing::info!(model, "ready again by its own account"),
            _ => (),
        }
    }
}

impl Handler<Check> for Batcher {
    type Result = ();

    fn handle(&mut self, Check(answers): Check, _: &mut Context<Self>) {
        for (seat, answer) in self.seats.iter_mut().zip(answers) {
            match seat {
                Seat::Outside(worker) => worker.check(answer),
                // Nobody is there to ask.
                Seat::Here(_) | Seat::Thread(_) => drop(answer.send(Ok(()))),
            }
        }
    }
}
