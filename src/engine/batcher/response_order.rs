//! Preserves the order of responses: they leave in the order of requests, whoever is done first.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

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
        let mut due = Vec::new();
        let mut turn = line.turn;
        while let Some(next) = line.early.remove(&turn) {
            due.push(next);
            turn += 1;
        }
        line.turn = turn;
        // Sent under the lock: else a later answer could overtake on another thread.
        due.into_iter().for_each(|(reply, result)| reply.answer_at(result, now));
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
}
