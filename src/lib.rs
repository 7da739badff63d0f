//! troupe: a model server for ensembles. The crates it is made of are the folders beside this file.

pub mod server;
