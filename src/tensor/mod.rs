//! A tensor: its type, shape and shared bytes.

mod dtype;

pub use dtype::DataType;
