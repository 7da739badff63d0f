//! Values by key, shared by all who ask for the same key, and gone with the last of them.

use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

/// A table of values that somebody uses.
pub(super) struct WeakMap<K: Ord, V>(Arc<Mutex<Entries<K, V>>>);

type Entries<K, V> = BTreeMap<K, Weak<WeakMapEntry<K, V>>>;

/// A value in use, with its key.
pub(super) struct WeakMapEntry<K: Ord, V> {
    pub(super) key: K,
    value: V,
    of: Weak<Mutex<Entries<K, V>>>,
}

impl<K: Ord, V> Default for WeakMap<K, V> {
    fn default() -> Self {
        WeakMap(Arc::default())
    }
}

impl<K: Ord + Clone, V> WeakMap<K, V> {
    /// The value of that key, which `make` makes unless somebody uses one.
    pub(super) fn open(&self, key: K, make: impl FnOnce() -> V) -> Arc<WeakMapEntry<K, V>> {
        let mut entries = self.0.lock();
        if let Some(used) = entries.get(&key).and_then(Weak::upgrade) {
            return used;
        }
        let of = Arc::downgrade(&self.0);
        let entry = Arc::new(WeakMapEntry { key: key.clone(), value: make(), of });
        entries.insert(key, Arc::downgrade(&entry));
        entry
    }

    /// The value of that key, if somebody uses it.
    pub(super) fn get(&self, key: &K) -> Option<Arc<WeakMapEntry<K, V>>> {
        // Dropped without the lock, which the last user takes.
        let found = self.0.lock().get(key).cloned();
        found?.upgrade()
    }

    /// All that are in use, in the order of their keys.
    pub(super) fn all(&self) -> Vec<Arc<WeakMapEntry<K, V>>> {
        // Dropped without the lock, which the last user takes.
        let entries: Vec<Weak<_>> = self.0.lock().values().cloned().collect();
        entries.iter().filter_map(Weak::upgrade).collect()
    }
}

impl<K: Ord, V> Deref for WeakMapEntry<K, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.value
    }
}

impl<K: Ord, V> Drop for WeakMapEntry<K, V> {
    fn drop(&mut self) {
        let Some(of) = self.of.upgrade() else { return };
        let mut entries = of.lock();
        // Somebody may have asked for the key since.
        if entries.get(&self.key).is_some_and(|it| it.strong_count() == 0) {
            entries.remove(&self.key);
        }
    }
}
