//! Tests of the sequence scheduler: arrivals in virtual time, and the executions expected of them.

mod iterations;
mod losses;
mod play;
mod seeded;

use self::play::{Play, check};
use troupe_base::error::Error;

const DIRECT: &str = "direct { }";
const OLDEST: &str = "oldest { max_candidate_sequences: 3 }";
/// What `A` is told if it is not known.
const START: &str = "inference request for sequence A to model 'm' must specify the START flag on \
                     the first request of the sequence";

#[test]
fn each_sequence_has_a_row_for_itself() {
    let play = Play { strategy: DIRECT, batch: 3, instances: 1, takes: 10, ..Play::default() };
    check(
        &play,
        "0:A+ 1:B+ 1:C+ 2:A 2:C 12:B! 12:C!",
        &["0@0 A1", "10@0 A2 B1 C1", "20@0 - B2 C2", "30@0 - - C3"],
    );
}

#[test]
fn a_sequence_that_ends_leaves_its_row_to_the_backlog_first_come_first_served() {
    let play = Play { strategy: DIRECT, batch: 1, instances: 2, takes: 5, ..Play::default() };
    check(
        &play,
        "0:A+ 0:B+ 1:C+ 1:D+! 2:C! 3:A 4:B! 11:A!",
        &["0@0 A1", "0@1 B1", "5@0 A2", "5@1 B2", "10@1 C1", "11@0 A3", "15@1 C2", "16@0 D1"],
    );
}

#[test]
fn slots_are_given_out_lowest_number_first_over_all_instances() {
    let play = Play { strategy: DIRECT, batch: 2, instances: 2, takes: 1, ..Play::default() };
    check(&play, "0:A+ 0:B+ 0:C+ 0:D+ 0:E+", &["0@0 A1 C1", "0@1 B1 D1"]);
}

#[test]
fn requests_of_other_shapes_wait_for_the_next_batch() {
    let play = Play { strategy: DIRECT, batch: 3, instances: 1, takes: 10, ..Play::default() };
    check(&play, "0:A+ 1:A*2 2:B+ 3:C+*2", &["0@0 A1", "10@0 A2 - C1", "20@0 - B1"]);
}

#[test]
fn a_batch_waits_until_enough_rows_are_ready_or_its_time_is_over() {
    let strategy = "direct { max_queue_delay_microseconds: 8000 minimum_slot_utilization: 0.75 }";
    let play = Play { strategy, batch: 4, instances: 1, takes: 1, ..Play::default() };
    check(&play, "0:A+ 2:B+ 3:C+ 10:B 12:A 21:A", &["3@0 A1 B1 C1", "18@0 A2 B2", "29@0 A3"]);
    let strategy = "direct { minimum_slot_utilization: 1.0 }";
    check(&Play { strategy, ..play }, "0:A+ 2:B+", &["0@0 A1", "2@0 - B1"]);
}

#[test]
fn the_oldest_requests_run_together_one_of_each_sequence() {
    let play = Play { strategy: OLDEST, batch: 2, instances: 1, takes: 10, ..Play::default() };
    check(
        &play,
        "0:A+ 1:B+ 2:A 3:C+ 4:D+ 12:B! 13:C!",
        &["0@0 A1", "10@0 B1 A2", "20@0 C1 B2", "30@0 D1 C2"],
    );
}

#[test]
fn the_oldest_wait_for_a_preferred_size_but_not_for_long() {
    let strategy = "oldest { max_candidate_sequences: 4 preferred_batch_size: [3] \
                    max_queue_delay_microseconds: 6000 }";
    let play = Play { strategy, batch: 4, instances: 1, takes: 1, ..Play::default() };
    check(&play, "0:A+ 2:B+ 3:C+ 10:B 12:A", &["3@0 A1 B1 C1", "16@0 B2 A2"]);
}

#[test]
fn what_is_no_request_of_a_sequence_is_refused_in_this_order() {
    let play = Play { strategy: DIRECT, batch: 2, instances: 1, takes: 1, ..Play::default() };
    check(
        &play,
        "0:A#2 1:?#2 2:?+ 3:A 4:A! 5:A+ 6:A! 7:A",
        &[
            "0 A1: inference request to model 'm' must specify batch-size 1 due to requirements of \
             sequence batcher",
            "1 ?1: inference request to model 'm' must specify batch-size 1 due to requirements of \
             sequence batcher",
            "2 ?2: inference request to model 'm' must specify a non-zero or non-empty correlation \
             ID",
            &format!("3 A2: {START}"),
            &format!("4 A3: {START}"),
            "5@0 A4",
            "6@0 A5",
            &format!("7 A6: {START}"),
        ],
    );
}

#[test]
fn an_id_is_forgotten_when_its_last_request_is_queued() {
    let play = Play { strategy: DIRECT, batch: 2, instances: 1, takes: 10, ..Play::default() };
    // The second sequence of that id has a slot of its own, beside the first one.
    check(
        &play,
        "0:A+ 1:A! 2:A 3:A+ 4:A!",
        &["0@0 A1", &format!("2 A3: {START}"), "10@0 A2 A4", "20@0 - A5"],
    );
}

#[test]
fn a_sequence_may_begin_again_before_it_has_ended() {
    let play = Play { strategy: DIRECT, batch: 2, instances: 1, takes: 10, ..Play::default() };
    check(&play, "0:A+ 1:A 2:A+ 3:A!", &["0@0 A1", "10@0 A2", "20@0 A3", "30@0 A4"]);
}

#[test]
fn who_is_idle_for_too_long_is_forgotten_and_leaves_the_slot() {
    let play = Play { strategy: DIRECT, batch: 1, instances: 1, takes: 10, idle: 20 };
    // Not while it waits or runs: 10 + 20 after the end of A1, and B waits however long.
    check(
        &play,
        "0:A+ 1:B+ 31:A 50:B",
        &["0@0 A1", "30@0 B1", &format!("31 A2: {START}"), "50@0 B2"],
    );
    check(&play, "0:A+ 29:A 60:A", &["0@0 A1", "29@0 A2", &format!("60 A3: {START}")]);
}

#[test]
fn a_sequence_in_the_backlog_waits_as_long_as_the_shortest_timeout_of_its_requests() {
    let play = Play { strategy: DIRECT, batch: 1, instances: 1, takes: 10, ..Play::default() };
    let expired = "timeout of the corresponding sequence has been expired";
    check(
        &play,
        // In a slot a timeout means nothing.
        "0:A+~1 1:A~1 2:B+~30 3:B~9 4:C+~50 20:B 40:A!",
        &[
            "0@0 A1",
            "10@0 A2",
            &format!("12 B1: {expired}"),
            &format!("12 B2: {expired}"),
            "20 B3: inference request for sequence B to model 'm' must specify the START flag on \
             the first request of the sequence",
            "40@0 A3",
            "50@0 C1",
        ],
    );
}

#[test]
fn who_cancels_one_request_of_a_sequence_cancels_those_that_wait() {
    let play = Play { strategy: DIRECT, batch: 1, instances: 1, takes: 10, ..Play::default() };
    let cancelled = |ms, who| format!("{ms} {who}: {}", Error::cancelled());
    check(
        &play,
        // In the backlog any of them, in a slot the next one.
        "0:A+ 1:A% 2:A 3:B+ 4:B% 5:C+ 11:A",
        &[
            "0@0 A1",
            &cancelled(10, "A2"),
            &cancelled(10, "A3"),
            &cancelled(10, "B1"),
            &cancelled(10, "B2"),
            "10@0 C1",
            &format!("11 A4: {START}"),
        ],
    );
}
