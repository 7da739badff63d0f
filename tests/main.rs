//! One test binary: the layers of the source, and the server driven from outside.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that cannot go on says so")]

mod support;

mod layers;

mod bad_bytes;
mod bad_input;
mod batching;
mod check;
mod classification;
mod clients;
mod decoupled;
mod decoupled_ensemble;
mod decoupled_windows;
mod ensemble;
mod ensemble_load;
mod ensemble_run;
mod gpus;
mod grpc;
mod grpc_requests;
mod http;
mod http_tensors;
mod infer_command;
mod onnx;
mod onnx_library;
mod oversize;
mod python;
mod python_environments;
mod python_failures;
mod ragged;
mod reload;
mod repository;
mod shutdown;
mod text_ops;
mod vision;
mod warmup;
mod warmup_load;
