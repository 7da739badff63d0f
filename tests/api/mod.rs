//! The addresses and messages of HTTP and gRPC: what each answers, and what it refuses.

pub(crate) mod backpressure;
pub(crate) mod bad_bytes;
pub(crate) mod bad_input;
pub(crate) mod classification;
pub(crate) mod clients;
pub(crate) mod discovery;
mod generate;
pub(crate) mod grpc;
pub(crate) mod grpc_requests;
pub(crate) mod http;
pub(crate) mod http_tensors;
mod mistakes;
mod reference;
mod sequence_models;
