//! Who queues requests and who takes them, in every order that loom finds: none is left behind.
//!
//! The board is compiled a second time, with loom's atomics. Queue and instances are counts.

#[expect(clippy::duplicate_mod, reason = "here with atomics of loom")]
#[expect(dead_code, reason = "not all of it is looked at")]
#[path = "../rest_board.rs"]
mod rest_board;

mod atomics {
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
}

use loom::{
    sync::{Arc, Mutex},
    thread,
};

use self::rest_board::{Rest, RestBoard};

/// What a model's batchers share, and which of them have been called and not come.
struct Model {
    board: RestBoard,
    queued: Mutex<usize>,
    /// Messages to each batcher.
    calls: [Mutex<usize>; 2],
}

impl Model {
    fn push(&self, home: usize) {
        *self.queued.lock().unwrap() += 1;
        self.tell(self.board.call(home));
    }

    fn tell(&self, batcher: Option<usize>) {
        if let Some(batcher) = batcher {
            *self.calls[batcher].lock().unwrap() += 1;
        }
    }

    /// What a batcher does when it has a message, and when an instance is released.
    fn dispatch(&self, batcher: usize, slots: &mut Slots) {
        loop {
            let mut queued = self.queued.lock().unwrap();
            let taken = (slots.idle + slots.room).min(*queued);
            *queued -= taken;
            drop(queued);
            slots.take(taken);
            let has_room_again = self.board.write(batcher, slots.rest());
            if *self.queued.lock().unwrap() == 0 {
                return;
            }
            if slots.idle == 0 {
                self.tell(self.board.call_other(batcher));
                if !has_room_again {
                    return;
                }
            }
        }
    }

    /// Handles a message, if there is one.
    fn hear(&self, batcher: usize, slots: &mut Slots) -> bool {
        let mut calls = self.calls[batcher].lock().unwrap();
        if *calls == 0 {
            return false;
        }
        *calls -= 1;
        drop(calls);
        self.board.heard(batcher);
        self.dispatch(batcher, slots);
        true
    }
}

/// What the instances of one batcher can be given.
#[derive(Clone, Copy)]
struct Slots {
    idle: usize,
    /// What may wait in front of them.
    room: usize,
}

impl Slots {
    fn take(&mut self, count: usize) {
        let begun = count.min(self.idle);
        self.idle -= begun;
        self.room -= count - begun;
    }

    fn rest(self) -> Rest {
        Rest { idle: self.idle, has_room: self.idle + self.room != 0, is_ahead: false }
    }
}

/// Two batchers with so many instances that rest, and so many that are released meanwhile. Requests
/// are queued for each of them by its own thread. In the end all messages are handled.
fn check(idle: [usize; 2], released: [usize; 2], pushed: [usize; 2]) {
    loom::model(move || {
        let calls = [Mutex::new(0), Mutex::new(0)];
        let model = Model { board: RestBoard::new(2), queued: Mutex::new(0), calls };
        for (batcher, idle) in idle.into_iter().enumerate() {
            let rest = Rest { idle, has_room: idle != 0, is_ahead: false };
            model.board.write(batcher, rest);
        }
        let model = Arc::new(model);
        let play = |batcher: usize| {
            let model = model.clone();
            let mut slots = Slots { idle: idle[batcher], room: 0 };
            move || {
                for _ in 0..pushed[batcher] {
                    model.push(batcher);
                }
                for _ in 0..released[batcher] {
                    slots.idle += 1;
                    model.dispatch(batcher, &mut slots);
                }
                model.hear(batcher, &mut slots);
                slots
            }
        };
        let other = thread::spawn(play(1));
        let here = play(0)();
        let mut slots = [here, other.join().unwrap()];
        while (0..2).any(|batcher| model.hear(batcher, &mut slots[batcher])) {}
        let queued = *model.queued.lock().unwrap();
        let rests = slots.iter().map(|it| it.idle).sum::<usize>();
        assert!(queued == 0 || rests == 0, "{queued} wait while {rests} rest");
    });
}

#[test]
fn a_request_finds_whoever_rests() {
    check([0, 1], [0, 0], [1, 0]);
    check([1, 1], [0, 0], [2, 0]);
    check([1, 1], [0, 0], [1, 1]);
    check([0, 2], [0, 0], [2, 0]);
}

#[test]
fn whoever_is_released_finds_what_was_queued_meanwhile() {
    check([0, 0], [0, 1], [1, 0]);
    check([0, 0], [1, 1], [1, 0]);
    check([0, 0], [1, 1], [1, 1]);
    check([1, 0], [0, 1], [2, 0]);
}

/// All instances are busy; one gets room in front of it while another thread queues a request there.
#[test]
fn a_request_waits_in_front_of_an_instance_that_has_room_since_now() {
    loom::model(|| {
        let calls = [Mutex::new(0), Mutex::new(0)];
        let model = Arc::new(Model { board: RestBoard::new(2), queued: Mutex::new(0), calls });
        let asking = model.clone();
        let asker = thread::spawn(move || asking.push(0));
        let mut slots = Slots { idle: 0, room: 1 };
        model.dispatch(0, &mut slots);
        asker.join().unwrap();
        while model.hear(0, &mut slots) {}
        let queued = *model.queued.lock().unwrap();
        assert!(queued == 0 || slots.room == 0, "{queued} wait while there is room");
    });
}
