//! Drafts by a model's multi-token prediction (MTP) block, against an own pass in transformers
//! (`shared/golden/mtp`), and against the text without drafts.

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use sterna::Error;
use sterna::backend::cpu::simd;
use sterna::engine::{
    BatchOptions, Engine, EngineOptions, GenerateOptions, Mtp, MtpDrafts, Request, Session, Stats,
};
use sterna::gguf::Gguf;
use support::logits::{all_logits, distance, sequences};
use support::{golden, npy};

use super::batch::{Output, finish, greedy, seeded};

/// Model and stem of its reference values.
const CASES: [(&str, &str); 4] = [
    ("mtp/tiny-f16.gguf", "f16"),
    ("mtp/tiny-own-f16.gguf", "own-f16"),
    ("mtp/tiny-fit-f16.gguf", "fit-f16"),
    ("qwen35moe/tiny-f16.gguf", "qwen35moe"),
];

fn prompts() -> Vec<Vec<u32>> {
    sequences(&golden("prompts.txt").expect("prompts.txt is in tests/data"))
}

fn open(path: &Path, change: impl FnOnce(&mut EngineOptions)) -> Engine {
    let gguf = Gguf::open(path).expect("a golden file");
    support::logits::engine(gguf, "f32", simd::best(), |options| {
        (options.mtp, options.drafts) = (Mtp::Needed, 3);
        change(options);
    })
}

fn reference(stem: &str, what: &str) -> Vec<f32> {
    npy(&golden(&format!("mtp/{stem}.hf-fp32.{what}.npy")).expect("a reference")).f32s()
}

/// Drafts regardless of the clock.
fn drafts(engine: &Engine) -> MtpDrafts {
    MtpDrafts { row_cost: Some(0.01), ..MtpDrafts::new(engine).unwrap() }
}

fn with(drafts: MtpDrafts, options: GenerateOptions) -> GenerateOptions {
    GenerateOptions { speculation: Some(Arc::new(drafts)), ..options }
}

pub(super) fn generate(session: &mut Session, prompt: &[u32], options: &GenerateOptions) -> (Output, Stats) {
    let mut generation = session.generate(prompt, options).unwrap();
    let mut output = Output::default();
    while let Some(event) = generation.next_event() {
        output.take(event.unwrap());
    }
    let stats = generation.stats();
    (output, stats)
}

/// The block's logits of every position, and of drafts after each prompt, within the 1e-4 of f32 sums in
/// another order; the trunk's are the same bits as without the block.
#[test]
fn logits_of_blocks_match_transformers() {
    for (model, stem) in CASES {
        let Some(path) = golden(model) else { continue };
        let engine = open(&path, |_| ());
        let mut session = engine.session().unwrap();
        let mut all = Vec::new();
        for prompt in prompts() {
            session.cut_back(0);
            let keep = |_, logits: &[f32]| -> Result<(), Error> {
                all.extend_from_slice(logits);
                Ok(())
            };
            session.mtp_logits_each(&prompt, keep).unwrap();
        }
        let far = distance(&all, &reference(stem, "mtp-logits"), &prompts());
        eprintln!("{model}: {far:?}");
        assert!(far.first <= 1e-4 && far.mean <= 1e-5, "{model}: {far:?}");

        let text =
            std::fs::read_to_string(golden(&format!("mtp/{stem}.hf-fp32.draft.txt")).unwrap()).unwrap();
        let mut logits = Vec::new();
        for (prompt, line) in prompts().iter().zip(text.lines()) {
            let want: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            session.cut_back(0);
            assert_eq!(session.decode(prompt).unwrap(), want[0], "{model}");
            let (drafted, rows) = session.mtp_draft(want[0], 3).unwrap();
            assert_eq!(drafted, want[1..], "{model}");
            logits.extend(rows);
        }
        let want = reference(stem, "draft-logits");
        let far = logits.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(logits.len() == want.len() && far <= 1e-4, "{model}: {far} of {}", logits.len());

        drop(session);
        let without = open(&path, |options| options.mtp = Mtp::Off);
        assert!(!without.has_mtp() && without.plan().weights_bytes < engine.plan().weights_bytes);
        let bits = |engine: &Engine| -> Vec<u32> {
            all_logits(engine, &prompts()).iter().map(|x| x.to_bits()).collect()
        };
        assert!(bits(&engine) == bits(&without), "{model}");
    }
}

/// Drafts of the fitted block hold as in the simulation of its README, for a session and in a batch.
#[test]
fn fitted_drafts_hold() {
    let Some(path) = golden("mtp/tiny-fit-f16.gguf") else { return };
    let engine = open(&path, |options| (options.n_seqs, options.drafts) = (4, 12));
    let drafts = MtpDrafts { row_cost: Some(0.0), ..drafts(&engine) };
    // Accepted and drafted tokens of llama-server. Here a draft does not cross a page of 64 positions, for
    // the recurrent states.
    let want = [(0, 100), (31, 46), (29, 51), (30, 48)];
    let prompts = prompts();
    let mut batch_prompts = Vec::new();
    for (prompt, (least, most)) in prompts.iter().zip(want).skip(1) {
        let mut session = engine.session().unwrap();
        let options = with(drafts, greedy(48));
        let (got, stats) = generate(&mut session, prompt, &options);
        eprintln!("{stats:?}");
        assert!(stats.accepted_tokens >= least && stats.drafted_tokens <= most, "{stats:?}");
        let (plain, _) = generate(&mut engine.session().unwrap(), prompt, &greedy(48));
        assert_eq!(got, plain);
        batch_prompts.push((prompt, options, plain));
    }
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    let ids: Vec<_> = batch_prompts
        .iter()
        .map(|(prompt, options, _)| batch.add(&Request::new(prompt.to_vec(), options.clone())).unwrap()[0])
        .collect();
    // One without drafts among them.
    let other = batch.add(&Request::new(prompts[0].clone(), greedy(48))).unwrap()[0];
    let all = finish(&mut batch);
    let stats = batch.stats();
    assert!(stats.accepted_tokens >= 80, "{stats:?}");
    assert_eq!(stats.accepted_at.0.iter().sum::<u64>(), stats.accepted_tokens);
    drop(batch);
    for (id, (_, _, plain)) in ids.iter().zip(&batch_prompts) {
        assert_eq!(all[id], *plain);
    }
    assert_eq!(all[&other], generate(&mut engine.session().unwrap(), &prompts[0], &greedy(48)).0);
}

/// Texts are those without drafts: greedy and drawn, with limits of the draft, after cuts and branches, in
/// saved sessions, and from the prefix cache.
#[test]
fn drafts_by_the_block_do_not_change_the_text() {
    let Some(path) = golden("mtp/tiny-fit-f16.gguf") else { return };
    for kv in ["f16", "turboquant"] {
        let engine = open(&path, |options| {
            (options.cache_type_k, options.cache_type_v) = (kv.parse().unwrap(), kv.parse().unwrap());
            (options.n_seqs, options.drafts, options.checkpoints) = (3, 6, Some(2));
        });
        let [short, long] =
            [MtpDrafts { max: 1, ..drafts(&engine) }, MtpDrafts { max: 6, ..drafts(&engine) }];
        let unlikely = MtpDrafts { p_min: 1.1, ..long };
        let never = MtpDrafts { min: 7, ..long };
        for prompt in &prompts()[1..3] {
            for options in [greedy(40), seeded(3, 40)] {
                let (want, _) = generate(&mut engine.session().unwrap(), prompt, &options);
                for drafts in [short, long, MtpDrafts { p_min: 0.3, ..long }, unlikely, never] {
                    let options = with(drafts, options.clone());
                    let (got, stats) = generate(&mut engine.session().unwrap(), prompt, &options);
                    assert_eq!(got, want, "{kv}, {drafts:?}");
                    let drafts_some = drafts.p_min < 1.0 && drafts.min == 0;
                    assert!(drafts_some || stats.drafted_tokens == 0, "{stats:?}");
                }
            }
        }
        let prompt = &prompts()[2];
        let options = with(long, greedy(40));
        let mut session = engine.session().unwrap();
        let (want, _) = generate(&mut session, prompt, &greedy(40));
        let mut bytes = Vec::new();
        session.cut_back(prompt.len() + 20);
        session.save(&mut bytes).unwrap();
        let mut restored = engine.restore(&mut Cursor::new(&bytes)).unwrap();
        let mut branch = session.branch(prompt.len() + 20).unwrap();
        for session in [&mut session, &mut restored, &mut branch] {
            let (got, _) = generate(session, &want.tokens[20..21], &with(long, greedy(19)));
            assert_eq!(got.tokens, want.tokens[21..], "{kv}");
        }
        drop((session, restored, branch));
        let mut batch = engine.batch(BatchOptions::default()).unwrap();
        let text = [prompt.as_slice(), &want.tokens].concat();
        for _ in 0..2 {
            let id = batch.add(&Request::new(text.clone(), options.clone())).unwrap()[0];
            let got = &finish(&mut batch)[&id];
            let (plain, _) = batch_free(&path, kv, &text);
            assert_eq!(*got, plain, "{kv}");
        }
    }
}

fn batch_free(path: &Path, kv: &str, prompt: &[u32]) -> (Output, Stats) {
    let engine = open(path, |options| {
        (options.cache_type_k, options.cache_type_v) = (kv.parse().unwrap(), kv.parse().unwrap());
        options.mtp = Mtp::Off;
    });
    generate(&mut engine.session().unwrap(), prompt, &greedy(40))
}

/// A session saved without the block does not have its keys and values.
#[test]
fn sessions_without_the_block_are_refused() {
    let Some(path) = golden("mtp/tiny-f16.gguf") else { return };
    let without = open(&path, |options| options.mtp = Mtp::Off);
    let mut session = without.session().unwrap();
    session.prefill(&[1, 2, 3]).unwrap();
    let mut bytes = Vec::new();
    session.save(&mut bytes).unwrap();
    let err = open(&path, |_| ()).restore(&mut Cursor::new(&bytes)).unwrap_err().to_string();
    assert!(err.contains("MTP block"), "{err}");
    assert!(MtpDrafts::new(&without).is_err());
}

#[test]
fn files_without_a_block_are_refused_if_it_is_needed() {
    let path = golden("qwen3/tiny-f16.gguf").expect("it is in tests/data");
    let options = EngineOptions { mtp: Mtp::Needed, drafts: 3, ..EngineOptions::default() };
    let err = Engine::open(&path, &options).unwrap_err();
    assert!(matches!(err, Error::Option { option: "EngineOptions::mtp", .. }), "{err}");
    assert!(!Engine::open(&path, &EngineOptions { mtp: Mtp::IfPresent, ..options }).unwrap().has_mtp());
}

/// A session accepts drafts as often as it is told, for measurements.
#[test]
fn acceptance_can_be_given() {
    let Some(path) = golden("mtp/tiny-f16.gguf") else { return };
    let engine = open(&path, |options| options.n_ctx = Some(1024));
    for (acceptance, shares) in [(0.0, 0.0..0.01), (0.8, 0.75..0.85), (1.0, 0.99..1.01)] {
        let drafts = MtpDrafts { acceptance: Some(acceptance), row_cost: Some(0.0), ..drafts(&engine) };
        let stats = engine.session().unwrap().decode_drafted(&[1, 2], 600, &drafts).unwrap();
        let n_whole = stats.accepted_at.0[MtpDrafts::MAX - 1] as f64;
        let accepted = stats.accepted_tokens as f64;
        let share = accepted / (accepted + stats.drafts as f64 - n_whole);
        assert!(stats.drafts > 10 && shares.contains(&share), "{acceptance}: {share}, {stats:?}");
    }
}

/// Devices run the block with the stages that the model has, too.
#[test]
fn devices_draft_with_the_block() {
    let Some(path) = golden("mtp/tiny-fit-f16.gguf") else { return };
    for name in ["cuda-simt", "wgpu"] {
        let Some(backend) = support::case::backend(name, 1) else { continue };
        let options = EngineOptions {
            n_ctx: Some(192),
            outputs: 64,
            drafts: 3,
            mtp: Mtp::Needed,
            cache_type_k: "f32".parse().unwrap(),
            cache_type_v: "f32".parse().unwrap(),
            ..EngineOptions::default()
        };
        let engine = Engine::on_backend(Gguf::open(&path).unwrap(), &options, backend, |_| ()).unwrap();
        let mut session = engine.session().unwrap();
        let prompt = &prompts()[..1];
        let mut all = Vec::new();
        let keep = |_, logits: &[f32]| -> Result<(), Error> {
            all.extend_from_slice(logits);
            Ok(())
        };
        session.mtp_logits_each(&prompt[0], keep).unwrap();
        let far = distance(&all, &reference("fit-f16", "mtp-logits")[..all.len()], prompt);
        eprintln!("{name}: {far:?}");
        // f32 sums in another order; llama.cpp's f16 products differ by 2e-3.
        assert!(far.mean <= 2e-4, "{name}: {far:?}");
        session.cut_back(0);
        let (got, stats) = generate(&mut session, &prompts()[1], &with(drafts(&engine), greedy(24)));
        assert!(got.tokens.len() == 24 && stats.accepted_tokens > 8, "{name}: {stats:?}");
    }
}
