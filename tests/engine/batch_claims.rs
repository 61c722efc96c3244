//! Sequences of a batch that go before others, or rest: what gives way says in the end what it says alone.

use std::collections::BTreeMap;

use sterna::Error;
use sterna::engine::{Batch, BatchOptions, Event, Request, SeqId};

use super::batch::{Said, alone, engine, greedy, tokens};

/// Those that rest hold their slots until others need them, and go on as if nothing had been.
#[test]
fn who_rests_gives_way() {
    let engine = engine(|_| ());
    let prompts: Vec<Vec<u32>> = (0..4).map(|i| tokens(i, 70 + i as usize)).collect();
    let want: Vec<Said> = prompts.iter().map(|prompt| alone(&engine, prompt, &greedy(20))).collect();
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    let add =
        |batch: &mut Batch, i: usize| batch.add(&Request::new(prompts[i].clone(), greedy(20))).unwrap()[0];
    let ids: Vec<SeqId> = (0..3).map(|i| add(&mut batch, i)).collect();
    let mut said: BTreeMap<SeqId, Said> = BTreeMap::new();
    let mut step = |batch: &mut Batch| {
        let events = batch.step().unwrap();
        events.into_iter().for_each(|(id, event)| said.entry(id).or_default().take(event));
    };
    (0..8).for_each(|_| step(&mut batch));
    ids.iter().for_each(|id| batch.pause(*id, true));
    let before = batch.stats();
    step(&mut batch);
    assert_eq!((batch.stats().steps, batch.stats().resting), (before.steps, 3), "somebody ran");
    let last = add(&mut batch, 3);
    while batch.statuses().any(|standing| standing.id == last) {
        step(&mut batch);
    }
    assert_eq!(batch.stats_of(last).unwrap().generated_tokens, 20, "of a sequence that has just ended");
    assert_eq!((batch.stats().resting, batch.stats().preemptions), (2, 1));
    ids.iter().for_each(|id| batch.pause(*id, false));
    while !batch.is_idle() {
        step(&mut batch);
    }
    let said: Vec<&Said> = ids.iter().chain([&last]).map(|id| &said[id]).collect();
    assert!(said.into_iter().eq(&want));
}

/// A sequence of higher priority takes the place of one of lower, which ends later with the same text.
#[test]
fn priority_goes_first() {
    let engine = engine(|options| options.n_seqs = 1);
    let want = alone(&engine, &tokens(1, 70), &greedy(20));
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    let low = batch.add(&Request::new(tokens(1, 70), greedy(20))).unwrap()[0];
    for _ in 0..5 {
        batch.step().unwrap();
    }
    let n_before = batch.stats_of(low).unwrap().generated_tokens;
    let urgent = Request { priority: 1, ..Request::new(tokens(2, 30), greedy(5)) };
    let high = batch.add(&urgent).unwrap()[0];
    let mut order = Vec::new();
    let mut said = Said::default();
    let take = |id, event: Event| {
        order.extend(event.end.map(|_| id));
        if id == low {
            said.take(event);
        }
        Ok::<(), Error>(())
    };
    batch.run(take).unwrap();
    assert_eq!(order, [high, low]);
    assert_eq!(said.tokens, want.tokens[n_before..]);
}
