//! Holds the messages and services generated from `proto/`, and their descriptors.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, MessageDescriptor};

/// Messages and services of package `inference`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    clippy::unwrap_used,
    reason = "generated code"
)]
#[rustfmt::skip]
#[path = "generated/inference.rs"]
pub mod inference;

/// The encoded `FileDescriptorSet`, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");

/// The same descriptors, decoded.
pub static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(DESCRIPTORS).expect("a test compares the descriptors with proto/")
});

/// Describes `ModelConfig`: what config.pbtxt may say.
pub fn model_config() -> MessageDescriptor {
    POOL.get_message_by_name("inference.ModelConfig").expect("proto/model_config.proto defines it")
}

#[cfg(test)]
mod tests;
