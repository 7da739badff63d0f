//! Responses of a worker to detached requests, and credit: how much of them its clients have taken.

use std::{cell::RefCell, rc::Weak, time::Instant};

use tokio::sync::mpsc;

use super::{
    detached::TakenBytes,
    in_flight::RequestKey,
    link::{WorkerLink, WorkerState},
};
use crate::python::protocol::{
    decode::{Cursor, RequestOutcome, outcome},
    frames::frame_head,
    kinds,
};
use troupe_base::{
    error::Error,
    request::{Part, Response},
    statistics::Timing,
};

/// Flags of a `PART` frame; `senders.py` has the same.
const FINAL: u32 = 1;
const HAS_RESPONSE: u32 = 2;

impl WorkerLink {
    /// One response of a request, or its end. An error is the worker's, and its end.
    pub(crate) fn response(&mut self, cursor: &mut Cursor<'_>) -> Result<(), String> {
        let key = RequestKey::read(cursor)?;
        let (flags, size) = (cursor.u32()?, cursor.u64()?);
        if let Some(flight) = self.in_flight.iter().find(|it| it.sequence == key.sequence) {
            self.detached.detach(flight, key);
        }
        let WorkerState::Up(connection) = &mut self.state else { return Ok(()) };
        let config = &self.setup.config;
        let read = Instant::now();
        let response = if flags & HAS_RESPONSE == 0 {
            None
        } else {
            let open = self.detached.requests.get(&key);
            let request = open.map(|it| it.request.clone()).unwrap_or_default();
            let of = std::slice::from_ref(&request);
            let result = match outcome(cursor, config, of, &mut connection.segments)? {
                RequestOutcome::Result(result) if config.decoupled => result,
                RequestOutcome::Result(result) => self.setup.noted(&request, result),
                RequestOutcome::Wrong(error) => {
                    self.setup.note_failure([&request], &error.to_string());
                    Err(error)
                }
                RequestOutcome::Later | RequestOutcome::Again => {
                    return Err("a response sender sent no response".to_owned());
                }
            };
            Some(result)
        };
        // A model that is not decoupled has nothing to say after its response.
        let is_final = flags & FINAL != 0 || !config.decoupled;
        if !is_final {
            let credit = Some(self.detached.credit(key, size)?);
            let timing = Timing { compute_output: read.elapsed(), ..Timing::default() };
            let timed = |response: Response| Response { timing, ..response };
            let response = response.map(|result| result.map(timed));
            if let (Some(open), Some(result)) = (self.detached.requests.get_mut(&key), response) {
                open.reply.part(Part { result, credit });
            }
            return Ok(());
        }
        let Some(open) = self.detached.requests.remove(&key) else { return Ok(()) };
        self.is_proven = true;
        let timing = open.timing();
        match response {
            Some(result) => {
                open.reply.answer(result.map(|response| Response { timing, ..response }))
            }
            None if config.decoupled => open.reply.end(timing),
            None => {
                let text = format!(
                    "model '{}' let go of the response sender of a request without a response",
                    config.name
                );
                self.setup.note_failure([&open.request], &text);
                open.reply.answer(Err(Error::internal(text)));
            }
        }
        Ok(())
    }

    /// Tells the worker what its clients have taken, and which of its segments that freed.
    fn send_credit(&mut self, taken: &[TakenBytes]) {
        let WorkerState::Up(connection) = &mut self.state else { return };
        let released = connection.segments.released();
        if !released.is_empty() {
            let mut frame = frame_head(kinds::RELEASED, 8 * released.len());
            frame.extend(released.iter().flat_map(|it| it.to_le_bytes()));
            connection.write(&frame);
        }
        let mut frame = frame_head(kinds::CREDIT, 24 * taken.len());
        for TakenBytes { key, size } in taken {
            for number in [key.sequence, key.group, key.index, 0] {
                frame.extend_from_slice(&number.to_le_bytes());
            }
            frame.extend_from_slice(&size.to_le_bytes());
        }
        connection.write(&frame);
    }
}

/// Hands credit back to the worker for as long as the instance lives.
pub(crate) async fn give_credit(
    link: Weak<RefCell<WorkerLink>>,
    mut credit: mpsc::UnboundedReceiver<TakenBytes>,
) {
    while let Some(first) = credit.recv().await {
        let mut taken = vec![first];
        while let Ok(next) = credit.try_recv() {
            taken.push(next);
        }
        let Some(link) = link.upgrade() else { return };
        link.borrow_mut().send_credit(&taken);
    }
}
