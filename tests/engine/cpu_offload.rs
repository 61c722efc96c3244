//! Batches of which small steps run on the CPU and large ones copy the streamed layers to the card: each
//! sequence generates the same text as with a resident model.

#![cfg(feature = "simt")]

use std::collections::BTreeMap;

use sterna::backend::{DeviceOptions, GpuLayers};
use sterna::engine::{BatchOptions, Engine, EngineOptions, GenerateOptions, Request, SeqId};
use sterna::gguf::Gguf;

use super::batch::{Output, alone, codec, greedy, tokens};

const N_CTX: usize = 320;

/// The model on cuda-simt, offloaded with this `op_offload_min_batch`, or resident.
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

fn with_logprobs(n: usize) -> GenerateOptions {
    GenerateOptions { logprobs: Some(2), ..greedy(n) }
}

/// Asserts that the first `n` tokens are equal. Sums on the CPU and on the card differ in their last bits,
/// and an int8 rounding that flips changes a logit by some thousandths.
fn assert_same_tokens(got: &Output, want: &Output, n: usize, what: &str) {
    for (i, (got, want)) in got.tokens.iter().zip(&want.tokens).take(n).enumerate() {
        if got != want {
            panic!("{what}: token {i} is {got}, want {want}");
        }
    }
}

/// Number of tokens before the first whose logits are too close for the comparison.
fn n_clear(output: &Output) -> usize {
    let gap = |at: usize| output.logprobs[at].top[0].1 - output.logprobs[at].top[1].1;
    (0..output.tokens.len()).find(|at| gap(*at) < 0.05).unwrap_or(output.tokens.len())
}

/// A first sequence is alone, two more arrive and share a part of its prompt, one of them is cancelled, and
/// another arrives with a cached prompt. So steps have 1, 2 and 3 rows, and up to 64 with prompts.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn batches_around_the_min_batch_match_a_resident_model() {
    for kv in ["f16", "turboquant"] {
        let resident = engine(None, kv);
        let shared = tokens(3, 130);
        let own = |seed| shared.iter().copied().chain(tokens(seed, 20)).collect::<Vec<u32>>();
        let prompts = [shared.clone(), own(5), own(6), own(5)];
        let want: Vec<Output> =
            prompts.iter().map(|prompt| alone(&resident, prompt, &with_logprobs(24))).collect();
        assert!(want.iter().map(n_clear).sum::<usize>() >= 24, "too few tokens to compare");
        for min_batch in ["1", "2", "3", "40", "off"] {
            let engine = engine(Some(min_batch), kv);
            let mut batch = engine.batch(BatchOptions::default()).unwrap();
            let mut outputs: Vec<Output> = vec![Output::default(); prompts.len()];
            let mut ids: BTreeMap<SeqId, usize> = BTreeMap::new();
            let mut cancelled = 0;
            for step in 0..400 {
                for (i, arrival) in [0, 8, 9, 22].into_iter().enumerate() {
                    if step == arrival {
                        let request = Request::new(prompts[i].clone(), with_logprobs(24));
                        ids.insert(batch.add(&request).unwrap()[0], i);
                    }
                }
                if step == 18 {
                    let id = *ids.iter().find(|(_, i)| **i == 2).unwrap().0;
                    batch.cancel(id);
                }
                for (id, event) in batch.step().unwrap() {
                    cancelled += usize::from(ids[&id] == 2 && event.end.is_some());
                    outputs[ids[&id]].take(event);
                }
                if step > 22 && batch.is_idle() {
                    break;
                }
            }
            assert_eq!(cancelled, 1, "{kv} {min_batch}");
            assert!(batch.stats().prefix.hit_tokens >= 128, "{kv} {min_batch}");
            for (i, (got, want)) in outputs.iter().zip(&want).enumerate() {
                assert!(got.tokens.len() == 24 || i == 2, "{kv} {min_batch} {i}: {got:?}");
                // Layers that are always copied give the bits of a resident model.
                let n = if min_batch == "1" { 24 } else { n_clear(want) };
                assert_same_tokens(got, want, n, &format!("{kv}, from {min_batch} rows on, sequence {i}"));
            }
        }
    }
}

/// Steps that are only queued and steps that run on the CPU: in both cases the session continues after a cut,
/// with the logits of a resident model.
#[test]
fn sessions_with_cpu_steps_match_a_resident_model() {
    let resident = engine(None, "f16");
    let offloaded = engine(Some("8"), "f16");
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
    for (at, (got, want)) in of(&offloaded).into_iter().zip(of(&resident)).enumerate() {
        let largest = want.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
        let most = got.iter().zip(&want).fold(0.0_f32, |max, (x, y)| max.max((x - y).abs()));
        // A few int8 roundings flip if a norm differs in its last bit, which changes the next layers, too.
        assert!(most <= 0.02 * largest && (at > 0 || most == 0.0), "{at}: {most} of {largest}");
    }
}
