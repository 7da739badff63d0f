//! Pieces of answers that were handed to a connection and not sent: whether they leave.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use bytes::Bytes;

/// Pieces by the time they were handed over, in two halves that take turns.
#[derive(Debug, Default)]
pub(crate) struct UnsentPieces {
    turns: AtomicU32,
    pieces: [AtomicU32; 2],
}

/// Counts a piece until it is sent, or dropped.
struct UnsentPiece {
    bytes: Bytes,
    of: Arc<UnsentPieces>,
    half: u32,
}

impl UnsentPieces {
    /// The same bytes; they count as unsent until they are dropped.
    pub(crate) fn hand_over(self: &Arc<UnsentPieces>, bytes: Bytes) -> Bytes {
        let half = self.begin_wait();
        Bytes::from_owner(UnsentPiece { bytes, of: self.clone(), half })
    }

    /// There is more of an answer, which its connection has not asked for yet: that counts, too,
    /// until `end_wait` with the result.
    pub(crate) fn begin_wait(&self) -> u32 {
        let half = self.turns.load(Relaxed);
        self.half(half).fetch_add(1, Relaxed);
        half
    }

    /// The connection has asked for it, or never will.
    pub(crate) fn end_wait(&self, half: u32) {
        self.half(half).fetch_sub(1, Relaxed);
    }

    /// Are there none?
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.iter().all(|it| it.load(Relaxed) == 0)
    }

    /// Time has passed. `false`: there are pieces that were handed over before the last time.
    pub(crate) fn turn(&self) -> bool {
        let next = self.turns.load(Relaxed).wrapping_add(1);
        if self.half(next).load(Relaxed) != 0 {
            return false;
        }
        self.turns.store(next, Relaxed);
        true
    }

    fn half(&self, turn: u32) -> &AtomicU32 {
        let [even, odd] = &self.pieces;
        if turn.is_multiple_of(2) { even } else { odd }
    }
}

impl AsRef<[u8]> for UnsentPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for UnsentPiece {
    fn drop(&mut self) {
        self.of.end_wait(self.half);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_that_is_there_at_the_second_turn_is_late() {
        let unsent = Arc::new(UnsentPieces::default());
        for _ in 0..3 {
            let piece = unsent.hand_over(Bytes::from_static(b"abc"));
            assert_eq!(piece, b"abc"[..]);
            assert!(unsent.turn(), "it came just now");
            let other = unsent.hand_over(Bytes::from_static(b"d"));
            assert!(!unsent.turn(), "it was there before");
            drop(piece);
            assert!(unsent.turn() && !unsent.is_empty());
            drop(other);
            assert!(unsent.is_empty());
        }
    }
}
