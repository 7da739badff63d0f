//! Messages per second of a model's batcher, beside those of a bare channel on the same thread.

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};

use crate::{
    bed::{self, Bed, Load},
    steps::native,
};

const IN_FLIGHT: u64 = 64;
const DYNAMIC: &str = "max_batch_size: 64 dynamic_batching { }\n";

/// The floor is a channel in, a channel back, and no work.
pub(crate) fn messages(criterion: &mut Criterion, bed: &Bed) {
    let direct = native("direct", "identity", (1, 1));
    let dynamic = native("dynamic", "identity", (1, 1)) + DYNAMIC;
    let mut group = criterion.benchmark_group(format!("batcher, {IN_FLIGHT} in flight"));
    group.throughput(Throughput::Elements(1));
    group.bench_function("bare tokio channels", |bencher| {
        bencher.iter_custom(|count| bare(bed, Load { count, in_flight: IN_FLIGHT }));
    });
    for (name, config, shape) in [("direct", direct, &[4][..]), ("dynamic", dynamic, &[1, 4])] {
        let (model, request) = (bed.native(&config), bed::request(1, shape));
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|count| {
                bed.drive(&model, &request, Load { count, in_flight: IN_FLIGHT })
            });
        });
    }
    group.finish();
}

fn bare(bed: &Bed, load: Load) -> Duration {
    bed.block_on(async {
        let (mailbox, mut mail) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
        let server = actix_rt::spawn(async move {
            while let Some(reply) = mail.recv().await {
                reply.send(()).expect("the client waits");
            }
        });
        let begun = Instant::now();
        join_all(load.shares().map(|share| ask(mailbox.clone(), share))).await;
        let took = begun.elapsed();
        drop(mailbox);
        server.await.expect("the server does not panic");
        took
    })
}

async fn ask(mailbox: mpsc::UnboundedSender<oneshot::Sender<()>>, times: u64) {
    for _ in 0..times {
        let (reply, answer) = oneshot::channel();
        mailbox.send(reply).expect("the server listens");
        answer.await.expect("the server answers");
    }
}
