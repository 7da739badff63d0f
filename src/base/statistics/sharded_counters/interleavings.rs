//! Threads that count, one after the other and beside each other, in every order that loom finds:
//! nothing that was added is lost.
//!
//! The numbers of threads are compiled a second time, with loom's atomics.

#[expect(clippy::duplicate_mod, reason = "here with atomics of loom")]
#[path = "../thread_numbers.rs"]
mod thread_numbers;

mod atomics {
    pub(super) use loom::sync::{
        MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    };

    /// Locked as parking_lot's is.
    pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(super) fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub(super) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }
}

use loom::{sync::Arc, thread};

use self::{
    atomics::{AtomicU64, AtomicUsize, Mutex, Ordering},
    thread_numbers::{ThreadNumbers, add_own},
};

struct Counters {
    numbers: ThreadNumbers,
    cells: [AtomicU64; 2],
}

/// A thread from its first addition to its end.
fn count(counters: &Counters) {
    let number = counters.numbers.take();
    for _ in 0..2 {
        add_own(&counters.cells[number], 1);
    }
    counters.numbers.give_back(number);
}

#[test]
fn nothing_is_lost_when_a_thread_gets_the_number_of_one_that_has_ended() {
    loom::model(|| {
        let counters = Arc::new(Counters {
            numbers: ThreadNumbers { next: AtomicUsize::new(0), free: Mutex::new(Vec::new()) },
            cells: [AtomicU64::new(0), AtomicU64::new(0)],
        });
        let mut threads = Vec::new();
        for _ in 0..2 {
            let counters = counters.clone();
            threads.push(thread::spawn(move || count(&counters)));
        }
        threads.into_iter().for_each(|it| it.join().unwrap());
        let total: u64 = counters.cells.iter().map(|it| it.load(Ordering::Relaxed)).sum();
        assert_eq!(total, 4);
    });
}
