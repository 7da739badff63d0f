//! The five bytes before each gRPC message: whether it is compressed, and its length.

use tonic::Status;

/// Triton's limit on messages, in both directions.
pub(crate) const MAX_MESSAGE_BYTES: usize = i32::MAX as usize;
/// A flag and the length.
pub(super) const PREFIX_BYTES: usize = 5;

/// What stands before a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) is_compressed: bool,
    /// Bytes of the message as it is sent; no limit is above what 32 bits can say.
    pub(super) length: usize,
}

impl Prefix {
    /// What these bytes say; INTERNAL for a flag that there is not.
    pub(super) fn read([flag, length @ ..]: [u8; PREFIX_BYTES]) -> Result<Prefix, Status> {
        let length = u32::from_be_bytes(length) as usize;
        match flag {
            0 => Ok(Prefix { is_compressed: false, length }),
            1 => Ok(Prefix { is_compressed: true, length }),
            _ => Err(Status::internal(format!(
                "protocol error: received message with invalid compression flag: {flag} (valid \
                 flags are 0 and 1), while sending request"
            ))),
        }
    }

    /// As it is sent.
    pub(super) fn bytes(self) -> [u8; PREFIX_BYTES] {
        let [a, b, c, d] = (self.length as u32).to_be_bytes();
        [u8::from(self.is_compressed), a, b, c, d]
    }
}
