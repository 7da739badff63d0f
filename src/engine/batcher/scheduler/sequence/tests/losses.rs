//! Instances that end while they hold sequences.

use super::{
    super::super::decision::Scheduler,
    play::{END, Play, Stage},
};

const LOST: &str =
    "of model 'm' is lost: the instance that it was told to has ended. Begin it anew";

/// An instance of two rows is lost at 5 ms, while it executes; at 10 ms it is released. Expected is
/// what is seen from then on.
fn check(arrivals: &[(u64, &str)], puts_back: bool, expected: &[&str]) {
    let mut stage = Stage::new(&Play { batch: 2, takes: 10, ..Play::default() });
    for ms in 0..END {
        if ms == 5 {
            let lost = stage.scheduler.lost(0);
            stage.note(ms, lost);
            let in_flight = std::mem::take(&mut stage.in_flight[0]);
            for pending in in_flight.into_iter().filter(|_| puts_back) {
                if !pending.request.context.is_null {
                    stage.scheduler.put_back(pending);
                }
            }
        }
        stage.release(ms);
        for (_, text) in arrivals.iter().filter(|it| it.0 == ms) {
            stage.arrive(ms, text);
        }
        stage.run(ms);
    }
    assert_eq!(stage.seen, expected, "{arrivals:?}");
    assert_eq!(stage.scheduler.len(), 0);
}

#[test]
fn what_an_instance_was_told_is_lost_with_it_and_its_slots_are_free() {
    check(
        &[(0, "A+"), (1, "A"), (2, "B+"), (3, "C+"), (12, "A")],
        false,
        &[
            "0@0 A1",
            &format!("5 A2: sequence A {LOST}"),
            // Nobody was told anything of them.
            "10@0 C1 B1",
            "12 A3: inference request for sequence A to model 'm' must specify the START flag on \
             the first request of the sequence",
        ],
    );
}

#[test]
fn a_sequence_that_begins_again_behind_what_is_lost_goes_on() {
    check(
        &[(0, "A+"), (1, "A"), (2, "A+"), (3, "A"), (12, "A")],
        false,
        &["0@0 A1", &format!("5 A2: sequence A {LOST}"), "10@0 A3", "20@0 A4", "30@0 A5"],
    );
}

#[test]
fn sequences_begin_where_an_instance_is_up() {
    let mut stage = Stage::new(&Play { batch: 1, instances: 2, takes: 5, ..Play::default() });
    for ms in 0..END {
        match ms {
            1 => stage.scheduler.set_up(0, false),
            20 => stage.scheduler.set_up(0, true),
            30 => stage.scheduler.set_up(0, false),
            31 => stage.scheduler.set_up(1, false),
            _ => (),
        }
        stage.release(ms);
        let arrivals = [(2, "A+"), (3, "B+!"), (25, "B+!"), (26, "A!"), (40, "C+!"), (40, "D+!")];
        for (_, text) in arrivals.iter().filter(|it| it.0 == ms) {
            stage.arrive(ms, text);
        }
        stage.run(ms);
    }
    // While both are down they are given what there is, and will say that they are down.
    let expected = ["2@1 A1", "20@0 B1", "25@0 B2", "26@1 A2", "40@0 C1", "40@1 D1"];
    assert_eq!(stage.seen, expected);
}

#[test]
fn what_was_not_begun_is_executed_if_it_begins_a_sequence() {
    check(&[(0, "A+!")], true, &["0@0 A1", "10@0 A1"]);
}
