//! Priorities and paused sequences of a batch: preempted sequences generate the same text as alone.

use std::collections::BTreeMap;

use sterna::Error;
use sterna::engine::{Batch, BatchOptions, Event, Request, SeqId};

use super::batch::{Output, alone, engine, greedy, tokens};

/// Paused sequences keep their slots until others need them, and then resume without a difference.
#[test]
fn paused_sequences_are_preempted_and_resume() {
    let engine = engine(|_| ());
    let prompts: Vec<Vec<u32>> = (0..4).map(|i| tokens(i, 70 + i as usize)).collect();
    let want: Vec<Output> = prompts.iter().map(|prompt| alone(&engine, prompt, &greedy(20))).collect();
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    let add =
        |batch: &mut Batch, i: usize| batch.add(&Request::new(prompts[i].clone(), greedy(20))).unwrap()[0];
    let ids: Vec<SeqId> = (0..3).map(|i| add(&mut batch, i)).collect();
    let mut outputs: BTreeMap<SeqId, Output> = BTreeMap::new();
    let mut step = |batch: &mut Batch| {
        let events = batch.step().unwrap();
        events.into_iter().for_each(|(id, event)| outputs.entry(id).or_default().take(event));
    };
    (0..8).for_each(|_| step(&mut batch));
    ids.iter().for_each(|id| batch.pause(*id, true));
    let before = batch.stats();
    step(&mut batch);
    assert_eq!((batch.stats().steps, batch.stats().resting), (before.steps, 3), "a paused sequence ran");
    let last = add(&mut batch, 3);
    while batch.statuses().any(|status| status.id == last) {
        step(&mut batch);
    }
    assert_eq!(batch.stats_of(last).unwrap().generated_tokens, 20, "statistics of an ended sequence");
    assert_eq!((batch.stats().resting, batch.stats().preemptions), (2, 1));
    ids.iter().for_each(|id| batch.pause(*id, false));
    while !batch.is_idle() {
        step(&mut batch);
    }
    let outputs: Vec<&Output> = ids.iter().chain([&last]).map(|id| &outputs[id]).collect();
    assert!(outputs.into_iter().eq(&want));
}

/// A sequence of higher priority preempts one of lower priority, which ends later with the same text.
#[test]
fn higher_priority_preempts() {
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
    let mut output = Output::default();
    let take = |id, event: Event| {
        order.extend(event.end.map(|_| id));
        if id == low {
            output.take(event);
        }
        Ok::<(), Error>(())
    };
    batch.run(take).unwrap();
    assert_eq!(order, [high, low]);
    assert_eq!(output.tokens, want.tokens[n_before..]);
}
