//! Claims of the rate limiter: which instance that waits for resources executes next. Pure, without
//! clock.

use std::{
    collections::BTreeMap,
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
    /// What it needs is free, but kept for this one, for which claims before it were granted.
    kept_for: Option<InstanceId>,
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
        self.waiting.push(Claim { instance, turn, passed_over: None, kept_for: None });
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

    /// Who holds some of a resource that a waiting instance lacks, or that the one lacks for which
    /// it is kept; `None` if nobody lacks anything.
    pub(super) fn holders(&self, instance: InstanceId) -> Option<Vec<InstanceId>> {
        let mut claim = self.claim_of(instance)?;
        // It is kept for one before it: this ends.
        loop {
            if let Some(holders) = self.holders_of_lacking(claim.instance) {
                return Some(holders);
            }
            claim = self.claim_of(claim.kept_for?)?;
        }
    }

    fn claim_of(&self, instance: InstanceId) -> Option<&Claim> {
        self.waiting.iter().find(|it| it.instance == instance)
    }

    fn holders_of_lacking(&self, instance: InstanceId) -> Option<Vec<InstanceId>> {
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
        // For whom.
        let mut kept = BTreeMap::new();
        let mut granted = Vec::new();
        // From the last to the first: is one granted that is behind it?
        let mut fits = Vec::with_capacity(self.waiting.len());
        for claim in &mut self.waiting {
            let Some(entry) = instances.get_mut(&claim.instance) else {
                fits.push(false);
                continue;
            };
            let units = &entry.demand.units;
            let is_free = |(key, count): (&ResourceKey, &u64)| {
                let (limit, used) = (limits.get(key), used.get(key).copied().unwrap_or(0));
                used.saturating_add(*count) <= limit.copied().unwrap_or(0)
            };
            claim.kept_for = units.keys().find_map(|key| kept.get(key).copied());
            let is_granted = claim.kept_for.is_none() && units.iter().all(is_free);
            if is_granted {
                for (key, count) in units {
                    *used.entry(key.clone()).or_insert(0) += count;
                }
                entry.holds = true;
                self.reached = self.reached.max(entry.score);
                granted.push(claim.instance);
            } else if overdue(claim).is_some() {
                let keep =
                    |key: &ResourceKey| _ = kept.entry(key.clone()).or_insert(claim.instance);
                units.keys().for_each(keep);
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
mod tests;
