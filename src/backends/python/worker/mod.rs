//! A worker as its instance sees it: frames out, answers in, and a restart when the process ends.

mod blocked;
mod call_table;
mod calls;
mod checks;
mod connection;
mod detached;
mod dispatch;
mod execute_deadline;
mod failover;
mod give_back;
mod housekeeping;
mod in_flight;
mod link;
mod readiness;
mod remote_worker;
mod repository;
mod responses;
mod restart;
mod shm_copy;
mod socket_reader;
mod spin;
mod spin_policy;
mod start_queue;

pub(super) use self::{link::InstanceSetup, remote_worker::attach, spin_policy::SpinPolicy};
