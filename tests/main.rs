//! One test binary: the layers of the source, and the server driven from outside.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that cannot go on says so")]

mod support;

mod layers;

mod backpressure;
mod bad_bytes;
mod bad_input;
mod batching;
mod calls;
mod calls_control;
mod calls_crossing;
mod calls_many;
mod calls_memory;
mod check;
mod classification;
mod clients;
mod coroutines;
mod custom_metrics;
mod decoupled;
mod decoupled_ensemble;
mod decoupled_windows;
mod ensemble;
mod ensemble_load;
mod ensemble_run;
mod generate;
mod gpus;
mod grpc;
mod grpc_requests;
mod http;
mod http_tensors;
mod infer_command;
mod ocr;
mod onnx;
mod onnx_library;
mod oversize;
mod python;
mod python_copies;
mod python_crashes;
mod python_environments;
mod python_failures;
mod python_limits;
mod python_logs;
mod python_open;
mod python_parameters;
mod python_preload;
mod ragged;
mod readiness;
mod reload;
mod repository;
mod shutdown;
mod text_ops;
mod vision;
mod warmup;
mod warmup_load;
