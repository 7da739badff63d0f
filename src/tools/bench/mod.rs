//! `troupe bench`: keeps requests in flight, level after level, and names the bottleneck.

mod advice;
mod batch_cost;
mod batch_probe;
mod cells;
mod codec;
mod command;
mod cores;
mod counts;
mod csv;
mod format;
mod histogram;
mod html;
mod json;
mod level;
mod load;
mod measure;
mod member_scheduling;
mod members;
mod progress;
mod report;
mod request;
mod sequence_load;
mod server;
mod tables;

pub use self::command::{BenchOutcome, bench};
