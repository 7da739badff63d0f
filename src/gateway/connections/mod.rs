//! Connections of clients: how many there may be, which of them are idle, and which are closed when
//! room runs out.
//!
//! HTTP and gRPC share one table; the metrics port has its own, so that probes are answered when that
//! one is full. A connection is admitted when it is accepted, and marked busy while
//! a request of it is being answered. When descriptors or connections run out, those that are idle
//! the longest are closed, and new ones are refused before the server itself lacks descriptors.

mod accept;
mod head_requests;
mod http_connection;
mod http_server;
mod pressure;
mod table;
#[cfg(test)]
mod tests;
mod unsent;
mod write_watch;

pub(crate) use self::accept::{Accepted, Listener, OpenConnection, Target};
pub(crate) use self::http_server::content_length;
pub(crate) use self::write_watch::{WriteWatch, timed_out};
pub use self::{
    accept::ServingThreads,
    head_requests::head_as_get,
    http_connection::ServedConnection,
    http_server::{BusyBody, HttpListen, HttpServing, mark_busy, serve, stay_busy},
    pressure::ConnectionLimits,
    table::{Busy, Connection, ConnectionGuard, Connections},
};
