//! Decoupled ensembles: the responses of a decoupled step, each of which begins an iteration.

mod call;
mod iteration;
mod iteration_order;
mod iteration_window;
mod stage;
mod stream_run;

pub(crate) use self::iteration::start;
