//! Many sequences at once, while workers end, clients go away and models are reloaded.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use super::models::{ask, direct, oldest, request};
use crate::support::{Model, Repository, Server, at_once, until};

/// Seconds; more with `SEQUENCE_SECONDS=600 cargo test --test main mixed -- --nocapture`.
const SECONDS: u64 = 4;
const CLIENTS: usize = 6;
const MODELS: [&str; 2] = ["direct", "oldest"];

/// What a sequence may be told after its worker has ended; a wrong sum never.
const LOSSES: [&str; 3] =
    ["it was ended by signal 9", "must specify the START flag on the first request", "is lost: "];

fn model(name: &str, load: usize) -> Model {
    let model = if name == "direct" { direct(3) } else { oldest(3, "UINT64") };
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

/// Runs one sequence after the other; how many steps were right.
fn client(server: &Server, number: usize, is_over: &AtomicBool, lost: &AtomicUsize) -> usize {
    let mut numbers = Numbers(number as u64 + 1);
    let (mut id, mut right) = (1000 * (number as i64 + 1), 0);
    while !is_over.load(SeqCst) {
        let model = MODELS[numbers.below(2) as usize];
        id += 1;
        let steps = 1 + numbers.below(6);
        let mut total = 0;
        for step in 0..steps {
            let start = if step == 0 { "+" } else { "" };
            let end = if step + 1 == steps { "!" } else { "" };
            let flags = format!("{start}{end}");
            match numbers.below(60) {
                // The client goes away; its sequence is idle from then on.
                0 => {
                    drop(server.http.start(model, &request(id, &flags, 1)));
                    break;
                }
                // The worker ends.
                1 if numbers.below(2) == 0 => {
                    let answer = ask(server, model, id, (&flags, 1000));
                    assert!(LOSSES.iter().any(|it| answer.error().contains(it)));
                    break;
                }
                _ => (),
            }
            let more = numbers.below(100) as i32;
            total += more;
            let answer = ask(server, model, id, (&flags, more));
            if answer.status != 200 {
                let error = answer.error();
                assert!(LOSSES.iter().any(|it| error.contains(it)), "{model}: {error}");
                lost.fetch_add(1, SeqCst);
                break;
            }
            let id_is_added = if model == "oldest" && !end.is_empty() { id } else { 0 };
            assert_eq!(
                answer.numbers("OUTPUT"),
                [f64::from(total) + id_is_added as f64],
                "{model}"
            );
            right += 1;
        }
    }
    right
}

#[test]
fn clients_that_go_workers_that_end_and_reloads_leave_right_sums_and_free_slots() {
    let repository = Repository::of(MODELS.map(|it| (it, model(it, 0))));
    let server = Server::explicit(repository);
    for name in MODELS {
        server.load(name).ok();
    }
    let seconds = std::env::var("SEQUENCE_SECONDS").ok().and_then(|it| it.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(SECONDS));
    let (is_over, lost) = (AtomicBool::new(false), AtomicUsize::new(0));
    let right: usize = thread::scope(|scope| {
        let (server, is_over, lost) = (&server, &is_over, &lost);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| scope.spawn(move || client(server, number, is_over, lost)))
            .collect();
        let mut load = 0;
        while Instant::now() < end && clients.iter().all(|it| !it.is_finished()) {
            load += 1;
            let name = MODELS[load % 2];
            let path = format!("{name}/config.pbtxt");
            server.repository.write_file(&path, &model(name, load).config);
            server.load(name).ok();
            thread::park_timeout(Duration::from_millis(300));
        }
        is_over.store(true, SeqCst);
        clients.into_iter().map(|it| it.join().expect("its own assertion failed")).sum()
    });
    println!("{right} right sums, {} sequences lost", lost.load(SeqCst));
    assert!(right != 0);
    for name in MODELS {
        // All slots of both instances, at once: those of sequences that nobody ended are idle before
        // long, and leave them.
        until("all slots to be free", || {
            let begun = at_once(6, |id| ask(&server, name, id as i64 + 1, ("+", 1)).status);
            let ended = at_once(6, |id| ask(&server, name, id as i64 + 1, ("!", 1)).status);
            begun.into_iter().chain(ended).all(|status| status == 200)
        });
        let pending = ["model=\"", name, "\""].concat();
        until("nothing to wait", || {
            server.metric("nv_inference_pending_request_count", &[&pending]) == Some(0.)
        });
    }
    server.is_well();
}
