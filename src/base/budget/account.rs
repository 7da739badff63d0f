//! The share that one connection's requests have of the server's byte budget together.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::server::{ByteBudget, Kind, Reason, admitted};
use crate::error::{Error, Result};

/// What there is no room for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    /// So many bytes, which are not there yet.
    Bytes(usize),
    /// Inputs of a request, which exist already.
    Inputs,
    /// What a model answered.
    Answer,
}

/// The share of one connection: what all its requests hold together.
#[derive(Debug)]
pub struct Account {
    budget: Arc<ByteBudget>,
    cap: usize,
    in_use: AtomicUsize,
}

impl Account {
    /// Of a new connection.
    pub fn new(budget: &Arc<ByteBudget>) -> Arc<Account> {
        let (budget, cap) = (budget.clone(), budget.share());
        Arc::new(Account { budget, cap, in_use: AtomicUsize::new(0) })
    }

    /// The server's budget, which this is a share of.
    pub fn budget(&self) -> &Arc<ByteBudget> {
        &self.budget
    }

    /// The bytes its requests hold.
    pub fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Takes `bytes` if so many are left; else RESOURCE_EXHAUSTED.
    pub(super) fn take(&self, kind: Kind, bytes: usize) -> Result<()> {
        let most = admitted(self.cap);
        let add = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= most);
        let own = self.in_use.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        own.map_err(|in_use| self.refuse(Reason::ConnectionBytes, in_use, Asked::Bytes(bytes)))?;
        self.budget.take(kind, bytes).map_err(|in_use| {
            self.in_use.fetch_sub(bytes, Ordering::Relaxed);
            self.refuse(Reason::ServerBytes, in_use, Asked::Bytes(bytes))
        })
    }

    /// RESOURCE_EXHAUSTED if with what is there by now there is more than there may be.
    pub(super) fn check(&self, there: Asked) -> Result<()> {
        let own = self.in_use();
        if self.cap < own {
            return Err(self.refuse(Reason::ConnectionBytes, own, there));
        }
        if self.budget.is_exceeded() {
            return Err(self.refuse(Reason::ServerBytes, self.budget.in_use(), there));
        }
        Ok(())
    }

    /// RESOURCE_EXHAUSTED if `take` would refuse so many bytes now.
    pub(super) fn check_room(&self, bytes: usize) -> Result<()> {
        let own = self.in_use();
        if admitted(self.cap) < own.saturating_add(bytes) {
            return Err(self.refuse(Reason::ConnectionBytes, own, Asked::Bytes(bytes)));
        }
        if !self.budget.has_room(bytes) {
            return Err(self.refuse(
                Reason::ServerBytes,
                self.budget.in_use(),
                Asked::Bytes(bytes),
            ));
        }
        Ok(())
    }

    /// Counts `bytes` that exist already.
    pub(super) fn take_beyond(&self, kind: Kind, bytes: usize) {
        self.in_use.fetch_add(bytes, Ordering::Relaxed);
        self.budget.take_beyond(kind, bytes);
    }

    /// They are free again.
    pub(super) fn give_back(&self, kind: Kind, bytes: usize) {
        self.in_use.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.give_back(kind, bytes);
    }

    /// The error of a refusal, which is counted.
    fn refuse(&self, reason: Reason, in_use: usize, asked: Asked) -> Error {
        self.budget.count_refusal(reason);
        let (who, cap, of) = match reason {
            Reason::ConnectionBytes => {
                ("requests of this connection", self.cap, "its share of --max-inflight-bytes")
            }
            _ => ("requests in flight", self.budget.cap(), "--max-inflight-bytes"),
        };
        let held = format!("{who} hold {in_use} of {cap} bytes ({of})");
        let bytes = match asked {
            Asked::Bytes(bytes) => bytes,
            Asked::Inputs => {
                return Error::exhausted(format!("no memory for this request: {held}"));
            }
            Asked::Answer => return Error::exhausted(format!("no memory for the answer: {held}")),
        };
        let text = format!(
            "no memory for this request: {held}, it needs {bytes} more, and a quarter is kept for \
             answers"
        );
        match admitted(cap) < bytes {
            true => Error::too_large(text + ": it can never have them"),
            false => Error::exhausted(text),
        }
    }
}
