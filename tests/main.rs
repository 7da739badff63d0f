//! One test binary: the layers of the source, and the server driven from outside.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that cannot go on says so")]

mod support;

mod layers;

mod bad_bytes;
mod bad_input;
mod batching;
mod check;
mod clients;
mod ensemble;
mod ensemble_load;
mod ensemble_run;
mod grpc;
mod grpc_requests;
mod http;
mod http_tensors;
mod onnx;
mod python;
mod python_environments;
mod python_failures;
mod reload;
mod repository;
mod shutdown;
