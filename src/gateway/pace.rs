//! The pace of a client: how slowly it may send a request, or take an answer.

use std::time::Duration;

use troupe_base::budget::{Charge, Reason};

/// A client that sends or takes less holds what it is about for nothing.
const MIN_BYTES_PER_SECOND: u128 = 500;

/// Were these too few bytes for so long a time?
pub(crate) fn is_slow(bytes: usize, taken: Duration) -> bool {
    (bytes as u128) * 1000 < MIN_BYTES_PER_SECOND * taken.as_millis()
}

/// Once memory is short, a client has so long for each thing it holds: whoever would take longer at
/// its pace makes room for the others.
const MAX_SECONDS_WHEN_SHORT: u128 = 60;

/// How long a client may be that slow before it is given up.
const WINDOW_WHEN_SHORT: Duration = Duration::from_secs(5);

/// Between two looks at a client whose bytes are waited for: how long it may be slow once memory is
/// short. Both are at most `limit`.
pub(crate) fn look_pause(limit: Duration) -> Duration {
    limit.min(WINDOW_WHEN_SHORT)
}

/// Were these too few bytes for so long a time, by a client that holds `held` bytes of memory that is
/// short?
pub(crate) fn is_slow_for(held: usize, bytes: usize, taken: Duration) -> bool {
    (bytes as u128) * 1000 * MAX_SECONDS_WHEN_SHORT < (held as u128) * taken.as_millis()
}

/// Why a client is given up that sends too slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slow {
    /// It sends less than any client may.
    Drips,
    /// It sends too little for what it holds while memory is short.
    MemoryIsShort,
}

impl Slow {
    /// To be put behind what came too slowly.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Slow::Drips => "",
            Slow::MemoryIsShort => {
                " for what it holds of --max-inflight-bytes, of which others need more"
            }
        }
    }
}

/// How bytes of a client come while they are waited for, looked at in windows of time: what came fast
/// at first excuses no drips later.
#[derive(Debug, Default)]
pub(crate) struct ArrivalPace {
    /// All that came.
    held: usize,
    window: Window,
    short_window: Window,
}

/// What came within a time.
#[derive(Debug, Default)]
struct Window {
    began: Duration,
    bytes: usize,
}

impl Window {
    /// More has come. Once the window is longer than `limit`: what came in it and in how long, and
    /// the next one begins.
    fn add(&mut self, bytes: usize, now: Duration, limit: Duration) -> Option<(usize, Duration)> {
        self.bytes += bytes;
        let taken = now.saturating_sub(self.began);
        if taken <= limit {
            return None;
        }
        let bytes = std::mem::take(&mut self.bytes);
        self.began = now;
        Some((bytes, taken))
    }
}

impl ArrivalPace {
    /// So many bytes came without being waited for.
    pub(crate) fn came_at_once(&mut self, bytes: usize) {
        self.held += bytes;
    }

    /// More has come at the time `now`, by any clock that began with the first wait. Was it too slow
    /// for longer than `limit`? Zero: for ever.
    pub(crate) fn check(
        &mut self,
        bytes: usize,
        now: Duration,
        limit: Duration,
        charge: &Charge,
    ) -> Result<(), Slow> {
        self.held += bytes;
        if limit.is_zero() {
            return Ok(());
        }
        if let Some((bytes, taken)) = self.short_window.add(bytes, now, look_pause(limit))
            && is_slow_for(self.held, bytes, taken)
            && charge.is_memory_short()
        {
            charge.count_refusal(Reason::ServerBytes);
            return Err(Slow::MemoryIsShort);
        }
        match self.window.add(bytes, now, limit) {
            Some((bytes, taken)) if is_slow(bytes, taken) => Err(Slow::Drips),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::budget::{Account, ByteBudget, Kind};

    const LIMIT: Duration = Duration::from_secs(30);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_came_fast_at_first_excuses_no_drips_later() {
        let free = Charge::default();
        let mut pace = ArrivalPace::default();
        assert_eq!(pace.check(1 << 20, SECOND, LIMIT, &free), Ok(()));
        let slow_at = (2..100).find(|at| pace.check(1, SECOND * *at, LIMIT, &free).is_err());
        assert_eq!(slow_at, Some(62));
        let mut steady = ArrivalPace::default();
        let mut slow = (1..1000).map(|at| steady.check(500, SECOND * at, LIMIT, &free));
        assert!(slow.all(|it| it.is_ok()));
        let for_ever = ArrivalPace::default().check(0, 99 * SECOND, Duration::ZERO, &free);
        assert_eq!(for_ever, Ok(()));
    }

    #[test]
    fn who_holds_much_of_short_memory_may_not_be_slow() {
        const MIB: usize = 1 << 20;
        let budget = ByteBudget::new(160 * MIB);
        let charge = Charge::open(&Account::new(&budget)).unwrap();
        let check = |a_second: usize, held: usize| {
            let mut pace = ArrivalPace::default();
            pace.came_at_once(held);
            (1..=20)
                .map(|at| pace.check(a_second, SECOND * at, LIMIT, &charge))
                .find(Result::is_err)
        };
        assert_eq!(check(700, 30 * MIB), None, "there is room");
        let _others = budget.keep(Kind::Tensors, 61 * MIB);
        assert_eq!(check(700, 30 * MIB), Some(Err(Slow::MemoryIsShort)));
        assert_eq!(check(0, 30 * MIB), Some(Err(Slow::MemoryIsShort)));
        assert_eq!(check(MIB, 30 * MIB), None, "it will be through soon");
        assert_eq!(check(700, 20 << 10), None, "it holds little");
        assert_eq!(budget.refusals(Reason::ServerBytes), 2);
    }

    #[test]
    fn drips_are_slow_and_slow_links_are_not() {
        for (received, seconds, expected) in [
            (31, 31, true),
            (15_499, 31, true),
            (15_500, 31, false),
            (usize::MAX, 1 << 40, false),
            (0, 1, true),
        ] {
            assert_eq!(is_slow(received, Duration::from_secs(seconds)), expected, "{received}");
        }
    }
}
