//! Resources of the rate limiter: how much there is of each, and what instances need of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use troupe_base::{
    config::RateLimits,
    error::{Error, Result},
};

/// How much there is of a resource, as `--rate-limit-resource` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceLimit {
    /// Its name; upper and lower case differ.
    pub name: Arc<str>,
    /// Units.
    pub count: u64,
    /// `None`: on each device, and of the server.
    pub device: Option<i32>,
}

/// A resource of the server, or of one device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ResourceKey {
    pub(super) name: Arc<str>,
    /// `None`: of the server.
    pub(super) device: Option<i32>,
}

/// What one execution of an instance needs, and how its turns are weighed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceDemand {
    pub(super) units: BTreeMap<ResourceKey, u64>,
    pub(super) priority: u64,
}

impl ResourceDemand {
    /// Of an instance on that device; `None` if it needs nothing.
    pub fn new(limits: &RateLimits, device: i32) -> Option<ResourceDemand> {
        let mut units = BTreeMap::new();
        for resource in &limits.resources {
            let device = (!resource.global).then_some(device);
            let key = ResourceKey { name: resource.name.clone(), device };
            let count = units.entry(key).or_insert(0);
            // One that is named twice is one resource, as on Triton.
            *count = u64::from(resource.count).max(*count);
        }
        units.retain(|_, count| *count != 0);
        let priority = limits.priority.max(1).into();
        (!units.is_empty()).then_some(ResourceDemand { units, priority })
    }
}

/// How much there is of each resource that somebody needs: what the command line says; if it says
/// nothing, the most that one instance needs.
pub(super) fn limits<'a>(
    said: &[ResourceLimit],
    demands: impl Iterator<Item = &'a ResourceDemand>,
) -> BTreeMap<ResourceKey, u64> {
    let mut limits = needed(demands);
    if !said.is_empty() {
        for (key, limit) in &mut limits {
            *limit = said_of(said, key);
        }
    }
    limits
}

/// Fails, in Triton's words, where a demand could never be met.
pub(super) fn check<'a>(
    said: &[ResourceLimit],
    demands: impl Iterator<Item = &'a ResourceDemand>,
) -> Result<()> {
    let needed = needed(demands);
    let global = needed.keys().filter(|key| key.device.is_none());
    let global: BTreeSet<&str> = global.map(|key| &*key.name).collect();
    let is_both = |key: &&ResourceKey| key.device.is_some() && global.contains(&*key.name);
    if let Some(ResourceKey { name, .. }) = needed.keys().find(is_both) {
        return Err(Error::invalid(format!(
            "Resource \"{name}\" is present as both global and device-specific resource in the \
             model configuration."
        )));
    }
    if said.is_empty() {
        return Ok(());
    }
    for (key, needed) in &needed {
        let limit = said_of(said, key);
        if limit < *needed {
            let name = &key.name;
            return Err(Error::invalid(format!(
                "Resource count for \"{name}\" is limited to {limit} which will prevent scheduling \
                 of one or more model instances, the minimum required count is {needed}"
            )));
        }
    }
    Ok(())
}

/// The most that one of the demands needs of each resource.
fn needed<'a>(demands: impl Iterator<Item = &'a ResourceDemand>) -> BTreeMap<ResourceKey, u64> {
    let mut needed = BTreeMap::new();
    for (key, count) in demands.flat_map(|demand| &demand.units) {
        let most = needed.entry(key.clone()).or_insert(0);
        *most = (*count).max(*most);
    }
    needed
}

/// What the command line says of a resource. Of the server's: the most of any entry with its name;
/// of a device's: the most of the device's own entry and of that for each device.
fn said_of(said: &[ResourceLimit], key: &ResourceKey) -> u64 {
    let is_meant = |limit: &&ResourceLimit| {
        let is_here = || limit.device.is_none() || limit.device == key.device;
        limit.name == key.name && (key.device.is_none() || is_here())
    };
    said.iter().filter(is_meant).map(|limit| limit.count).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::config::RateResource;

    /// `R:2 G:1*` needs two of `R` of its device and one of `G` of the server.
    fn demand(text: &str, device: i32) -> ResourceDemand {
        let resource = |text: &str| {
            let (name, count) = text.split_once(':').unwrap();
            let (count, global) = match count.strip_suffix('*') {
                Some(count) => (count, true),
                None => (count, false),
            };
            RateResource { name: name.into(), count: count.parse().unwrap(), global }
        };
        let resources = text.split_whitespace().map(resource).collect();
        ResourceDemand::new(&RateLimits { resources, priority: 0 }, device).unwrap()
    }

    /// `R:2` on each device, `R:2:1` on device 1.
    fn said(text: &str) -> Vec<ResourceLimit> {
        let limit = |text: &str| {
            let parts: Vec<&str> = text.split(':').collect();
            let device = parts.get(2).map(|it| it.parse().unwrap());
            ResourceLimit { name: parts[0].into(), count: parts[1].parse().unwrap(), device }
        };
        text.split_whitespace().map(limit).collect()
    }

    #[test]
    fn what_is_not_said_is_what_one_instance_needs_at_most() {
        let demands = [demand("R:2 G:1*", 0), demand("R:3", 0), demand("R:1 G:4*", 1)];
        for (flags, expected) in [
            ("", "G:4* R:3@0 R:1@1"),
            ("R:9", "G:0* R:9@0 R:9@1"),
            ("R:5 R:2:0 R:7:1", "G:0* R:5@0 R:7@1"),
            ("G:1:3 G:8:5 R:3:0", "G:8* R:3@0 R:0@1"),
        ] {
            let limits = limits(&said(flags), demands.iter());
            let word = |(key, limit): (&ResourceKey, &u64)| match key.device {
                None => format!("{}:{limit}*", key.name),
                Some(device) => format!("{}:{limit}@{device}", key.name),
            };
            let found: Vec<String> = limits.iter().map(word).collect();
            assert_eq!(found.join(" "), expected, "{flags}");
        }
    }

    #[test]
    fn a_demand_that_could_never_be_met_is_refused() {
        let limited = |limit: u64, needed: u64| {
            format!(
                "Resource count for \"R\" is limited to {limit} which will prevent scheduling of \
                 one or more model instances, the minimum required count is {needed}"
            )
        };
        let both = "Resource \"R\" is present as both global and device-specific resource in the \
                    model configuration."
            .to_owned();
        for (flags, demands, expected) in [
            ("", &["R:100", "S:1*"][..], None),
            ("R:2", &["R:2", "R:1"], None),
            ("R:2", &["R:1", "R:3"], Some(limited(2, 3))),
            ("S:2", &["R:1"], Some(limited(0, 1))),
            ("r:2", &["R:1"], Some(limited(0, 1))),
            ("R:2:7", &["R:1"], Some(limited(0, 1))),
            ("R:2:7", &["R:1*"], None),
            ("", &["R:1*", "R:1"], Some(both.clone())),
            ("R:9", &["R:1* R:1"], Some(both)),
        ] {
            let demands: Vec<_> = demands.iter().map(|text| demand(text, 0)).collect();
            let error = check(&said(flags), demands.iter()).err().map(|it| it.to_string());
            assert_eq!(error, expected, "{flags}: {demands:?}");
        }
    }

    #[test]
    fn a_resource_that_is_named_twice_is_one_and_none_of_it_is_no_demand() {
        assert_eq!(demand("R:2 R:3 S:0", 0), demand("R:3", 0));
        assert!(ResourceDemand::new(&RateLimits::default(), 0).is_none());
    }
}
