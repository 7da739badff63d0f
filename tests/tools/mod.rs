//! The subcommands: `new`, `check`, `graph`, `infer`, `bench`, `replay`.

pub(crate) mod bench;
pub(crate) mod bench_advice;
mod bench_schedulers;
pub(crate) mod check;
pub(crate) mod check_folders;
mod check_notes;
pub(crate) mod compare;
pub(crate) mod infer;
pub(crate) mod new;
pub(crate) mod replay;
pub(crate) mod run_once;
