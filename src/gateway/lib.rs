//! The gateways: bytes to requests and answers to bytes. Only here: HTTP, gRPC, JSON of the wire,
//! status codes.

pub mod access;
pub mod classify;
pub mod connections;
pub mod dashboard;
mod decoupled;
mod error_details;
mod examples;
pub mod graph;
pub mod grpc;
pub mod http;
pub mod inference;
mod inflate;
pub mod lifecycle;
mod log_settings;
pub mod metadata;
pub mod metrics;
mod openapi;
mod pace;
mod reference_page;
mod request_limits;
pub mod resolve;
pub mod service_urls;
pub mod settings;
pub mod shared_memory;
mod size_error;
pub mod socket;
mod state;
pub mod status;
#[cfg(test)]
mod testing;
pub mod tls;
mod trace_settings;
mod transport;
mod web_page;

pub use self::state::ServerState;
