//! What a model has done since its load: requests answered, executions, and where their time went;
//! counted by thread, summed when somebody looks.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;

use super::{executed_rows::ExecutedRows, sharded_counters::ShardedCounters, timing::Timing};

/// A count of events and the sum of their durations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct DurationTotal {
    pub count: u64,
    pub ns: u64,
}

impl DurationTotal {
    pub(super) fn add(&mut self, time: Duration) {
        self.count += 1;
        self.ns += time.as_nanos() as u64;
    }
}

/// Executions of one batch size, and the sums of their phases.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct BatchTotal {
    pub count: u64,
    pub compute_input_ns: u64,
    pub compute_infer_ns: u64,
    pub compute_output_ns: u64,
}

/// The sums at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names are those of the statistics extension")]
pub struct Totals {
    pub success: DurationTotal,
    pub queue: DurationTotal,
    pub compute_input: DurationTotal,
    pub compute_infer: DurationTotal,
    pub compute_output: DurationTotal,
    pub inference_count: u64,
    pub execution_count: u64,
    /// Executed batch sizes in ascending order.
    pub batches: Vec<(u32, BatchTotal)>,
}

impl Totals {
    /// So many of the successful requests were executed by nobody: they were answered out of the
    /// response cache.
    pub(super) fn without_execution(&mut self, hits: u64) {
        for phase in [&mut self.compute_input, &mut self.compute_infer, &mut self.compute_output] {
            // The hits were read later.
            phase.count = phase.count.saturating_sub(hits);
        }
    }
}

/// Counts them.
#[derive(Debug)]
pub(super) struct WorkCounters {
    /// By the places below.
    counters: ShardedCounters,
    /// Executions of more rows than have a place.
    large_batches: Mutex<BTreeMap<u32, BatchTotal>>,
}

/// Successful requests, and nanoseconds: of all of a request, in the queue, in the three phases.
const SUCCESSES: usize = 0;
const REQUEST_NS: usize = 1;
const QUEUE_NS: usize = 2;
const COMPUTE_NS: [usize; 3] = [3, 4, 5];
/// Rows of executions.
const INFERENCES: usize = 6;
/// Executions of a number of rows, and nanoseconds in their three phases.
const FIRST_BATCH: usize = 7;
const BATCH_PLACES: usize = 4;
/// Executions of fewer rows than this have places.
const SMALL_BATCHES: usize = 16;

impl Default for WorkCounters {
    fn default() -> WorkCounters {
        let counters = ShardedCounters::new(FIRST_BATCH + SMALL_BATCHES * BATCH_PLACES);
        WorkCounters { counters, large_batches: Mutex::default() }
    }
}

impl WorkCounters {
    /// Counts a request that was answered after `elapsed`.
    #[inline]
    pub(super) fn success(&self, timing: &Timing, elapsed: Duration) {
        let mine = self.counters.this_thread();
        mine.add(SUCCESSES, 1);
        mine.add(REQUEST_NS, elapsed.as_nanos() as u64);
        mine.add(QUEUE_NS, timing.queue.as_nanos() as u64);
        for (place, ns) in COMPUTE_NS.into_iter().zip(phases(timing)) {
            mine.add(place, ns);
        }
    }

    /// Counts an execution of so many rows.
    #[inline]
    pub(super) fn execution(&self, executed: ExecutedRows, timing: &Timing) {
        let mine = self.counters.this_thread();
        mine.add(INFERENCES, u64::from(executed.asked));
        let rows = executed.all;
        let [input, infer, output] = phases(timing);
        if (rows as usize) < SMALL_BATCHES {
            let place = FIRST_BATCH + rows as usize * BATCH_PLACES;
            mine.add(place, 1);
            mine.add(place + 1, input);
            mine.add(place + 2, infer);
            mine.add(place + 3, output);
            return;
        }
        let mut batches = self.large_batches.lock();
        let batch = batches.entry(rows).or_default();
        batch.count += 1;
        batch.compute_input_ns += input;
        batch.compute_infer_ns += infer;
        batch.compute_output_ns += output;
    }

    /// The sums over all threads.
    pub(super) fn totals(&self) -> Totals {
        let all = self.counters.totals();
        let count = all[SUCCESSES];
        let of = |place: usize| DurationTotal { count, ns: all[place] };
        let small = all[FIRST_BATCH..].as_chunks::<BATCH_PLACES>().0.iter().enumerate();
        let small = small.map(|(rows, &[count, input, infer, output])| {
            let total = BatchTotal {
                count,
                compute_input_ns: input,
                compute_infer_ns: infer,
                compute_output_ns: output,
            };
            (rows as u32, total)
        });
        let large = self.large_batches.lock();
        let large = large.iter().map(|(rows, total)| (*rows, *total));
        let batches: Vec<_> = small.filter(|(_, total)| total.count != 0).chain(large).collect();
        Totals {
            success: of(REQUEST_NS),
            queue: of(QUEUE_NS),
            compute_input: of(COMPUTE_NS[0]),
            compute_infer: of(COMPUTE_NS[1]),
            compute_output: of(COMPUTE_NS[2]),
            inference_count: all[INFERENCES],
            execution_count: batches.iter().map(|(_, total)| total.count).sum(),
            batches,
        }
    }
}

/// Nanoseconds of input, inference and output.
fn phases(timing: &Timing) -> [u64; 3] {
    [timing.compute_input, timing.compute_infer, timing.compute_output]
        .map(|it| it.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_batches_are_counted_on_all_threads() {
        let counters = WorkCounters::default();
        let ns = Duration::from_nanos;
        let timing = Timing {
            queue: ns(1),
            compute_input: ns(10),
            compute_infer: ns(100),
            compute_output: ns(1000),
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for rows in [1, 15, 16, 300] {
                        counters.execution(rows.into(), &timing);
                        counters.success(&timing, ns(5000));
                    }
                });
            }
        });
        let totals = counters.totals();
        assert_eq!((totals.execution_count, totals.inference_count), (12, 3 * 332));
        let batch = BatchTotal {
            count: 3,
            compute_input_ns: 30,
            compute_infer_ns: 300,
            compute_output_ns: 3000,
        };
        assert_eq!(totals.batches, [1, 15, 16, 300].map(|rows| (rows, batch)));
        let of = |ns: u64| DurationTotal { count: 12, ns: 12 * ns };
        assert_eq!((totals.success, totals.queue), (of(5000), of(1)));
        let compute = (totals.compute_input, totals.compute_infer, totals.compute_output);
        assert_eq!(compute, (of(10), of(100), of(1000)));
    }
}
