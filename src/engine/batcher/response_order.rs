//! Preserves the order of responses: they leave in the order of requests, whoever is done first.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use parking_lot::Mutex;

use troupe_base::{
    error::Result,
    request::{Answer, Reply, Response},
};

/// Numbers requests as they arrive.
#[derive(Default)]
pub(super) struct ResponseOrder {
    next: u64,
    line: Arc<Mutex<ResponseLine>>,
}

#[derive(Default)]
struct ResponseLine {
    /// Whose turn it is.
    turn: u64,
    early: BTreeMap<u64, (Reply, Result<Response>)>,
    /// To be handed out, in order.
    due: VecDeque<(Reply, Result<Response>)>,
    /// Somebody hands them out, and nobody else may: a later answer would overtake.
    is_handing_out: bool,
}

impl ResponseOrder {
    /// A reply that waits for all earlier ones.
    pub(super) fn enter(&mut self, reply: Reply) -> Reply {
        let (number, since) = (self.next, reply.since());
        self.next += 1;
        Reply::new_at(InLine { number, line: self.line.clone(), reply }, since)
    }
}

struct InLine {
    number: u64,
    line: Arc<Mutex<ResponseLine>>,
    reply: Reply,
}

impl Answer for InLine {
    fn answer(self: Box<Self>, result: Result<Response>, now: Instant) {
        let mut line = self.line.lock();
        line.early.insert(self.number, (self.reply, result));
        let mut turn = line.turn;
        while let Some(next) = line.early.remove(&turn) {
            line.due.push_back(next);
            turn += 1;
        }
        line.turn = turn;
        if !std::mem::replace(&mut line.is_handing_out, true) {
            drop(line);
            HandingOut(&self.line).run(now);
        }
    }
}

/// Hands out what is due, without the lock: whoever is answered may run any code.
struct HandingOut<'a>(&'a Mutex<ResponseLine>);

impl HandingOut<'_> {
    fn run(self, now: Instant) {
        loop {
            let mut line = self.0.lock();
            let Some((reply, result)) = line.due.pop_front() else {
                // Under the same lock: whoever adds more from now on hands it out.
                line.is_handing_out = false;
                return std::mem::forget(self);
            };
            drop(line);
            reply.answer_at(result, now);
        }
    }
}

/// Whoever was answered panicked: the next one to answer goes on.
impl Drop for HandingOut<'_> {
    fn drop(&mut self) {
        self.0.lock().is_handing_out = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::error::Error;

    #[test]
    fn early_answers_wait_for_their_turn() {
        let mut order = ResponseOrder::default();
        let seen = Arc::new(Mutex::new(Vec::new()));
        struct Note(usize, Arc<Mutex<Vec<usize>>>);
        impl Answer for Note {
            fn answer(self: Box<Self>, _: Result<Response>, _: Instant) {
                self.1.lock().push(self.0);
            }
        }
        let enter = |number| order.enter(Reply::new(Note(number, seen.clone())));
        let mut replies: Vec<Option<Reply>> = (0..4).map(enter).map(Some).collect();
        for number in [2, 1, 0, 3] {
            replies[number].take().unwrap().answer(Err(Error::cancelled()));
        }
        assert_eq!(*seen.lock(), [0, 1, 2, 3]);
    }

    #[test]
    fn whoever_is_answered_may_answer_the_next_one_in_line() {
        struct AnswersNext(Arc<Mutex<Option<Reply>>>);
        impl Answer for AnswersNext {
            fn answer(self: Box<Self>, _: Result<Response>, _: Instant) {
                let next = self.0.lock().take();
                next.unwrap().answer(Err(Error::cancelled()));
            }
        }
        struct Last(Arc<Mutex<bool>>);
        impl Answer for Last {
            fn answer(self: Box<Self>, _: Result<Response>, _: Instant) {
                *self.0.lock() = true;
            }
        }
        let (mut order, next, is_through) =
            (ResponseOrder::default(), Arc::default(), Arc::default());
        let first = order.enter(Reply::new(AnswersNext(Arc::clone(&next))));
        *next.lock() = Some(order.enter(Reply::new(Last(Arc::clone(&is_through)))));
        first.answer(Err(Error::cancelled()));
        assert!(*is_through.lock());
    }
}
