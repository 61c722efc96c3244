//! Generation through the public API: stop conditions, determinism, and invalid input.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sterna::Error;
use sterna::backend::{self, BackendError, DeviceOptions};
use sterna::engine::{Engine, EngineOptions, GenerateOptions, SamplerOptions, StopReason};
use sterna::gguf::Gguf;
use sterna::synth::{Preset, Synth};
use sterna::tokenizer::Special;

fn engine(change: impl FnOnce(&mut EngineOptions)) -> Engine {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let mut options = EngineOptions { n_ctx: Some(256), threads: Some(1), ..EngineOptions::default() };
    change(&mut options);
    Engine::open(path, &options).unwrap()
}

fn seeded(seed: u64) -> GenerateOptions {
    let sampler = SamplerOptions { seed: Some(seed), ..SamplerOptions::default() };
    GenerateOptions { sampler, max_tokens: Some(40), ignore_eos: false, ..GenerateOptions::default() }
}

/// `auto` reports the backends that it skips: a device that does not open, and one without the kernels.
#[test]
fn first_backend_that_can_run_a_model_is_used() {
    let mut bytes = Vec::new();
    let spec = Preset::by_name("tiny").unwrap().spec(None, None, 1).unwrap();
    Synth::new(&spec).unwrap().write(&mut bytes, |_| ControlFlow::Continue(())).unwrap();
    let broken = || {
        Err(BackendError::Device { backend: "cuda", call: "cuDevicePrimaryCtxRetain", detail: "gone".into() })
    };
    let open = |backends| {
        let gguf = Gguf::from_bytes(bytes.clone().into()).unwrap();
        // Only the CPU supports this pair of codecs.
        let (cache_type_k, cache_type_v) = ("f32".parse().unwrap(), "turboquant".parse().unwrap());
        let options = EngineOptions { cache_type_k, cache_type_v, ..EngineOptions::default() };
        Engine::on_first(gguf, &options, backends, |_| ())
    };
    let first = open(vec![broken(), backend::open("cpu", 1)]).unwrap();
    assert_eq!(first.backend_name(), "cpu");
    assert!(first.warnings()[0].contains("cuDevicePrimaryCtxRetain: gone"), "{:?}", first.warnings());
    assert!(matches!(open(vec![broken()]), Err(Error::Backend(BackendError::Device { .. }))));
    if backend::NAMES.contains(&"cuda-simt") {
        let simt = || backend::open("cuda-simt", 1);
        let second = open(vec![simt(), backend::open("cpu", 1)]).unwrap();
        assert_eq!(second.backend_name(), "cpu");
        assert!(second.warnings()[0].contains("no kernel for"), "{:?}", second.warnings());
        assert!(matches!(open(vec![simt()]), Err(Error::Backend(BackendError::Missing { .. }))));
    }
}

const PROMPT: &str = "You may copy and distribute";

fn generate(engine: &Engine, options: &GenerateOptions) -> (String, Vec<u32>, StopReason) {
    let mut session = engine.session().unwrap();
    let prompt = engine.tokenizer().unwrap().encode(PROMPT, Special::Parse, true);
    let mut generation = session.generate(&prompt, options).unwrap();
    let text = generation.by_ref().collect::<Result<String, _>>().unwrap();
    (text, generation.tokens().to_vec(), generation.stop_reason().unwrap())
}

#[test]
fn text_depends_only_on_the_seed() {
    let engine = engine(|_| ());
    let first = generate(&engine, &seeded(7));
    assert_eq!(first, generate(&engine, &seeded(7)));
    assert_ne!(first.1, generate(&engine, &seeded(8)).1);
}

#[test]
fn backend_and_host_pick_the_same_tokens() {
    let engine = engine(|_| ());
    for seed in 0..4 {
        let on_backend = seeded(seed);
        let mut on_host = on_backend.clone();
        // More changes than a device supports.
        on_host.sampler.logit_bias = (0..257).map(|token| (token, 0.0)).collect();
        assert_eq!(generate(&engine, &on_backend), generate(&engine, &on_host), "seed {seed}");
    }
}

#[test]
fn pieces_match_the_decoded_tokens() {
    let engine = engine(|_| ());
    let (text, tokens, reason) = generate(&engine, &seeded(3));
    let shown: Vec<u32> =
        tokens.iter().copied().filter(|&t| !engine.tokenizer().unwrap().is_eog(t)).collect();
    let whole = engine.tokenizer().unwrap().decode(&shown, false);
    assert_eq!(text, String::from_utf8_lossy(&whole));
    assert!(matches!(reason, StopReason::Limit | StopReason::EndOfText));
}

#[test]
fn stop_strings_are_not_part_of_the_text() {
    let engine = engine(|_| ());
    let mut options = seeded(3);
    options.ignore_eos = true;
    let (whole, ..) = generate(&engine, &options);
    // A stop string from the middle of the text that spans several tokens.
    let chars: Vec<char> = whole.chars().collect();
    let stop: String = chars[chars.len() / 2..chars.len() / 2 + 8].iter().collect();
    options.stop = vec!["never there".into(), stop.clone()];
    let (text, _, reason) = generate(&engine, &options);
    assert_eq!(reason, StopReason::StopString);
    assert_eq!(text, whole[..whole.find(&stop).unwrap()]);
}

#[test]
fn stop_strings_match_control_tokens() {
    let engine = engine(|_| ());
    let tokenizer = engine.tokenizer().unwrap();
    let bos = tokenizer.bos().unwrap();
    let spelled = String::from_utf8(tokenizer.token_bytes(bos).to_vec()).unwrap();
    let mut options = seeded(3);
    options.sampler.logit_bias = vec![(bos, 1e6)];
    assert_eq!(generate(&engine, &options), (String::new(), vec![bos; 40], StopReason::Limit));
    options.stop = vec!["never there".into(), spelled.clone()];
    assert_eq!(generate(&engine, &options), (String::new(), vec![bos], StopReason::StopString));
    let later = GenerateOptions { min_tokens: 4, ..options.clone() };
    assert_eq!(generate(&engine, &later), (String::new(), vec![bos; 4], StopReason::StopString));
    let shown = GenerateOptions { show_stop: true, ..options.clone() };
    assert_eq!(generate(&engine, &shown), (spelled, vec![bos], StopReason::StopString));
    let special = GenerateOptions { show_special: true, ..options };
    assert_eq!(generate(&engine, &special), (String::new(), vec![bos], StopReason::StopString));
}

#[test]
fn limits_end_the_text() {
    let engine = engine(|_| ());
    let none = GenerateOptions { max_tokens: Some(0), ..seeded(1) };
    assert_eq!(generate(&engine, &none), (String::new(), vec![], StopReason::Limit));

    let small = self::engine(|options| options.n_ctx = Some(32));
    let endless = GenerateOptions { max_tokens: None, ignore_eos: true, ..seeded(1) };
    let (_, tokens, reason) = generate(&small, &endless);
    assert_eq!(reason, StopReason::ContextFull);
    let prompt = small.tokenizer().unwrap().encode(PROMPT, Special::Parse, true);
    // Every position has a token; the last picked one was never fed.
    assert_eq!(prompt.len() + tokens.len(), 32 + 1);
}

#[test]
fn ignore_eos_picks_no_end_token() {
    let engine = engine(|_| ());
    let hot = SamplerOptions { temperature: 50.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..seeded(5).sampler };
    let options = GenerateOptions {
        sampler: hot,
        max_tokens: Some(200),
        ignore_eos: true,
        ..GenerateOptions::default()
    };
    let (_, tokens, _) = generate(&engine, &options);
    assert!(tokens.iter().all(|&token| !engine.tokenizer().unwrap().is_eog(token)));
    assert_eq!(tokens.len(), 200);
}

#[test]
fn generation_can_be_cancelled_between_steps() {
    let engine = engine(|_| ());
    let cancel = Arc::new(AtomicBool::new(false));
    let options = GenerateOptions { cancel: Some(cancel.clone()), ignore_eos: true, ..seeded(1) };
    let mut session = engine.session().unwrap();
    let mut generation = session.generate(&[636, 5, 6], &options).unwrap();
    assert!(generation.next().is_some());
    cancel.store(true, Ordering::Relaxed);
    generation.by_ref().for_each(|piece| drop(piece.unwrap()));
    assert_eq!(generation.stop_reason(), Some(StopReason::Cancelled));
    assert!(generation.tokens().len() < 40);
}

#[test]
fn second_prompt_continues_the_session() {
    let engine = engine(|options| options.n_seqs = 2);
    let greedy = GenerateOptions {
        sampler: SamplerOptions::greedy(),
        max_tokens: Some(6),
        ignore_eos: true,
        ..GenerateOptions::default()
    };
    let mut session = engine.session().unwrap();
    let mut first = session.generate(&[636, 11, 12], &greedy).unwrap();
    first.by_ref().for_each(drop);
    let picked = first.tokens().to_vec();
    // The last picked token was not fed.
    assert_eq!(session.tokens(), [&[636, 11, 12], &picked[..5]].concat());
    let mut second = session.generate(&[picked[5], 13], &greedy).unwrap();
    second.by_ref().for_each(drop);
    let continued = second.tokens().to_vec();

    let whole = [&[636, 11, 12], &picked[..], &[13]].concat();
    let mut fresh = engine.session().unwrap();
    let mut at_once = fresh.generate(&whole, &greedy).unwrap();
    at_once.by_ref().for_each(drop);
    assert_eq!(continued, at_once.tokens());
}

#[test]
fn sessions_on_several_threads_are_independent() {
    let engine = engine(|options| options.n_seqs = 3);
    let alone: Vec<_> = (0..3).map(|seed| generate(&engine, &seeded(seed))).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let engine = &engine;
        let threads: Vec<_> =
            (0..3).map(|seed| scope.spawn(move || generate(engine, &seeded(seed)))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
}

#[test]
fn session_rejects_invalid_prompts() {
    let engine = engine(|options| options.n_ctx = Some(8));
    let mut session = engine.session().unwrap();
    let options = seeded(1);
    assert!(matches!(session.generate(&[], &options), Err(Error::EmptyPrompt)));
    assert!(matches!(session.logits(&[]), Err(Error::EmptyPrompt)));
    assert!(matches!(session.logits(&[640]), Err(Error::Token { token: 640, n_vocab: 640 })));
    let full = session.generate(&[1; 9], &options).map(|_| ());
    assert!(matches!(full, Err(Error::ContextFull { n_ctx: 8, used: 0, more: 9 })));
    assert_eq!(session.position(), 0);
    session.logits(&[1; 8]).unwrap();
    assert!(matches!(session.logits(&[1]), Err(Error::ContextFull { used: 8, more: 1, .. })));
}

#[test]
fn options_outside_their_range_are_refused() {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let refused = |change: fn(&mut EngineOptions)| {
        let mut options = EngineOptions::default();
        change(&mut options);
        Engine::open(&path, &options).unwrap_err().to_string()
    };
    assert!(refused(|o| o.n_ctx = Some(0)).contains("EngineOptions::n_ctx"));
    assert!(refused(|o| o.n_ctx = Some(usize::MAX)).contains("EngineOptions::n_ctx"));
    assert!(refused(|o| o.batch = 0).contains("EngineOptions::batch"));
    let unknown = "tpu".parse::<DeviceOptions>().unwrap_err().to_string();
    assert!(unknown.starts_with("no backend `tpu`: this build has auto, cpu"), "{unknown}");
    // 2^31 positions of the smallest model need some terabytes of cache.
    let message = refused(|o| o.n_ctx = Some(1 << 31));
    assert!(message.contains("KV cache of 2147483648 positions") && message.contains("free"), "{message}");
}

#[test]
fn context_defaults_to_the_trained_one() {
    let trained = engine(|options| options.n_ctx = None);
    assert_eq!(trained.n_ctx(), trained.hyper().n_ctx_train.min(EngineOptions::DEFAULT_CTX));
    assert!(trained.warnings().is_empty());
    let large = engine(|options| options.n_ctx = Some(1 << 16));
    assert!(large.warnings()[0].contains("65536"), "{:?}", large.warnings());
}
