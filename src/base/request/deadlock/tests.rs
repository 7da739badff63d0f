//! Tests of deadlocks: reports of models as text, and the circles that are found in them.

use std::time::Duration;

use super::*;

/// What models report, from text: `a: b1 x` says that the one instance of `a` is blocked in its
/// call `b1` to `b`, and `-` that it is not; after `|` stand the calls in the queue, and in
/// brackets those an instance holds. A number after `@` says since when, 1 if it is missing. `b1^7`
/// has seat 7 at the rate limiter; `?7,8` rests, and lacks what seats 7 and 8 hold.
fn reports(models: &[(&str, u64)]) -> Vec<ModelWaits> {
    let start = Instant::now();
    let at = |number: u64| start + Duration::from_secs(number);
    let mut known: HashMap<String, Arc<CallChain>> = HashMap::new();
    let mut call = |text: &str, name: &str| {
        let (label, since) = text.split_once('@').unwrap_or((text, "1"));
        let made = || Arc::new(CallChain::new(name.into(), 1, label[..1].into()));
        (known.entry(label.into()).or_insert_with(made).clone(), at(since.parse().unwrap()))
    };
    // Who makes a call is known from the instance that is blocked in it.
    let heads = |text: &str| -> (String, Vec<String>) {
        let (name, rest) = text.split_once(": ").unwrap();
        let instances = rest.split(" | ").next().unwrap();
        (name.into(), instances.split(' ').map(str::to_owned).collect())
    };
    for (text, _) in models {
        let (name, instances) = heads(text);
        for it in instances.iter().filter(|it| !it.starts_with(['-', '?'])) {
            call(it.split(['[', '^']).next().unwrap(), &name);
        }
    }
    let waits = |(text, observed): &(&str, u64)| {
        let (name, instances) = heads(text);
        let mut instance = |it: &String| {
            let (made, holds) = it.split_once('[').unwrap_or((it, "]"));
            let holds = holds.trim_end_matches(']').split(',').filter(|it| !it.is_empty());
            let holds = holds.map(|it| call(it, "?")).collect();
            if let Some(lacks) = made.strip_prefix('?') {
                let (seats, since) = lacks.split_once('@').unwrap_or((lacks, "1"));
                let holders = seats.split(',').map(|it| it.parse().unwrap()).collect();
                return Some(InstanceWait::Resource { since: at(since.parse().unwrap()), holders });
            }
            let (made, seat) = made.split_once('^').unwrap_or((made, ""));
            let (call, since) = (made != "-").then(|| call(made, &name))?;
            let seat = seat.parse().ok();
            Some(InstanceWait::Call(BlockedInstance { seat, call, since, holds }))
        };
        let instances = instances.iter().map(&mut instance).collect();
        let queued = text.split_once(" | ").map_or("", |it| it.1).split_whitespace();
        let queued = queued.map(|it| call(it, "?")).collect();
        ModelWaits { observed: at(*observed), instances, queued }
    };
    models.iter().map(waits).collect()
}

fn check(models: &[&str], expected: &[&str]) {
    check_at(&models.iter().map(|it| (*it, 9)).collect::<Vec<_>>(), expected);
}

/// Which calls are found, as `model>asked`, from the least on.
fn check_at(models: &[(&str, u64)], expected: &[&str]) {
    let (found, lacks_resources) = find_cycle(&reports(models)).unwrap_or_default();
    let is_said = models.iter().any(|it| it.0.contains('?')) && !found.is_empty();
    assert_eq!(lacks_resources, is_said, "{models:?}");
    let mut found: Vec<_> =
        found.iter().map(|it| format!("{}>{}", it.call.name, it.call.called)).collect();
    found.sort();
    assert_eq!(found, expected, "{models:?}");
}

#[test]
fn two_models_that_call_each_other_are_found() {
    check(&["a: b1 | a1", "b: a1 | b1"], &["a>b", "b>a"]);
}

#[test]
fn a_call_that_is_executed_waits_for_nobody() {
    check(&["a: b1", "b: -"], &[]);
    check(&["a: b1 | a1", "b: a1"], &[]);
}

#[test]
fn a_free_instance_is_enough() {
    check(&["a: b1 - | a1", "b: a1 | b1"], &[]);
    check(&["a: b1 b2 | a1", "b: a1 - | b1 b2"], &[]);
    check(&["a: b1 c1 | a1", "b: a1 | b1", "c: -[c1]"], &[]);
}

#[test]
fn all_instances_have_to_be_stuck() {
    check(&["a: b1 b2 | a1", "b: a1 | b1 b2"], &["a>b", "b>a"]);
}

#[test]
fn longer_circles_are_found_through_executions() {
    check(&["a: c1 | a1", "c: b1[c1]", "b: a1 | b1"], &["a>c", "b>a", "c>b"]);
}

#[test]
fn those_who_only_wait_for_the_circle_are_not_in_it() {
    check(&["x: a2", "a: b1 | a1 a2", "b: a1 | b1"], &["a>b", "b>a"]);
}

#[test]
fn who_calls_a_model_that_lacks_what_the_caller_holds_waits_for_itself() {
    check(&["a: b1^7", "b: ?7 | b1"], &["a>b"]);
    // One of both has to give up, so that the other goes on.
    check(&["a: b1^7 b2^8", "b: ?7,8 | b1 b2"], &["a>b"]);
    // Through a model that holds nothing.
    check(&["a: c1^7", "c: b1[c1]", "b: ?7 | b1"], &["a>c", "c>b"]);
    // Two that hold what the other's model lacks.
    check(&["a: b1^7", "b: ?8 | b1", "c: d1^8", "d: ?7 | d1"], &["a>b", "c>d"]);
}

#[test]
fn who_lacks_what_somebody_else_may_give_back_is_not_stuck() {
    check(&["a: b1^7", "b: ?7,9 | b1"], &[]);
    check(&["a: b1^7", "b: ?9 | b1"], &[]);
    check(&["a: b1^7", "b: ?7 - | b1"], &[]);
    check(&["a: b1", "b: ?7 | b1"], &[]);
    // Since a moment at which another one reported, or not yet.
    check_at(&[("a: b1^7", 9), ("b: ?7@5 | b1", 9)], &["a>b"]);
    check_at(&[("a: b1^7", 4), ("b: ?7@5 | b1", 9)], &[]);
    check_at(&[("a: b1@5^7", 9), ("b: ?7 | b1@5", 4)], &[]);
}

#[test]
fn what_was_not_at_the_same_moment_proves_nothing() {
    check_at(&[("a: b1@5 | a1", 9), ("b: a1 | b1@5", 4)], &[]);
    check_at(&[("a: b1@3 | a1@3", 9), ("b: a1 | b1@3", 4)], &["a>b", "b>a"]);
}

#[test]
fn the_cycle_is_named_and_ends_with_the_youngest_call() {
    let graph = Arc::new(WaitGraph::default());
    let mut reporters = [graph.join(), graph.join()];
    let mut victim = None;
    let reports = reports(&[("a: b1@2 | a1", 9), ("b: a1 | b1@2", 9)]);
    for (reporter, waits) in reporters.iter_mut().zip(reports) {
        victim = reporter.report(waits);
    }
    let (call, text) = victim.unwrap();
    assert_eq!(&*call.name, "a");
    assert_eq!(text, "requests wait for each other: 'b' calls 'a', which calls 'b'");
    reporters[0].clear();
    assert!(graph.victim().is_none());
}

#[test]
fn the_callers_that_hold_resources_are_named() {
    let graph = Arc::new(WaitGraph::default());
    let mut reporters = [graph.join(), graph.join()];
    let reports = reports(&[("a: b1@2^7", 9), ("b: ?7 | b1@2", 9)]);
    let victims = reporters.iter_mut().zip(reports).map(|(to, waits)| to.report(waits));
    let (call, text) = victims.last().unwrap().unwrap();
    assert_eq!((&*call.name, &*call.called), ("a", "b"));
    assert_eq!(text, "requests wait for resources that their callers hold: 'a' calls 'b'");
}

#[test]
fn a_reporter_that_is_dropped_takes_its_report_back() {
    let graph = Arc::new(WaitGraph::default());
    let mut first = graph.join();
    let mut second = graph.join();
    let [a, b] = reports(&[("a: b1 | a1", 9), ("b: a1 | b1", 9)]).try_into().unwrap();
    assert!(first.report(a).is_none());
    assert!(second.report(b).is_some());
    drop(first);
    assert!(graph.victim().is_none());
}

#[test]
fn graphs_of_two_servers_are_apart() {
    let [a, b] = reports(&[("a: b1 | a1", 9), ("b: a1 | b1", 9)]).try_into().unwrap();
    let graphs = [Arc::new(WaitGraph::default()), Arc::new(WaitGraph::default())];
    assert!(graphs[0].join().report(a).is_none());
    assert!(graphs[1].join().report(b).is_none());
}

/// A report that searched all the others would cost more with each model that waits.
#[test]
fn where_many_wait_the_graph_is_searched_now_and_then() {
    let graph = Arc::new(WaitGraph::default());
    let join = |waits: ModelWaits| {
        let mut reporter = graph.join();
        reporter.report(waits);
        reporter
    };
    let circle = reports(&[("a: b1 | a1", 9), ("b: a1 | b1", 9)]);
    let _circle: Vec<_> = circle.into_iter().map(join).collect();
    let found_nothing_at = |moment: Instant| *graph.searched.lock() = Some((moment, None));
    let later = || Instant::now() + 1000 * SEARCH_INTERVAL;
    found_nothing_at(later());
    assert!(graph.victim().is_some(), "few are searched at once");
    let one = || reports(&[("c: d1", 9)]).remove(0);
    let _others: Vec<_> = (0..MAX_SEARCHED_AT_ONCE).map(|_| join(one())).collect();
    found_nothing_at(later());
    assert!(graph.victim().is_none(), "many are not");
    found_nothing_at(Instant::now() - SEARCH_INTERVAL);
    assert!(graph.victim().is_some(), "but when it is due");
}
