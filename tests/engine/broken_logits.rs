//! Models with NaN weights: the error names the stage, and other sequences continue.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use sterna::Error;
use sterna::engine::{
    BatchOptions, BrokenLogits, BrokenStage, Engine, EngineOptions, Event, Fault, GenerateOptions, Request,
    Speculation, StopReason,
};
use sterna::gguf::Gguf;
use sterna::synth::{Preset, Synth};

use super::batch::{Output, alone, greedy, seeded, tokens};
use super::speculation::Hints;

/// A random model with untied embeddings, in which row `row` of the tensor `name` is NaN.
fn engine(name: &str, row: usize) -> Engine {
    let mut bytes = Vec::new();
    let spec = Preset::by_name("tiny").unwrap().spec(None, None, 1).unwrap();
    Synth::new(&spec).unwrap().write(&mut bytes, |_| ControlFlow::Continue(())).unwrap();
    let gguf = Gguf::from_bytes(bytes.clone().into()).unwrap();
    if let Some(info) = gguf.find(name) {
        let (ty, cols) = (info.ty.unwrap(), info.cols());
        let broken = ty.encode(&vec![f32::NAN; cols], 1, cols).unwrap();
        bytes[info.start as usize + row * broken.len()..][..broken.len()].copy_from_slice(&broken);
    }
    let options = EngineOptions {
        device: "cpu".parse().unwrap(),
        n_ctx: Some(256),
        threads: Some(1),
        n_seqs: 3,
        batch: 64,
        drafts: 8,
        ..EngineOptions::default()
    };
    Engine::from_bytes(bytes.into(), &options).unwrap()
}

fn origin(broken: &BrokenLogits) -> (&str, usize) {
    let BrokenStage { label, position, .. } = broken.origin.as_deref().expect("a step can run again");
    (label, *position)
}

/// For logits that the caller reads, for a pick of the host, and for a pick of the backend.
#[test]
fn first_broken_stage_is_named() {
    for (tensor, label) in [
        ("blk.1.ffn_norm.weight", "1.ffn_in"),
        ("blk.0.attn_norm.weight", "0.attn_in"),
        ("output_norm.weight", "logits"),
    ] {
        let engine = engine(tensor, 0);
        let check = |err: Error| {
            let Error::BrokenLogits(broken) = &err else { panic!("{tensor}: {err}") };
            let at = if label == "logits" { 4 } else { 0 };
            assert_eq!((broken.position, origin(broken)), (4, (label, at)), "{tensor}");
            let message = err.to_string();
            assert!(message.contains(label) && message.contains(tensor), "{message}");
        };
        let prompt = tokens(1, 5);
        let mut session = engine.session().unwrap();
        check(session.logits(&prompt).map(<[f32]>::to_vec).unwrap_err());
        session.cut_back(0);
        check(session.decode(&prompt).unwrap_err());
        session.cut_back(0);
        let mut n_rows = 0;
        let each = session.logits_each(&prompt, |_, _| {
            n_rows += 1;
            Ok::<(), Error>(())
        });
        assert!(matches!(each, Err(Error::BrokenLogits(BrokenLogits { position: 0, .. }))) && n_rows == 0);
        session.cut_back(0);
        for options in [greedy(3), seeded(1, 3)] {
            let mut generation = session.generate(&prompt, &options).unwrap();
            check(generation.next().unwrap().unwrap_err());
            assert!(generation.next().is_none());
            assert_eq!(generation.stop_reason(), Some(StopReason::BrokenLogits));
            session.cut_back(0);
        }
    }
}

/// The embedding of one token is NaN: sequences without it generate the same text as alone, and pages of
/// sequences with it are not found in the prefix cache.
#[test]
fn other_sequences_continue() {
    let (good, whole) = (tokens(2, 70), engine("", 0));
    let want = alone(&whole, &good, &greedy(20));
    let broken = (0..640).find(|id| !good.contains(id) && !want.tokens.contains(id)).unwrap();
    let mut bad = tokens(3, 129);
    bad.retain(|id| *id != broken);
    let at = bad.len();
    bad.push(broken);

    let engine = engine("token_embd.weight", broken as usize);
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    let scored = Request { score_prompt: Some(0), ..Request::new(bad.clone(), greedy(1)) };
    let logprobs = {
        let mut options = greedy(5);
        options.logprobs = Some(2);
        Request::new(bad.clone(), options)
    };
    let sampled = Request::new(bad.clone(), seeded(7, 5));
    let prompt = bad.clone();
    let bad: Vec<_> = [scored, logprobs, sampled, Request::new(bad, greedy(5))]
        .iter()
        .flat_map(|request| batch.add(request).unwrap())
        .collect();
    let id = batch.add(&Request::new(good, greedy(20))).unwrap()[0];
    let (mut output, mut faults) = (Output::default(), BTreeMap::new());
    while !batch.is_idle() {
        for (of, event) in batch.step().unwrap() {
            match event.fault.clone() {
                Some(Fault::BrokenLogits(broken)) => {
                    assert_eq!((event.token, event.end), (None, Some(StopReason::BrokenLogits)));
                    faults.insert(of, broken);
                }
                fault => {
                    assert_eq!((of, fault), (id, None));
                    output.take(event);
                }
            }
        }
    }
    assert_eq!(output, want);
    for of in bad {
        assert_eq!((faults[&of].position, origin(&faults[&of])), (at, ("embed", at)));
    }
    let again = batch.add(&Request::new(prompt, greedy(5))).unwrap()[0];
    while batch.statuses().any(|status| status.id == again) {
        batch.step().unwrap();
    }
    assert_eq!(batch.stats_of(again).unwrap().cached_tokens, 0, "it used pages of a broken sequence");
}

/// If a draft contains a broken token, the sequence ends after the same tokens as without drafts.
#[test]
fn drafts_end_at_broken_logits() {
    let prompt = tokens(4, 30);
    let want = alone(&engine("", 0), &prompt, &greedy(20)).tokens;
    let is_new = |at: &usize| !prompt.contains(&want[*at]) && !want[..*at].contains(&want[*at]);
    let at = (3..20).find(is_new).unwrap();
    let engine = engine("token_embd.weight", want[at] as usize);
    let text = [prompt.as_slice(), &want].concat();
    let speculation: Option<Arc<dyn Speculation>> = Some(Arc::new(Hints { text, wrong: usize::MAX }));
    let drafting = GenerateOptions { speculation, ..greedy(20) };
    for options in [greedy(20), GenerateOptions { logprobs: Some(1), ..drafting.clone() }, drafting] {
        let ended = |events: Vec<Event>| {
            let picked: Vec<u32> = events.iter().filter_map(|event| Some(event.token.as_ref()?.id)).collect();
            let Some(Fault::BrokenLogits(broken)) = &events.last().unwrap().fault else {
                panic!("{events:?}")
            };
            assert_eq!((&picked[..], broken.position), (&want[..=at], prompt.len() + at));
        };
        let mut session = engine.session().unwrap();
        let mut generation = session.generate(&prompt, &options).unwrap();
        ended(std::iter::from_fn(|| generation.next_event()).map(Result::unwrap).collect());
        drop(session);
        let mut batch = engine.batch(BatchOptions::default()).unwrap();
        batch.add(&Request::new(prompt.clone(), options)).unwrap();
        let mut events = Vec::new();
        while !batch.is_idle() {
            events.extend(batch.step().unwrap().into_iter().map(|(_, event)| event));
        }
        ended(events);
    }
}
