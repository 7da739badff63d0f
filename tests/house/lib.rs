//! The shape of the source: tests that read it instead of running it.
#![cfg(test)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so")]

mod circles;
mod dependencies;
mod documents;
mod faults;
mod files;
mod imports;
mod layers;
mod sources;
mod words;
