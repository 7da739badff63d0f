//! Models and servers come and go: load, warm-up, reload, drain, shutdown.

pub(crate) mod embedding;
pub(crate) mod logs;
pub(crate) mod reload;
pub(crate) mod repository;
pub(crate) mod shutdown;
pub(crate) mod told;
pub(crate) mod warmup;
pub(crate) mod warmup_load;
pub(crate) mod watch;
