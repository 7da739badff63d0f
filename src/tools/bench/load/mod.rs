//! The load generator, closed loop: each of the requests in flight is answered before its successor
//! is sent.

mod recorder;
mod sequence;
mod stream;
mod unary;

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    thread::{self, JoinHandle},
};

use futures_util::future::join_all;
use tokio::{runtime::Builder, sync::watch};
use tonic::transport::Channel;

pub(super) use self::recorder::{Job, LoadTotals, Phase, SequenceLoad};
use self::recorder::{LoadThread, Recorder, SharedCounts};
use self::sequence::{RequestSource, first_id};
use super::codec::CodecTime;

/// Beyond them requests share connections.
const MAX_CONNECTIONS: usize = 64;

/// Load under way.
pub(super) struct Load {
    threads: Vec<JoinHandle<Result<LoadTotals, String>>>,
    phase: watch::Sender<Phase>,
    common: Arc<SharedCounts>,
}

impl Load {
    /// Begins to warm up.
    pub(super) fn start(job: &Job, in_flight: usize) -> Result<Load, String> {
        let common = Arc::new(SharedCounts::default());
        let (phase, watched) = watch::channel(Phase::WarmUp);
        let mut threads = Vec::new();
        let count = thread_count().min(in_flight);
        let mut next_id = first_id();
        for index in 0..count {
            let workers = in_flight / count + usize::from(index < in_flight % count);
            let own = LoadThread {
                job: job.clone(),
                workers,
                first_id: next_id,
                phase: watched.clone(),
                common: common.clone(),
            };
            next_id += workers as u64;
            let thread = thread::Builder::new().name(format!("load {index}"));
            let thread = thread.spawn(move || run(&own));
            threads.push(thread.map_err(|error| format!("cannot start a thread: {error}"))?);
        }
        Ok(Load { threads, phase, common })
    }

    /// Goes on to another phase.
    pub(super) fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Requests answered and failed so far, from the beginning.
    pub(super) fn so_far(&self) -> (u64, u64) {
        (self.common.answered.load(Relaxed), self.common.failed.load(Relaxed))
    }

    /// Has everything in flight ended?
    pub(super) fn has_ended(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// What all threads have seen, and the first error's text.
    pub(super) fn end(self) -> Result<(LoadTotals, Option<String>), String> {
        let mut all = LoadTotals::default();
        for thread in self.threads {
            let seen = thread.join().map_err(|_| "a thread of the load panicked".to_owned())??;
            all.latency.merge(&seen.latency);
            all.first.merge(&seen.first);
            all.responses += seen.responses;
            all.failed += seen.failed;
            all.refused_full += seen.refused_full;
            all.timed_out += seen.timed_out;
            all.codec_time += seen.codec_time;
        }
        Ok((all, self.common.first_error.lock().take()))
    }
}

/// Threads that send: half of the cores, the rest is the server's.
pub(super) fn thread_count() -> usize {
    (thread::available_parallelism().map_or(1, Into::into) / 2).clamp(1, 8)
}

fn run(own: &LoadThread) -> Result<LoadTotals, String> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let begin = CodecTime::of_this_thread();
    let seen = runtime.block_on(async {
        let connections = own.workers.min(MAX_CONNECTIONS);
        let channels: Vec<Channel> =
            (0..connections).map(|_| own.job.endpoint.connect_lazy()).collect();
        let recorder = Recorder::new(own);
        let workers = (0..own.workers).map(|it| {
            let channel = channels[it % connections].clone();
            let requests = RequestSource::new(&own.job, own.first_id + it as u64);
            let recorder = &recorder;
            async move {
                if own.job.is_decoupled {
                    stream::work(channel, requests, own, recorder).await;
                } else {
                    unary::work(channel, requests, own, recorder).await;
                }
            }
        });
        let mut phase = own.phase.clone();
        tokio::select! {
            _ = join_all(workers) => (),
            // An error means that nobody is there any more to measure for.
            _ = phase.wait_for(|it| *it == Phase::Abort) => (),
        }
        recorder.seen.into_inner()
    });
    let end = CodecTime::of_this_thread();
    Ok(LoadTotals { codec_time: end - begin, ..seen })
}
