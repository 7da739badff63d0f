//! Measures what larger executions cost, for the advice on batching.

use std::{collections::BTreeMap, time::Duration};

use super::{
    batch_cost::BatchCost,
    counts::{Batches, Counts},
    level::LoadLevel,
    load::Job,
    measure::{BenchRun, LevelPosition, measure},
    members::Member,
    request,
};
use troupe_options::BenchArguments;
use troupe_proto::inference::ModelConfig;

/// How long one row, and then many rows, are asked for: longer if it takes that for a few requests.
const MIN_PROBE_TIME: Duration = Duration::from_millis(400);
const MAX_PROBE_TIME: Duration = Duration::from_secs(5);
const PROBE_REQUESTS: u32 = 5;
const PROBE_WARMUP: Duration = Duration::from_millis(100);
/// Rows of the larger request.
const MAX_PROBE_ROWS: u64 = 8;

/// Notes what larger executions of each member cost: by what the levels showed of those that join
/// requests, and, where they showed only one size, by requests of one row and of many.
pub(super) async fn note(
    bench: &mut BenchRun,
    members: &mut [Member],
    levels: &[LoadLevel],
    arguments: &BenchArguments,
    config: &ModelConfig,
) {
    for member in members.iter_mut().filter(|it| it.has_batching) {
        let mut all = BTreeMap::<u64, Batches>::new();
        let counted = levels.iter().filter_map(|it| it.counts.get(&member.key));
        for (rows, batches) in counted.flat_map(|it| &it.batches) {
            let sum = all.entry(*rows).or_default();
            (sum.count, sum.ns) = (sum.count + batches.count, sum.ns + batches.ns);
        }
        member.batch_cost = BatchCost::of(&all);
    }
    let is_unknown = |it: &Member| it.batch_cost.is_none() && 1 < it.max_batch;
    if !members.iter().any(is_unknown) {
        return;
    }
    let rows = (config.max_batch_size.max(0) as u64).min(MAX_PROBE_ROWS);
    if rows < 2
        || arguments.batch_size != 1
        || bench.job.is_decoupled
        || bench.job.sequences.is_some()
    {
        return;
    }
    // What cannot be measured is not known, and the advice says so.
    let each = |level: &LoadLevel| Duration::from_nanos(level.seen.latency.mean() as u64);
    let Some(alone) = levels.first().map(each) else { return };
    let Some(one) = probe(bench, arguments, config, 1, alone).await else { return };
    // At most as long as one after the other.
    let most = each(&one) * rows as u32;
    let Some(many) = probe(bench, arguments, config, rows, most).await else { return };
    let of = |level: &LoadLevel, member: &Member| -> BTreeMap<u64, Batches> {
        level.counts.get(&member.key).map(|it: &Counts| it.batches.clone()).unwrap_or_default()
    };
    for member in members.iter_mut().filter(|it| is_unknown(it)) {
        let mut all = of(&one, member);
        all.extend(of(&many, member));
        member.batch_cost = BatchCost::of(&all);
    }
}

/// One request after the other, each with so many rows.
async fn probe(
    bench: &mut BenchRun,
    arguments: &BenchArguments,
    config: &ModelConfig,
    rows: u64,
    each: Duration,
) -> Option<LoadLevel> {
    let seconds = (each * PROBE_REQUESTS).clamp(MIN_PROBE_TIME, MAX_PROBE_TIME);
    let batch_size = u32::try_from(rows).ok()?;
    let arguments = BenchArguments { batch_size, ..arguments.clone() };
    let request = request::build(&arguments, config).ok()?;
    let job = Job { request, ..bench.job.clone() };
    let before = (std::mem::replace(&mut bench.job, job), bench.warmup, bench.seconds, bench.batch);
    (bench.warmup, bench.seconds, bench.batch) = (PROBE_WARMUP, seconds, rows);
    let level = measure(bench, LevelPosition { in_flight: 1, index: 0, count: 1 }).await;
    (bench.job, bench.warmup, bench.seconds, bench.batch) = before;
    level.ok().flatten().filter(|it| 0 < it.answered() && !it.is_cut)
}
