//! troupe: a model server for ensembles. Modules in the order a request meets them.

pub mod server;

pub mod log;
pub mod table;

pub mod gateway;

pub mod client;
pub mod draw;
pub mod repository;
pub mod telemetry;

pub mod batcher;
pub mod ensemble;

pub mod instance;

pub mod backend;
pub mod engines;

pub mod model;
pub mod tap;

pub mod config;
pub mod metrics;
pub mod numpy;
pub mod request;

pub mod statistics;
pub mod tensor;
pub mod trace;

pub mod error;
pub mod options;
pub mod proto;
