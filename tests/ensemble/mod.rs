//! Ensembles whose steps answer once.

pub(crate) mod error_details;
pub(crate) mod graphs;
pub(crate) mod load;
pub(crate) mod oversize;
pub(crate) mod run;
