//! Hits, single flight and what becomes of those that wait: with a model that answers when the test
//! says so.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::smallvec;
use tokio::{sync::oneshot::Receiver, task::yield_now};

use super::*;
use troupe_base::{
    config::{ServerFeatures, read_text},
    error::Error,
    metrics::{CountedTraits, Metrics},
    request::{CallChain, Context, Correlation, Parameter, Pending, Reply, Request, Response},
    statistics::Statistics,
    tensor::{DataType, Tensor},
};

/// Keeps what it is asked.
#[derive(Default)]
struct Asked(Mutex<Vec<Pending>>);

impl Infer for Asked {
    fn infer(&self, request: Request, reply: Reply) {
        self.0.lock().push(Pending { request, reply });
    }
}

impl Asked {
    fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Answers the oldest request.
    fn answer(&self, result: Result<u8>) {
        let pending = self.0.lock().remove(0);
        pending.reply.answer(result.map(|number| Response {
            outputs: vec![Some(tensor(&[number]))],
            ..Response::default()
        }));
    }

    /// Waits until it was asked so often.
    async fn is_asked(&self, count: usize) {
        while self.count() < count {
            yield_now().await;
        }
    }
}

struct Cached {
    cache: Arc<ResponseCache>,
    asked: Arc<Asked>,
    stats: Arc<Statistics>,
    model: Arc<dyn Infer>,
}

type Asking = (Arc<Context>, Receiver<Result<Response>>);

async fn cached() -> Cached {
    cached_with("").await
}

/// The same with these fields in its config.
async fn cached_with(fields: &str) -> Cached {
    let cache = ResponseCache::open(&CacheConfig::Local { size: 4 << 20 }).await.unwrap();
    let text = format!(
        "name: 'm' backend: 'native' response_cache {{ enable: true }} {fields} \
         input {{ name: 'x' data_type: TYPE_UINT8 dims: 1 }} \
         output {{ name: 'y' data_type: TYPE_UINT8 dims: 1 }}"
    );
    let config = read_text(&text, "f").unwrap().finish(&ServerFeatures::default()).unwrap();
    let stats = Metrics::new()
        .statistics(None, CountedTraits { is_cached: true, ..CountedTraits::default() });
    let parts = ModelParts {
        config: config.into(),
        version: 1,
        stats: stats.clone(),
        health: Arc::default(),
        steps: Vec::new(),
    };
    let asked = Arc::<Asked>::default();
    let model = cache.in_front_of(&parts, None, asked.clone());
    Cached { cache, asked, stats, model }
}

impl Cached {
    fn ask_with(&self, context: Context) -> Asking {
        self.ask_for(context, 7)
    }

    fn ask_for(&self, context: Context, input: u8) -> Asking {
        let context = Arc::new(context);
        let inputs = vec![Some(tensor(&[input]))];
        let request = Request { context: context.clone(), inputs, ..Request::default() };
        let (reply, answer) = Reply::channel();
        self.model.infer(request, reply.counted(self.stats.clone()));
        (context, answer)
    }

    fn ask(&self) -> Asking {
        self.ask_with(Context::default())
    }

    /// Successes, hits, misses and requests that waited for others.
    fn counts(&self) -> [u64; 4] {
        let cache = self.stats.extra.cache.as_ref().unwrap();
        let totals = self.stats.totals();
        assert_eq!(totals.compute_infer.count, totals.success.count - cache.hits().count);
        // Here, what is executed says of no time that it waited.
        assert_eq!(u128::from(totals.queue.ns), cache.hits_waited().as_nanos());
        [totals.success.count, cache.hits().count, cache.misses().count, cache.coalesced_count()]
    }
}

fn tensor(data: &[u8]) -> Tensor {
    Tensor::new(DataType::Uint8, smallvec![data.len() as i64], data.to_vec().into()).unwrap()
}

async fn number((_, answer): Asking) -> Result<u8> {
    let response = answer.await.unwrap()?;
    Ok(response.outputs[0].as_ref().unwrap().data()[0])
}

#[tokio::test]
async fn what_was_answered_before_is_answered_at_once() {
    let cached = cached().await;
    let (first, other) = (cached.ask(), cached.ask_for(Context::default(), 8));
    cached.asked.answer(Ok(1));
    cached.asked.answer(Ok(2));
    assert_eq!((number(first).await, number(other).await), (Ok(1), Ok(2)));
    assert_eq!(number(cached.ask()).await, Ok(1));
    assert_eq!(cached.asked.count(), 0);
    assert_eq!(cached.counts(), [3, 1, 2, 0]);
    let usage = cached.cache.usage();
    assert_eq!((usage.hits, usage.misses, usage.held.unwrap().entries), (1, 2, 2));
}

#[tokio::test]
async fn equal_requests_at_the_same_time_are_executed_once() {
    let cached = cached().await;
    let all: Vec<_> = (0..100).map(|_| cached.ask()).collect();
    assert_eq!(cached.asked.count(), 1);
    cached.asked.answer(Ok(1));
    for one in all {
        assert_eq!(number(one).await, Ok(1));
    }
    assert_eq!(cached.counts(), [100, 99, 1, 99]);
}

#[tokio::test]
async fn an_execution_that_fails_fails_for_all_and_is_not_kept() {
    let cached = cached().await;
    let all = [cached.ask(), cached.ask()];
    cached.asked.answer(Err(Error::internal("no")));
    for one in all {
        assert_eq!(number(one).await, Err(Error::internal("no")));
    }
    let again = cached.ask();
    cached.asked.answer(Ok(1));
    assert_eq!(number(again).await, Ok(1));
    assert_eq!(cached.counts(), [1, 0, 1, 0]);
}

#[tokio::test]
async fn one_that_gives_up_is_followed_by_another_one() {
    for error in [Error::cancelled(), Error::deadline_exceeded(), Error::unavailable("full")] {
        let cached = cached().await;
        let first = cached.ask();
        let (stopped, second, third) = (cached.ask(), cached.ask(), cached.ask());
        stopped.0.cancel();
        cached.asked.answer(Err(error.clone()));
        assert_eq!(number(first).await, Err(error));
        assert_eq!(number(stopped).await, Err(Error::cancelled()));
        cached.asked.is_asked(1).await;
        // Those that come now wait for the second one.
        let fourth = cached.ask();
        assert_eq!(cached.asked.count(), 1);
        cached.asked.answer(Ok(2));
        for one in [second, third, fourth] {
            assert_eq!(number(one).await, Ok(2));
        }
        assert_eq!(cached.counts(), [3, 2, 1, 2]);
    }
}

#[tokio::test]
async fn a_model_that_loses_a_request_loses_no_other() {
    let cached = cached().await;
    let (first, second) = (cached.ask(), cached.ask());
    cached.asked.0.lock().clear();
    assert!(number(first).await.is_err());
    cached.asked.is_asked(1).await;
    cached.asked.answer(Ok(3));
    assert_eq!(number(second).await, Ok(3));
}

#[tokio::test]
async fn what_is_not_to_be_kept_or_waited_for_is_executed() {
    let cached = cached().await;
    let _first = cached.ask();
    let sequence = Context { correlation: Correlation::Number(1), ..Context::default() };
    let warmup = Context { is_warmup: true, ..Context::default() };
    let urgent = Context { priority: 1, ..Context::default() };
    let chain = CallChain::new("caller".into(), 1, "m".into());
    let call = Context { call_chain: Some(chain.into()), ..Context::default() };
    let contexts = [sequence, warmup, urgent, call];
    let others: Vec<_> = contexts.into_iter().map(|it| cached.ask_with(it)).collect();
    assert_eq!(cached.asked.count(), 5);
    // A native model sees no parameters.
    let parameters = vec![("p".into(), Parameter::Int(1))];
    let follower = cached.ask_with(Context { parameters, ..Context::default() });
    assert_eq!(cached.asked.count(), 5);
    (0..5).for_each(|it| cached.asked.answer(Ok(it)));
    for (place, one) in others.into_iter().enumerate() {
        assert_eq!(number(one).await, Ok(place as u8 + 1));
    }
    assert_eq!(number(follower).await, Ok(0));
}

#[tokio::test]
async fn a_model_that_is_gone_leaves_nothing_behind() {
    let cached = cached().await;
    let first = cached.ask();
    cached.asked.answer(Ok(1));
    number(first).await.unwrap();
    let hangs = cached.ask_for(Context::default(), 9);
    let Cached { cache, asked, model, .. } = cached;
    drop(model);
    let entries = || cache.usage().held.unwrap().entries;
    while entries() != 0 {
        yield_now().await;
    }
    // The request that it was asked is answered all the same.
    asked.answer(Ok(5));
    assert_eq!(number(hangs).await, Ok(5));
    assert_eq!(entries(), 0);
}

#[tokio::test]
async fn where_nobody_is_let_in_a_second_one_is_tried_and_no_third() {
    let cached = cached().await;
    let first = cached.ask();
    let others: Vec<_> = (0..9).map(|_| cached.ask()).collect();
    cached.asked.answer(Err(Error::unavailable("full")));
    assert_eq!(number(first).await, Err(Error::unavailable("full")));
    cached.asked.is_asked(1).await;
    // One that gives up between the two changes nothing.
    cached.asked.answer(Err(Error::cancelled()));
    cached.asked.is_asked(1).await;
    cached.asked.answer(Err(Error::unavailable("still full")));
    let mut others = others.into_iter();
    assert_eq!(number(others.next().unwrap()).await, Err(Error::cancelled()));
    for one in others {
        assert_eq!(number(one).await, Err(Error::unavailable("still full")));
    }
    assert_eq!(cached.asked.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn who_waits_and_goes_is_answered_before_the_execution_ends() {
    let cached = cached().await;
    let (first, gone, stays) = (cached.ask(), cached.ask(), cached.ask());
    gone.0.cancel();
    assert_eq!(number(gone).await, Err(Error::cancelled()));
    // The task goes on as long as somebody waits.
    let late = cached.ask();
    late.0.cancel();
    assert_eq!(number(late).await, Err(Error::cancelled()));
    cached.asked.answer(Ok(1));
    assert_eq!((number(first).await, number(stays).await), (Ok(1), Ok(1)));
    // And comes back when somebody waits again.
    tokio::time::sleep(std::time::Duration::from_secs(9)).await;
    let (_first, again) = (cached.ask_for(Context::default(), 8), {
        let again = cached.ask_for(Context::default(), 8);
        again.0.cancel();
        again
    });
    assert_eq!(number(again).await, Err(Error::cancelled()));
}

#[test]
fn those_that_wait_are_answered_when_the_runtime_has_gone() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let cached = runtime.block_on(cached());
    drop(runtime);
    let all: Vec<_> = (0..4000).map(|_| cached.ask()).collect();
    cached.asked.0.lock().clear();
    for (_, answer) in all {
        assert!(answer.blocking_recv().unwrap().is_err());
    }
}

#[tokio::test]
async fn a_large_answer_is_given_before_it_is_kept() {
    let cached = cached().await;
    let first = cached.ask();
    let pending = cached.asked.0.lock().remove(0);
    let large = Some(tensor(&vec![3; 2 << 20]));
    pending.reply.answer(Ok(Response { outputs: vec![large], ..Response::default() }));
    assert_eq!(number(first).await, Ok(3));
    assert_eq!(cached.counts(), [1, 0, 1, 0]);
    while cached.cache.usage().held.unwrap().entries == 0 {
        yield_now().await;
    }
    assert_eq!(number(cached.ask()).await, Ok(3));
}

#[tokio::test]
async fn who_waits_for_another_waits_no_longer_than_in_the_queue() {
    let timed = "dynamic_batching { default_queue_policy { \
                 default_timeout_microseconds: 20000 allow_timeout_override: true } }";
    let it = cached_with(timed).await;
    let (_, mut lead) = it.ask();
    it.asked.is_asked(1).await;
    let (_, late) = it.ask();
    // The task that looks after the first one looks after those that come later, too.
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    let (_, later) = it.ask();
    // Whoever executes it has begun, and may take its time.
    assert_eq!(late.await.unwrap().unwrap_err().to_string(), "Request timeout expired");
    assert_eq!(later.await.unwrap().unwrap_err().to_string(), "Request timeout expired");
    assert!(lead.try_recv().is_err());
    it.asked.answer(Ok(1));
    assert!(lead.await.unwrap().is_ok());
    assert_eq!((it.asked.count(), it.counts()), (0, [1, 0, 1, 0]));
    // Nobody waits too long where the config names no time, or where the late ones are delayed.
    let delayed =
        timed.replace("default_queue_policy {", "default_queue_policy { timeout_action: DELAY");
    for fields in ["dynamic_batching { }", &delayed] {
        let it = cached_with(fields).await;
        let (_, lead) = it.ask_with(Context { timeout_us: 1, ..Context::default() });
        let (_, follower) = it.ask_with(Context { timeout_us: 1, ..Context::default() });
        tokio::time::sleep(std::time::Duration::from_millis(40)).await;
        it.asked.answer(Ok(1));
        assert!(lead.await.unwrap().is_ok() && follower.await.unwrap().is_ok(), "{fields}");
    }
}
