//! What every frame has: its length and kind, and how large it may be.

/// The largest frame a worker may send, and about the largest it is sent, in bytes.
pub(crate) const FRAME_LIMIT: usize = 1 << 30;

/// Length and kind of a frame, with room for `body` bytes after them. Frames are multiples of 8
/// bytes long; JSON ends in blanks.
pub(crate) fn frame_head(kind: u8, body: usize) -> Vec<u8> {
    let mut head = Vec::with_capacity(8 + body);
    head.extend_from_slice(&((8 + body) as u32).to_le_bytes());
    head.extend_from_slice(&[kind, 0, 0, 0]);
    head
}
