//! The prefix cache: full pages, looked up by the preceding page and their own 64 tokens.
//!
//! A node is one page. A hash finds candidates, then the parent and all tokens are compared, so a hash
//! collision cannot mix up two texts. Nodes are evicted from the ends of chains, least recently used first
//! (`order.rs`), and never while a sequence uses their page.
//!
//! With a windowed codec a sequence can only resume where the newest exact pages are still cached. Nodes keep
//! them at checkpoints (ends of prompts and of generations), and a look-up goes back to the nearest
//! checkpoint. The same applies to the pages of sliding-window layers and to recurrent states.

mod order;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use self::order::EvictionOrder;
use crate::pages::{PageKind, PageSet, Pages, Sliding};
use sterna_program::PAGE;

/// Tokens of one page.
pub(super) type Block = [u32; PAGE];

pub(super) type NodeId = u32;

/// Counters of the prefix cache, in tokens and pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixStats {
    /// Prompt tokens that were looked up.
    pub queried_tokens: u64,
    /// Prompt tokens that were found and not recomputed.
    pub hit_tokens: u64,
    /// Evicted pages.
    pub evicted_pages: u64,
    /// Cached pages.
    pub pages: u64,
}

/// A change of the page index, for a router that sends requests to the engine with the matching prefix. A
/// page is reported while a sequence could resume after it, or after a page that follows it. With a windowed
/// codec that requires the newest exact pages before it, so a page may be reported later than it is full, and
/// removed before it is evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageEvent {
    /// A page can now be shared. Its parent was reported before.
    Stored {
        /// Key of the page: a hash of its tokens, all tokens before them, the salt, the model and the kind of
        /// KV cache.
        key: u64,
        /// Key of the preceding page; `None` for a first page.
        parent: Option<u64>,
        /// Salt of a first page: only prompts with the same salt find it.
        salt: Option<Arc<str>>,
        /// Tokens of the page; in place of the rows of an image a number from 2^31 on, which only this engine
        /// knows.
        tokens: Box<[u32]>,
    },
    /// A page can no longer be shared. The pages after it were reported before.
    Removed {
        /// Key of the page.
        key: u64,
    },
    /// All pages are gone: the engine has ended.
    Cleared,
}

/// Callback for page events.
pub type PageListener = Box<dyn FnMut(PageEvent) + Send>;

struct Node {
    parent: Option<NodeId>,
    /// Salt of a first page.
    salt: Option<Arc<str>>,
    tokens: Block,
    key: u64,
    /// Number of pages before it.
    depth: usize,
    /// True if its exact page is kept as long as the node.
    is_sink: bool,
    pages: PageSet,
    children: u32,
    used: u64,
    /// True if it has been reported to the listener.
    is_told: bool,
}

impl Node {
    /// True if its page of a kind can be evicted without another node; a quantised page is evicted with the
    /// node itself.
    fn can_lose(&self, kind: PageKind) -> bool {
        match kind {
            PageKind::Quantised => self.children == 0,
            PageKind::Sliding | PageKind::State => self.pages.get(kind).is_some(),
            PageKind::Exact => self.pages.get(kind).is_some() && !self.is_sink,
        }
    }

    /// True if it has a page of a kind that no sequence uses.
    fn is_spare(&self, pages: &Pages, kind: PageKind) -> bool {
        self.pages.get(kind).is_some_and(|page| !pages.has_several_holders(page))
    }
}

/// The cache. Its pages belong to the [`Pages`] that is passed to every call.
pub(super) struct PrefixCache {
    nodes: Vec<Option<Node>>,
    free: Vec<NodeId>,
    index: HashMap<u64, Vec<NodeId>>,
    order: EvictionOrder,
    /// Hash of the model and the kind of KV cache.
    seed: u64,
    clock: u64,
    stats: PrefixStats,
    pub listener: Option<PageListener>,
    /// True if the set of shareable pages may have changed since the last report to the listener.
    has_changed: bool,
}

impl PrefixCache {
    /// An empty cache; `seed` is hashed into every key.
    pub fn new(seed: u64) -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            index: HashMap::new(),
            order: EvictionOrder::default(),
            seed,
            clock: 0,
            stats: PrefixStats::default(),
            listener: None,
            has_changed: false,
        }
    }

    pub fn stats(&self) -> PrefixStats {
        let pages = (self.nodes.len() - self.free.len()) as u64;
        PrefixStats { pages, ..self.stats }
    }

    /// The longest chain of cached pages from which a sequence of `tokens` can resume. It never covers the
    /// last token.
    pub fn find(&mut self, pages: &Pages, salt: &Arc<str>, tokens: &[u32]) -> Vec<NodeId> {
        self.clock += 1;
        let mut chain: Vec<NodeId> = Vec::new();
        let whole = tokens.len().saturating_sub(1) / PAGE;
        for block in tokens.as_chunks::<PAGE>().0.iter().take(whole) {
            let Some(node) = self.child(chain.last().copied(), salt, block) else { break };
            let clock = self.clock;
            self.change(node, |node| node.used = clock);
            chain.push(node);
        }
        while !self.goes_on(pages, &chain) {
            chain.pop();
        }
        chain
    }

    /// Counts a sequence of `n_tokens` tokens that resumes after `chain`.
    pub fn count(&mut self, n_tokens: usize, chain: &[NodeId]) {
        self.stats.queried_tokens += n_tokens as u64;
        self.stats.hit_tokens += (chain.len() * PAGE) as u64;
    }

    /// True if all pages that the next row needs are cached: its exact pages, its sliding-window pages and
    /// the recurrent state.
    fn goes_on(&self, pages: &Pages, chain: &[NodeId]) -> bool {
        let has_state = |node: &NodeId| self.node(*node).pages.get(PageKind::State).is_some();
        if pages.has_states() && !chain.last().is_none_or(has_state) {
            return false;
        }
        let seen = pages.sliding().map_or(0, Sliding::n_before).min(chain.len());
        let seen = &chain[chain.len() - seen..];
        if !seen.iter().all(|&node| self.node(node).pages.get(PageKind::Sliding).is_some()) {
            return false;
        }
        let window = pages.window();
        let first = chain.len().saturating_sub(window.newest_pages);
        let is_read = |i: usize| i < window.sink_pages || i >= first;
        let exact = |i: usize| self.node(chain[i]).pages.get(PageKind::Exact).is_some();
        !pages.is_windowed() || (0..chain.len()).all(|i| !is_read(i) || exact(i))
    }

    /// Puts the pages of a chain into the empty slot `slot`; exact and sliding-window pages only if later
    /// rows read them.
    pub fn share(&self, pages: &mut Pages, slot: u32, chain: &[NodeId]) {
        let window = pages.window();
        let first = chain.len().saturating_sub(window.newest_pages);
        let first_seen = chain.len().saturating_sub(pages.sliding().map_or(0, Sliding::n_before));
        for (i, &node) in chain.iter().enumerate() {
            let is_read = |kind| match kind {
                PageKind::Quantised => true,
                PageKind::Sliding => i >= first_seen,
                PageKind::Exact => i < window.sink_pages || i >= first,
                PageKind::State => i + 1 == chain.len(),
            };
            pages.push_shared(slot, self.node(node).pages.filter(is_read));
        }
    }

    /// As [`share`](Self::share), with the pages of all checkpoints in the chain. The sequence must not run.
    pub fn share_all(&self, pages: &mut Pages, slot: u32, chain: &[NodeId]) {
        chain.iter().for_each(|&node| pages.push_shared(slot, self.node(node).pages));
    }

    /// Adds page `i` of `slot`, which is full of `tokens` and follows `parent`, to the cache. If an equal
    /// page is cached already, the slot uses that one from now on, so that a holder of the nodes of a chain
    /// also holds its pages.
    pub fn insert(
        &mut self,
        pages: &mut Pages,
        slot: u32,
        i: usize,
        parent: Option<NodeId>,
        salt: &Arc<str>,
        tokens: &Block,
    ) -> NodeId {
        self.clock += 1;
        if let Some(node) = self.child(parent, salt, tokens) {
            let clock = self.clock;
            self.change(node, |node| node.used = clock);
            if let Some(page) = self.node(node).pages.get(PageKind::Quantised) {
                pages.replace(slot, i, page.id);
            }
            return node;
        }
        let key = self.key(parent, salt, tokens);
        let is_sink = i < pages.window().sink_pages;
        let is_kept = |kind| kind == PageKind::Quantised || kind == PageKind::Exact && is_sink;
        let kept = pages.retain(pages.at(slot, i).filter(is_kept));
        let salt = parent.is_none().then(|| Arc::clone(salt));
        let node = Node {
            parent,
            salt,
            tokens: *tokens,
            key,
            depth: i,
            is_sink,
            pages: kept,
            children: 0,
            used: self.clock,
            is_told: false,
        };
        let id = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() as NodeId - 1
        });
        self.order.add(id, &node);
        self.nodes[id as usize] = Some(node);
        self.index.entry(key).or_default().push(id);
        if let Some(parent) = parent {
            self.change(parent, |parent| parent.children += 1);
        }
        self.has_changed = true;
        if !pages.has_checkpoints() {
            self.tell_stored(id);
        }
        id
    }

    /// Keeps the pages that a sequence needs to resume after `chain`, the first pages of `slot`: the newest
    /// exact pages, the sliding-window pages and the newest recurrent state.
    pub fn checkpoint(&mut self, pages: &mut Pages, slot: u32, chain: &[NodeId]) {
        // One page more than is read: an equal prompt recomputes its last token, which may be in the page
        // before.
        let before = |n_read: usize| chain.len().saturating_sub(n_read + 1);
        let seen = pages.sliding().map_or(chain.len(), |sliding| before(sliding.n_before()));
        for (i, &id) in chain.iter().enumerate().skip(seen) {
            self.keep(pages, slot, i, id, PageKind::Sliding);
        }
        let has_state = |(i, _): &(usize, &NodeId)| pages.at(slot, *i).get(PageKind::State).is_some();
        if let Some((i, &id)) = chain.iter().enumerate().rev().find(has_state) {
            self.has_changed |= self.keep(pages, slot, i, id, PageKind::State);
        }
        if !pages.is_windowed() {
            return;
        }
        let first = before(pages.window().newest_pages);
        for (i, &id) in chain.iter().enumerate().skip(first) {
            self.has_changed |= self.keep(pages, slot, i, id, PageKind::Exact);
        }
    }

    /// Keeps all pages of `slot`, whose first pages are `chain`: those of a saved text.
    pub fn keep_all(&mut self, pages: &mut Pages, slot: u32, chain: &[NodeId]) {
        for (i, &id) in chain.iter().enumerate() {
            for kind in [PageKind::Sliding, PageKind::Exact, PageKind::State] {
                if pages.at(slot, i).get(kind).is_some() {
                    self.has_changed |= self.keep(pages, slot, i, id, kind);
                }
            }
        }
    }

    /// Stores page `i` of `slot` of a kind in a node; `false` if the node already has one.
    fn keep(&mut self, pages: &mut Pages, slot: u32, i: usize, id: NodeId, kind: PageKind) -> bool {
        if self.node(id).pages.get(kind).is_some() {
            return false;
        }
        let kept = pages.retain(pages.at(slot, i).filter(|other| other == kind));
        self.change(id, |node| kept.iter().for_each(|page| node.pages.put(page)));
        true
    }

    /// Reports to the listener which pages of a windowed cache have become shareable and which no longer are.
    /// Without a window, changes are reported at once.
    pub fn tell_changes(&mut self, pages: &Pages) {
        let has_changed = std::mem::take(&mut self.has_changed);
        if !has_changed || !pages.has_checkpoints() || self.listener.is_none() {
            return;
        }
        let mut of_use = vec![false; self.nodes.len()];
        let ids = || (0..self.nodes.len() as NodeId).filter(|id| self.nodes[*id as usize].is_some());
        for id in ids() {
            let chain = self.chain_of(id);
            if !of_use[id as usize] && self.goes_on(pages, &chain) {
                chain.iter().for_each(|id| of_use[*id as usize] = true);
            }
        }
        let mut changed: Vec<NodeId> =
            ids().filter(|id| self.node(*id).is_told != of_use[*id as usize]).collect();
        // Parents are added before their children and removed after them.
        changed.sort_by_key(|id| self.node(*id).depth);
        for id in changed.iter().rev().copied().filter(|id| !of_use[*id as usize]) {
            self.tell_removed(id);
        }
        for id in changed.into_iter().filter(|id| of_use[*id as usize]) {
            self.tell_stored(id);
        }
    }

    /// The keys of all shareable pages, computed from the cache itself and not from earlier reports.
    pub fn shared(&self, pages: &Pages) -> Vec<u64> {
        let mut shared: HashMap<NodeId, u64> = HashMap::new();
        for id in (0..self.nodes.len() as NodeId).filter(|id| self.nodes[*id as usize].is_some()) {
            let chain = self.chain_of(id);
            if self.goes_on(pages, &chain) {
                shared.extend(chain.into_iter().map(|id| (id, self.node(id).key)));
            }
        }
        shared.into_values().collect()
    }

    /// The node and all its ancestors, first page first.
    fn chain_of(&self, id: NodeId) -> Vec<NodeId> {
        let mut chain: Vec<NodeId> = std::iter::successors(Some(id), |id| self.node(*id).parent).collect();
        chain.reverse();
        chain
    }

    /// Evicts an unused page of a kind from the least recently used node. A quantised page is evicted
    /// together with its node. `false` if no page qualifies.
    pub fn evict(&mut self, pages: &mut Pages, kind: PageKind) -> bool {
        let Some(id) = self.victim(pages, kind) else { return false };
        if kind == PageKind::Quantised {
            self.remove(pages, id);
            return true;
        }
        let gone = self.node(id).pages.filter(|other| other == kind);
        self.change(id, |node| node.pages = node.pages.filter(|other| other != kind));
        pages.release(gone);
        self.has_changed |= matches!(kind, PageKind::Exact | PageKind::State);
        true
    }

    /// Evicts an exact page, or else a sliding-window page, or a recurrent state. `false` if no page
    /// qualifies.
    pub fn evict_secondary(&mut self, pages: &mut Pages) -> bool {
        [PageKind::Exact, PageKind::Sliding, PageKind::State].into_iter().any(|kind| self.evict(pages, kind))
    }

    /// The next node to lose its page of a kind. Sequences use the pages of the nodes before it in the order.
    fn victim(&self, pages: &Pages, kind: PageKind) -> Option<NodeId> {
        self.order.oldest_first(kind).find(|&id| self.node(id).is_spare(pages, kind))
    }

    /// Evicts the unused pages of a chain, last page first.
    pub fn forget(&mut self, pages: &mut Pages, chain: &[NodeId]) {
        for &id in chain.iter().rev() {
            let node = self.node(id);
            if node.children > 0 || !node.is_spare(pages, PageKind::Quantised) {
                return;
            }
            self.remove(pages, id);
        }
    }

    fn remove(&mut self, pages: &mut Pages, id: NodeId) {
        let node = self.nodes[id as usize].take().expect("it was found");
        self.free.push(id);
        self.order.remove(id, &node);
        if let Some(parent) = node.parent {
            self.change(parent, |parent| parent.children -= 1);
        }
        let ids = self.index.get_mut(&node.key).expect("every node is in the index");
        ids.retain(|other| *other != id);
        if ids.is_empty() {
            self.index.remove(&node.key);
        }
        pages.release(node.pages);
        self.stats.evicted_pages += 1;
        self.has_changed = true;
        if node.is_told {
            self.tell(|| PageEvent::Removed { key: node.key });
        }
    }

    /// True if at least `n` unused pages besides those of `chain` can be evicted.
    pub fn can_spare(&self, pages: &Pages, chain: &[NodeId], n: usize) -> bool {
        let is_spare = |node: &&Node| node.is_spare(pages, PageKind::Quantised);
        let n = n + chain.iter().map(|&id| self.node(id)).filter(is_spare).count();
        self.nodes.iter().flatten().filter(is_spare).take(n).count() == n
    }

    /// Evicts all pages that no sequence uses.
    pub fn clear(&mut self, pages: &mut Pages) {
        while self.evict(pages, PageKind::Quantised) {}
    }

    fn child(&self, parent: Option<NodeId>, salt: &Arc<str>, tokens: &Block) -> Option<NodeId> {
        let ids = self.index.get(&self.key(parent, salt, tokens))?;
        ids.iter().copied().find(|&id| {
            let node = self.node(id);
            let same_salt = node.salt.as_ref().is_none_or(|own| own == salt);
            node.parent == parent && same_salt && node.tokens == *tokens
        })
    }

    fn key(&self, parent: Option<NodeId>, salt: &Arc<str>, tokens: &Block) -> u64 {
        let mut hasher = DefaultHasher::new();
        match parent {
            Some(parent) => self.node(parent).key.hash(&mut hasher),
            None => (self.seed, &**salt).hash(&mut hasher),
        }
        tokens.hash(&mut hasher);
        hasher.finish()
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id as usize].as_ref().expect("node ids are valid")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id as usize].as_mut().expect("node ids are valid")
    }

    /// Changes a node and updates its place in the eviction order.
    fn change(&mut self, id: NodeId, change: impl FnOnce(&mut Node)) {
        let node = self.nodes[id as usize].as_mut().expect("node ids are valid");
        self.order.remove(id, node);
        change(node);
        self.order.add(id, node);
    }

    fn tell_stored(&mut self, id: NodeId) {
        self.node_mut(id).is_told = self.listener.is_some();
        if self.listener.is_none() {
            return;
        }
        let node = self.node(id);
        let (key, tokens) = (node.key, Box::from(&node.tokens[..]));
        let parent = node.parent.map(|parent| self.node(parent).key);
        let salt = node.salt.clone();
        self.tell(|| PageEvent::Stored { key, parent, salt, tokens });
    }

    fn tell_removed(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        node.is_told = false;
        let key = node.key;
        self.tell(|| PageEvent::Removed { key });
    }

    fn tell(&mut self, event: impl FnOnce() -> PageEvent) {
        if let Some(listener) = &mut self.listener {
            listener(event());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sterna_program::KvWindow;

    const NO_SALT: &str = "";

    fn block(seed: u32) -> Block {
        std::array::from_fn(|i| seed * 1000 + i as u32)
    }

    fn insert(
        cache: &mut PrefixCache,
        pages: &mut Pages,
        slot: u32,
        salt: &str,
        blocks: &[u32],
    ) -> Vec<NodeId> {
        assert!(pages.grow(slot, blocks.len() * PAGE));
        let mut chain: Vec<NodeId> = Vec::new();
        for (i, &seed) in blocks.iter().enumerate() {
            let parent = chain.last().copied();
            chain.push(cache.insert(pages, slot, i, parent, &salt.into(), &block(seed)));
        }
        chain
    }

    fn find(cache: &mut PrefixCache, pages: &Pages, salt: &str, blocks: &[u32]) -> usize {
        let tokens: Vec<u32> = blocks.iter().flat_map(|&seed| block(seed)).chain([7]).collect();
        cache.find(pages, &salt.into(), &tokens).len()
    }

    #[test]
    fn pages_are_found_by_all_that_comes_before_them() {
        let mut pages = Pages::new(KvWindow::default(), 3, 8, 16, 0);
        let mut cache = PrefixCache::new(1);
        insert(&mut cache, &mut pages, 0, NO_SALT, &[1, 2, 3]);
        assert_eq!(find(&mut cache, &pages, NO_SALT, &[1, 2, 3, 4]), 3);
        assert_eq!(find(&mut cache, &pages, NO_SALT, &[1, 2, 4]), 2);
        assert_eq!(find(&mut cache, &pages, NO_SALT, &[2, 3]), 0, "the same pages after another prefix");
        assert_eq!(find(&mut cache, &pages, "another salt", &[1, 2, 3]), 0);
        // The last token is always computed.
        let tokens: Vec<u32> = [1, 2, 3].iter().flat_map(|&seed| block(seed)).collect();
        assert_eq!(cache.find(&pages, &NO_SALT.into(), &tokens).len(), 2);
    }

    #[test]
    fn equal_pages_become_one() {
        let mut pages = Pages::new(KvWindow::default(), 2, 8, 16, 0);
        let mut cache = PrefixCache::new(1);
        let first = insert(&mut cache, &mut pages, 0, NO_SALT, &[1, 2]);
        let second = insert(&mut cache, &mut pages, 1, NO_SALT, &[1, 2]);
        assert_eq!(first, second);
        assert_eq!(pages.table().seq(0), pages.table().seq(1));
        assert_eq!(pages.n_free(), 14);
    }

    #[test]
    fn the_least_recently_used_end_goes_first_and_held_pages_never() {
        let mut pages = Pages::new(KvWindow::default(), 3, 8, 16, 0);
        let mut cache = PrefixCache::new(1);
        let (sender, events) = std::sync::mpsc::channel();
        cache.listener = Some(Box::new(move |event| sender.send(event).unwrap()));
        insert(&mut cache, &mut pages, 0, NO_SALT, &[1, 2]);
        insert(&mut cache, &mut pages, 1, NO_SALT, &[3, 4]);
        insert(&mut cache, &mut pages, 2, NO_SALT, &[1, 5]);
        assert!(!cache.evict(&mut pages, PageKind::Quantised), "all pages are in use");
        pages.cut_back(0, 0);
        pages.cut_back(1, 0);
        assert_eq!(find(&mut cache, &pages, NO_SALT, &[3, 4]), 2);
        assert!(cache.can_spare(&pages, &[], 3) && !cache.can_spare(&pages, &[], 4));
        assert!(cache.evict(&mut pages, PageKind::Quantised));
        assert_eq!(find(&mut cache, &pages, NO_SALT, &[1, 2]), 1, "2 was the oldest end");
        cache.clear(&mut pages);
        assert_eq!(find(&mut cache, &pages, NO_SALT, &[1, 5]), 2, "slot 2 uses these");
        assert_eq!(cache.stats().evicted_pages, 3);
        assert_eq!(pages.n_free(), 14);
        let events: Vec<PageEvent> = events.try_iter().collect();
        let stored = |e: &&PageEvent| matches!(e, PageEvent::Stored { .. });
        assert_eq!(events.iter().filter(stored).count(), 5);
        assert_eq!(events.len(), 8);
    }

    #[test]
    fn windowed_chains_end_at_checkpoints() {
        let window = KvWindow::default();
        let mut pages = Pages::new(window, 2, 16, 32, 32);
        let mut cache = PrefixCache::new(1);
        let mut chain = Vec::new();
        for i in 0..6 {
            assert!(pages.grow(0, (i + 1) * PAGE));
            let parent = chain.last().copied();
            chain.push(cache.insert(&mut pages, 0, i, parent, &NO_SALT.into(), &block(i as u32)));
            pages.release_stale(0, (i + 1) * PAGE);
            if i == 2 {
                cache.checkpoint(&mut pages, 0, &chain);
            }
        }
        let all: Vec<u32> = (0..6).collect();
        assert_eq!(
            find(&mut cache, &pages, NO_SALT, &all),
            3,
            "the newest exact pages were kept after page 2"
        );
        cache.checkpoint(&mut pages, 0, &chain);
        pages.cut_back(0, 0);
        assert_eq!(find(&mut cache, &pages, NO_SALT, &all), 6);
        let tokens: Vec<u32> = (0..6).flat_map(block).chain([7]).collect();
        let found = cache.find(&pages, &NO_SALT.into(), &tokens);
        cache.share(&mut pages, 1, &found);
        let exact: Vec<bool> = pages.table().exact(1).iter().map(Option::is_some).collect();
        assert_eq!(exact, [true, false, false, false, false, true]);
        while cache.evict(&mut pages, PageKind::Exact) {}
        assert_eq!(find(&mut cache, &pages, NO_SALT, &all), 6, "slot 1 uses the pages that this needs");
        pages.cut_back(1, 0);
        while cache.evict(&mut pages, PageKind::Exact) {}
        assert_eq!(find(&mut cache, &pages, NO_SALT, &all), 1, "a first page is always kept exactly");
    }
}
