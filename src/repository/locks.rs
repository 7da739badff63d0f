//! Locks of models: which operation holds or awaits which, and whether they would deadlock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Operations in the order they were asked for.
pub(super) type OperationId = u64;

/// The models an operation may touch: it locks all of them at once, or waits.
pub(super) type LockScope = BTreeSet<Arc<str>>;

/// Locks are granted in the order of [`OperationId`]s where scopes overlap.
#[derive(Debug, Default)]
pub(super) struct LockTable {
    /// Operations that run, with what they have locked; also names nothing is known of yet.
    locked: BTreeMap<OperationId, LockScope>,
    /// Operations that wait, with what they touch by their last scan of the disk.
    waiting: BTreeMap<OperationId, LockScope>,
    /// Operations that a model asked for while it was loaded, and the operation that loads it.
    parents: BTreeMap<OperationId, OperationId>,
}

impl LockTable {
    /// Operation `id` was asked for by `model`, which may itself be loading and waits for it.
    pub(super) fn asked_by(&mut self, id: OperationId, model: &Arc<str>) {
        let loading = self.locked.iter().find(|(_, scope)| scope.contains(model));
        if let Some((parent, _)) = loading {
            self.parents.insert(id, *parent);
        }
    }

    /// Operation `id` waits for all of `scope`; replaces what it waited for before.
    pub(super) fn await_scope(&mut self, id: OperationId, scope: LockScope) {
        self.waiting.insert(id, scope);
    }

    /// Whether the operation has to wait: for one that runs, or for one that was asked for earlier.
    pub(super) fn is_blocked(&self, id: OperationId) -> bool {
        match self.locked.contains_key(&id) {
            true => !self.blockers(id).is_empty(),
            false => self.related(id).next().is_some(),
        }
    }

    /// Whether the operation waits, over any number of others, for itself.
    pub(super) fn is_deadlocked(&self, id: OperationId) -> bool {
        // Whoever waits, waits for those asked for earlier, and those who run for what their models
        // have asked for.
        if self.parents.is_empty() {
            return false;
        }
        let mut seen = BTreeSet::new();
        let mut next = self.blockers(id);
        while let Some(blocker) = next.pop() {
            if blocker == id {
                return true;
            }
            if seen.insert(blocker) {
                next.extend(self.blockers(blocker));
            }
        }
        false
    }

    /// Locks what the operation waited for, which nobody else may hold.
    pub(super) fn lock(&mut self, id: OperationId) {
        let scope = self.waiting.remove(&id).unwrap_or_default();
        self.locked.insert(id, scope);
    }

    /// Operation `id` has ended, or was refused.
    pub(super) fn release(&mut self, id: OperationId) {
        self.locked.remove(&id);
        self.waiting.remove(&id);
        self.parents.remove(&id);
    }

    /// Operations that wait for their locks, oldest first.
    pub(super) fn waiting(&self) -> Vec<OperationId> {
        self.waiting.keys().copied().collect()
    }

    /// The operations this one waits for.
    fn blockers(&self, id: OperationId) -> Vec<OperationId> {
        if self.locked.contains_key(&id) {
            // A model it loads has asked for others.
            let children = self.parents.iter().filter(|(_, parent)| **parent == id);
            return children.map(|(child, _)| *child).collect();
        }
        self.related(id).collect()
    }

    /// Of one that waits: the operations before it that touch one of its models.
    fn related(&self, id: OperationId) -> impl Iterator<Item = OperationId> {
        let scope = self.waiting.get(&id);
        let others = self.locked.iter().chain(self.waiting.range(..id));
        let related = move |other: &LockScope| scope.is_some_and(|it| !other.is_disjoint(it));
        others.filter(move |(_, other)| related(other)).map(|(other, _)| *other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(names: &str) -> LockScope {
        names.split_whitespace().map(Arc::from).collect()
    }

    /// `lock 1 a b`, `wait 2 b`, `ask 3 a` (by model `a`), `release 1`.
    fn table(lines: &[&str]) -> LockTable {
        let mut locks = LockTable::default();
        for line in lines {
            let mut words = line.splitn(3, ' ');
            let (verb, id) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
            let names = words.next().unwrap_or_default();
            match verb {
                "lock" => {
                    locks.await_scope(id, scope(names));
                    locks.lock(id);
                }
                "wait" => locks.await_scope(id, scope(names)),
                "ask" => locks.asked_by(id, &names.into()),
                "release" => locks.release(id),
                _ => panic!("{line}"),
            }
        }
        locks
    }

    #[test]
    fn related_operations_wait_in_their_order() {
        let blocked = |lines: &[&str]| -> Vec<OperationId> {
            let locks = table(lines);
            locks.waiting().into_iter().filter(|id| locks.is_blocked(*id)).collect()
        };
        for (lines, expected) in [
            (&["wait 1 a", "wait 2 b"][..], &[][..]),
            (&["wait 1 a", "wait 2 a b", "wait 3 b"], &[2, 3]),
            (&["lock 1 a b", "wait 2 b", "wait 3 c"], &[2]),
            (&["lock 1 a b", "wait 2 b", "release 1"], &[]),
            (&["lock 2 a", "wait 1 a"], &[1]),
        ] {
            assert_eq!(blocked(lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn a_deadlock_is_found_from_each_of_its_members_only() {
        let deadlocked = |lines: &[&str]| -> Vec<OperationId> {
            let locks = table(lines);
            (0..5).filter(|id| locks.is_deadlocked(*id)).collect()
        };
        for (lines, expected) in [
            (&["lock 1 a", "wait 2 a", "wait 3 a"][..], &[][..]),
            // `a`, which 1 loads, asks for `a`.
            (&["lock 1 a", "ask 2 a", "wait 2 a"], &[1, 2]),
            (&["lock 1 a", "ask 2 a", "wait 2 b"], &[]),
            // 3 waits for 2, which waits for 1, which waits for 3.
            (&["lock 1 a", "wait 2 a b", "ask 3 a", "wait 3 b", "wait 4 b"], &[1, 2, 3]),
            (&["lock 1 a", "wait 2 a b", "ask 3 a", "wait 3 b", "release 3", "wait 4 b"], &[]),
        ] {
            assert_eq!(deadlocked(lines), expected, "{lines:?}");
        }
    }
}
