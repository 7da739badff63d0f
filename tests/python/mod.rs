//! Python models: the contract, their worker processes, and how these fail.

pub(crate) mod contract;
pub(crate) mod copies;
pub(crate) mod coroutines;
pub(crate) mod crashes;
pub(crate) mod environments;
pub(crate) mod failure_log;
pub(crate) mod failures;
pub(crate) mod limits;
pub(crate) mod logs;
pub(crate) mod metrics;
pub(crate) mod open_requests;
pub(crate) mod package;
pub(crate) mod page;
pub(crate) mod parameters;
pub(crate) mod pipelines;
pub(crate) mod plain;
pub(crate) mod plain_mistakes;
pub(crate) mod plain_streams;
pub(crate) mod preload;
pub(crate) mod readiness;
pub(crate) mod rows;
pub(crate) mod sharded;
