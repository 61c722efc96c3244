//! Device faults: no sequence of a batch loses or repeats a token.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sterna::backend::{self, BackendError};
use sterna::engine::{BatchOptions, Engine, EngineOptions, GenerateOptions, Request, SamplerOptions, SeqId};
use sterna::gguf::Gguf;
use support::HookedBackend;

/// Returns the tokens of each request, and the number of errors, in a batch whose device fails at the
/// `fails_at`-th call and every 7 calls later.
fn tokens(name: &str, requests: &[Request], fails_at: usize) -> (Vec<Vec<u32>>, usize) {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let calls_left = Arc::new(AtomicUsize::new(usize::MAX));
    let left = Arc::clone(&calls_left);
    let failing = HookedBackend::new(backend::open(name, 1).unwrap(), move |call| {
        match left.fetch_sub(1, Ordering::Relaxed) {
            0 => Err(BackendError::Device { backend: "failing", call, detail: "on purpose".into() }),
            _ => Ok(()),
        }
    });
    let options = EngineOptions { n_ctx: Some(128), n_seqs: 3, batch: 32, ..EngineOptions::default() };
    let gguf = Gguf::open(&path).unwrap();
    let engine = Engine::on_backend(gguf, &options, Box::new(failing), |_| ()).unwrap();
    let mut batch = engine.batch(BatchOptions { chunk: Some(16), ..BatchOptions::default() }).unwrap();
    let ids: Vec<SeqId> = requests.iter().map(|request| batch.add(request).unwrap()[0]).collect();
    calls_left.store(fails_at, Ordering::Relaxed);
    let mut picked: BTreeMap<SeqId, Vec<u32>> = BTreeMap::new();
    let mut n_errors = 0;
    while !batch.is_idle() {
        match batch.step() {
            Ok(events) => events.into_iter().for_each(|(id, event)| {
                picked.entry(id).or_default().extend(event.token.map(|token| token.id));
            }),
            Err(_) => {
                n_errors += 1;
                assert!(n_errors < 1000, "{name}: no progress");
                calls_left.store(7, Ordering::Relaxed);
            }
        }
    }
    (ids.iter().map(|id| picked[id].clone()).collect(), n_errors)
}

#[test]
fn failed_steps_are_repeated() {
    let plain = GenerateOptions {
        sampler: SamplerOptions { seed: Some(1), ..SamplerOptions::default() },
        max_tokens: Some(9),
        past_eos: true,
        ..GenerateOptions::default()
    };
    let mut penalised = plain.clone();
    penalised.sampler.repeat_penalty = 1.3;
    let with_logprobs = GenerateOptions { logprobs: Some(2), ..plain.clone() };
    let prompt = |seed: u32, n: u32| (0..n).map(|i| (seed * 31 + i * i) % 500).collect();
    let requests = [
        Request::new(prompt(1, 40), plain),
        Request::new(prompt(2, 9), penalised),
        Request::new(prompt(3, 1), with_logprobs),
    ];
    for name in ["cpu", "cuda-simt"].into_iter().filter(|name| backend::open(name, 1).is_ok()) {
        let (want, none) = tokens(name, &requests, usize::MAX);
        assert_eq!(none, 0);
        assert!(want.iter().all(|tokens| tokens.len() == 9));
        // A step of the CUDA kernels on the CPU takes far longer.
        for fails_at in (0..7).step_by(if name == "cpu" { 1 } else { 3 }) {
            let (got, n_errors) = tokens(name, &requests, fails_at);
            assert!(n_errors > 2, "{name}: {n_errors} errors");
            assert_eq!(got, want, "{name}: from call {fails_at} on");
        }
    }
}
