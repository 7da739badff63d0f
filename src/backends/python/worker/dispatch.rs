//! Frames out and in: requests to the worker, and whatever the worker says to its handler.

use std::{
    cell::RefCell,
    rc::{Rc, Weak},
    time::Instant,
};

use bytes::Bytes;

use super::{
    in_flight::{GroupEvent, GroupEvents, InFlightBatch, InFlightGroup, RequestKey, failed},
    link::{WorkerLink, WorkerState, failure},
    shm_copy::MAX_COPY_HERE,
};
use crate::python::protocol::{
    decode::{Cursor, GroupAnswer, RequestOutcome, answer, answer_head},
    encode,
    frames::frame_head,
    kinds,
};
use troupe_base::{
    backend::{Completion, Executed, Outcome},
    error::Error,
    request::Request,
};

impl WorkerLink {
    /// Sends groups to the worker as one frame.
    pub(crate) fn send(
        &mut self,
        mut groups: Vec<Vec<Request>>,
        done: Rc<dyn Completion>,
    ) -> GroupEvents {
        self.is_idle = false;
        let WorkerState::Up(connection) = &mut self.state else {
            return self.turn_away(groups, done);
        };
        let begun = Instant::now();
        self.sequence = self.sequence.wrapping_add(1);
        let frame = &mut self.frame;
        let failures = encode::execute(frame, self.sequence, &mut groups, &mut connection.segments);
        if !failures.is_empty() && failures.len() == groups.len() {
            self.frame = Vec::new();
            let fail = |(group, error): &(usize, Error)| failed(&done, *group, error);
            return failures.iter().map(fail).collect();
        }
        // Not what comes after: the worker may take over this core before `write` returns.
        let encode = begun.elapsed() / groups.len().max(1) as u32;
        connection.progress.set_spin(self.spin.on_dispatch(begun));
        connection.write(&self.frame);
        let (left, before) = (groups.len(), connection.given);
        connection.given += left as u64;
        let are_failed: Vec<usize> = failures.iter().map(|(group, _)| *group).collect();
        let group = |(index, requests)| {
            let requests = (!are_failed.contains(&index)).then_some(requests);
            InFlightGroup { requests, is_given_back: false, seen: None }
        };
        self.in_flight.push_back(InFlightBatch {
            sequence: self.sequence,
            before,
            groups: groups.into_iter().enumerate().map(group).collect(),
            left: left - failures.len(),
            begun,
            encode,
            done: done.clone(),
        });
        if MAX_COPY_HERE < self.frame.capacity() {
            self.frame = Vec::new();
        }
        if let Some(busy) = &self.busy {
            busy.notify_one();
        }
        failures.iter().map(|(group, error)| failed(&done, *group, error)).collect()
    }

    /// Handles one frame of the worker. An error is the worker's, and its end.
    pub(crate) fn handle_frame(
        &mut self,
        frame: &Bytes,
        this: &Weak<RefCell<WorkerLink>>,
    ) -> Result<GroupEvents, String> {
        let WorkerState::Up(connection) = &mut self.state else { return Ok(Vec::new()) };
        self.spin.on_reply(Instant::now());
        let mut cursor = Cursor::new(frame);
        match frame[4] {
            kinds::PART => self.response(&mut cursor)?,
            kinds::CHECKED => self.check_answered(&mut cursor)?,
            kinds::ANSWER => {
                return self.group_answered(&mut cursor).map(|it| it.into_iter().collect());
            }
            kinds::SEGMENT => connection.segments.adopt(cursor.u64()?, cursor.u64()?)?,
            kinds::DROPPED => {
                while !cursor.is_at_end() {
                    connection.segments.drop_own(cursor.u64()?);
                }
            }
            kinds::LOG => connection.process.events.log(&frame[8..]),
            kinds::METRICS => {
                if let Some(answer) = connection.process.events.count(&frame[8..])? {
                    connection.on_question()?;
                    connection.write(&answer);
                }
            }
            kinds::CANCELLED => {
                connection.on_question()?;
                let call = cursor.u64()?;
                let key = RequestKey::read(&mut cursor)?;
                let is_cancelled = self.is_cancelled(key);
                self.reply_to(call, u64::from(is_cancelled));
            }
            kinds::FREED => {
                while !cursor.is_at_end() {
                    connection.segments.let_go(cursor.u64()?);
                }
            }
            kinds::CALL => self.begin_call(&mut cursor, frame)?,
            kinds::CANCEL => self.cancel_call(&mut cursor)?,
            kinds::TAKEN => self.responses_taken(&mut cursor)?,
            kinds::REPOSITORY => self.repository_call(&mut cursor, this.clone())?,
            kind => return Err(format!("a frame of kind {kind}")),
        }
        Ok(Vec::new())
    }

    fn is_cancelled(&self, key: RequestKey) -> bool {
        let batch = self.in_flight.iter().find(|batch| batch.sequence == key.sequence);
        match batch.and_then(|batch| batch.request(key)) {
            Some(request) => request.context.is_stopped(),
            None => self.detached.is_cancelled(key),
        }
    }

    fn reply_to(&mut self, call: u64, number: u64) {
        let WorkerState::Up(connection) = &mut self.state else { return };
        let mut reply = frame_head(kinds::REPLY, 16);
        reply.extend_from_slice(&call.to_le_bytes());
        reply.extend_from_slice(&number.to_le_bytes());
        connection.write(&reply);
    }

    /// The worker has said the last of a group of this batch.
    fn group_ended(&mut self, position: usize) {
        let flight = &mut self.in_flight[position];
        flight.left -= 1;
        if flight.left == 0 {
            self.in_flight.remove(position);
        }
    }

    fn group_answered(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<GroupEvent>, String> {
        let begun = Instant::now();
        let WorkerState::Up(connection) = &mut self.state else { return Ok(None) };
        let head = answer_head(cursor)?;
        let unknown = || "an answer nobody waits for".to_owned();
        let position = self.in_flight.iter().position(|it| it.sequence == head.sequence);
        let position = position.ok_or_else(unknown)?;
        let flight = &mut self.in_flight[position];
        self.is_behind = false;
        if flight.groups.get(head.group).is_some_and(|it| it.is_given_back) {
            self.group_ended(position);
            return Ok(None);
        }
        let requests = flight
            .groups
            .get(head.group)
            .and_then(|it| it.requests.as_ref())
            .ok_or_else(unknown)?;
        let GroupAnswer { results, mut timing } =
            answer(cursor, &self.setup.config, requests, &mut connection.segments)?;
        let (sequence, group) = (head.sequence, head.group);
        let key = |index: usize| RequestKey { sequence, group: group as u32, index: index as u32 };
        self.is_proven = true;
        let results = match results {
            Ok(mut verdicts) => {
                let is_later = |it: &RequestOutcome| matches!(it, RequestOutcome::Later);
                for (index, _) in verdicts.iter().enumerate().filter(|(_, it)| is_later(it)) {
                    self.detached.detach(flight, key(index));
                }
                let (setup, detached) = (&self.setup, &mut self.detached);
                // After the answer is read, so that outputs may refer to inputs.
                let requests = flight.groups[group].requests.take().unwrap_or_default();
                setup.note_whole_batch(&requests, &mut verdicts);
                let verdicts = verdicts.into_iter().zip(requests).enumerate();
                let outcomes = verdicts.map(|(index, (verdict, request))| match verdict {
                    RequestOutcome::Result(result) => {
                        Outcome::Answered(setup.noted(&request, result))
                    }
                    RequestOutcome::Wrong(error) => {
                        setup.note_failure([&request], &error.to_string());
                        Outcome::Answered(Err(error))
                    }
                    RequestOutcome::Later => Outcome::Detached,
                    RequestOutcome::Again => {
                        Outcome::Rescheduled(request, detached.take(key(index)))
                    }
                });
                Ok(outcomes.collect())
            }
            Err(text) => {
                self.setup.note_failure(flight.groups[group].requests.iter().flatten(), &text);
                let error = Error::internal(failure(&self.setup.spec.instance, &text));
                self.detached.fail_group(sequence, group, &error);
                flight.groups[group].requests = None;
                Err(error)
            }
        };
        let done = flight.done.clone();
        timing.compute_input += flight.encode;
        self.group_ended(position);
        match self.in_flight.is_empty() {
            true => self.spin.on_idle(begun),
            false => self.spin.on_request(begun),
        }
        timing.compute_output += begun.elapsed();
        Ok(Some(GroupEvent::Executed(done, Executed { group, results, timing })))
    }
}
