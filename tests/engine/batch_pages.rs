//! Events of a batch's prefix cache: a listener knows what prompts can find, after every step.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, mpsc};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use sterna::engine::{Batch, BatchOptions, Engine, PageEvent, Request, SeqId};
use sterna::program::PAGE;

use super::batch::{engine, finish, greedy, tokens};

/// A page as the events tell it.
struct Page {
    parent: Option<u64>,
    salt: Option<Arc<str>>,
    tokens: Box<[u32]>,
}

/// The cache as the events tell it.
#[derive(Default)]
struct Told(HashMap<u64, Page>);

impl Told {
    fn take(&mut self, event: PageEvent) {
        match event {
            PageEvent::Stored { key, parent, salt, tokens } => {
                assert!(parent.is_none_or(|parent| self.0.contains_key(&parent)), "a page behind none");
                assert_eq!((tokens.len(), salt.is_some()), (PAGE, parent.is_none()));
                assert!(self.0.insert(key, Page { parent, salt, tokens }).is_none(), "told twice");
            }
            PageEvent::Removed { key } => {
                assert!(self.0.remove(&key).is_some(), "a page that nobody knew");
                assert!(self.0.values().all(|page| page.parent != Some(key)), "a page amid others");
            }
            PageEvent::Cleared => self.0.clear(),
        }
    }

    /// Pages that a prompt finds, all but its last token at most: by tokens alone, as routers do.
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
    /// A prompt of one of a few families, of which each begins alike, with its length.
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
        1 => (0..8usize, any::<bool>()).prop_map(|(at, rests)| Act::Pause(at, rests)),
        1 => (family.clone(), 64..260usize).prop_map(|(family, n)| Act::Forget { family, n }),
        1 => (family, 64..260usize).prop_map(|(family, n)| Act::SaveAndRestore { family, n }),
        1 => Just(Act::Clear),
    ]
}

/// A prompt whose first pages are its family's, and whose rest depends on its length as well.
fn prompt(family: u32, n: usize) -> Vec<u32> {
    let shared = n / PAGE * PAGE;
    let mut all = tokens(family, shared);
    all.extend(tokens(family * 7 + n as u32, n - shared));
    all
}

fn run(batch: &mut Batch, ids: &mut Vec<SeqId>, act: &Act) {
    match act {
        Act::Add { family, n, salted, n_more } => {
            let salt = Arc::from(if *salted { "somebody" } else { "" });
            let request = Request { salt, ..Request::new(prompt(*family, *n), greedy(*n_more)) };
            ids.extend(batch.add(&request).unwrap());
        }
        Act::Steps(n) => (0..*n).for_each(|_| drop(batch.step().unwrap())),
        Act::Cancel(at) => {
            ids.get(*at % ids.len().max(1)).into_iter().for_each(|id| batch.cancel(*id));
            batch.end_cancelled();
        }
        Act::Pause(at, rests) => {
            ids.get(*at % ids.len().max(1)).into_iter().for_each(|id| batch.pause(*id, *rests));
        }
        Act::Forget { family, n } => batch.forget(&prompt(*family, *n), &Arc::from("")),
        Act::SaveAndRestore { family, n } => {
            let mut file = Vec::new();
            let salt = Arc::from("");
            // All slots may be taken, and pages too few.
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

fn holds(engine: &Engine, is_windowed: bool, acts: &[Act]) {
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    let (sender, events) = mpsc::channel();
    batch.listen(Box::new(move |event| drop(sender.send(event))));
    let (mut told, mut ids) = (Told::default(), Vec::new());
    let hear = |told: &mut Told, batch: &Batch| {
        events.try_iter().for_each(|event| told.take(event));
        assert_eq!(told.0.keys().copied().collect::<HashSet<u64>>(), shared(batch));
    };
    for act in acts {
        run(&mut batch, &mut ids, act);
        hear(&mut told, &batch);
    }
    ids.iter().for_each(|id| batch.pause(*id, false));
    finish(&mut batch);
    hear(&mut told, &batch);
    // What the model of the cache promises is what a prompt finds. In a windowed cache a prompt may end
    // before the pages that those behind it need.
    for family in 0..4 {
        let prompt = prompt(family, 250);
        let promised = told.hits("", &prompt) * PAGE;
        let before = batch.stats().prefix.hit_tokens;
        batch.add(&Request::new(prompt, greedy(1))).unwrap();
        finish(&mut batch);
        let found = (batch.stats().prefix.hit_tokens - before) as usize;
        assert!(if is_windowed { found <= promised } else { found == promised }, "{found} of {promised}");
        hear(&mut told, &batch);
    }
    drop(batch);
    events.try_iter().for_each(|event| told.take(event));
    assert!(told.0.is_empty(), "the engine has ended");
}

#[test]
fn events_alone_tell_what_prompts_can_find() {
    for kv in ["f16", "turboquant"] {
        let engine = engine(|options| {
            (options.cache_type_k, options.cache_type_v) = (kv.parse().unwrap(), kv.parse().unwrap());
            // Less than the prompts take, so that pages are evicted.
            options.kv_positions = Some(9 * PAGE);
            if kv != "f16" {
                (options.kv_sinks, options.kv_window) = (Some(PAGE), Some(PAGE));
            }
        });
        let mut runner = TestRunner::new(ProptestConfig { cases: 10, ..ProptestConfig::default() });
        let acts = proptest::collection::vec(act(), 1..24);
        let ran = runner.run(&acts, |acts| {
            holds(&engine, kv != "f16", &acts);
            Ok(())
        });
        ran.unwrap_or_else(|err| panic!("{kv}: {err}"));
    }
}
