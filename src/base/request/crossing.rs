//! Calls that wait for each other for ever: found in what the models say about who waits where.

use std::{collections::HashMap, sync::Arc, time::Instant};

use parking_lot::Mutex;

use super::callers::{Caller, told};

/// An instance that does nothing until a call of its own is answered.
#[derive(Clone, Debug)]
pub struct Stuck {
    /// The call.
    pub call: Arc<Caller>,
    /// Since when.
    pub since: Instant,
    /// Calls that wait for this instance to execute their requests, and since when.
    pub holds: Vec<(Arc<Caller>, Instant)>,
}

/// What a model says, at some moment, about who waits for it and what its instances wait for.
#[derive(Clone, Debug)]
pub struct Waits {
    /// When that was so.
    pub observed: Instant,
    /// `None` for an instance that is not stuck: it gets on with its work, and to the queue.
    pub instances: Vec<Option<Stuck>>,
    /// Calls whose requests no instance was given yet, and since when they wait.
    pub queued: Vec<(Arc<Caller>, Instant)>,
}

/// What all models with stuck instances last said, by the number of the model.
static ALL: Mutex<Option<HashMap<usize, Waits>>> = Mutex::new(None);

/// Takes in what the model of this number says now; `None` if none of its instances is stuck.
pub fn say(model: usize, waits: Option<Waits>) {
    let mut all = ALL.lock();
    let all = all.get_or_insert_default();
    match waits {
        Some(waits) => all.insert(model, waits),
        None => all.remove(&model),
    };
}

/// A call that has to fail so that others go on, and why. All who ask are told the same one until
/// what the models say has changed.
pub fn crossing() -> Option<(Arc<Caller>, String)> {
    let all: Vec<Waits> = ALL.lock().as_ref()?.values().cloned().collect();
    let circle = find(&all)?;
    let youngest = (0..circle.len()).max_by_key(|it| circle[*it].1)?;
    let (after, before) = (&circle[youngest + 1..], &circle[..=youngest]);
    // The call that fails is told last: it closes the circle.
    let path: Vec<&Caller> = after.iter().chain(before).map(|(call, _)| &**call).collect();
    let text = format!("requests wait for each other: {}", told(path.iter(), &path[0].name));
    Some((circle[youngest].0.clone(), text))
}

type Key = *const Caller;

/// Calls, each of which waits for an instance that waits for the next one, and the last one for the
/// first.
///
/// Models do not speak at the same moment. But what each of them says was so from some time on, and
/// only what had begun before the first of them spoke counts: all that was so at that moment. A call
/// that only waits for others to be answered, which wait for it, does so ever after.
fn find(all: &[Waits]) -> Option<Vec<(Arc<Caller>, Instant)>> {
    let moment = all.iter().map(|it| it.observed).min()?;
    let was = |since: &Instant| *since <= moment;
    let stuck = |it: &Option<Stuck>| it.clone().filter(|it| was(&it.since));
    let mut calls: HashMap<Key, (Stuck, Vec<Vec<Key>>)> = HashMap::new();
    for waits in all {
        for it in waits.instances.iter().filter_map(stuck) {
            calls.insert(Arc::as_ptr(&it.call), (it, Vec::new()));
        }
    }
    // What each call waits for: one of these is answered, for each place it waits at.
    for waits in all {
        let instances: Vec<Option<Stuck>> = waits.instances.iter().map(stuck).collect();
        for instance in instances.iter().flatten() {
            for (call, _) in instance.holds.iter().filter(|it| was(&it.1)) {
                if let Some((_, places)) = calls.get_mut(&Arc::as_ptr(call)) {
                    places.push(vec![Arc::as_ptr(&instance.call)]);
                }
            }
        }
        let Some(instances) = instances.into_iter().collect::<Option<Vec<Stuck>>>() else {
            continue;
        };
        for (call, _) in waits.queued.iter().filter(|it| was(&it.1)) {
            if let Some((_, places)) = calls.get_mut(&Arc::as_ptr(call)) {
                places.push(instances.iter().map(|it| Arc::as_ptr(&it.call)).collect());
            }
        }
    }
    walk(prune(calls))
}

/// What is left when those that get on are taken out, and those that only wait for them.
fn prune(mut calls: HashMap<Key, (Stuck, Vec<Vec<Key>>)>) -> HashMap<Key, (Stuck, Vec<Vec<Key>>)> {
    loop {
        let is_left = |it: &Key| calls.contains_key(it);
        let gets_on = |places: &Vec<Vec<Key>>| !places.iter().any(|it| it.iter().all(is_left));
        let on: Vec<Key> =
            calls.iter().filter(|(_, (_, places))| gets_on(places)).map(|(key, _)| *key).collect();
        if on.is_empty() {
            return calls;
        }
        on.iter().for_each(|it| drop(calls.remove(it)));
    }
}

fn walk(calls: HashMap<Key, (Stuck, Vec<Vec<Key>>)>) -> Option<Vec<(Arc<Caller>, Instant)>> {
    let next = |key: &Key| {
        let (_, places) = calls.get(key)?;
        places.iter().find(|it| it.iter().all(|it| calls.contains_key(it)))?.iter().min().copied()
    };
    // Always the same of several circles.
    let mut key = calls.keys().min().copied()?;
    let mut path = Vec::new();
    while !path.contains(&key) {
        path.push(key);
        key = next(&key)?;
    }
    let first = path.iter().position(|it| *it == key)?;
    let circle = path[first..].iter().filter_map(|it| calls.get(it));
    Some(circle.map(|(it, _)| (it.call.clone(), it.since)).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A world of models, from text: `a: b1 x` says that the one instance of `a` is stuck in its
    /// call `b1` to `b`, and `-` that it is not; after `|` stand the calls in the queue, and in
    /// brackets those an instance holds. A number after `@` says since when, 1 if it is missing.
    fn world(models: &[(&str, u64)]) -> Vec<Waits> {
        let start = Instant::now();
        let at = |number: u64| start + Duration::from_secs(number);
        let mut known: HashMap<String, Arc<Caller>> = HashMap::new();
        let mut call = |text: &str, name: &str| {
            let (label, since) = text.split_once('@').unwrap_or((text, "1"));
            let made = || Arc::new(Caller::new(name.into(), 1, label[..1].into()));
            (known.entry(label.into()).or_insert_with(made).clone(), at(since.parse().unwrap()))
        };
        // Who makes a call is known from the instance that is stuck in it.
        let heads = |text: &str| -> (String, Vec<String>) {
            let (name, rest) = text.split_once(": ").unwrap();
            let instances = rest.split(" | ").next().unwrap();
            (name.into(), instances.split(' ').map(str::to_owned).collect())
        };
        for (text, _) in models {
            let (name, instances) = heads(text);
            for it in instances.iter().filter(|it| *it != "-") {
                call(it.split('[').next().unwrap(), &name);
            }
        }
        let waits = |(text, observed): &(&str, u64)| {
            let (name, instances) = heads(text);
            let mut instance = |it: &String| {
                let (made, holds) = it.split_once('[').unwrap_or((it, "]"));
                let holds = holds.trim_end_matches(']').split(',').filter(|it| !it.is_empty());
                let holds = holds.map(|it| call(it, "?")).collect();
                let (call, since) = (made != "-").then(|| call(made, &name))?;
                Some(Stuck { call, since, holds })
            };
            let instances = instances.iter().map(&mut instance).collect();
            let queued = text.split_once(" | ").map_or("", |it| it.1).split_whitespace();
            let queued = queued.map(|it| call(it, "?")).collect();
            Waits { observed: at(*observed), instances, queued }
        };
        models.iter().map(waits).collect()
    }

    fn check(models: &[&str], expected: &[&str]) {
        check_at(&models.iter().map(|it| (*it, 9)).collect::<Vec<_>>(), expected);
    }

    /// Which calls are found, as `model>asked`, from the least on.
    fn check_at(models: &[(&str, u64)], expected: &[&str]) {
        let found = find(&world(models)).unwrap_or_default();
        let mut found: Vec<_> =
            found.iter().map(|(it, _)| format!("{}>{}", it.name, it.asked)).collect();
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
    fn what_was_not_at_the_same_moment_proves_nothing() {
        check_at(&[("a: b1@5 | a1", 9), ("b: a1 | b1@5", 4)], &[]);
        check_at(&[("a: b1@3 | a1@3", 9), ("b: a1 | b1@3", 4)], &["a>b", "b>a"]);
    }

    #[test]
    fn the_circle_is_told_and_ends_with_the_youngest_call() {
        for (number, waits) in
            world(&[("a: b1@2 | a1", 9), ("b: a1 | b1@2", 9)]).into_iter().enumerate()
        {
            say(usize::MAX - number, Some(waits));
        }
        let (call, text) = crossing().unwrap();
        assert_eq!(&*call.name, "a");
        assert_eq!(text, "requests wait for each other: 'b' calls 'a', which calls 'b'");
        say(usize::MAX, None);
        assert!(crossing().is_none());
        say(usize::MAX - 1, None);
    }
}
