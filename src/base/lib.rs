//! The ground everything stands on: errors, tensors, requests, configs, counts, and what a model
//! is.
//!
//! What a request calls several times is `#[inline]`: a release build has no link-time optimisation,
//! so other crates would call it.

pub mod backend;
pub mod model;
pub mod tap;

pub mod config;
pub mod metrics;
pub mod numpy;
pub mod request;

pub mod statistics;
pub mod tensor;
pub mod trace;

pub mod backoff;
pub mod budget;
pub mod error;
pub mod failure_log;
pub mod files;
pub mod log_window;
pub mod table;
pub mod text;
