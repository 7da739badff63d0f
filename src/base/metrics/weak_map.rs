//! A map of shared values that live as long as somebody holds them: live metric series by their
//! labels.

use std::{
    hash::Hash,
    ops::Deref,
    sync::{Arc, Weak},
};

use dashmap::{DashMap, Entry};

/// Values by key, each alive as long as a `WeakMapEntry` of it is held.
pub(super) struct WeakMap<K: Eq + Hash, V>(Arc<DashMap<K, Weak<WeakMapEntry<K, V>>>>);

/// A live value with its key; the last one to be dropped takes the key out of the map.
pub(super) struct WeakMapEntry<K: Eq + Hash, V> {
    pub(super) key: K,
    value: V,
    map: Weak<DashMap<K, Weak<WeakMapEntry<K, V>>>>,
}

impl<K: Eq + Hash, V> Default for WeakMap<K, V> {
    fn default() -> Self {
        WeakMap(Arc::default())
    }
}

impl<K: Ord + Hash + Clone, V> WeakMap<K, V> {
    /// The value of that key, which `make` makes unless somebody holds one.
    pub(super) fn open(&self, key: K, make: impl FnOnce() -> V) -> Arc<WeakMapEntry<K, V>> {
        let slot = self.0.entry(key.clone());
        if let Entry::Occupied(slot) = &slot
            && let Some(live) = slot.get().upgrade()
        {
            return live;
        }
        let map = Arc::downgrade(&self.0);
        let entry = Arc::new(WeakMapEntry { key, value: make(), map });
        slot.insert(Arc::downgrade(&entry));
        entry
    }

    /// The value of that key, if somebody holds one.
    pub(super) fn get(&self, key: &K) -> Option<Arc<WeakMapEntry<K, V>>> {
        // Upgraded without the shard's lock, which dropping the last holder takes.
        let found = self.0.get(key).map(|slot| slot.value().clone());
        found?.upgrade()
    }

    /// All live values in the order of their keys.
    pub(super) fn all(&self) -> Vec<Arc<WeakMapEntry<K, V>>> {
        // Upgraded without the shards' locks, which dropping the last holder takes.
        let entries: Vec<Weak<_>> = self.0.iter().map(|slot| slot.value().clone()).collect();
        let mut live: Vec<_> = entries.iter().filter_map(Weak::upgrade).collect();
        live.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        live
    }
}

impl<K: Eq + Hash, V> Deref for WeakMapEntry<K, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.value
    }
}

impl<K: Eq + Hash, V> Drop for WeakMapEntry<K, V> {
    fn drop(&mut self) {
        let Some(map) = self.map.upgrade() else { return };
        // Somebody may have opened the key again since.
        map.remove_if(&self.key, |_, entry| entry.strong_count() == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shared_and_gone_with_their_last_holder() {
        let map = WeakMap::<&str, u32>::default();
        let (b, a) = (map.open("b", || 2), map.open("a", || 1));
        let same = map.open("b", || 3);
        assert_eq!((**b, **same), (2, 2));
        let keys = || map.all().iter().map(|entry| entry.key).collect::<Vec<_>>();
        assert_eq!(keys(), ["a", "b"]);
        drop(b);
        assert_eq!(map.get(&"b").map(|entry| **entry), Some(2));
        drop(same);
        assert!(map.get(&"b").is_none());
        assert_eq!((keys(), **map.open("b", || 4)), (vec!["a"], 4));
        drop(a);
        assert!(map.0.is_empty());
    }

    #[test]
    fn threads_that_open_and_drop_the_same_key_agree() {
        let map = WeakMap::<u8, ()>::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let one = map.open(1, || ());
                        let found = map.get(&1).expect("it is held here");
                        assert!(Arc::ptr_eq(&one, &found));
                    }
                });
            }
        });
        assert!(map.0.is_empty());
    }
}
