//! Instances that end while they hold sequences.

use bytes::Bytes;

use super::{
    super::super::decision::Scheduler,
    play::{END, Play, Stage, config},
};
use troupe_base::{budget::ByteBudget, request::StateSet};

const LOST: &str =
    "of model 'm' is lost: the instance that it was told to has ended. Begin it anew";

/// An instance of two rows is lost at 5 ms, while it executes; at 10 ms it is released. Expected is
/// what is seen from then on.
fn check(arrivals: &[(u64, &str)], puts_back: bool, expected: &[&str]) {
    let mut stage = Stage::new(&Play { batch: 2, takes: 10, ..Play::default() });
    for ms in 0..END {
        if ms == 5 {
            let at = stage.at(ms);
            let lost = stage.scheduler.lost(0, at);
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
fn a_sequence_that_nobody_waited_for_is_told_once_that_it_is_lost() {
    let no_start = "inference request for sequence A to model 'm' must specify the START flag on the \
                    first request of the sequence";
    check(
        &[(0, "A+"), (12, "A"), (13, "A"), (14, "A+"), (25, "A")],
        false,
        &[
            "0@0 A1",
            &format!("12 A2: sequence A {LOST}"),
            &format!("13 A3: {no_start}"),
            "14@0 A4",
            "25@0 A5",
        ],
    );
    // Who begins it anew need not be told; neither need those whose sequences had ended.
    check(
        &[(0, "A+"), (12, "A+!"), (30, "A")],
        false,
        &["0@0 A1", "12@0 A2", &format!("30 A3: {no_start}")],
    );
    check(&[(0, "A+!"), (12, "A")], false, &["0@0 A1", &format!("12 A2: {no_start}")]);
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

/// Instance 0 has stayed down from one millisecond to the other.
fn play_down(
    mut stage: Stage,
    down: std::ops::Range<u64>,
    arrivals: &[(u64, &str)],
) -> Vec<String> {
    for ms in 0..END {
        if ms == down.start {
            // Nothing is given to it.
            stage.busy[0] = Some(down.end);
            stage.scheduler.set_up(0, false);
        }
        stage.release(ms);
        if ms == down.end {
            stage.scheduler.set_up(0, true);
        }
        for (_, text) in arrivals.iter().filter(|it| it.0 == ms) {
            stage.arrive(ms, text);
        }
        stage.run(ms);
    }
    assert_eq!(stage.scheduler.len(), 0);
    stage.seen
}

#[test]
fn what_has_not_begun_leaves_an_instance_that_stays_down() {
    let play = Play { batch: 2, instances: 2, takes: 10, ..Play::default() };
    let busy = |play: &Play| {
        let mut stage = Stage::new(play);
        stage.busy[0] = Some(150);
        stage
    };
    // A waits at the one that is busy, and then down; there is room at the other one.
    let arrivals = [(0, "A+"), (1, "B+"), (12, "A!"), (12, "B!")];
    let seen = play_down(busy(&play), 5..100, &arrivals);
    assert_eq!(seen, ["1@1 B1", "11@1 - A1", "21@1 B2 A2"]);
    // There is none until B has ended, and then A goes before those of the backlog.
    let play = Play { batch: 1, ..play };
    let arrivals = [(0, "A+"), (1, "B+"), (2, "C+!"), (12, "B!"), (23, "A!")];
    let seen = play_down(busy(&play), 5..100, &arrivals);
    assert_eq!(seen, ["1@1 B1", "12@1 B2", "22@1 A1", "32@1 A2", "42@1 C1"]);
    // The instance is up again before.
    let seen = play_down(busy(&play), 5..20, &arrivals);
    assert_eq!(seen, ["1@1 B1", "12@1 B2", "20@0 A1", "22@1 C1", "30@0 A2"]);
}

#[test]
fn a_sequence_whose_state_is_kept_goes_on_elsewhere() {
    const STATE: &str = "direct { } state { input_name: 's' output_name: 'S' \
                         data_type: TYPE_UINT8 dims: -1 }";
    let play = Play { strategy: STATE, instances: 2, takes: 10, ..Play::default() };
    let arrivals = [(0, "A+"), (15, "A"), (60, "A!")];
    let stage = Stage::new(&play);
    // What the model itself was told is at the instance that is down: A waits for it.
    assert_eq!(play_down(stage, 12..50, &arrivals), ["0@0 A1", "50@0 A2", "60@0 A3"]);
    let states =
        StateSet::new(&config(&play), vec![Bytes::from_static(b"i")], &ByteBudget::unlimited());
    let mut stage = Stage::new(&play);
    stage.scheduler = stage.scheduler.keeping(states.unwrap());
    assert_eq!(play_down(stage, 12..50, &arrivals), ["0@0 A1", "15@1 A2", "60@1 A3"]);
}

#[test]
fn what_was_not_begun_is_executed_if_it_begins_a_sequence() {
    check(&[(0, "A+!")], true, &["0@0 A1", "10@0 A1"]);
}
