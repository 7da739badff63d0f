//! Mutations of bytes by random numbers, and the loop that tries them.

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// What an input is made from.
pub(super) struct Corpus<'a> {
    /// Sound inputs.
    pub(super) inputs: &'a [&'a [u8]],
    /// What means something where it stands: inserted, and put in the place of other bytes.
    pub(super) tokens: &'a [&'a [u8]],
}

/// Random enough, and the same for the same seed.
pub(super) struct Random(u64);

/// Inputs do not grow beyond this.
const MAX_BYTES: usize = 64 << 10;

impl Random {
    fn next(&mut self) -> u64 {
        // xorshift64*, by Vigna.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
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
        data
    }

    fn mutate(&mut self, data: &mut Vec<u8>, corpus: &Corpus<'_>) {
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

/// Checks mutated inputs until the time is up; a panic of the check is a failure.
pub(super) fn fuzz(name: &str, corpus: &Corpus<'_>, mut check: impl FnMut(&[u8], &mut Random)) {
    let number = |name: &str| env::var(name).ok().and_then(|it| it.parse::<u64>().ok());
    let seconds = number("FUZZ_SECONDS");
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let first = number("FUZZ_SEED").unwrap_or_else(|| if seconds.is_some() { now() } else { 1 });
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(1));
    let mut seed = first;
    while Instant::now() < end || seed == first {
        // Each input has a seed, so that the last one is found again at once.
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let input = random.input(corpus);
        let checked = catch_unwind(AssertUnwindSafe(|| check(&input, &mut random)));
        assert!(checked.is_ok(), "{name}: FUZZ_SEED={seed}: {}", input.escape_ascii());
        seed = seed.wrapping_add(1);
    }
    println!("{name}: {} inputs from FUZZ_SEED={first} on", seed.wrapping_sub(first));
}
