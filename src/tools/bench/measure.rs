//! Measures one level of load: warm-up, the time that counts, drain.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use tokio::{sync::watch, time::sleep};

use super::{
    cores::{Cores, CoresUsed},
    counts::{Counts, ModelKey},
    level::LoadLevel,
    load::{Job, Load, Phase},
    progress::{ProgressBar, ProgressMoment, TICK},
    server::ServerClient,
};

/// Parts of the time measured whose throughputs are compared.
const RATE_SAMPLES: u32 = 5;

/// What is in flight at the end may take so long, if the server answers at all.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the drain looks whether all requests have ended.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// All that levels have in common.
pub(super) struct BenchRun {
    pub(super) job: Job,
    pub(super) server: ServerClient,
    pub(super) cores: Cores,
    pub(super) progress: ProgressBar,
    /// How often the user has asked to stop.
    pub(super) stops: watch::Receiver<u32>,
    pub(super) warmup: Duration,
    pub(super) seconds: Duration,
    /// Rows of a request.
    pub(super) batch: u64,
}

/// A level's place in the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct LevelPosition {
    pub(super) in_flight: usize,
    pub(super) index: usize,
    /// Levels in all.
    pub(super) count: usize,
}

/// A stretch of a level's time, and which shares of the level it begins and ends at.
struct Stretch {
    time: Duration,
    start: f64,
    end: f64,
}

/// What the time that counts came to.
struct MeasuredWindow {
    seconds: f64,
    spread: Option<f64>,
    counts: BTreeMap<ModelKey, Counts>,
    server_seconds: f64,
    used: CoresUsed,
    is_cut: bool,
}

/// Measures; `None` if it was stopped before there was anything to measure.
pub(super) async fn measure(
    bench: &mut BenchRun,
    place: LevelPosition,
) -> Result<Option<LoadLevel>, String> {
    let load = Load::start(&bench.job, place.in_flight)?;
    let window = window(bench, &load, place).await;
    load.enter(if window.is_ok() { Phase::Drain } else { Phase::Abort });
    drain(bench, &load).await;
    let (seen, error) = load.end()?;
    Ok(window?.map(|it| LoadLevel {
        in_flight: place.in_flight,
        batch: bench.batch,
        seconds: it.seconds,
        seen,
        spread: it.spread,
        counts: it.counts,
        server_seconds: it.server_seconds,
        used: it.used,
        error,
        is_cut: it.is_cut,
    }))
}

async fn window(
    bench: &mut BenchRun,
    load: &Load,
    place: LevelPosition,
) -> Result<Option<MeasuredWindow>, String> {
    let whole = bench.warmup + bench.seconds;
    let warmed_up = bench.warmup.as_secs_f64() / whole.as_secs_f64();
    let stretch = Stretch { time: bench.warmup, start: 0.0, end: warmed_up };
    if wait(bench, load, place, stretch).await {
        return Ok(None);
    }
    let before = bench.server.statistics().await?;
    let cores = bench.cores.read();
    let begun = Instant::now();
    load.enter(Phase::Measure);
    let mut rates = Vec::new();
    let mut is_cut = false;
    for part in 0..RATE_SAMPLES {
        let (then, answered) = (Instant::now(), load.so_far().0);
        let share =
            |part: u32| warmed_up + (1.0 - warmed_up) * f64::from(part) / f64::from(RATE_SAMPLES);
        let time = bench.seconds / RATE_SAMPLES;
        let stretch = Stretch { time, start: share(part), end: share(part + 1) };
        is_cut = wait(bench, load, place, stretch).await;
        if is_cut {
            break;
        }
        rates.push((load.so_far().0 - answered) as f64 / then.elapsed().as_secs_f64());
    }
    // Before the load ends: the server's counts are those of a server under load.
    let after = bench.server.statistics().await?;
    let used = bench.cores.read().since(&cores);
    load.enter(Phase::Drain);
    let seconds = begun.elapsed().as_secs_f64();
    let counts = after.counts.iter().map(|(key, now)| {
        (key.clone(), before.counts.get(key).map_or_else(|| now.clone(), |it| now.since(it)))
    });
    Ok(Some(MeasuredWindow {
        seconds,
        spread: if is_cut { None } else { spread(&rates) },
        counts: counts.filter(|it| it.1 != Counts::default()).collect(),
        server_seconds: (after.at - before.at).as_secs_f64(),
        used,
        is_cut,
    }))
}

/// Waits; `true` if the user asked to stop meanwhile.
async fn wait(bench: &BenchRun, load: &Load, place: LevelPosition, stretch: Stretch) -> bool {
    let Stretch { time, start, end } = stretch;
    let begun = Instant::now();
    let mut stops = bench.stops.clone();
    loop {
        let left = time.saturating_sub(begun.elapsed());
        if *stops.borrow() != 0 || left.is_zero() {
            return *stops.borrow() != 0;
        }
        let of_this = begun.elapsed().as_secs_f64() / time.as_secs_f64();
        let of_level = start + (end - start) * of_this;
        bench.progress.show(&ProgressMoment {
            in_flight: place.in_flight,
            is_warming_up: start == 0.0 && !bench.warmup.is_zero(),
            share: (place.index as f64 + of_level) / place.count as f64,
            so_far: load.so_far(),
        });
        tokio::select! {
            () = sleep(left.min(TICK)) => (),
            _ = stops.changed() => (),
        }
    }
}

/// Lets what is in flight end, for a while.
async fn drain(bench: &BenchRun, load: &Load) {
    let begun = Instant::now();
    let stops = *bench.stops.borrow();
    while !load.has_ended() {
        // What has not answered once will not do so now.
        if load.so_far().0 == 0 || DRAIN_TIMEOUT < begun.elapsed() || stops < *bench.stops.borrow()
        {
            load.enter(Phase::Abort);
        }
        sleep(DRAIN_POLL_INTERVAL).await;
    }
}

/// The standard deviation as a share of the mean; nothing where there is none.
fn spread(rates: &[f64]) -> Option<f64> {
    let count = rates.len() as f64;
    let mean = rates.iter().sum::<f64>() / count;
    let variance = rates.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / count;
    (0.0 < mean).then(|| variance.sqrt() / mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_a_share_of_the_mean() {
        assert_eq!(spread(&[10.0, 10.0]), Some(0.0));
        assert_eq!(spread(&[8.0, 12.0]), Some(0.2));
        assert_eq!((spread(&[]), spread(&[0.0, 0.0])), (None, None));
    }
}
