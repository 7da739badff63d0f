//! Stories of claims in virtual time, and who waits for whom.

use super::*;
use troupe_base::config::{RateLimits, RateResource};

/// Models: a letter, how many instances it has, what an execution needs of `R`, its priority.
type Models = &'static [(char, usize, u32, u32)];

/// A story in virtual time of requests that come and executions that last, and the order in
/// which they begin.
struct Story {
    claims: Claims,
    /// Name, priority and instances of each model, and requests that wait for it.
    models: Vec<(char, Vec<InstanceId>, usize)>,
    /// When those that run are through.
    running: Vec<(u64, InstanceId)>,
    begun: Instant,
    order: String,
}

fn demand(count: u32, priority: u32) -> ResourceDemand {
    let resources = vec![RateResource { name: "R".into(), count, global: true }];
    ResourceDemand::new(&RateLimits { resources, priority }, 0).unwrap()
}

impl Story {
    fn new(limit: u64, models: Models) -> Story {
        let said = ResourceLimit { name: "R".into(), count: limit, device: None };
        let mut claims = Claims::new(vec![said]);
        let model = |(name, instances, count, priority): &(char, usize, u32, u32)| {
            let demands = vec![demand(*count, *priority); *instances];
            (*name, claims.add(&demands).unwrap(), 0)
        };
        let models = models.iter().map(model).collect();
        let (running, order) = (Vec::new(), String::new());
        Story { claims, models, running, begun: Instant::now(), order }
    }

    /// So many requests come for a model at that time, and each execution lasts so long.
    fn come(&mut self, at: u64, name: char, requests: usize, lasts: u64) {
        let model = self.models.iter_mut().find(|it| it.0 == name).unwrap();
        model.2 += requests;
        self.look(at, lasts);
    }

    fn look(&mut self, at: u64, lasts: u64) {
        let now = self.begun + Duration::from_millis(at);
        for (_, instances, requests) in &self.models {
            let is_idle = |it: &&InstanceId| self.running.iter().all(|run| run.1 != **it);
            for instance in instances.iter().filter(is_idle).take(*requests) {
                self.claims.claim(*instance);
            }
        }
        loop {
            let granted = self.claims.grant(now);
            if granted.is_empty() {
                return;
            }
            granted.into_iter().for_each(|it| self.run(it, at + lasts));
        }
    }

    fn run(&mut self, instance: InstanceId, until: u64) {
        let is_of = |it: &&mut (char, Vec<InstanceId>, usize)| it.1.contains(&instance);
        let model = self.models.iter_mut().find(is_of).unwrap();
        if model.2 == 0 {
            return self.claims.release(instance, false);
        }
        model.2 -= 1;
        self.order.push(model.0);
        self.running.push((until, instance));
    }

    /// Until nothing runs any more.
    fn through(mut self, lasts: u64) -> String {
        while let Some((at, instance)) = self.running.iter().min().copied() {
            self.running.retain(|run| run.1 != instance);
            self.claims.release(instance, true);
            self.look(at, lasts);
        }
        assert!(self.claims.used.values().all(|used| *used == 0));
        self.order
    }
}

/// All requests come at once, in this order, and each execution lasts 1 ms.
fn check(limit: u64, models: Models, requests: &[(char, usize)], expected: &str) {
    let mut story = Story::new(limit, models);
    requests.iter().for_each(|(name, count)| story.come(0, *name, *count, 1));
    assert_eq!(story.through(1), expected, "{limit} {models:?} {requests:?}");
}

#[test]
fn executions_times_priority_says_whose_turn_it_is() {
    check(1, &[('a', 1, 1, 1), ('b', 1, 1, 1)], &[('a', 3), ('b', 3)], "ababab");
    // 0 counts as 1; twice the number, half the turns.
    check(1, &[('a', 1, 1, 0), ('b', 1, 1, 2)], &[('a', 6), ('b', 6)], "ababaabaabbb");
    check(1, &[('a', 2, 1, 1), ('b', 2, 1, 2)], &[('a', 6), ('b', 6)], "aabbaabbaabb");
    check(1, &[('a', 1, 1, 4), ('b', 1, 1, 1)], &[('a', 3), ('b', 6)], "abbbbabba");
}

#[test]
fn what_there_is_enough_of_is_shared_at_once() {
    let mut story = Story::new(3, &[('a', 2, 1, 1), ('b', 2, 1, 1)]);
    story.come(0, 'a', 3, 1);
    assert_eq!(story.order, "aa");
    story.come(0, 'b', 2, 1);
    assert_eq!((&*story.order, story.claims.waiting.len()), ("aab", 1));
}

#[test]
fn a_big_job_does_not_block_small_ones_and_gets_its_turn_within_the_bound() {
    // Two small ones at a time keep one unit each; the big one needs both at once.
    let mut story = Story::new(2, &[('s', 2, 1, 1), ('B', 1, 2, 1)]);
    story.come(0, 's', 1, 150);
    story.come(10, 'B', 1, 150);
    story.come(20, 's', 100, 150);
    assert_eq!(story.order, "ss", "the big one is passed over");
    let order = story.through(150);
    let before = order.find('B').unwrap();
    // 1 s is over after 7 executions of each instance, the last of which have to end.
    assert!((10..=16).contains(&before), "{before}: {order}");
    assert_eq!(order.len(), 102);
}

#[test]
fn who_rested_long_does_not_have_it_all_until_it_has_caught_up() {
    let mut story = Story::new(1, &[('a', 1, 1, 1), ('b', 1, 1, 1)]);
    story.come(0, 'a', 1000, 1);
    for at in 1..=999 {
        let (_, instance) = story.running.pop().unwrap();
        story.claims.release(instance, true);
        story.look(at, 1);
    }
    story.come(999, 'b', 200, 1);
    story.come(999, 'a', 200, 1);
    let order = story.through(1);
    let tail = &order[1000..];
    let lead = tail.find('a').unwrap();
    assert!((60..=66).contains(&lead), "{lead}");
}

#[test]
fn who_lacks_a_resource_waits_for_everybody_who_holds_some_of_it() {
    let mut claims = Claims::new(Vec::new());
    let ids = claims.add(&[demand(1, 1), demand(2, 1), demand(3, 1)]).unwrap();
    let now = Instant::now();
    ids[..2].iter().for_each(|id| claims.claim(*id));
    assert_eq!(claims.grant(now), ids[..2]);
    assert_eq!(claims.holders(ids[2]), None, "it does not wait");
    claims.claim(ids[2]);
    assert!(claims.grant(now).is_empty());
    assert_eq!(claims.holders(ids[2]).as_deref(), Some(&ids[..2]));
    assert_eq!(claims.holders(ids[0]), None, "it has what it needs");
    claims.release(ids[0], true);
    assert_eq!(claims.holders(ids[2]).as_deref(), Some(&ids[1..2]));
    claims.release(ids[1], true);
    assert_eq!(claims.holders(ids[2]), None, "it lacks nothing any more");
}

#[test]
fn what_goes_gives_back_what_it_holds_and_never_gets_more() {
    let mut claims = Claims::new(Vec::new());
    let ids = claims.add(&[demand(2, 1), demand(1, 1)]).unwrap();
    let now = Instant::now();
    ids.iter().for_each(|id| claims.claim(*id));
    assert_eq!(claims.grant(now), [ids[0]], "there is as much as one needs at most");
    claims.remove(ids[0]);
    claims.remove(ids[1]);
    assert!(claims.grant(now).is_empty());
    claims.release(ids[0], true);
    assert!(claims.instances.is_empty() && claims.waiting.is_empty());
    assert!(claims.used.values().all(|used| *used == 0));
    // Nothing is released twice, and nobody is known who has gone.
    claims.release(ids[0], true);
    claims.claim(ids[0]);
    assert!(claims.grant(now).is_empty());
}

#[test]
fn what_is_kept_back_waits_for_those_whom_the_reservation_waits_for() {
    let said = ResourceLimit { name: "R".into(), count: 2, device: None };
    let mut claims = Claims::new(vec![said]);
    let ids = claims.add(&[demand(1, 1), demand(1, 1), demand(2, 1)]).unwrap();
    let [outer, inner, big] = ids[..] else { unreachable!() };
    let begun = Instant::now();
    // The first one holds what it has for as long as it calls the second one.
    claims.claim(outer);
    assert_eq!(claims.grant(begun), [outer]);
    claims.claim(big);
    claims.claim(inner);
    assert_eq!(claims.grant(begun), [inner]);
    claims.release(inner, true);
    // The other one is kept, and nothing is lacking that the first one did not keep.
    claims.claim(inner);
    assert!(claims.grant(begun + MAX_PASSED_OVER).is_empty());
    assert_eq!(claims.holders(inner).as_deref(), Some(&[outer][..]));
    assert_eq!(claims.holders(big).as_deref(), Some(&[outer][..]));
    // What waits no more keeps nothing.
    claims.withdraw(big);
    assert_eq!(claims.grant(begun + MAX_PASSED_OVER), [inner]);
    assert_eq!(claims.holders(inner), None);
}

#[test]
fn a_reservation_may_lack_something_else_or_stand_behind_another_one() {
    let of = |text: &str| {
        let resource =
            |name: char| RateResource { name: name.to_string().into(), count: 1, global: true };
        let resources = text.chars().map(resource).collect();
        ResourceDemand::new(&RateLimits { resources, priority: 1 }, 0).unwrap()
    };
    let mut claims = Claims::new(Vec::new());
    let ids = claims.add(&[of("S"), of("RS"), of("RT"), of("T"), of("T")]).unwrap();
    let [holder, first, second, passed, last] = ids[..] else { unreachable!() };
    let begun = Instant::now();
    claims.claim(holder);
    assert_eq!(claims.grant(begun), [holder]);
    // R is free, but kept for one that lacks S; T is free, but kept for one that lacks R.
    for (claim, at) in [(first, 0), (second, 1)] {
        claims.claim(claim);
        let since = begun + Duration::from_millis(at);
        claims.waiting.iter_mut().for_each(|it| _ = it.passed_over.get_or_insert(since));
    }
    claims.claim(passed);
    claims.claim(last);
    assert!(claims.grant(begun + 2 * MAX_PASSED_OVER).is_empty());
    for waits in [first, second, passed, last] {
        assert_eq!(claims.holders(waits).as_deref(), Some(&[holder][..]), "{waits}");
    }
    claims.release(holder, true);
    assert_eq!(claims.grant(begun + 2 * MAX_PASSED_OVER), [first]);
    assert_eq!(claims.holders(passed).as_deref(), Some(&[first][..]));
}
