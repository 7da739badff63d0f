//! Requests that their model has executed once more, and those without an id.

use super::{
    super::super::decision::Scheduler,
    play::{END, Play, Stage},
};
use troupe_base::{request::Correlation, statistics::Timing};

const ITERATIVE: &str = "iterative_sequence: true oldest { max_candidate_sequences: 4 }";

/// Executions take 10 ms, in one instance; requests whose names are in `again` are executed once
/// more by each of them, those before 100 ms. Expected is what is seen.
fn check(batch: u32, arrivals: &[(u64, &str)], again: &str, expected: &[&str]) {
    let play = Play { strategy: ITERATIVE, batch, takes: 10, ..Play::default() };
    let mut stage = Stage::new(&play);
    for ms in 0..END {
        if ms < 100 && ms % 10 == 0 {
            iterate(&mut stage, ms, again);
        }
        stage.release(ms);
        for (_, text) in arrivals.iter().filter(|it| it.0 == ms) {
            stage.arrive(ms, text);
        }
        stage.run(ms);
    }
    stage.seen.truncate(expected.len());
    assert_eq!(stage.seen, expected, "{arrivals:?}");
    assert_eq!(stage.scheduler.len(), 0);
}

/// What is in flight is through, and some of it goes on.
fn iterate(stage: &mut Stage, ms: u64, again: &str) {
    let at = stage.at(ms);
    for mut pending in std::mem::take(&mut stage.in_flight[0]) {
        if again.contains(&pending.request.context.id[..1]) {
            pending.reply.iterated(Timing::default(), at);
            assert!(stage.scheduler.reschedule(pending, at).is_ok());
        }
    }
}

#[test]
fn who_is_executed_once_more_waits_behind_those_that_came_meanwhile() {
    check(
        1,
        &[(0, "A+"), (1, "B+!"), (12, "C+!")],
        "A",
        &["0@0 A1", "10@0 B1", "20@0 A1", "30@0 C1", "40@0 A1", "50@0 A1"],
    );
    check(2, &[(0, "A+"), (0, "B+"), (5, "C+!")], "AB", &["0@0 A1 B1", "10@0 C1 A1", "20@0 B1 A1"]);
    // Without an id it is the same.
    check(1, &[(0, "?"), (1, "B+!")], "?", &["0@0 ?1", "10@0 B1", "20@0 ?1"]);
}

/// The ids of what is in flight.
fn ids(stage: &Stage) -> Vec<Correlation> {
    let ids = stage.in_flight[0].iter().map(|it| it.request.context.correlation.clone());
    ids.collect()
}

#[test]
fn no_client_begins_with_the_id_of_a_request_that_has_none() {
    let play = Play { strategy: ITERATIVE, batch: 2, takes: 10, ..Play::default() };
    let mut stage = Stage::new(&play);
    stage.arrive(0, "?");
    stage.run(0);
    let [id] = &*ids(&stage) else { panic!("one request runs") };
    let id = id.clone();
    let expected = "is that of a request without an id";
    for ms in [1, 12] {
        if ms == 12 {
            iterate(&mut stage, 10, "?");
            stage.release(10);
            stage.run(10);
            assert_eq!(ids(&stage), std::slice::from_ref(&id), "it goes on with its id");
        }
        stage.arrive_as(ms, "B+", id.clone());
        assert!(stage.seen.last().unwrap().contains(expected), "{:?}", stage.seen);
    }
    // It is answered: the id is free.
    stage.in_flight[0].clear();
    stage.release(20);
    stage.arrive_as(20, "B+", id.clone());
    stage.run(20);
    assert_eq!(ids(&stage), [id]);
}
