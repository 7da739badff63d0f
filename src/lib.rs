//! troupe: a model server for ensembles. Modules in the order a request meets them.

pub mod gateway;

pub mod repository;

pub mod model;

pub mod batcher;
pub mod ensemble;

pub mod instance;

pub mod backend;
pub mod engines;

pub mod config;
pub mod request;
pub mod statistics;
pub mod tensor;

pub mod error;
pub mod proto;
