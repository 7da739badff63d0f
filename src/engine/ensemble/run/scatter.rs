//! Scatter and gather: a step's request runs as several requests, whose responses become one.

use std::{mem, sync::Arc, time::Instant};

use parking_lot::Mutex;

use troupe_base::{
    error::Result,
    model::Model,
    request::{Answer, Reply, Request, Response},
};

/// How the responses to all parts of a request become one.
pub(super) trait Gather: Send + Sync + 'static {
    /// Looks at the response to a part, by its position, as soon as it comes.
    fn check(&self, part: usize, response: Response) -> Result<Response>;

    /// One response of those to all parts, in their order; its timing is not read.
    fn gather(&self, parts: Vec<Response>) -> Result<Response>;
}

/// Asks the model for all parts at once. The first part that fails is the answer; whoever gets it
/// cancels the others.
pub(super) fn scatter<G: Gather>(
    model: &Model,
    parts: impl ExactSizeIterator<Item = Request>,
    gather: G,
    reply: Reply,
) {
    let since = reply.since();
    let count = parts.len();
    let state = ScatterState { responses: vec![None; count], left: count, reply: Some(reply) };
    let scattered = Arc::new(Scattered { gather, state: Mutex::new(state) });
    for (position, request) in parts.enumerate() {
        if scattered.state.lock().reply.is_none() {
            // An earlier part was refused on the spot.
            return;
        }
        let part = ScatteredPart { position, of: scattered.clone() };
        model.infer(request, Reply::new_at(part, since));
    }
}

/// A request whose parts are in flight.
struct Scattered<G> {
    gather: G,
    state: Mutex<ScatterState>,
}

struct ScatterState {
    /// By position; `None` as long as a part is in flight.
    responses: Vec<Option<Response>>,
    /// In flight.
    left: usize,
    /// Taken by the first failure or by the last part.
    reply: Option<Reply>,
}

/// Waits for the answer to one part.
struct ScatteredPart<G> {
    position: usize,
    of: Arc<Scattered<G>>,
}

impl<G: Gather> Answer for ScatteredPart<G> {
    fn answer(self: Box<Self>, result: Result<Response>, now: Instant) {
        let Scattered { gather, state } = &*self.of;
        let result = result.and_then(|response| gather.check(self.position, response));
        let mut state = state.lock();
        if state.reply.is_none() {
            // An earlier part has failed and answered.
            return;
        }
        let timing = match result {
            Ok(response) => {
                // The parts run beside each other: the last one to end has seen all the time.
                let timing = response.timing;
                state.responses[self.position] = Some(response);
                state.left -= 1;
                if state.left != 0 {
                    return;
                }
                Ok(timing)
            }
            Err(error) => Err(error),
        };
        let (reply, responses) = (state.reply.take(), mem::take(&mut state.responses));
        drop(state);
        let gathered = timing.and_then(|timing| {
            let responses = responses.into_iter().flatten().collect();
            Ok(Response { timing, ..gather.gather(responses)? })
        });
        if let Some(reply) = reply {
            reply.answer_at(gathered, now);
        }
    }
}
