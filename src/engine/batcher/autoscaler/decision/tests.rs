//! Stories of queues, second by second, and how many instances they lead to.

use super::*;

/// What happens in each of so many seconds.
#[derive(Clone, Copy)]
struct Phase {
    seconds: u32,
    /// Requests that are executed, what each has waited in milliseconds, and how many instances they
    /// keep busy.
    executed: u64,
    queue_ms: u64,
    busy: f64,
    pending: u64,
    in_flight: u64,
    /// Requests that the queue refuses.
    refused: u64,
}

/// Requests come and go, and have waited so long.
fn steady(seconds: u32, queue_ms: u64, busy: f64) -> Phase {
    Phase { seconds, executed: 10, queue_ms, busy, pending: 1, in_flight: 5, refused: 0 }
}

/// Nobody asks.
fn idle(seconds: u32) -> Phase {
    stuck(seconds, 0, 0)
}

/// So many are in flight, some of them wait, and nothing ends.
fn stuck(seconds: u32, pending: u64, in_flight: u64) -> Phase {
    Phase { seconds, executed: 0, queue_ms: 0, busy: 0.0, pending, in_flight, refused: 0 }
}

/// From 1 to 8 instances; more if requests wait longer than 50 ms for 3 s, fewer after 10 s.
fn scaling() -> InstanceScaling {
    InstanceScaling {
        min: 1,
        max: 8,
        target_queue: Duration::from_millis(50),
        up_after: Duration::from_secs(3),
        down_after: Duration::from_secs(10),
    }
}

/// Each change, and the second it comes in; a look follows each second.
fn story(begin: u32, phases: &[Phase], scaling: &InstanceScaling) -> Vec<(u32, u32)> {
    story_of(begin, 1, phases, scaling)
}

/// The same of a model that may have so many executions at once for each instance on one device.
fn story_of(
    begin: u32,
    places: usize,
    phases: &[Phase],
    scaling: &InstanceScaling,
) -> Vec<(u32, u32)> {
    let start = Instant::now();
    let mut watch = QueueWatch::default();
    let mut sample = QueueSample { places, ..QueueSample::default() };
    let (mut count, mut second, mut changes) = (begin, 0, Vec::new());
    for phase in phases {
        for _ in 0..phase.seconds {
            second += 1;
            sample.executed += phase.executed;
            sample.queued += Duration::from_millis(phase.queue_ms * phase.executed);
            sample.refused += phase.refused;
            sample.busy += Duration::from_secs_f64(phase.busy);
            (sample.pending, sample.in_flight) = (phase.pending, phase.in_flight);
            let now = start + Duration::from_secs(second.into());
            let wanted = watch.look(now, sample, count, scaling);
            if wanted != count {
                (count, _) = (wanted, watch.changed());
                changes.push((second, count));
            }
        }
    }
    changes
}

#[track_caller]
fn check(begin: u32, phases: &[Phase], expected: &[(u32, u32)]) {
    assert_eq!(story(begin, phases, &scaling()), expected);
}

#[test]
fn instances_are_added_while_requests_wait_for_too_long() {
    // Half as many again, each time after 3 s of the same.
    check(1, &[steady(30, 60, 1.0)], &[(4, 2), (8, 3), (12, 5), (16, 8)]);
    check(1, &[steady(30, 50, 1.0)], &[]);
    // A moment is not enough, nor are moments.
    check(1, &[steady(3, 900, 1.0), steady(30, 30, 1.0)], &[]);
    let moments: Vec<Phase> =
        (0..20).flat_map(|_| [steady(3, 900, 1.0), steady(1, 30, 1.0)]).collect();
    check(1, &moments, &[]);
}

#[test]
fn those_that_wait_while_nothing_ends_wait_for_too_long() {
    check(1, &[stuck(6, 3, 4)], &[(5, 2)]);
    // What executes for long and keeps nobody waiting is no reason.
    check(1, &[stuck(60, 0, 1)], &[]);
    // It says nothing about those that waited before, either.
    check(1, &[steady(2, 60, 1.0), stuck(2, 0, 1), steady(1, 60, 1.0)], &[(5, 2)]);
}

#[test]
fn instances_go_when_fewer_would_have_done_for_long() {
    check(8, &[idle(45)], &[(11, 4), (22, 2), (33, 1)]);
    // At most a half, and no more than are needed: 2.4 are busy, which is 80 % of 3.
    check(8, &[steady(60, 10, 2.4)], &[(11, 4), (22, 3)]);
    // Those that remain would be too busy: none goes.
    check(2, &[steady(60, 10, 1.0)], &[]);
    // Between a half of the target and the target nothing changes.
    check(4, &[steady(60, 40, 0.1)], &[]);
    check(4, &[idle(9), steady(1, 60, 1.0), idle(10)], &[]);
    // Nobody knows what is done by those that have not ended.
    check(4, &[stuck(60, 0, 4)], &[]);
}

#[test]
fn what_was_added_stays_for_a_while() {
    let wave = [steady(4, 60, 1.0), idle(9), steady(4, 60, 1.0), idle(9)];
    check(1, &wave, &[(4, 2), (17, 3)]);
    check(1, &[steady(4, 60, 1.0), idle(12)], &[(4, 2), (15, 1)]);
}

#[test]
fn a_reload_moves_the_limits_at_once() {
    let limits = |min, max| InstanceScaling { min, max, ..scaling() };
    assert_eq!(story(1, &[idle(1)], &limits(3, 8)), [(1, 3)]);
    assert_eq!(story(8, &[steady(1, 900, 8.0)], &limits(1, 2)), [(1, 2)]);
    assert_eq!(story(4, &[idle(40)], &limits(4, 4)), []);
    assert_eq!(story(2, &[idle(40)], &limits(2, 8)), []);
}

#[test]
fn refused_requests_have_waited_for_too_long() {
    let refuses = |phase| Phase { refused: 9, ..phase };
    // Those that had room waited shortly.
    check(1, &[refuses(steady(30, 1, 1.0))], &[(4, 2), (8, 3), (12, 5), (16, 8)]);
    check(8, &[refuses(steady(30, 1, 0.1))], &[]);
    // Nothing ends meanwhile, or nothing is executed at all.
    check(1, &[refuses(stuck(4, 0, 1))], &[(4, 2)]);
    check(1, &[refuses(idle(4))], &[(4, 2)]);
    // A moment is not enough.
    check(1, &[refuses(steady(3, 1, 1.0)), steady(6, 1, 1.0)], &[]);
}

#[test]
fn instances_of_all_devices_and_overlapping_executions_are_busy_together() {
    // Of 4 instances on each of 2 devices 2.4 are busy in all: 1.2 on each.
    let few = [steady(30, 10, 2.4)];
    assert_eq!(story_of(4, 1, &few, &scaling()), [(11, 3)]);
    assert_eq!(story_of(4, 2, &few, &scaling()), [(11, 2)]);
    // Two instances on each are as good as all of the time busy.
    assert_eq!(story_of(2, 2, &[steady(30, 10, 3.9)], &scaling()), []);
    // Coroutines: 20 executions at once are what 2 instances with 16 places are busy with.
    assert_eq!(story_of(8, 16, &[steady(30, 10, 20.0)], &scaling()), [(11, 4), (22, 2)]);
}
