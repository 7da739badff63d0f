//! The advice on tables of numbers.

mod schedulers;

use std::{collections::BTreeMap, time::Duration};

use super::{
    super::{
        cores::CoresUsed,
        counts::{Batches, Counts, ModelKey},
        load::LoadTotals,
    },
    *,
};

const QUIET: ClientMachine = ClientMachine { cores: 64, threads: 8 };

/// A model: name, instances, milliseconds of an execution, rows of an execution.
type Row = (&'static str, u64, f64, u64);

fn key(name: &str) -> ModelKey {
    ModelKey { name: name.to_owned(), version: "1".to_owned() }
}

fn members(rows: &[Row]) -> Vec<Member> {
    let ensemble = Member { key: key("all"), ..Member::default() };
    let step = |row: &Row| Member {
        key: key(row.0),
        instances: row.1,
        max_batch: if row.3 == 0 { 0 } else { 8 },
        has_batching: row.3 != 0,
        ..Member::default()
    };
    [ensemble].into_iter().chain(rows.iter().map(step)).collect()
}

/// Ten seconds at this throughput.
fn level(rows: &[Row], in_flight: usize, throughput: f64) -> LoadLevel {
    let answered = (throughput * 10.0) as u64;
    let mut seen = LoadTotals::default();
    let latency = Duration::from_secs_f64(in_flight as f64 / throughput);
    (0..answered).for_each(|_| seen.latency.add(latency));
    let mut counts = BTreeMap::new();
    for (name, instances, ms, batch) in rows {
        let rows = (*batch).max(1);
        let executions = answered / rows;
        let busy = (executions as f64 * ms * 1e6) as u64;
        let is_full = 0.9 < busy as f64 / 1e10 / *instances as f64;
        let counted = Counts {
            answered,
            inferences: answered,
            executions,
            // Whoever waits does so for what is saturated.
            queue_ns: if is_full { 5_000_000_000 * in_flight as u64 } else { 0 },
            infer_ns: busy,
            batches: BTreeMap::from([(rows, Batches { count: executions, ns: busy })]),
            ..Counts::default()
        };
        counts.insert(key(name), counted);
    }
    counts.insert(key("all"), Counts { answered, ..Counts::default() });
    LoadLevel {
        in_flight,
        batch: 1,
        seconds: 10.0,
        seen,
        counts,
        server_seconds: 10.0,
        ..LoadLevel::default()
    }
}

/// Bottleneck, slowest step, suggestions.
type Expected<'a> = (Bottleneck, &'a str, &'a [(&'a str, u64)]);

#[track_caller]
fn check(rows: &[Row], levels: &[(usize, f64)], expected: Expected<'_>) -> Advice {
    let levels: Vec<LoadLevel> = levels.iter().map(|it| level(rows, it.0, it.1)).collect();
    let advice = advise(&members(rows), &levels, QUIET, None).unwrap();
    let suggested: Vec<(&str, u64)> =
        advice.suggestions.iter().map(|it| (&*it.key.name, it.then)).collect();
    let found = (advice.limit, &*advice.steps[0].member.key.name, &suggested[..]);
    assert_eq!(found, expected, "{advice:?}");
    advice
}

#[test]
fn of_answers_that_were_kept_nothing_is_advised() {
    let rows = &[("a", 1, 8.0, 0)];
    let mut levels = [level(rows, 1, 90.0), level(rows, 2, 124.0), level(rows, 4, 124.9)];
    let advised = |levels: &[LoadLevel]| advise(&members(rows), levels, QUIET, None).unwrap();
    assert!(!advised(&levels).suggestions.is_empty());
    for level in &mut levels {
        level.counts.get_mut(&key("a")).unwrap().hits = 7;
    }
    let advice = advised(&levels);
    assert!(advice.suggestions.is_empty() && advice.goal.is_none(), "{advice:?}");
    let told = "7 of 1249 requests of `a` were answered from the response cache";
    assert!(advice.doubts.iter().any(|it| it.starts_with(told)), "{:?}", advice.doubts);
}

#[test]
fn the_step_with_the_least_capacity_is_the_bottleneck() {
    let rows = &[("a", 1, 2.0, 0), ("b", 1, 8.0, 0), ("c", 1, 1.0, 0)];
    let levels = &[(1, 90.0), (2, 124.0), (4, 124.9)];
    let advice = check(rows, levels, (Bottleneck::Step, "b", &[("b", 4)]));
    assert!((0.98..1.01).contains(&advice.steps[0].utilisation), "{advice:?}");
    assert_eq!(
        advice.headline,
        "`b` is the bottleneck: its 1 instance was busy 100 % of the time."
    );
    assert_eq!(
        advice.reasons,
        [
            "An inference takes 8.00 ms of an instance, which allows 125 inferences/s; 125 were \
             measured with 4 in flight, while 2.00 requests waited for it on average; the next \
             slowest, `a`, was 25 % busy.",
            "4 instances of `b` should allow about 500 inferences/s, where `a` becomes the limit.",
        ]
    );
    let rows = &[("a", 1, 2.1, 0), ("b", 4, 8.0, 0), ("c", 1, 1.0, 0)];
    check(rows, &[(1, 90.0), (8, 470.0)], (Bottleneck::Step, "a", &[("a", 2), ("b", 8)]));
}

#[test]
fn steps_loaded_alike_are_moved_together() {
    let rows = &[("a", 1, 10.0, 0), ("b", 1, 9.8, 0), ("c", 1, 5.0, 0)];
    let advice =
        check(rows, &[(1, 40.0), (8, 99.0)], (Bottleneck::Step, "a", &[("a", 2), ("b", 2)]));
    assert!(advice.reasons[0].contains("`b` is loaded about as much (97 % busy)"), "{advice:?}");
    // All alike: twice as much of everything.
    let rows = &[("a", 1, 10.0, 0), ("b", 3, 30.0, 0)];
    check(rows, &[(1, 25.0), (8, 99.0)], (Bottleneck::Step, "a", &[("a", 2), ("b", 6)]));
}

#[test]
fn branches_side_by_side_are_judged_by_their_own_work() {
    let rows = &[("left", 1, 3.0, 0), ("right", 2, 12.0, 0), ("join", 1, 0.5, 0)];
    check(rows, &[(1, 60.0), (8, 166.0)], (Bottleneck::Step, "right", &[("right", 4)]));
}

#[test]
fn a_low_load_tells_nothing() {
    let rows = &[("a", 1, 2.0, 0), ("b", 1, 8.0, 0), ("c", 1, 1.0, 0)];
    let advice = check(rows, &[(1, 50.0)], (Bottleneck::Load, "b", &[]));
    assert!(advice.headline.contains("too low to tell"), "{advice:?}");
    assert_eq!(
        advice.reasons,
        [
            "With 1 in flight the step nearest to its limit, `b`, was busy 40 % of the time; to load \
          it fully takes about 4 in flight (`--concurrency 4`)."
        ]
    );
    check(rows, &[(1, 25.0), (2, 50.0)], (Bottleneck::Load, "b", &[]));
}

#[test]
fn what_stops_growing_without_a_busy_step_is_limited_elsewhere() {
    let rows = &[("a", 1, 2.0, 0), ("b", 1, 1.0, 0)];
    let levels = &[(1, 100.0), (2, 150.0), (4, 152.0)];
    let advice = check(rows, levels, (Bottleneck::Elsewhere, "a", &[]));
    let part = "Of the 26.3 ms a request takes, steps execute it for 3.00 ms;";
    assert!(advice.reasons[0].contains(part), "{advice:?}");
    check(rows, &[(1, 100.0), (2, 150.0), (4, 140.0)], (Bottleneck::Elsewhere, "a", &[]));
    // It grows, but not because of executions.
    check(rows, &[(4, 100.0), (8, 130.0)], (Bottleneck::Elsewhere, "a", &[]));
}

#[test]
fn cores_that_others_keep_busy_are_a_limit_unless_a_step_is() {
    let rows = &[("a", 1, 2.0, 0), ("b", 1, 8.0, 0)];
    let limit = |levels: &[(usize, f64)]| {
        let used = CoresUsed { client: 0.1, server: Some(0.2), machine: Some(1.95) };
        let one = |it: &(usize, f64)| LoadLevel { used, ..level(rows, it.0, it.1) };
        let levels: Vec<LoadLevel> = levels.iter().map(one).collect();
        let machine = ClientMachine { cores: 2, threads: 1 };
        let advice = advise(&members(rows), &levels, machine, None).unwrap();
        (advice.limit, advice.headline)
    };
    let (found, headline) = limit(&[(4, 40.0), (8, 45.0)]);
    assert_eq!(found, Bottleneck::Cores);
    assert_eq!(
        headline,
        "The cores are the limit, all 2 were busy: the server 0.20, this command 0.10, other \
         programs 1.65."
    );
    assert_eq!(limit(&[(1, 80.0), (4, 120.0)]).0, Bottleneck::Step);
    assert_eq!(limit(&[(1, 80.0)]).0, Bottleneck::Load);
    // Also where its batches could grow: more in flight would wait for the same cores.
    let rows = &[("a", 1, 2.0, 2)];
    let used = CoresUsed { client: 0.1, server: Some(0.2), machine: Some(1.95) };
    let level = LoadLevel { used, ..level(rows, 16, 90.0) };
    let machine = ClientMachine { cores: 2, threads: 1 };
    let advice = advise(&members(rows), &[level], machine, None).unwrap();
    assert_eq!(advice.limit, Bottleneck::Cores, "{advice:?}");
}

#[test]
fn no_more_instances_are_suggested_than_make_sense() {
    let rows = &[("a", 1, 20.0, 0)];
    let with = |server, machine, target| {
        let used = CoresUsed { client: 0.05, server: Some(server), machine: Some(machine) };
        let level = LoadLevel { used, ..level(rows, 8, 49.0) };
        let machine = ClientMachine { cores: 2, threads: 1 };
        advise(&members(rows), &[level], machine, target).unwrap()
    };
    let then = |it: &Advice| it.suggestions.iter().map(|it| it.then).collect::<Vec<_>>();
    // It computes for a third of the time that it takes: others may have had the cores.
    let advice = with(0.3, 0.4, Some(1000.0));
    assert_eq!(then(&advice), [5], "the cores allow 250 inferences/s: {advice:?}");
    let advice = with(0.26, 0.4, Some(1000.0));
    assert_eq!(then(&advice), [6], "{advice:?}");
    // What mostly waits may have as many as the cores allow.
    let advice = with(0.1, 0.2, Some(500.0));
    assert_eq!(then(&advice), [10], "{advice:?}");
    // Of stretched times nothing follows.
    let advice = with(0.3, 2.0, Some(1000.0));
    assert_eq!(then(&advice), vec![0; 0]);
    let said = advice.reasons.iter().any(|it| it.starts_with("Nothing is suggested: other"));
    assert!(said && advice.doubts[0].starts_with("Other programs used 1.65"), "{advice:?}");
}

#[test]
fn of_levels_as_good_the_fullest_is_looked_at() {
    let rows = &[("a", 1, 8.0, 0)];
    let levels = [level(rows, 1, 100.0), level(rows, 2, 124.0), level(rows, 8, 118.0)];
    let advice = advise(&members(rows), &levels, QUIET, None).unwrap();
    assert_eq!((advice.best, advice.level, advice.limit), (1, 2, Bottleneck::Step));
}

#[test]
fn batches_that_can_grow_are_not_yet_a_limit() {
    let rows = &[("a", 1, 10.0, 2), ("b", 1, 1.0, 0)];
    let advice = check(rows, &[(1, 99.0), (4, 198.0)], (Bottleneck::Load, "a", &[]));
    assert!(advice.reasons[0].contains("2.00 rows on average of at most 8"), "{advice:?}");
    let rows = &[("a", 1, 10.0, 8), ("b", 1, 0.5, 0)];
    check(rows, &[(8, 600.0), (16, 798.0)], (Bottleneck::Step, "a", &[("a", 3)]));
}

#[test]
fn a_model_that_could_join_requests_should() {
    let rows = &[("a", 1, 10.0, 0), ("b", 1, 0.5, 0)];
    let mut members = members(rows);
    members[1].max_batch = 8;
    let advice = advise(&members, &[level(rows, 4, 99.0)], QUIET, None).unwrap();
    assert!(advice.reasons[1].starts_with("It takes 8 rows at once but got 1.00"), "{advice:?}");
}

#[test]
fn busy_cores_are_said_and_keep_the_suggestions_small() {
    let rows = &[("a", 1, 2.0, 0), ("b", 1, 8.0, 0)];
    let with = |client, server| {
        let used = CoresUsed { client, server, machine: None };
        let levels = [level(rows, 1, 90.0), LoadLevel { used, ..level(rows, 8, 124.0) }];
        advise(&members(rows), &levels, ClientMachine { cores: 4, threads: 2 }, None).unwrap()
    };
    let then = |it: &Advice| it.suggestions.iter().map(|it| it.then).collect::<Vec<_>>();
    let advice = with(0.5, Some(3.3));
    assert_eq!((advice.limit, then(&advice)), (Bottleneck::Cores, vec![]));
    let advice = with(1.9, Some(0.5));
    assert_eq!((advice.limit, then(&advice)), (Bottleneck::Client, vec![]));
    // A fourth of what was measured is still idle.
    let advice = with(0.5, Some(1.0));
    assert_eq!((advice.limit, then(&advice)), (Bottleneck::Step, vec![3]));
    assert!(advice.reasons[1].contains("where the 4 cores become the limit"), "{advice:?}");
    let advice = with(0.5, Some(3.0));
    assert_eq!((advice.limit, then(&advice)), (Bottleneck::Step, vec![]));
    assert!(advice.reasons[1].starts_with("No more instances are suggested"), "{advice:?}");
    // Of a server elsewhere nothing is known but what it tells.
    let advice = with(0.5, None);
    assert_eq!((advice.limit, then(&advice)), (Bottleneck::Step, vec![4]));
}

#[test]
fn a_target_is_suggested_for_at_any_load() {
    let rows = &[("a", 1, 2.0, 0), ("b", 1, 8.0, 0)];
    let advice = advise(&members(rows), &[level(rows, 1, 50.0)], QUIET, Some(1000.0)).unwrap();
    let then: Vec<u64> = advice.suggestions.iter().map(|it| it.then).collect();
    assert_eq!((advice.limit, then), (Bottleneck::Load, vec![8, 2]));
    let advice = advise(&members(rows), &[level(rows, 1, 50.0)], QUIET, Some(100.0)).unwrap();
    assert_eq!(advice.suggestions, []);
    let last = advice.reasons.last().unwrap();
    assert_eq!(last, "The instances there are allow 100 inferences/s.");
}

#[test]
fn doubts_are_told() {
    let rows = &[("a", 1, 2.0, 0), ("b", 1, 8.0, 0), ("c", 1, 80.0, 0)];
    let mut members = members(rows);
    members[2].is_called = true;
    let mut level = level(rows, 4, 50.0);
    level.counts.insert(key("all"), Counts { answered: 9000, ..Counts::default() });
    level.used = CoresUsed { client: 1.0, server: Some(1.0), machine: Some(63.0) };
    level.spread = Some(0.5);
    let advice = advise(&members, &[level], QUIET, None).unwrap();
    for expected in [
        "9000 requests, of which this command sent 500",
        "Other programs used 61.0 of the 64 cores",
        "`b` is no step of it",
        "`c` works at several requests at once (4.00 on average)",
        "not steady",
    ] {
        assert!(advice.doubts.iter().any(|it| it.contains(expected)), "{expected}: {advice:?}");
    }
    assert_eq!(advice.doubts.len(), 5);
}

#[test]
fn nothing_is_said_of_nothing() {
    assert!(advise(&[], &[], QUIET, None).is_none());
    assert!(advise(&[], &[LoadLevel::default()], QUIET, None).is_none());
    let rows: &[Row] = &[("a", 1, 2.0, 0)];
    let mut level = level(rows, 1, 50.0);
    level.counts.clear();
    let advice = advise(&members(rows), &[level], QUIET, None).unwrap();
    assert_eq!(
        (advice.limit, advice.steps.len(), advice.suggestions.len()),
        (Bottleneck::Load, 0, 0)
    );
}

#[test]
fn what_larger_executions_cost_decides_whether_they_are_advised() {
    let cost = |few: u64, many: u64| {
        let one = |rows, ns| (rows, Batches { count: 10, ns: 10 * ns });
        crate::bench::batch_cost::BatchCost::of(&BTreeMap::from([one(1, few), one(8, many)]))
    };
    for (is_python, joins, cost, begin, part) in [
        (
            false,
            0,
            cost(1_000, 7_900),
            "It takes 8 rows at once but got 1.00; but 8 rows took 7.9",
            "would bring nothing",
        ),
        (
            false,
            0,
            cost(1_000, 1_300),
            "It takes 8 rows at once but got 1.00, and 8 rows took 1.3",
            "would join the requests that wait.",
        ),
        (
            true,
            0,
            cost(1_000, 1_300),
            "It takes 8 rows at once but got 1.00, and 8 rows took 1.3",
            "np.concatenate(parts)",
        ),
        (
            true,
            8,
            cost(1_000, 7_900),
            "8 rows took 7.9 times as long as one: `execute` does not join",
            "A plain function under `@model(max_batch_size=…)` has all rows in one call",
        ),
        (
            false,
            8,
            cost(1_000, 7_900),
            "8 rows took 7.9 times as long as one: joining",
            "brings this model nothing",
        ),
    ] {
        let rows =
            &[("a", 1, 10.0 * f64::from(joins.max(1)), u64::from(joins as u32)), ("b", 1, 0.5, 0)];
        let mut members = members(rows);
        (members[1].max_batch, members[1].is_python, members[1].batch_cost) = (8, is_python, cost);
        let advice = advise(&members, &[level(rows, 4, 99.0)], QUIET, None).unwrap();
        assert_eq!(advice.limit, Bottleneck::Step, "{advice:?}");
        let reason = &advice.reasons[1];
        assert!(reason.starts_with(begin) && reason.contains(part), "{advice:?}");
    }
    // Eight rows that take less than one are noise, and no reason for anything.
    let rows = &[("a", 1, 10.0, 0), ("b", 1, 0.5, 0)];
    let mut members = self::members(rows);
    (members[1].max_batch, members[1].batch_cost) = (8, cost(1_000, 600));
    let advice = advise(&members, &[level(rows, 4, 99.0)], QUIET, None).unwrap();
    let noise = "could not be measured, for 8 rows took 0.6 times as long as one: other programs";
    assert!(advice.reasons[1].contains(noise), "{advice:?}");
    // Of a Python model without batches, nothing was measured of them.
    (members[1].max_batch, members[1].is_python, members[1].batch_cost) = (0, true, None);
    let advice = advise(&members, &[level(rows, 4, 99.0)], QUIET, None).unwrap();
    let begin = "It takes one request at a time. Whether batches pay can be measured once";
    assert!(advice.reasons[1].starts_with(begin), "{advice:?}");
    // Small batches that would not get cheaper by growing are a limit.
    let rows = &[("a", 1, 20.0, 2), ("b", 1, 1.0, 0)];
    let mut members = self::members(rows);
    members[1].batch_cost = cost(1_000, 7_900);
    let advice =
        advise(&members, &[level(rows, 1, 60.0), level(rows, 4, 99.0)], QUIET, None).unwrap();
    assert_eq!(advice.limit, Bottleneck::Step, "{advice:?}");
}
