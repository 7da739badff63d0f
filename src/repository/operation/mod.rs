//! One operation, a load or an unload, over the models it has locked: who is wanted now, in which
//! order models load, and what becomes of each.

mod demand;
mod dependents;
mod fingerprints;
mod kept_files;
pub(super) mod open;
pub(super) mod publish;
mod reconcile;
pub(super) mod record;
pub(super) mod requirements;
pub(super) mod run;
pub(super) mod versions;
mod warmup;
