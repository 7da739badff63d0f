//! gRPC messages between the connection and the gateway: bounded before anything is allocated for
//! them, their tensors never copied without need.

pub(super) mod answer;
mod arriving;
mod compress;
mod fields;
mod guarded;
mod inflate;
mod prefix;
mod request;
mod walk;
mod wire;

#[cfg(test)]
mod tests;

pub(super) use self::{
    arriving::{Arriving, Pauses},
    compress::compression_of,
    fields::{Contents, InputHead, ItemBudget, OutputHead},
    guarded::{guarded, open_charge},
    inflate::coding_of,
    prefix::MAX_MESSAGE_BYTES,
    request::{InferMessage, InferMessages, RawContent},
    wire::{Fields, Malformed, WireValue},
};
