//! Files as numpy has them: arrays (`.npy`) and archives of arrays (`.npz`).

pub mod npy;
pub mod npz;
