//! A worker as its instance sees it: frames out, answers in, and a restart when the process ends.

mod backoff;
mod blocked;
mod calls;
mod checks;
mod connection;
mod detached;
mod execute_deadline;
mod housekeeping;
mod in_flight;
pub(super) mod link;
mod repository;
mod restart;
mod shm_copy;
mod spin;
