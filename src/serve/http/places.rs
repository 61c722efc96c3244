//! Places of connections. If all are taken, a new connection gets the place of one that waits for its client.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Time that a new or idle connection has before others go after it.
const FRESH: Duration = Duration::from_secs(1);

/// Client address: all addresses of an IPv6 network of 64 bits are one client's.
#[derive(Clone, Debug)]
pub struct Peer(pub Arc<str>);

impl Peer {
    /// The client at `address`.
    pub fn new(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => address.to_string().into(),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                format!("{a:x}:{b:x}:{c:x}:{d:x}::/64").into()
            }
        })
    }
}

/// The places of a server.
#[derive(Debug)]
pub struct Places {
    most: usize,
    state: Mutex<State>,
    /// Notified when a place is left or may be given up.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    taken: BTreeMap<u64, Taken>,
}

#[derive(Debug)]
struct Taken {
    peer: Arc<str>,
    doing: Doing,
    since: Instant,
    given_up: Arc<Notify>,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It waits for the head of a request.
    Head,
    /// It waits for the body of a request.
    Body,
    /// A request is being answered.
    Answer,
}

impl Places {
    /// `most` places.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, state: Mutex::default(), changed: Notify::new() })
    }

    /// Takes a place, and waits for one while all connections are being answered.
    pub async fn enter(self: &Arc<Self>, peer: &Peer) -> Place {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(place) = self.try_enter(peer) {
                return place;
            }
            changed.await;
        }
    }

    fn try_enter(self: &Arc<Self>, peer: &Peer) -> Option<Place> {
        let mut state = self.state();
        if state.taken.len() >= self.most {
            let id = state.least_needed()?;
            let taken = state.taken.remove(&id)?;
            taken.given_up.notify_one();
        }
        let (id, given_up) = (state.next, Arc::<Notify>::default());
        state.next += 1;
        let (peer, doing, since) = (Arc::clone(&peer.0), Doing::Head, Instant::now());
        state.taken.insert(id, Taken { peer, doing, since, given_up: Arc::clone(&given_up) });
        Some(Place { places: Arc::clone(self), id, given_up })
    }

    /// Waits until all places are free.
    pub async fn all_left(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.state().taken.is_empty() {
                return;
            }
            changed.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The connection to be given up: of the address with the most connections, one that is idle rather than
    /// one that sends a body, and then the one that has waited longest. `None` if all are being answered.
    fn least_needed(&self) -> Option<u64> {
        let mut of_peers: HashMap<&str, usize> = HashMap::new();
        self.taken.values().for_each(|taken| *of_peers.entry(&taken.peer).or_default() += 1);
        let waiting = self.taken.iter().filter(|(_, taken)| taken.doing != Doing::Answer);
        let rank = |taken: &Taken| match taken.doing {
            Doing::Head if taken.since.elapsed() < FRESH => 0,
            Doing::Body => 1,
            _ => 2,
        };
        let least =
            waiting.max_by_key(|(_, taken)| (of_peers[&*taken.peer], rank(taken), Reverse(taken.since)));
        least.map(|(id, _)| *id)
    }
}

/// The place of a connection. Dropping it frees it.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    id: u64,
    given_up: Arc<Notify>,
}

impl Place {
    /// Notes the connection's state.
    pub fn now(&self, doing: Doing) {
        if let Some(taken) = self.places.state().taken.get_mut(&self.id) {
            (taken.doing, taken.since) = (doing, Instant::now());
        }
        if doing != Doing::Answer {
            self.places.changed.notify_waiters();
        }
    }

    /// Waits until the connection has to end because another one has its place.
    pub async fn given_up(&self) {
        self.given_up.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.state().taken.remove(&self.id);
        self.places.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_with_most_connections_gives_up_the_idle_one() {
        let peers = ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "2001:db8::2:1"];
        let [v4, mapped, v6, near] = peers.map(|peer| Peer::new(peer.parse().unwrap()));
        assert_eq!((&v4.0, &v6.0), (&mapped.0, &near.0));
        let places = Places::new(4);
        let enter = |peer: &Peer| places.try_enter(peer);
        let mut of_v4: Vec<Place> = (0..3).map(|_| enter(&v4).unwrap()).collect();
        let of_v6 = enter(&v6).unwrap();
        of_v4[0].now(Doing::Answer);
        of_v4[1].now(Doing::Body);
        let has = |place: &Place| places.state().taken.contains_key(&place.id);
        // A body goes before a connection that has just come, and nothing before an answer.
        let next = enter(&v6).unwrap();
        assert!(has(&of_v4[0]) && !has(&of_v4[1]) && has(&of_v4[2]));
        places.state().taken.get_mut(&of_v6.id).unwrap().since -= 2 * FRESH;
        of_v4.push(enter(&v4).unwrap());
        assert!(!has(&of_v6) && has(&next) && has(&of_v4[2]));
        [&of_v4[2], &of_v4[3], &next].iter().for_each(|place| place.now(Doing::Answer));
        assert!(enter(&v6).is_none());
        drop(next);
        assert!(enter(&v6).is_some());
    }
}
