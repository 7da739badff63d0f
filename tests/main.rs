//! One test binary: the server driven from outside, in folders by subject.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that cannot go on says so")]

mod support;

mod api;
mod backends;
mod batching;
mod cache;
mod calls;
mod decoupled;
mod documents;
mod doors;
mod ensemble;
mod fuzz;
mod life;
mod observe;
mod python;
mod tools;
