//! Messages that come slowly, or not at all: when their calls are given up.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use http_body::Frame;
use tokio::time::{Instant, timeout};
use tonic::{Code, Status, body::Body};

use super::{super::*, Chunks};
use troupe_base::budget::{Account, ByteBudget, Charge, Kind};

const STALLED: Duration = Duration::from_secs(30);

/// Reads messages until nothing more comes.
async fn read_all(sent: &[u8], pauses: Pauses) -> Result<(), Status> {
    let sent = Chunks { chunks: [Bytes::copy_from_slice(sent)].into(), ends: false };
    let mut arriving = Arriving::new(Body::new(sent), pauses, &Charge::default());
    while let Some(prefix) = arriving.prefix(100).await? {
        arriving.skip(prefix.length).await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn silence_is_told_from_a_message_that_stands_still() {
    let sent = [&[0, 0, 0, 0, 3, 1, 2, 3][..], &[0, 0, 0, 0, 0], &[1, 0, 0, 0, 1, 9]].concat();
    let between = [0, 8, 13, 19];
    for read in 0..sent.len() + 1 {
        let of_stream = read_all(&sent[..read], Pauses::of_stream(STALLED));
        let given_up = timeout(1000 * STALLED, of_stream).await;
        assert_eq!(given_up.is_err(), between.contains(&read), "{read}");
        let of_one = read_all(&sent[..read], Pauses::of_one(STALLED));
        let of_one = timeout(2 * STALLED, of_one).await.unwrap();
        assert_eq!(of_one.unwrap_err().code(), Code::Aborted);
        let for_ever = read_all(&sent[..read], Pauses::of_one(Duration::ZERO));
        assert!(timeout(1000 * STALLED, for_ever).await.is_err());
    }
}

/// A body of these frames.
struct Frames(BoxStream<'static, Result<Frame<Bytes>, Status>>);

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.0.poll_next_unpin(context)
    }
}

#[tokio::test(start_paused = true)]
async fn drips_are_given_up_and_slow_links_are_not() {
    for (at_a_time, expected) in [(10, true), (100_000, false)] {
        let length = 10 * at_a_time;
        let drops = stream::iter(0..10).then(move |_| async move {
            tokio::time::sleep(STALLED / 3).await;
            Ok(Frame::data(Bytes::from(vec![7; at_a_time])))
        });
        let prefix = [&[0][..], &(length as u32).to_be_bytes()].concat();
        let sent = stream::iter([Ok(Frame::data(Bytes::from(prefix)))]).chain(drops);
        let body = Body::new(Frames(sent.boxed()));
        let mut arriving = Arriving::new(body, Pauses::of_stream(STALLED), &Charge::default());
        let prefix = arriving.prefix(length).await.unwrap().unwrap();
        let refused = arriving.skip(prefix.length).await.err();
        assert_eq!(refused.is_some_and(|it| it.code() == Code::Aborted), expected, "{at_a_time}");
    }
}

#[tokio::test(start_paused = true)]
async fn drips_of_a_call_that_holds_short_memory_are_given_up_soon() {
    let budget = ByteBudget::new(16 << 20);
    let charge = Charge::open(&Account::new(&budget)).unwrap();
    let arrive = async || {
        let drops = stream::iter(0..60).then(|_| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(Frame::data(Bytes::from(vec![7; 700])))
        });
        let length: u32 = (1 << 20) + 60 * 700;
        let first = [&[0][..], &length.to_be_bytes(), &[7; 1 << 20]].concat();
        let sent = stream::iter([Ok(Frame::data(Bytes::from(first)))]).chain(drops);
        let body = Body::new(Frames(sent.boxed()));
        let mut arriving = Arriving::new(body, Pauses::of_one(STALLED), &charge);
        let prefix = arriving.prefix(length as usize).await.unwrap().unwrap();
        arriving.skip(prefix.length).await
    };
    arrive().await.unwrap();
    let _others = budget.keep(Kind::Tensors, 8 << 20);
    let began = Instant::now();
    let status = arrive().await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted);
    assert!(status.message().contains("--max-inflight-bytes"), "{status}");
    assert!(began.elapsed() < STALLED);
}
