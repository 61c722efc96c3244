//! Events of a batch's prefix cache: after every step a listener knows which pages prompts can find.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, mpsc};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use sterna::engine::{Batch, BatchOptions, Engine, PageEvent, Request, SeqId};
use sterna::program::PAGE;

use super::batch::{engine, finish, greedy, tokens};

/// A page as described by the events.
struct Page {
    parent: Option<u64>,
    salt: Option<Arc<str>>,
    tokens: Box<[u32]>,
}

/// The cache as described by the events.
#[derive(Default)]
struct Mirror(HashMap<u64, Page>);

impl Mirror {
    fn take(&mut self, event: PageEvent) {
        match event {
            PageEvent::Stored { key, parent, salt, tokens } => {
                assert!(parent.is_none_or(|parent| self.0.contains_key(&parent)), "the parent is unknown");
                assert_eq!((tokens.len(), salt.is_some()), (PAGE, parent.is_none()));
                assert!(self.0.insert(key, Page { parent, salt, tokens }).is_none(), "stored twice");
            }
            PageEvent::Removed { key } => {
                assert!(self.0.remove(&key).is_some(), "an unknown page");
                assert!(self.0.values().all(|page| page.parent != Some(key)), "a page with children");
            }
            PageEvent::Cleared => self.0.clear(),
        }
    }

    /// Number of pages that a prompt finds, without its last token, determined from tokens as routers do.
    fn hits(&self, salt: &str, prompt: &[u32]) -> usize {
        let mut parent = None;
        let blocks = prompt[..prompt.len() - 1].as_chunks::<PAGE>().0;
        let known = blocks.iter().take_while(|block| {
            let same = |page: &Page| page.parent == parent && page.tokens[..] == block[..];
            let salted = |page: &Page| page.salt.as_deref().is_none_or(|own| own == salt);
            parent = self.0.iter().find(|(_, page)| same(page) && salted(page)).map(|(key, _)| *key);
            parent.is_some()
        });
        known.count()
    }
}

#[derive(Clone, Debug)]
enum Act {
    /// Adds a prompt of `n` tokens; prompts of one family have a common prefix.
    Add {
        family: u32,
        n: usize,
        salted: bool,
        n_more: usize,
    },
    Steps(usize),
    Cancel(usize),
    Pause(usize, bool),
    Forget {
        family: u32,
        n: usize,
    },
    SaveAndRestore {
        family: u32,
        n: usize,
    },
    Clear,
}

fn act() -> impl Strategy<Value = Act> {
    let family = 0..4u32;
    prop_oneof![
        4 => (family.clone(), 1..260usize, proptest::bool::weighted(0.2), 1..12usize)
            .prop_map(|(family, n, salted, n_more)| Act::Add { family, n, salted, n_more }),
        6 => (1..20usize).prop_map(Act::Steps),
        1 => (0..8usize).prop_map(Act::Cancel),
        1 => (0..8usize, any::<bool>()).prop_map(|(at, paused)| Act::Pause(at, paused)),
        1 => (family.clone(), 64..260usize).prop_map(|(family, n)| Act::Forget { family, n }),
        1 => (family, 64..260usize).prop_map(|(family, n)| Act::SaveAndRestore { family, n }),
        1 => Just(Act::Clear),
    ]
}

/// A prompt whose first pages depend on the family, and whose rest also depends on the length.
fn prompt(family: u32, n: usize) -> Vec<u32> {
    let shared = n / PAGE * PAGE;
    let mut all = tokens(family, shared);
    all.extend(tokens(family * 7 + n as u32, n - shared));
    all
}

fn run(batch: &mut Batch, ids: &mut Vec<SeqId>, act: &Act) {
    match act {
        Act::Add { family, n, salted, n_more } => {
            let salt = Arc::from(if *salted { "a client" } else { "" });
            let request = Request { salt, ..Request::new(prompt(*family, *n), greedy(*n_more)) };
            ids.extend(batch.add(&request).unwrap());
        }
        Act::Steps(n) => (0..*n).for_each(|_| drop(batch.step().unwrap())),
        Act::Cancel(at) => {
            ids.get(*at % ids.len().max(1)).into_iter().for_each(|id| batch.cancel(*id));
            batch.end_cancelled();
        }
        Act::Pause(at, paused) => {
            ids.get(*at % ids.len().max(1)).into_iter().for_each(|id| batch.pause(*id, *paused));
        }
        Act::Forget { family, n } => batch.forget(&prompt(*family, *n), &Arc::from("")),
        Act::SaveAndRestore { family, n } => {
            let mut file = Vec::new();
            let salt = Arc::from("");
            // There may be no free slot, or too few pages.
            if batch.save(&prompt(*family, *n), &salt, &mut file).is_ok_and(|n| n > 0) {
                let _ = batch.restore(&mut &file[..], &salt);
            }
        }
        Act::Clear => batch.clear_prefix_cache(),
    }
}

fn shared(batch: &Batch) -> HashSet<u64> {
    batch.shared_pages().into_iter().collect()
}

fn check(engine: &Engine, is_windowed: bool, acts: &[Act]) {
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    let (sender, events) = mpsc::channel();
    batch.listen(Box::new(move |event| drop(sender.send(event))));
    let (mut mirror, mut ids) = (Mirror::default(), Vec::new());
    let update = |mirror: &mut Mirror, batch: &Batch| {
        events.try_iter().for_each(|event| mirror.take(event));
        assert_eq!(mirror.0.keys().copied().collect::<HashSet<u64>>(), shared(batch));
    };
    for act in acts {
        run(&mut batch, &mut ids, act);
        update(&mut mirror, &batch);
    }
    ids.iter().for_each(|id| batch.pause(*id, false));
    finish(&mut batch);
    update(&mut mirror, &batch);
    // A prompt finds exactly the pages that the mirror predicts. In a windowed cache it may find fewer,
    // because the exact pages before its end are missing.
    for family in 0..4 {
        let prompt = prompt(family, 250);
        let predicted = mirror.hits("", &prompt) * PAGE;
        let before = batch.stats().prefix.hit_tokens;
        batch.add(&Request::new(prompt, greedy(1))).unwrap();
        finish(&mut batch);
        let found = (batch.stats().prefix.hit_tokens - before) as usize;
        assert!(if is_windowed { found <= predicted } else { found == predicted }, "{found} of {predicted}");
        update(&mut mirror, &batch);
    }
    drop(batch);
    events.try_iter().for_each(|event| mirror.take(event));
    assert!(mirror.0.is_empty(), "the engine has ended");
}

#[test]
fn events_predict_what_prompts_find() {
    for kv in ["f16", "turboquant"] {
        let engine = engine(|options| {
            (options.cache_type_k, options.cache_type_v) = (kv.parse().unwrap(), kv.parse().unwrap());
            // Less than the prompts need, so that pages are evicted.
            options.kv_positions = Some(9 * PAGE);
            if kv != "f16" {
                (options.kv_sinks, options.kv_window) = (Some(PAGE), Some(PAGE));
            }
        });
        let mut runner = TestRunner::new(ProptestConfig { cases: 10, ..ProptestConfig::default() });
        let acts = proptest::collection::vec(act(), 1..24);
        let ran = runner.run(&acts, |acts| {
            check(&engine, kv != "f16", &acts);
            Ok(())
        });
        ran.unwrap_or_else(|err| panic!("{kv}: {err}"));
    }
}
