//! Claims of the rate limiter: which instance that waits for resources executes next. Pure, without
//! clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::resources::{ResourceDemand, ResourceKey, ResourceLimit, limits};
use troupe_base::{error::Result, request::deadlock::SeatId};

/// How long claims behind one that does not fit may be granted before it: then what it needs is
/// kept for it as it comes back.
const MAX_PASSED_OVER: Duration = Duration::from_secs(1);
/// By how much, in executions of priority 1, an instance may lag behind the others: one that rested
/// for a day, or was loaded late, does not have the resources to itself until it has caught up.
const MAX_LAG: u64 = 64;

/// An instance as the rate limiter knows it.
pub(super) type InstanceId = SeatId;

/// Who needs what, who has it, and who waits for it.
#[derive(Default)]
pub(super) struct Claims {
    /// As the command line says.
    said: Vec<ResourceLimit>,
    limits: BTreeMap<ResourceKey, u64>,
    used: BTreeMap<ResourceKey, u64>,
    instances: BTreeMap<InstanceId, LimitedInstance>,
    waiting: Vec<Claim>,
    next_id: InstanceId,
    next_turn: u64,
    /// The highest score that was granted something.
    reached: u64,
}

struct LimitedInstance {
    demand: ResourceDemand,
    /// Executions × priority: the lowest has its turn first.
    score: u64,
    holds: bool,
    /// It goes as soon as it holds nothing.
    is_gone: bool,
}

/// An instance that waits for its resources.
struct Claim {
    instance: InstanceId,
    /// Claims with the same score are granted in this order.
    turn: u64,
    /// Since when claims behind it were granted before it.
    passed_over: Option<Instant>,
}

impl Claims {
    /// Nobody needs anything yet.
    pub(super) fn new(said: Vec<ResourceLimit>) -> Claims {
        Claims { said, ..Claims::default() }
    }

    /// Instances come, all or none: there has to be as much as each of them needs.
    pub(super) fn add(&mut self, demands: &[ResourceDemand]) -> Result<Vec<InstanceId>> {
        super::resources::check(&self.said, self.demands().chain(demands))?;
        let add = |demand: &ResourceDemand| {
            let id = self.next_id;
            self.next_id += 1;
            let entry =
                LimitedInstance { demand: demand.clone(), score: 0, holds: false, is_gone: false };
            self.instances.insert(id, entry);
            id
        };
        let ids = demands.iter().map(add).collect();
        self.limits = limits(&self.said, self.demands());
        Ok(ids)
    }

    /// An instance goes; what it holds comes back when it is released.
    pub(super) fn remove(&mut self, instance: InstanceId) {
        self.withdraw(instance);
        if let Some(entry) = self.instances.get_mut(&instance) {
            entry.is_gone = true;
            if !entry.holds {
                self.instances.remove(&instance);
            }
        }
        self.limits = limits(&self.said, self.demands());
    }

    fn demands(&self) -> impl Iterator<Item = &ResourceDemand> {
        self.instances.values().filter(|entry| !entry.is_gone).map(|entry| &entry.demand)
    }

    /// An instance waits for its resources from now on.
    pub(super) fn claim(&mut self, instance: InstanceId) {
        let Some(entry) = self.instances.get_mut(&instance) else { return };
        if entry.holds || entry.is_gone || self.waiting.iter().any(|it| it.instance == instance) {
            return;
        }
        entry.score = entry.score.max(self.reached.saturating_sub(MAX_LAG));
        let turn = self.next_turn;
        self.next_turn += 1;
        self.waiting.push(Claim { instance, turn, passed_over: None });
    }

    /// An instance does not wait any more.
    pub(super) fn withdraw(&mut self, instance: InstanceId) {
        self.waiting.retain(|claim| claim.instance != instance);
    }

    /// What an instance holds comes back; it counts if it has executed something.
    pub(super) fn release(&mut self, instance: InstanceId, has_executed: bool) {
        let Some(entry) = self.instances.get_mut(&instance) else { return };
        if !std::mem::take(&mut entry.holds) {
            return;
        }
        if has_executed {
            entry.score = entry.score.saturating_add(entry.demand.priority);
        }
        for (key, count) in &entry.demand.units {
            if let Some(used) = self.used.get_mut(key) {
                *used = used.saturating_sub(*count);
            }
        }
        if entry.is_gone {
            self.instances.remove(&instance);
        }
    }

    /// Who holds some of a resource that a waiting instance lacks; `None` if it lacks none.
    pub(super) fn holders(&self, instance: InstanceId) -> Option<Vec<InstanceId>> {
        self.waiting.iter().find(|it| it.instance == instance)?;
        let lacks = |(key, count): &(&ResourceKey, &u64)| {
            let of = |map: &BTreeMap<ResourceKey, u64>| map.get(*key).copied().unwrap_or(0);
            of(&self.limits) < of(&self.used).saturating_add(**count)
        };
        let (key, _) = self.instances.get(&instance)?.demand.units.iter().find(lacks)?;
        let holds = |it: &LimitedInstance| it.holds && it.demand.units.contains_key(key);
        Some(self.instances.iter().filter(|it| holds(it.1)).map(|it| *it.0).collect())
    }

    /// Gives their resources to those whose turn it is:
    ///
    /// 1. who was passed over for too long is first, and what it needs is kept for it;
    /// 2. then who has the lowest score, and of several who waits longest;
    /// 3. whoever does not fit is passed over.
    pub(super) fn grant(&mut self, now: Instant) -> Vec<InstanceId> {
        let (instances, limits, used) = (&mut self.instances, &self.limits, &mut self.used);
        let overdue = |claim: &Claim| {
            let since = claim.passed_over?;
            (since + MAX_PASSED_OVER <= now).then_some(since)
        };
        self.waiting.sort_by_key(|claim| {
            let since = overdue(claim);
            let score = instances.get(&claim.instance).map_or(0, |entry| entry.score);
            (since.is_none(), since, score, claim.turn)
        });
        let mut kept = BTreeSet::new();
        let mut granted = Vec::new();
        // From the last to the first: is one granted that is behind it?
        let mut fits = Vec::with_capacity(self.waiting.len());
        for claim in &self.waiting {
            let Some(entry) = instances.get_mut(&claim.instance) else {
                fits.push(false);
                continue;
            };
            let units = &entry.demand.units;
            let is_free = |(key, count): (&ResourceKey, &u64)| {
                let (limit, used) = (limits.get(key), used.get(key).copied().unwrap_or(0));
                !kept.contains(key) && used.saturating_add(*count) <= limit.copied().unwrap_or(0)
            };
            let is_granted = units.iter().all(is_free);
            if is_granted {
                for (key, count) in units {
                    *used.entry(key.clone()).or_insert(0) += count;
                }
                entry.holds = true;
                self.reached = self.reached.max(entry.score);
                granted.push(claim.instance);
            } else if overdue(claim).is_some() {
                kept.extend(units.keys().cloned());
            }
            fits.push(is_granted);
        }
        let last = fits.iter().rposition(|it| *it).unwrap_or(0);
        for (place, claim) in self.waiting.iter_mut().enumerate() {
            if !fits[place] && place < last {
                claim.passed_over.get_or_insert(now);
            }
        }
        let mut fits = fits.into_iter();
        self.waiting.retain(|_| !fits.next().unwrap_or(false));
        granted
    }
}

#[cfg(test)]
mod tests {
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
}
