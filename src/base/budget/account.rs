//! The share that one connection's requests have of the server's byte budget together.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::server::{ByteBudget, Kind, Reason, admitted};
use crate::error::{Error, Result};

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
        own.map_err(|in_use| self.refuse(Reason::ConnectionBytes, in_use, bytes))?;
        self.budget.take(kind, bytes).map_err(|in_use| {
            self.in_use.fetch_sub(bytes, Ordering::Relaxed);
            self.refuse(Reason::ServerBytes, in_use, bytes)
        })
    }

    /// RESOURCE_EXHAUSTED if by now there is more than there may be.
    pub(super) fn check(&self) -> Result<()> {
        let own = self.in_use();
        if self.cap < own {
            return Err(self.refuse(Reason::ConnectionBytes, own, 0));
        }
        if self.budget.is_exceeded() {
            return Err(self.refuse(Reason::ServerBytes, self.budget.in_use(), 0));
        }
        Ok(())
    }

    /// RESOURCE_EXHAUSTED if `take` would refuse so many bytes now.
    pub(super) fn check_room(&self, bytes: usize) -> Result<()> {
        let own = self.in_use();
        if admitted(self.cap) < own.saturating_add(bytes) {
            return Err(self.refuse(Reason::ConnectionBytes, own, bytes));
        }
        if !self.budget.has_room(bytes) {
            return Err(self.refuse(Reason::ServerBytes, self.budget.in_use(), bytes));
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
    fn refuse(&self, reason: Reason, in_use: usize, asked: usize) -> Error {
        self.budget.count_refusal(reason);
        let (who, cap, of) = match reason {
            Reason::ConnectionBytes => {
                ("requests of this connection", self.cap, "its share of --max-inflight-bytes")
            }
            _ => ("requests in flight", self.budget.cap(), "--max-inflight-bytes"),
        };
        let needed = match asked {
            0 => String::new(),
            asked => format!(", it needs {asked} more, and a quarter is kept for answers"),
        };
        Error::exhausted(format!(
            "no memory for this request: {who} hold {in_use} of {cap} bytes ({of}){needed}"
        ))
    }
}
