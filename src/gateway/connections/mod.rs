//! Connections of clients: how many there may be, which of them are idle, and which are closed when
//! room runs out.
//!
//! All gateways share one table. A connection is admitted when it is accepted, and marked busy while
//! a request of it is being answered. When descriptors or connections run out, those that are idle
//! the longest are closed, and new ones are refused before the server itself lacks descriptors.

mod http_server;
mod pressure;
mod table;
#[cfg(test)]
mod tests;

pub use self::{
    http_server::{BusyBody, admit, mark_busy},
    pressure::ConnectionLimits,
    table::{Busy, Connection, ConnectionGuard, Connections},
};
