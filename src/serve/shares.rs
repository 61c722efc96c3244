//! Fair shares of something that is limited: places in a queue, bytes of bodies.
//!
//! If there is no room, the sender that has most gives up its newest share, if it has more than the sender
//! that asks would then have.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// All shares.
#[derive(Debug)]
pub struct Shares {
    /// Maximum amount of the shares that wait.
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Amount of the shares that wait.
    waiting: usize,
    next: u64,
    /// By age.
    entries: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    sender: Arc<str>,
    amount: usize,
    /// False once it runs: then it does not count towards the maximum, and cannot be displaced.
    waits: bool,
    signal: Arc<Signal>,
}

#[derive(Debug, Default)]
struct Signal {
    is_displaced: AtomicBool,
    changed: Notify,
}

impl Shares {
    /// Shares of which at most `most` may wait.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, state: Mutex::default() })
    }

    /// Takes a share for `sender`; `None` if there is no room.
    pub fn take(self: &Arc<Self>, sender: &Arc<str>, amount: usize) -> Option<Share> {
        let mut state = self.state();
        if !state.make_room(self.most, sender, amount) {
            return None;
        }
        let (id, signal) = (state.next, Arc::<Signal>::default());
        state.next += 1;
        state.waiting += amount;
        let entry = Entry { sender: Arc::clone(sender), amount, waits: true, signal: Arc::clone(&signal) };
        state.entries.insert(id, entry);
        drop(state);
        Some(Share { shares: Arc::clone(self), id, signal })
    }

    /// Amount of the shares that wait.
    pub fn waiting(&self) -> usize {
        self.state().waiting
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Displaces shares of other senders until there is room for `amount`. False if `sender` has most itself.
    fn make_room(&mut self, most: usize, sender: &Arc<str>, amount: usize) -> bool {
        while self.waiting.saturating_add(amount) > most {
            let mut totals: HashMap<&str, usize> = HashMap::new();
            self.entries.values().for_each(|entry| *totals.entry(&entry.sender).or_default() += entry.amount);
            let own = totals.get(&**sender).copied().unwrap_or(0) + amount;
            let others = self.entries.iter().filter(|(_, entry)| entry.waits && entry.sender != *sender);
            // The last of equal entries is the newest.
            let Some((&id, entry)) = others.max_by_key(|(_, entry)| totals[&*entry.sender]) else {
                return false;
            };
            if totals[&*entry.sender] <= own {
                return false;
            }
            let entry = self.remove(id).expect("an entry of the map");
            entry.signal.is_displaced.store(true, Ordering::SeqCst);
            entry.signal.changed.notify_one();
        }
        true
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.waiting -= if entry.waits { entry.amount } else { 0 };
        Some(entry)
    }
}

/// A share. Dropping it gives it back.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    id: u64,
    signal: Arc<Signal>,
}

impl Share {
    /// Adds to the share. False if there is no room, or if it has been displaced.
    pub fn grow(&self, more: usize) -> bool {
        let mut state = self.shares.state();
        let Some(entry) = state.entries.get(&self.id) else { return false };
        let sender = Arc::clone(&entry.sender);
        if !state.make_room(self.shares.most, &sender, more) {
            return false;
        }
        state.waiting += more;
        state.entries.get_mut(&self.id).expect("a sender displaces none of its own").amount += more;
        true
    }

    /// The share no longer waits. False if it has been displaced.
    pub fn start(&self) -> bool {
        let mut state = self.shares.state();
        let Some(entry) = state.entries.get_mut(&self.id) else { return false };
        let freed = if std::mem::replace(&mut entry.waits, false) { entry.amount } else { 0 };
        state.waiting -= freed;
        true
    }

    /// True if another sender has got its place.
    pub fn is_displaced(&self) -> bool {
        self.signal.is_displaced.load(Ordering::SeqCst)
    }

    /// Waits until another sender gets its place.
    pub async fn displaced(&self) {
        while !self.is_displaced() {
            self.signal.changed.notified().await;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shares.state().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sender_with_most_gives_up_its_newest_share() {
        let (a, b, c): (Arc<str>, Arc<str>, Arc<str>) = ("a".into(), "b".into(), "c".into());
        let shares = Shares::new(4);
        let of_a: Vec<Share> = (0..4).map(|_| shares.take(&a, 1).unwrap()).collect();
        assert!(shares.take(&a, 1).is_none(), "it has most itself");
        // A share that runs leaves room, counts for its sender, and stays.
        assert!(of_a[3].start() && shares.waiting() == 3);
        let fifth = shares.take(&a, 1).unwrap();
        let first_of_b = shares.take(&b, 1).unwrap();
        assert!(fifth.is_displaced() && !fifth.start() && !of_a[3].is_displaced());
        let second_of_b = shares.take(&b, 1).unwrap();
        assert!(of_a[2].is_displaced() && shares.waiting() == 4);
        assert!(shares.take(&b, 1).is_none(), "then it would have more than the others");
        let of_c = shares.take(&c, 1).unwrap();
        assert!(of_a[1].is_displaced() && !second_of_b.is_displaced());
        drop((of_a, fifth, first_of_b, of_c));
        assert_eq!(shares.waiting(), 1);
    }

    #[test]
    fn shares_grow_while_there_is_room() {
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let shares = Shares::new(100);
        let (first, second) = (shares.take(&a, 50).unwrap(), shares.take(&a, 10).unwrap());
        assert!(second.grow(40) && !second.grow(1));
        let other = shares.take(&b, 20).unwrap();
        assert!(second.is_displaced() && !second.grow(1) && !first.is_displaced());
        assert!(other.grow(30) && !other.grow(1));
        drop(first);
        assert!(other.grow(50) && shares.waiting() == 100);
    }
}
