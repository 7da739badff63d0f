//! The cache in the server's memory: bounded by its bytes; what is asked for often stays.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasherDefault, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use parking_lot::Mutex;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter, sync::Cache};

use super::{answer::KeptAnswer, key::AnswerKey};
use troupe_base::error::{Error, Result};

/// A part of the cache has at least so many bytes: an answer has to fit into one.
const MIN_PART_BYTES: u64 = 256 << 20;
const MAX_PARTS: u64 = 16;
/// What answers are expected to take; only the size of tables hangs on it.
const USUAL_ANSWER_BYTES: u64 = 4 << 10;
const MAX_EXPECTED_ANSWERS: u64 = 1 << 20;
/// Of the answers of a model that newer ones have replaced, so many are remembered besides one for
/// each that is kept.
const MAX_REPLACED: usize = 64;

/// Answers of all models, in memory.
pub(super) struct LocalStore {
    answers:
        Cache<AnswerKey, Arc<KeptAnswer>, Weight, BuildHasherDefault<KeyIsHash>, CountsEvictions>,
    evictions: Arc<AtomicU64>,
    size: u64,
}

/// What the answers of one model may take, if its config says so.
#[derive(Default)]
pub(super) struct ModelCap {
    max_bytes: u64,
    kept: Mutex<ModelAnswers>,
}

/// The oldest come first; those that the cache gave up meanwhile count until it is their turn.
#[derive(Default)]
struct ModelAnswers {
    /// Also of answers that a newer one of their key has replaced: those count no more.
    order: VecDeque<(AnswerKey, u64)>,
    /// The newest of each key.
    newest: HashMap<AnswerKey, NumberedAnswer>,
    /// Numbers answers.
    next: u64,
    bytes: u64,
}

struct NumberedAnswer {
    number: u64,
    weight: u64,
}

impl LocalStore {
    /// Of so many bytes.
    pub(super) fn new(size: u64) -> Result<LocalStore> {
        let parts = (size / MIN_PART_BYTES).clamp(1, MAX_PARTS);
        let expected = (size / USUAL_ANSWER_BYTES).clamp(64, MAX_EXPECTED_ANSWERS);
        let options = OptionsBuilder::new()
            .shards(parts as usize)
            .estimated_items_capacity(expected as usize)
            .weight_capacity(size)
            .build()
            .map_err(|error| Error::internal(format!("no cache: {error}")))?;
        let evictions = Arc::<AtomicU64>::default();
        let counts = CountsEvictions(evictions.clone());
        let answers = Cache::with_options(options, Weight, BuildHasherDefault::default(), counts);
        Ok(LocalStore { answers, evictions, size })
    }

    /// What is kept under a key and not too old.
    pub(super) fn get(&self, key: AnswerKey, now: Instant) -> Option<Arc<KeptAnswer>> {
        let found = self.answers.get(&key)?;
        if found.is_over(now) {
            self.evict(key, |it| it.is_over(now));
            return None;
        }
        Some(found)
    }

    /// Is there room for an answer of so many bytes, if others go? In Triton's words, if not.
    pub(super) fn check(
        &self,
        weight: u64,
        cap: Option<&ModelCap>,
    ) -> std::result::Result<(), String> {
        let most = self.answers.shard_capacity().min(self.size);
        let most = cap.map_or(most, |cap| cap.max_bytes.min(most));
        if weight <= most {
            return Ok(());
        }
        Err(format!("Requested byte_size: {weight} is greater than total cache size: {most}"))
    }

    /// Keeps an answer for which `check` has found room.
    pub(super) fn insert(&self, key: AnswerKey, answer: Arc<KeptAnswer>, cap: Option<&ModelCap>) {
        // Counted first: whoever makes room meanwhile does not take it for an older one of its key.
        let gone = cap.map(|cap| cap.enter(key, answer.weight)).unwrap_or_default();
        self.answers.insert(key, answer);
        for oldest in gone {
            self.evict(oldest, |_| true);
        }
    }

    /// Forgets the answers of a loaded model; looks at all there are, one by one, so that nobody
    /// waits for long.
    pub(super) fn forget(&self, generation: u128) {
        for (key, answer) in self.answers.iter() {
            if answer.generation == generation {
                self.answers.remove_if(&key, |it| it.generation == generation);
            }
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.answers.weight()
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn entries(&self) -> u64 {
        self.answers.len() as u64
    }

    /// Answers that were given up since the start: for want of room, or because they were too old.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions.load(Relaxed)
    }

    fn evict(&self, key: AnswerKey, is_meant: impl Fn(&KeptAnswer) -> bool) {
        if self.answers.remove_if(&key, |it| is_meant(it)).is_some() {
            self.evictions.fetch_add(1, Relaxed);
        }
    }
}

impl ModelCap {
    pub(super) fn new(max_bytes: u64) -> ModelCap {
        ModelCap { max_bytes, ..ModelCap::default() }
    }

    /// Counts an answer; those that are to go make room for it.
    fn enter(&self, key: AnswerKey, weight: u64) -> Vec<AnswerKey> {
        let mut kept = self.kept.lock();
        kept.enter(key, weight);
        let mut gone = Vec::new();
        while self.max_bytes < kept.bytes {
            let Some((oldest, number)) = kept.order.pop_front() else { break };
            if kept.is_newest(oldest, number)
                && let Some(answer) = kept.newest.remove(&oldest)
            {
                kept.bytes -= answer.weight;
                gone.push(oldest);
            }
        }
        gone
    }
}

impl ModelAnswers {
    fn enter(&mut self, key: AnswerKey, weight: u64) {
        let number = self.next;
        self.next += 1;
        if let Some(older) = self.newest.insert(key, NumberedAnswer { number, weight }) {
            self.bytes -= older.weight;
        }
        self.bytes += weight;
        self.order.push_back((key, number));
        // Keys that are kept again and again do not make it long.
        if 2 * self.newest.len() + MAX_REPLACED < self.order.len() {
            let newest = &self.newest;
            self.order.retain(|(key, it)| newest.get(key).is_some_and(|new| new.number == *it));
        }
    }

    fn is_newest(&self, key: AnswerKey, number: u64) -> bool {
        self.newest.get(&key).is_some_and(|it| it.number == number)
    }
}

/// Bytes of an answer.
#[derive(Clone)]
struct Weight;

impl Weighter<AnswerKey, Arc<KeptAnswer>> for Weight {
    fn weight(&self, _: &AnswerKey, answer: &Arc<KeptAnswer>) -> u64 {
        answer.weight
    }
}

#[derive(Clone)]
struct CountsEvictions(Arc<AtomicU64>);

impl Lifecycle<AnswerKey, Arc<KeptAnswer>> for CountsEvictions {
    type RequestState = ();

    fn on_evict(&self, _: &mut Self::RequestState, _: AnswerKey, _: Arc<KeptAnswer>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// A key is a hash already.
#[derive(Default)]
struct KeyIsHash(u64);

impl Hasher for KeyIsHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u128(&mut self, key: u128) {
        self.0 = key as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|it| self.0 = self.0.rotate_left(8) ^ u64::from(*it));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use smallvec::smallvec;

    use super::*;
    use troupe_base::{
        request::Response,
        tensor::{DataType, Tensor},
    };

    fn answer(bytes: usize, generation: u128, expires: Option<Instant>) -> Arc<KeptAnswer> {
        let data = vec![1; bytes].into();
        let tensor = Tensor::new(DataType::Uint8, smallvec![bytes as i64], data).unwrap();
        let response = Response { outputs: vec![Some(tensor)], ..Response::default() };
        KeptAnswer::copy(&response, generation, expires).unwrap()
    }

    #[test]
    fn never_more_is_kept_than_there_is_room_for() {
        let store = LocalStore::new(100_000).unwrap();
        for number in 0..1000 {
            store.insert(AnswerKey(number << 60 | number), answer(1000, 1, None), None);
            assert!(store.bytes() <= 100_000);
        }
        let (entries, evictions) = (store.entries(), store.evictions());
        assert!(60 < entries && entries + evictions == 1000, "{entries} {evictions}");
        let error = store.check(answer(100_000, 1, None).weight, None).unwrap_err();
        assert!(error.starts_with("Requested byte_size: 100"), "{error}");
        assert!(error.ends_with("is greater than total cache size: 100000"), "{error}");
        // Nothing went for it.
        assert_eq!(store.entries(), entries);
        store.check(answer(90_000, 1, None).weight, None).unwrap();
    }

    #[test]
    fn an_answer_that_is_too_old_is_gone() {
        let store = LocalStore::new(100_000).unwrap();
        let now = Instant::now();
        let later = now + Duration::from_secs(5);
        store.insert(AnswerKey(1), answer(10, 1, Some(later)), None);
        store.insert(AnswerKey(2), answer(10, 1, None), None);
        assert!(store.get(AnswerKey(1), now).is_some());
        assert!(store.get(AnswerKey(1), later).is_none());
        assert!(store.get(AnswerKey(2), later).is_some());
        assert_eq!((store.entries(), store.evictions()), (1, 1));
    }

    #[test]
    fn a_model_with_a_cap_gives_up_its_own_oldest_answers() {
        let store = LocalStore::new(100_000).unwrap();
        let weight = answer(1000, 1, None).weight;
        let cap = ModelCap::new(2 * weight);
        store.insert(AnswerKey(9), answer(1000, 2, None), None);
        for key in 1..=3 {
            store.insert(AnswerKey(key), answer(1000, 1, None), Some(&cap));
        }
        let there = [1, 2, 3, 9].map(|it| store.get(AnswerKey(it), Instant::now()).is_some());
        assert_eq!((there, store.evictions()), ([false, true, true, true], 1));
        let error = store.check(answer(3000, 1, None).weight, Some(&cap)).unwrap_err();
        assert!(error.ends_with(&format!("total cache size: {}", 2 * weight)), "{error}");
    }

    #[test]
    fn an_answer_that_is_kept_again_counts_once_and_is_as_young_as_its_last_time() {
        let store = LocalStore::new(100_000).unwrap();
        let weight = answer(1000, 1, None).weight;
        let cap = ModelCap::new(3 * weight);
        let there =
            |keys: [u128; 4]| keys.map(|it| store.get(AnswerKey(it), Instant::now()).is_some());
        for key in [1, 2, 1, 1, 3] {
            store.insert(AnswerKey(key), answer(1000, 1, None), Some(&cap));
        }
        assert_eq!(there([1, 2, 3, 4]), [true, true, true, false]);
        store.insert(AnswerKey(4), answer(1000, 1, None), Some(&cap));
        assert_eq!(there([1, 2, 3, 4]), [true, false, true, true]);
        for _ in 0..1000 {
            store.insert(AnswerKey(4), answer(1000, 1, None), Some(&cap));
        }
        assert_eq!(there([1, 2, 3, 4]), [true, false, true, true]);
        assert!(cap.kept.lock().order.len() <= MAX_REPLACED + 6);
    }

    #[test]
    fn a_model_that_goes_takes_its_answers_along() {
        let store = LocalStore::new(100_000).unwrap();
        for key in 0..10 {
            store.insert(AnswerKey(key), answer(1000, key % 2, None), None);
        }
        let before = store.bytes();
        store.forget(0);
        assert_eq!((store.entries(), store.bytes()), (5, before / 2));
        assert!(store.get(AnswerKey(1), Instant::now()).is_some());
    }
}
