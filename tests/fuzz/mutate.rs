//! Mutations of bytes by random numbers.

/// What an input is made from.
pub(super) struct Corpus<'a> {
    /// Sound inputs.
    pub(super) inputs: &'a [&'a [u8]],
    /// What means something where it stands: inserted, and put in the place of other bytes.
    pub(super) tokens: &'a [&'a [u8]],
}

/// Random enough, and the same for the same seed; keeps what was made of it, to be reported.
pub(super) struct Random {
    state: u64,
    pub(super) made: Vec<u8>,
}

/// Inputs do not grow beyond this.
const MAX_BYTES: usize = 64 << 10;

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, made: Vec::new() }
    }

    pub(super) fn next(&mut self) -> u64 {
        // xorshift64*, by Vigna.
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Keeps a part of the input.
    pub(super) fn keep(&mut self, part: &[u8]) {
        self.made.extend_from_slice(part);
    }

    /// True once in so many times.
    pub(super) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Bytes cut at random places, in order.
    pub(super) fn pieces<'a>(&mut self, mut data: &'a [u8], max: usize) -> Vec<&'a [u8]> {
        let mut pieces = Vec::new();
        for _ in 1..1 + self.below(max) {
            let (piece, rest) = data.split_at(self.below(data.len() + 1));
            pieces.push(piece);
            data = rest;
        }
        pieces.push(data);
        pieces
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    pub(super) fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// A sound input with some mistakes.
    pub(super) fn input(&mut self, corpus: &Corpus<'_>) -> Vec<u8> {
        let mut data = self.pick(corpus.inputs).to_vec();
        for _ in 0..1 + self.below(6) {
            self.mutate(&mut data, corpus);
        }
        data.truncate(MAX_BYTES);
        self.keep(&data);
        data
    }

    /// One mistake.
    pub(super) fn mutate(&mut self, data: &mut Vec<u8>, corpus: &Corpus<'_>) {
        let start = self.below(data.len() + 1);
        let end = (start + self.below(16)).min(data.len());
        match self.below(9) {
            0 if start < data.len() => data[start] ^= 1 << self.below(8),
            1 if start < data.len() => data[start] = *self.pick(&[0, 1, 9, 0x7f, 0x80, 0xff]),
            2 => drop(data.drain(start..end)),
            3 => {
                let repeated = data[start..end].repeat(1 + self.below(200));
                data.splice(start..start, repeated);
            }
            4 => drop(data.splice(start..start, self.pick(corpus.tokens).iter().copied())),
            5 => drop(data.splice(start..end, self.pick(corpus.tokens).iter().copied())),
            6 => data.truncate(start),
            7 => {
                let other = self.pick(corpus.inputs);
                let from = self.below(other.len() + 1);
                data.truncate(start);
                data.extend_from_slice(&other[from..]);
            }
            _ => {
                let number = *self.pick(&[0, 1, 1 << 31, 1 << 32, 1 << 62, 1 << 63, u64::MAX]);
                let size = *self.pick(&[2, 4, 8]);
                if let Some(place) = data.get_mut(start..start + size) {
                    place.copy_from_slice(&number.to_le_bytes()[..size]);
                }
            }
        }
    }
}
