//! Device faults: no sequence of a batch loses or repeats a token.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ggml_types::HostTensor;
use sterna::backend::{self, Backend, BackendError, Exec, KvPage, Plan, WeightId};
use sterna::engine::{BatchOptions, Engine, EngineOptions, GenerateOptions, Request, SamplerOptions, SeqId};
use sterna::gguf::Gguf;
use sterna::program::{Buf, Program, Sampling, Step};

/// Forwards every call except the one at which the counter has reached 0.
struct Failing {
    inner: Box<dyn Backend>,
    calls_left: Arc<AtomicUsize>,
}

impl Failing {
    fn call(&self, call: &'static str) -> Result<(), BackendError> {
        match self.calls_left.fetch_sub(1, Ordering::Relaxed) {
            0 => Err(BackendError::Device { backend: "failing", call, detail: "on purpose".into() }),
            _ => Ok(()),
        }
    }
}

impl Backend for Failing {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn device(&self) -> String {
        self.inner.device()
    }

    fn plan(&self, p: &Program) -> Result<Plan, BackendError> {
        self.inner.plan(p)
    }

    fn upload(&mut self, w: &HostTensor) -> Result<WeightId, BackendError> {
        self.inner.upload(w)
    }

    fn compile(&mut self, p: &Program, weights: &[WeightId]) -> Result<Exec, BackendError> {
        self.inner.compile(p, weights)
    }

    fn run(&mut self, e: Exec, step: &Step<'_>) -> Result<(), BackendError> {
        self.call("run")?;
        self.inner.run(e, step)
    }

    fn read(&mut self, e: Exec, b: Buf, first_row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        self.call("read")?;
        self.inner.read(e, b, first_row, out)
    }

    fn write(&mut self, e: Exec, b: Buf, first_row: usize, values: &[f32]) -> Result<(), BackendError> {
        self.inner.write(e, b, first_row, values)
    }

    fn tokens(&mut self, e: Exec, first_row: usize, out: &mut [u32]) -> Result<(), BackendError> {
        self.inner.tokens(e, first_row, out)
    }

    fn runs_ahead(&self, e: Exec, how: &Sampling) -> bool {
        self.inner.runs_ahead(e, how)
    }

    fn picked(&mut self, e: Exec, seq: u32, back: usize) -> Result<u32, BackendError> {
        self.call("picked")?;
        self.inner.picked(e, seq, back)
    }

    fn clamped(&mut self, e: Exec) -> Result<Option<u64>, BackendError> {
        self.inner.clamped(e)
    }

    fn page_bytes(&self, e: Exec, page: KvPage) -> usize {
        self.inner.page_bytes(e, page)
    }

    fn read_page(&mut self, e: Exec, page: KvPage, out: &mut [u8]) -> Result<(), BackendError> {
        self.inner.read_page(e, page, out)
    }

    fn write_page(&mut self, e: Exec, page: KvPage, bytes: &[u8]) -> Result<(), BackendError> {
        self.inner.write_page(e, page, bytes)
    }

    fn run_stages(&mut self, e: Exec, range: Range<usize>, step: &Step<'_>) -> Result<(), BackendError> {
        self.inner.run_stages(e, range, step)
    }
}

/// Returns the tokens of each request, and the number of errors, in a batch whose device fails at the
/// `fails_at`-th call and every 7 calls later.
fn tokens(name: &str, requests: &[Request], fails_at: usize) -> (Vec<Vec<u32>>, usize) {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let calls_left = Arc::new(AtomicUsize::new(usize::MAX));
    let inner = backend::open(name, 1).unwrap();
    let failing = Failing { inner, calls_left: Arc::clone(&calls_left) };
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
