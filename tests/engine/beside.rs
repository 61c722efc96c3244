//! Sequences whose steps are computed by the processor while they are few, and copy the layers that the card
//! has no room for while they are many: each says what a model on the card says.

#![cfg(feature = "simt")]

use std::collections::BTreeMap;

use sterna::backend::{DeviceOptions, GpuLayers};
use sterna::engine::{BatchOptions, Engine, EngineOptions, GenerateOptions, Request, SeqId};
use sterna::gguf::Gguf;

use super::batch::{Said, alone, codec, greedy, tokens};

const N_CTX: usize = 320;

/// The model on the CPU's CUDA, with its layers beside it from a number of rows on, if that is said.
fn engine(min_batch: Option<&str>, kv: &str) -> Engine {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let device = DeviceOptions {
        gpu_layers: min_batch.map(|_| GpuLayers::Count(0)),
        op_offload_min_batch: min_batch.map(|n| n.parse().unwrap()),
        stream_slots: min_batch.map(|_| 1),
        .."cuda-simt".parse().expect("it is in this build")
    };
    let backend = device.open(1).expect("it opens anywhere");
    let mut options = EngineOptions {
        n_ctx: Some(N_CTX),
        threads: Some(1),
        n_seqs: 3,
        batch: 64,
        ..EngineOptions::default()
    };
    codec(&mut options, kv);
    Engine::on_backend(Gguf::open(&path).unwrap(), &options, backend, |_| ()).unwrap()
}

fn asked(n: usize) -> GenerateOptions {
    GenerateOptions { logprobs: Some(2), ..greedy(n) }
}

/// That two texts are the same up to where the model hesitates: sums of the processor's and of the card's
/// differ in their last bits, and an int8 rounding that flips moves a logit by some thousandths.
fn assert_alike(got: &Said, want: &Said, n: usize, what: &str) {
    for (i, (got, want)) in got.tokens.iter().zip(&want.tokens).take(n).enumerate() {
        if got != want {
            panic!("{what}: token {i} is {got}, not {want}");
        }
    }
}

/// How many tokens the model is sure of by more than both ways may differ.
fn sure(said: &Said) -> usize {
    let gap = |at: usize| said.logprobs[at].top[0].1 - said.logprobs[at].top[1].1;
    (0..said.tokens.len()).find(|at| gap(*at) < 0.05).unwrap_or(said.tokens.len())
}

/// A first sequence is alone, two more come and share a part of its prompt, one of them leaves in the middle,
/// another comes with a prompt that is known. So steps have 1, 2 and 3 rows, and those of prompts up to 64.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn batches_grow_and_shrink_across_the_break_even() {
    for kv in ["f16", "turboquant"] {
        let resident = engine(None, kv);
        let shared = tokens(3, 130);
        let own = |seed| shared.iter().copied().chain(tokens(seed, 20)).collect::<Vec<u32>>();
        let prompts = [shared.clone(), own(5), own(6), own(5)];
        let want: Vec<Said> = prompts.iter().map(|prompt| alone(&resident, prompt, &asked(24))).collect();
        assert!(want.iter().map(sure).sum::<usize>() >= 24, "too few tokens are sure to be compared");
        for min_batch in ["1", "2", "3", "40", "off"] {
            let engine = engine(Some(min_batch), kv);
            let mut batch = engine.batch(BatchOptions::default()).unwrap();
            let mut said: Vec<Said> = vec![Said::default(); prompts.len()];
            let mut ids: BTreeMap<SeqId, usize> = BTreeMap::new();
            let mut cancelled = 0;
            for step in 0..400 {
                for (i, comes) in [0, 8, 9, 22].into_iter().enumerate() {
                    if step == comes {
                        let request = Request::new(prompts[i].clone(), asked(24));
                        ids.insert(batch.add(&request).unwrap()[0], i);
                    }
                }
                if step == 18 {
                    let id = *ids.iter().find(|(_, i)| **i == 2).unwrap().0;
                    batch.cancel(id);
                }
                for (id, event) in batch.step().unwrap() {
                    cancelled += usize::from(ids[&id] == 2 && event.end.is_some());
                    said[ids[&id]].take(event);
                }
                if step > 22 && batch.is_idle() {
                    break;
                }
            }
            assert_eq!(cancelled, 1, "{kv} {min_batch}");
            assert!(batch.stats().prefix.hit_tokens >= 128, "{kv} {min_batch}");
            for (i, (got, want)) in said.iter().zip(&want).enumerate() {
                assert!(got.tokens.len() == 24 || i == 2, "{kv} {min_batch} {i}: {got:?}");
                // What is always copied has the bits of a model on the card.
                let n = if min_batch == "1" { 24 } else { sure(want) };
                assert_alike(got, want, n, &format!("{kv}, from {min_batch} rows on, sequence {i}"));
            }
        }
    }
}

/// A session runs ahead while its steps are queued, and not while they take the processor; either way it
/// goes on behind what it forgot, and its logits are those of a model on the card.
#[test]
fn a_session_goes_on_from_either_way() {
    let resident = engine(None, "f16");
    let beside = engine(Some("8"), "f16");
    let prompt = tokens(7, 50);
    let of = |engine: &Engine| {
        let mut session = engine.session().unwrap();
        let mut all = Vec::new();
        for n in [50, 7, 8, 1] {
            all.push(session.logits(&prompt[..n]).unwrap().to_vec());
            session.cut_back(session.position() - n / 2);
        }
        all
    };
    for (at, (got, want)) in of(&beside).into_iter().zip(of(&resident)).enumerate() {
        let largest = want.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
        let most = got.iter().zip(&want).fold(0.0_f32, |max, (x, y)| max.max((x - y).abs()));
        // A few int8 roundings flip where a norm differs in its last bit, and the next layers take them on.
        assert!(most <= 0.02 * largest && (at > 0 || most == 0.0), "{at}: {most} of {largest}");
    }
}
