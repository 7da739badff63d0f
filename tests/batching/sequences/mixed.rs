//! Many sequences at once, while workers end, clients go away and models are reloaded.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use super::models::{ask, direct_with, oldest_with, request};
use crate::support::{Model, Repository, Server, at_once, process::descendants, until};

/// Seconds; more with `SEQUENCE_SECONDS=600 cargo test --test main mixed -- --nocapture`.
const SECONDS: u64 = 4;
const CLIENTS: usize = 6;
const MODELS: [&str; 2] = ["direct", "oldest"];
/// Of both instances of a model.
const SLOTS: usize = 6;

/// What a sequence may be told after its worker has ended; a wrong sum never.
const LOSSES: [&str; 3] =
    ["it was ended by signal 9", "must specify the START flag on the first request", "is lost: "];

/// What the clients of one server do, and what came of it.
struct Play {
    server: Server,
    /// Do workers end? If not, no sequence may be lost, and none is forgotten because it is idle:
    /// clients that go away come back to end theirs.
    has_kills: bool,
    is_over: AtomicBool,
    kills: AtomicUsize,
    lost: AtomicUsize,
}

fn model(name: &str, load: usize, has_kills: bool) -> Model {
    let idle = if has_kills { "" } else { "max_sequence_idle_microseconds: 3600000000" };
    let model = match name {
        "direct" => direct_with(3, idle),
        _ => oldest_with(3, "UINT64", idle),
    };
    let model = model.with("instance_group { count: 2 kind: KIND_CPU }");
    model.parameter("load", &load.to_string())
}

/// Numbers that are random enough.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }
}

impl Play {
    fn new(has_kills: bool) -> Play {
        let repository = Repository::of(MODELS.map(|it| (it, model(it, 0, has_kills))));
        let server = Server::explicit(repository);
        for name in MODELS {
            server.load(name).ok();
        }
        let (is_over, kills, lost) = Default::default();
        Play { server, has_kills, is_over, kills, lost }
    }

    /// Clients for as long as a run takes, and reloads beside them; prints and answers how many
    /// sums were right.
    fn run(&self) -> usize {
        let seconds = std::env::var("SEQUENCE_SECONDS").ok().and_then(|it| it.parse().ok());
        let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(SECONDS));
        let mut load = 0;
        let right: usize = thread::scope(|scope| {
            let begin = |number| scope.spawn(move || self.client(number));
            let clients: Vec<_> = (0..CLIENTS).map(begin).collect();
            while Instant::now() < end && clients.iter().all(|it| !it.is_finished()) {
                load += 1;
                let name = MODELS[load % 2];
                let config = model(name, load, self.has_kills).config;
                self.server.repository.write_file(&format!("{name}/config.pbtxt"), &config);
                self.server.load(name).ok();
                thread::park_timeout(Duration::from_millis(300));
            }
            self.is_over.store(true, SeqCst);
            clients.into_iter().map(|it| it.join().expect("its own assertion failed")).sum()
        });
        let (kills, lost) = (self.kills.load(SeqCst), self.lost.load(SeqCst));
        println!("{right} right sums, {lost} sequences lost by {kills} kills, {load} reloads");
        right
    }

    /// Runs one sequence after the other; how many steps were right.
    fn client(&self, number: usize) -> usize {
        let mut numbers = Numbers(number as u64 + 1);
        let (mut id, mut right) = (1000 * (number as i64 + 1), 0);
        while !self.is_over.load(SeqCst) {
            id += 1;
            right += self.sequence(&mut numbers, id);
        }
        right
    }

    fn sequence(&self, numbers: &mut Numbers, id: i64) -> usize {
        let model = MODELS[numbers.below(2) as usize];
        let steps = 1 + numbers.below(6);
        let mut total = 0;
        for step in 0..steps {
            let is_last = step + 1 == steps;
            let start = if step == 0 { "+" } else { "" };
            let flags = [start, if is_last { "!" } else { "" }].concat();
            if self.is_broken_off(numbers, (model, id), (start, &flags)) {
                return step as usize;
            }
            let more = numbers.below(100) as i32;
            total += more;
            let answer = ask(&self.server, model, id, (&flags, more));
            if answer.status != 200 {
                let error = answer.error();
                let may_be = self.has_kills && LOSSES.iter().any(|it| error.contains(it));
                assert!(may_be, "{model}, {id} {flags}, step {step} of {steps}: {error}");
                self.lost.fetch_add(1, SeqCst);
                return step as usize;
            }
            let id_is_added = if model == "oldest" && is_last { id } else { 0 };
            let expected = [f64::from(total) + id_is_added as f64];
            assert_eq!(answer.numbers("OUTPUT"), expected, "{model}");
        }
        steps as usize
    }

    /// Now and then the client goes away, or the worker ends.
    fn is_broken_off(
        &self,
        numbers: &mut Numbers,
        (model, id): (&str, i64),
        (start, flags): (&str, &str),
    ) -> bool {
        match numbers.below(60) {
            // The sequence is idle from then on.
            0 if self.has_kills => {
                drop(self.server.http.start(model, &request(id, flags, 1)));
                true
            }
            0 => {
                drop(self.server.http.start(model, &request(id, &format!("{start}!"), 1)));
                // The server need not have seen that request; one that waits is cancelled with it.
                until("the sequence to end", || {
                    let answer = ask(&self.server, model, id, ("+!", 1));
                    let is_right = answer.status == 200 || answer.error().contains("cancel");
                    assert!(is_right, "{model}: {}", answer.error());
                    answer.status == 200
                });
                true
            }
            1 if self.has_kills && numbers.below(2) == 0 => {
                self.kills.fetch_add(1, SeqCst);
                let answer = ask(&self.server, model, id, (flags, 1000));
                assert!(LOSSES.iter().any(|it| answer.error().contains(it)));
                true
            }
            _ => false,
        }
    }

    /// All slots of both instances, at once: who finds none is told so after a while.
    fn all_slots_are_free(&self, model: &str) -> bool {
        let ask = |flags: &str| {
            at_once(SLOTS, |id| {
                let mut request = request(id as i64 + 1, flags, 1);
                request["parameters"]["timeout"] = 10_000_000.into();
                self.server.infer(model, &request).status == 200
            })
        };
        let (begun, ended) = (ask("+"), ask("!"));
        begun.into_iter().chain(ended).all(|it| it)
    }

    fn nothing_waits(&self) {
        for name in MODELS {
            let pending = ["model=\"", name, "\""].concat();
            until("nothing to wait", || {
                let waiting = self.server.metric("nv_inference_pending_request_count", &[&pending]);
                waiting == Some(0.)
            });
        }
        self.server.is_well();
    }
}

#[test]
fn clients_that_go_workers_that_end_and_reloads_leave_right_sums_and_free_slots() {
    let play = Play::new(true);
    assert!(play.run() != 0);
    for name in MODELS {
        // Those of sequences that nobody ended are idle before long, and leave them.
        until("all slots to be free", || play.all_slots_are_free(name));
    }
    play.nothing_waits();
}

#[test]
fn where_no_worker_ends_no_sequence_is_lost_and_no_slot_stays_taken() {
    let play = Play::new(false);
    let workers = descendants(play.server.pid).len();
    assert!(play.run() != 0);
    play.nothing_waits();
    until("the models before reloads to be let go", || {
        descendants(play.server.pid).len() <= workers
    });
    // Nobody is forgotten here because of being idle: what is taken now stays taken.
    for name in MODELS {
        let labels = [&*["model=\"", name, "\""].concat(), "state=\"taken\""];
        let taken = || play.server.metric("troupe_sequence_slots", &labels);
        until("the last sequence to leave its slot", || taken() == Some(0.));
        assert!(play.all_slots_are_free(name), "{name}");
    }
}
