//! The advice on sequence slots, queues that refuse, and decoupled models.

use std::time::Duration;

use super::{
    super::super::member_scheduling::{MemberSequences, QueueLimits},
    *,
};

/// With this many slots for each instance.
fn sequences(slots: u64, is_direct: bool) -> Option<MemberSequences> {
    Some(MemberSequences { slots, is_direct, ..MemberSequences::default() })
}

#[test]
fn slots_are_the_limit_where_instances_could_do_more() {
    let rows = &[("a", 2, 2.0, 4), ("b", 1, 0.1, 0)];
    for (slots, is_direct, in_flight, utilised, expected) in [
        // More slots than sequences: not yet a limit.
        (64, true, 32, 400.0, Bottleneck::Load),
        (4, true, 32, 400.0, Bottleneck::Slots),
        (4, false, 9, 400.0, Bottleneck::Slots),
        (4, true, 8, 400.0, Bottleneck::Load),
        // They could not.
        (4, true, 32, 3900.0, Bottleneck::Step),
    ] {
        let mut members = members(rows);
        members[1].sequences = sequences(slots, is_direct);
        let levels =
            [level(rows, in_flight / 2, 0.55 * utilised), level(rows, in_flight, utilised)];
        let advice = advise(&members, &levels, QUIET, None).unwrap();
        assert_eq!(advice.limit, expected, "{slots} slots, {in_flight} in flight: {advice:?}");
        let field = if is_direct { "max_batch_size" } else { "max_candidate_sequences" };
        if expected == Bottleneck::Slots {
            let headline = format!(
                "The slots of `a` are the limit: it has 8 for {in_flight} sequences at a time, so {} \
                 waited for one.",
                in_flight - 8
            );
            assert_eq!(advice.headline, headline);
            let more = format!(
                "Slots for all of them: `{field}: {}` (now 4 for each instance), or {} instances.",
                in_flight.div_ceil(2),
                in_flight.div_ceil(4)
            );
            assert!(advice.reasons[0].contains("instances were busy"), "{advice:?}");
            assert!(advice.reasons[0].ends_with(&more), "{advice:?}");
            assert!(advice.suggestions.is_empty(), "{advice:?}");
        }
        let joins = advice.reasons.iter().any(|it| it.contains("dynamic_batching"));
        assert!(!joins, "{advice:?}");
    }
}

#[test]
fn a_busy_step_says_that_sequences_waited_for_its_slots_besides() {
    let rows = &[("a", 1, 8.0, 1)];
    let mut members = members(rows);
    (members[1].sequences, members[1].max_batch) = (sequences(1, true), 1);
    let levels = [level(rows, 1, 100.0), level(rows, 4, 124.0)];
    let advice = advise(&members, &levels, QUIET, None).unwrap();
    assert_eq!(advice.limit, Bottleneck::Step, "{advice:?}");
    let told = "`a` has 1 slot for 4 sequences at a time: 3 waited for one";
    assert!(advice.reasons[1].starts_with(told), "{advice:?}");
}

#[test]
fn what_a_queue_refuses_is_told_with_its_policy() {
    let rows = &[("a", 1, 8.0, 0), ("b", 1, 1.0, 0)];
    let mut members = members(rows);
    members[1].queues = QueueLimits { max_size: 4, timeout_us: 0, levels: 3 };
    members[2].queues = QueueLimits { max_size: 900, timeout_us: 200_000, levels: 0 };
    let doubts = |full, late, failing: &[&str]| {
        let mut level = level(rows, 8, 124.0);
        (level.seen.refused_full, level.seen.timed_out) = (full, late);
        level.seen.failed = full + late;
        failing.iter().for_each(|it| level.counts.get_mut(&key(it)).unwrap().failed = 1);
        let advice = advise(&members, &[level], QUIET, None).unwrap();
        let all = advice.doubts.into_iter();
        all.filter(|it| it.contains(" requests ") && it.contains("refused")).collect::<Vec<_>>()
    };
    assert_eq!(doubts(0, 0, &[]), [""; 0]);
    assert_eq!(
        doubts(60, 0, &["a"]),
        ["60 of 1300 requests were refused since a queue was full: `a` lets 4 wait in a level \
          (max_queue_size): latencies are those of the others. More instances or a longer queue take \
          more in flight."]
    );
    // Nobody says whose it was.
    let either = "`a` lets 4 wait in a level (max_queue_size), `b` lets 900 wait (max_queue_size)";
    assert!(doubts(60, 0, &[])[0].contains(either));
    let late = "10 of 1250 requests had waited for too long and were refused: `b` lets them wait 200 ms \
                (default_timeout_microseconds)";
    assert!(doubts(0, 10, &["b"])[0].starts_with(late), "{:?}", doubts(0, 10, &["b"]));
    assert_eq!(doubts(1, 1, &["a", "b"]).len(), 2);
}

#[test]
fn decoupled_models_are_judged_by_their_executions() {
    let rows = &[("a", 1, 8.0, 0), ("b", 1, 1.0, 0)];
    let advised = |share: f64| {
        let mut members = members(rows);
        members[1].is_decoupled = true;
        let mut levels = [level(rows, 1, 90.0), level(rows, 4, 124.0)];
        for level in &mut levels {
            let requests = level.answered();
            level.seen.responses = 3 * requests;
            (0..requests).for_each(|_| level.seen.first.add(Duration::from_millis(2)));
            let busy = &mut level.counts.get_mut(&key("a")).unwrap().batches;
            busy.values_mut().for_each(|it| it.ns = (it.ns as f64 * share) as u64);
        }
        advise(&members, &levels, QUIET, None).unwrap()
    };
    let advice = advised(1.0);
    assert_eq!((advice.limit, advice.suggestions.len()), (Bottleneck::Step, 1), "{advice:?}");
    let first = "The first response came after 2.0";
    assert!(advice.reasons.iter().any(|it| it.starts_with(first)), "{advice:?}");
    assert!(advice.reasons.iter().any(|it| it.contains("the last of 3.00 each after 32.")));
    assert!(advice.doubts[0].starts_with("`a` is decoupled: if it sends"), "{advice:?}");
    // One that works at several requests at once is never simply busy.
    let advice = advised(2.0);
    assert_ne!(advice.limit, Bottleneck::Step, "{advice:?}");
    let overlaps = "An instance of `a` works at several requests at once";
    assert!(advice.doubts.iter().any(|it| it.starts_with(overlaps)), "{advice:?}");
}
