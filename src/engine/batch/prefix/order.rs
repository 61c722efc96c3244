//! Eviction order of the nodes: least recently used first.

use std::collections::BTreeSet;

use super::{Node, NodeId};
use crate::pages::PageKind;

/// Nodes that can lose a page, per [`PageKind`], ordered by last use and then by node id.
#[derive(Default)]
pub(super) struct EvictionOrder([BTreeSet<(u64, NodeId)>; PageKind::ALL.len()]);

impl EvictionOrder {
    /// Adds a node under each kind of page that it can lose.
    pub fn add(&mut self, id: NodeId, node: &Node) {
        for kind in PageKind::ALL.into_iter().filter(|kind| node.can_lose(*kind)) {
            self.0[kind as usize].insert((node.used, id));
        }
    }

    /// Removes a node that has not changed since it was added.
    pub fn remove(&mut self, id: NodeId, node: &Node) {
        for kind in PageKind::ALL.into_iter().filter(|kind| node.can_lose(*kind)) {
            self.0[kind as usize].remove(&(node.used, id));
        }
    }

    /// The nodes that can lose a page of a kind, least recently used first.
    pub fn oldest_first(&self, kind: PageKind) -> impl Iterator<Item = NodeId> {
        self.0[kind as usize].iter().map(|&(_, id)| id)
    }
}

#[cfg(test)]
mod tests {
    use std::array;
    use std::cell::Cell;
    use std::sync::Arc;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;

    use super::super::PrefixCache;
    use super::*;
    use crate::pages::{Pages, Sliding};
    use sterna_program::{KvWindow, PAGE};

    const SLOTS: u32 = 3;

    #[derive(Clone, Debug)]
    enum Act {
        /// A slot runs a text of these blocks; if `true`, it keeps a checkpoint at the end.
        Run(u32, Vec<u32>, bool),
        End(u32),
        Evict(PageKind),
        Forget(Vec<u32>),
    }

    struct Trial {
        pages: Pages,
        cache: PrefixCache,
        salt: Arc<str>,
        evicted: [usize; PageKind::ALL.len()],
    }

    /// The victim, found by a scan of all nodes.
    fn scan(cache: &PrefixCache, pages: &Pages, kind: PageKind) -> Option<NodeId> {
        let sinks = pages.window().sink_pages;
        let is_wanted = |node: &Node| {
            let has_rank = match kind {
                PageKind::Quantised => node.children == 0,
                PageKind::Sliding => true,
                PageKind::Exact => node.depth >= sinks,
                PageKind::State => true,
            };
            has_rank && node.pages.get(kind).is_some_and(|page| !pages.has_several_holders(page))
        };
        let nodes = cache.nodes.iter().enumerate().filter_map(|(id, node)| Some((id, node.as_ref()?)));
        let oldest = nodes.filter(|(_, node)| is_wanted(node)).min_by_key(|(_, node)| node.used);
        oldest.map(|(id, _)| id as NodeId)
    }

    impl Trial {
        fn new() -> Self {
            let pages = Pages::new(KvWindow::default(), SLOTS as usize, 6, 14, 10);
            let pages = pages.with_sliding(Some(Sliding::new(100)), 10).with_states(10, 0);
            Self { pages, cache: PrefixCache::new(1), salt: "".into(), evicted: [0; PageKind::ALL.len()] }
        }

        fn evict(&mut self, kind: PageKind) -> bool {
            let victim = scan(&self.cache, &self.pages, kind);
            let is_evicted = self.cache.evict(&mut self.pages, kind);
            assert_eq!(is_evicted, victim.is_some());
            if let Some(id) = victim {
                let node = self.cache.nodes[id as usize].as_ref();
                assert!(node.is_none_or(|node| node.pages.get(kind).is_none()), "another node lost its page");
                self.evicted[kind as usize] += 1;
            }
            is_evicted
        }

        fn find(&mut self, blocks: &[u32]) -> Vec<NodeId> {
            let tokens: Vec<u32> = blocks.iter().flat_map(|block| [*block; PAGE]).chain([7]).collect();
            self.cache.find(&self.pages, &self.salt, &tokens)
        }

        /// Runs a text until pages run out.
        fn run(&mut self, slot: u32, blocks: &[u32], is_end: bool) {
            self.pages.cut_back(slot, 0);
            let mut chain = self.find(blocks);
            self.cache.share(&mut self.pages, slot, &chain);
            for (i, block) in blocks.iter().enumerate().skip(chain.len()) {
                let positions = (i + 1) * PAGE;
                while !self.pages.grow(slot, positions) {
                    let lacks = |kind: &PageKind| match kind {
                        PageKind::State => self.pages.lacks_state(slot),
                        kind => self.pages.lacks(*kind, slot, positions),
                    };
                    let Some(kind) = PageKind::ALL.into_iter().find(lacks) else { return };
                    if !self.evict(kind) && !self.evict(PageKind::Quantised) {
                        return;
                    }
                }
                let parent = chain.last().copied();
                chain.push(self.cache.insert(&mut self.pages, slot, i, parent, &self.salt, &[*block; PAGE]));
                self.pages.ran(slot, positions, 1);
                self.pages.release_stale(slot, positions);
            }
            if is_end {
                self.cache.checkpoint(&mut self.pages, slot, &chain);
            }
        }

        fn act(&mut self, act: Act) {
            match act {
                Act::Run(slot, blocks, is_end) => self.run(slot, &blocks, is_end),
                Act::End(slot) => _ = self.pages.cut_back(slot, 0),
                Act::Evict(kind) => _ = self.evict(kind),
                Act::Forget(blocks) => {
                    let chain = self.find(&blocks);
                    self.cache.forget(&mut self.pages, &chain);
                }
            }
        }
    }

    #[test]
    fn victims_are_those_that_a_scan_of_all_nodes_finds() {
        let blocks = || vec(0..3_u32, 1..6);
        let act = prop_oneof![
            4 => (0..SLOTS, blocks(), any::<bool>()).prop_map(|(slot, blocks, is_end)| {
                Act::Run(slot, blocks, is_end)
            }),
            2 => (0..SLOTS).prop_map(Act::End),
            2 => (0..PageKind::ALL.len()).prop_map(|i| Act::Evict(PageKind::ALL[i])),
            1 => blocks().prop_map(Act::Forget),
        ];
        let evicted = [const { Cell::new(0) }; PageKind::ALL.len()];
        let trial = |acts: Vec<Act>| {
            let mut trial = Trial::new();
            for act in acts {
                trial.act(act);
                for kind in PageKind::ALL {
                    let victim = trial.cache.victim(&trial.pages, kind);
                    prop_assert_eq!(victim, scan(&trial.cache, &trial.pages, kind), "{:?}", kind);
                }
            }
            (0..SLOTS).for_each(|slot| _ = trial.pages.cut_back(slot, 0));
            trial.cache.clear(&mut trial.pages);
            prop_assert!(trial.pages.is_whole());
            prop_assert!(
                PageKind::ALL.into_iter().all(|kind| trial.cache.order.oldest_first(kind).count() == 0)
            );
            evicted.iter().zip(trial.evicted).for_each(|(all, n)| all.set(all.get() + n));
            Ok(())
        };
        TestRunner::default().run(&vec(act, 1..60), trial).unwrap();
        let evicted: [usize; PageKind::ALL.len()] = array::from_fn(|i| evicted[i].get());
        assert!(evicted.iter().all(|n| *n > 0), "{evicted:?} pages evicted");
    }
}
