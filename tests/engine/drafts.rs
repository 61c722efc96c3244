//! Files that draft for a model: EAGLE-3 heads and MTP blocks against numpy in float64, Gemma 4's assistant
//! against transformers (`scripts/golden/drafts`), and an MTP block alone against the whole file.

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sterna::Error;
use sterna::backend::cpu::simd;
use sterna::engine::{
    BatchOptions, DraftHead, Engine, EngineOptions, GenerateOptions, Mtp, MtpDrafts, Request,
};
use sterna::gguf::Gguf;
use support::logits::{all_logits, sequences};
use support::{golden, npy};

use super::batch::{finish, greedy, seeded};
use super::mtp::generate;

/// A model and a file that drafts for it.
struct Pair {
    model: &'static str,
    draft: &'static str,
    /// Stem of the reference, and the first position of a prompt that it has.
    reference: &'static str,
    first: usize,
    prompts: std::ops::Range<usize>,
}

const PAIRS: [Pair; 6] = [
    Pair {
        model: "qwen3/tiny-f16.gguf",
        draft: "drafts/eagle3-own.gguf",
        reference: "drafts/eagle3-own.np-fp64",
        first: 0,
        prompts: 0..3,
    },
    Pair {
        model: "qwen3/tiny-f16.gguf",
        draft: "drafts/eagle3-lent.gguf",
        reference: "drafts/eagle3-lent.np-fp64",
        first: 0,
        prompts: 0..3,
    },
    Pair {
        model: "gemma4/tiny-f16.gguf",
        draft: "drafts/gemma4-assistant.gguf",
        reference: "drafts/gemma4-assistant.hf-fp32",
        first: 1,
        prompts: 1..3,
    },
    Pair {
        model: "glm4moe/tiny-f16.gguf",
        draft: "drafts/mtp-glm4moe.gguf",
        reference: "drafts/mtp-glm4moe.np-fp64",
        first: 0,
        prompts: 0..3,
    },
    Pair {
        model: "deepseek2/tiny-f16.gguf",
        draft: "drafts/mtp-deepseek2.gguf",
        reference: "drafts/mtp-deepseek2.np-fp64",
        first: 0,
        prompts: 0..3,
    },
    Pair {
        model: "nemotron_h_moe/tiny-f16.gguf",
        draft: "drafts/mtp-nemotron_h_moe.gguf",
        reference: "drafts/mtp-nemotron_h_moe.np-fp64",
        first: 0,
        prompts: 0..3,
    },
];

/// The block of `mtp/tiny-fit-f16.gguf` without its trunk.
const ALONE: [&str; 2] = ["qwen35/tiny-f16.gguf", "mtp/tiny-fit-block-f16.gguf"];

fn prompts() -> Vec<Vec<u32>> {
    sequences(&golden("prompts.txt").expect("prompts.txt is in tests/data"))
}

fn files(model: &str, draft: &str) -> Option<[PathBuf; 2]> {
    Some([golden(model)?, golden(draft)?])
}

fn draft_of(path: &Path) -> Option<Arc<Gguf>> {
    Some(Arc::new(Gguf::open(path).unwrap()))
}

fn open([model, draft]: &[PathBuf; 2], kv: &str, change: impl FnOnce(&mut EngineOptions)) -> Engine {
    support::logits::engine(Gguf::open(model).unwrap(), kv, simd::best(), |options| {
        (options.mtp, options.drafts, options.draft) = (Mtp::Needed, 3, draft_of(draft));
        change(options);
    })
}

/// Drafts regardless of the clock.
fn with_drafts(engine: &Engine, options: GenerateOptions) -> GenerateOptions {
    let drafts = MtpDrafts { row_cost: Some(0.0), ..MtpDrafts::new(engine).unwrap() };
    GenerateOptions { speculation: Some(Arc::new(drafts)), ..options }
}

fn far(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The logits of positions of prompts and of drafts after each, within the 1e-4 of f32 sums in another order;
/// the model's are the same bits as without the file.
#[test]
fn logits_of_files_match_references() {
    for Pair { model, draft, reference, first, prompts: kept } in PAIRS {
        let Some(files) = files(model, draft) else { continue };
        let engine = open(&files, "f32", |_| ());
        let mut session = engine.session().unwrap();
        let read = |what: &str| npy(&golden(&format!("{reference}.{what}.npy")).unwrap()).f32s();
        let is_there = |logit: &&f32| **logit != f32::NEG_INFINITY;
        let mut all = Vec::new();
        for prompt in &prompts()[kept] {
            session.cut_back(0);
            let keep = |at, logits: &[f32]| -> Result<(), Error> {
                let there = logits.iter().filter(is_there).copied();
                all.extend(there.filter(|_| at >= first));
                Ok(())
            };
            session.mtp_logits_each(prompt, keep).unwrap();
        }
        let of_prompts = far(&all, &read("logits"));
        let text = std::fs::read_to_string(golden(&format!("{reference}.draft.txt")).unwrap()).unwrap();
        let mut logits = Vec::new();
        for (prompt, line) in prompts().iter().zip(text.lines()) {
            let want: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            session.cut_back(0);
            assert_eq!(session.decode(prompt).unwrap(), want[0], "{draft}");
            let (drafted, rows) = session.mtp_draft(want[0], 3).unwrap();
            assert_eq!(drafted, want[1..], "{draft}");
            logits.extend(rows.iter().filter(is_there));
        }
        let of_drafts = far(&logits, &read("draft-logits"));
        eprintln!("{draft}: prompts {of_prompts:e}, drafts {of_drafts:e}");
        assert!(of_prompts <= 1e-4 && of_drafts <= 1e-4, "{draft}: {of_prompts}, {of_drafts}");

        drop(session);
        let without = open(&files, "f32", |options| options.mtp = Mtp::Off);
        assert!(!without.has_mtp() && without.plan().weights_bytes < engine.plan().weights_bytes);
        let bits = |engine: &Engine| -> Vec<u32> {
            all_logits(engine, &prompts()).iter().map(|x| x.to_bits()).collect()
        };
        assert!(bits(&engine) == bits(&without), "{draft}");
    }
}

/// The block in a file of its own gives the bits of the block in the model's file, and its drafts hold.
#[test]
fn a_block_alone_is_the_block_of_the_whole_file() {
    let (Some(files), Some(whole)) = (files(ALONE[0], ALONE[1]), golden("mtp/tiny-fit-f16.gguf")) else {
        return;
    };
    let whole = support::logits::engine(Gguf::open(&whole).unwrap(), "f32", simd::best(), |options| {
        (options.mtp, options.drafts) = (Mtp::Needed, 3);
    });
    let alone = open(&files, "f32", |_| ());
    let prompts = prompts();
    let of = |engine: &Engine| {
        let mut session = engine.session().unwrap();
        let mut all = Vec::new();
        let keep = |_, logits: &[f32]| -> Result<(), Error> {
            all.extend(logits.iter().map(|logit| logit.to_bits()));
            Ok(())
        };
        session.mtp_logits_each(&prompts[2], keep).unwrap();
        session.cut_back(0);
        let (output, stats) = generate(&mut session, &prompts[2], &with_drafts(engine, greedy(48)));
        (all, output, stats.drafted_tokens, stats.accepted_tokens)
    };
    let (want, got) = (of(&whole), of(&alone));
    assert!(got == want && got.3 >= 20, "{} of {} accepted", got.3, got.2);
}

#[test]
fn drafts_by_files_do_not_change_the_text() {
    check_texts(&prompts()[1..2], 16, false);
}

#[test]
#[ignore = "takes minutes in a debug build"]
fn drafts_by_files_do_not_change_long_texts() {
    check_texts(&prompts()[1..], 40, true);
}

/// Checks that texts of `n` tokens are those without drafts: greedy and drawn, in a saved session, and in a
/// batch; if `all`, also with a KV cache that keeps a window.
fn check_texts(prompts: &[Vec<u32>], n: usize, all: bool) {
    let pairs = PAIRS.iter().map(|pair| [pair.model, pair.draft]).chain([ALONE]);
    for [model, draft] in pairs {
        let Some(files) = files(model, draft) else { continue };
        // Heads of these models do not have the lengths of turboquant.
        let has_others = model.starts_with("gemma4") || model.starts_with("deepseek2");
        let kvs: &[&str] = if has_others || !all { &["f16"] } else { &["f16", "turboquant"] };
        for &kv in kvs {
            let engine = open(&files, kv, |options| {
                (options.n_seqs, options.drafts, options.checkpoints) = (3, 6, Some(2));
            });
            let (mut accepted, mut drafted, mut requests) = (0, 0, Vec::new());
            for prompt in prompts {
                for options in [greedy(n), seeded(3, n)] {
                    let (want, _) = generate(&mut engine.session().unwrap(), prompt, &options);
                    let options = with_drafts(&engine, options);
                    let (got, stats) = generate(&mut engine.session().unwrap(), prompt, &options);
                    assert_eq!(got, want, "{draft}, {kv}");
                    accepted += stats.accepted_tokens;
                    drafted += stats.drafted_tokens;
                    requests.push((prompt.clone(), options, want));
                }
            }
            eprintln!("{draft}, {kv}: {accepted} of {drafted} accepted");
            assert!(drafted > n, "{draft}, {kv}: {drafted}");
            // The fitted heads hold sometimes; the other one is random.
            assert!(accepted > 0 || draft.contains("lent"), "{draft}, {kv}: {accepted} of {drafted}");

            let (prompt, options, want) = &requests[0];
            let mut session = engine.session().unwrap();
            session.prefill(prompt).unwrap();
            let mut bytes = Vec::new();
            session.save(&mut bytes).unwrap();
            let mut restored = engine.restore(&mut Cursor::new(&bytes)).unwrap();
            let left = GenerateOptions { max_tokens: Some(n - 1), ..options.clone() };
            let (got, _) = generate(&mut restored, &want.tokens[..1], &left);
            assert_eq!(got.tokens, want.tokens[1..], "{draft}, {kv}");
            drop((session, restored));

            let mut batch = engine.batch(BatchOptions::default()).unwrap();
            let add = |(prompt, options, _): &(Vec<u32>, GenerateOptions, _)| {
                Request::new(prompt.clone(), options.clone())
            };
            let ids: Vec<_> = requests.iter().map(|request| batch.add(&add(request)).unwrap()[0]).collect();
            let all = finish(&mut batch);
            for (id, (_, _, want)) in ids.iter().zip(&requests) {
                assert_eq!(all[id], *want, "{draft}, {kv}");
            }
        }
    }
}

/// A limited head drafts only its tokens, with the logits of the whole one, and the text stays the same.
#[test]
fn heads_are_limited_to_some_tokens() {
    let Some(files) = files(ALONE[0], ALONE[1]) else { return };
    let prompt = &prompts()[2];
    let whole = open(&files, "f32", |_| ());
    let (want, of_whole) = generate(&mut whole.session().unwrap(), prompt, &with_drafts(&whole, greedy(48)));
    let logits = |engine: &Engine| -> Vec<f32> {
        let mut session = engine.session().unwrap();
        let mut all = Vec::new();
        let keep = |_, logits: &[f32]| -> Result<(), Error> {
            all.extend_from_slice(logits);
            Ok(())
        };
        session.mtp_logits_each(prompt, keep).unwrap();
        all
    };
    let all = logits(&whole);
    let of_text: Arc<[u32]> = want.tokens.as_slice().into();
    for head in [DraftHead::Tokens(Arc::clone(&of_text)), DraftHead::First(300), DraftHead::First(1 << 20)] {
        let limited = open(&files, "f32", |options| options.draft_head = Some(head.clone()));
        let options = with_drafts(&limited, greedy(48));
        let (got, stats) = generate(&mut limited.session().unwrap(), prompt, &options);
        assert_eq!(got, want, "{head:?}");
        let has = |token: u32| match &head {
            DraftHead::Tokens(tokens) => tokens.contains(&token),
            // The last four tokens are control tokens.
            DraftHead::First(n) => (token as usize) < *n || token >= 636,
        };
        for (row, (got, want)) in logits(&limited).chunks(640).zip(all.chunks(640)).enumerate() {
            for (token, (got, want)) in got.iter().zip(want).enumerate() {
                let want = if has(token as u32) { *want } else { f32::NEG_INFINITY };
                assert!(*got == want, "{head:?}: row {row}, token {token}: {got}, {want}");
            }
        }
        if head == DraftHead::Tokens(Arc::clone(&of_text)) {
            assert!(stats.accepted_tokens >= of_whole.accepted_tokens, "{stats:?}, {of_whole:?}");
            assert!(limited.plan().weights_bytes < whole.plan().weights_bytes);
        }
    }
    let options = EngineOptions {
        mtp: Mtp::Needed,
        drafts: 3,
        draft: draft_of(&files[1]),
        draft_head: Some(DraftHead::Tokens([640].into())),
        ..EngineOptions::default()
    };
    let err = Engine::open(&files[0], &options).unwrap_err().to_string();
    assert!(err.contains("EngineOptions::draft_head: want at least one token, below 640, got 640"), "{err}");
}

/// Files for another model, and models in place of such files, are refused.
#[test]
fn files_of_other_models_are_refused() {
    let refused = |model: &str, draft: &str, want: &str| {
        let Some([model, draft]) = files(model, draft) else { return };
        let options = EngineOptions {
            mtp: Mtp::Needed,
            drafts: 3,
            draft: draft_of(&draft),
            ..EngineOptions::default()
        };
        let err = Engine::open(&model, &options).unwrap_err().to_string();
        assert!(err.contains(want), "{err}");
    };
    let (qwen3, llama) = ("qwen3/tiny-f16.gguf", "llama-i2_s/tiny-i2_s.gguf");
    refused(llama, PAIRS[0].draft, "target_hidden_size: want 256, the width of the model");
    refused(qwen3, PAIRS[2].draft, "want a Gemma 4 model to draft for, file has qwen3");
    refused(qwen3, ALONE[1], "general.architecture: want qwen3, as in the model");
    refused(qwen3, llama, "a whole `llama` model");
    for draft in [PAIRS[0].draft, PAIRS[2].draft] {
        let path = golden(draft).unwrap();
        let err = Engine::open(&path, &EngineOptions::default()).unwrap_err().to_string();
        assert!(err.contains("a file that drafts for its model"), "{err}");
    }
}

/// Devices run EAGLE-3 heads, and wgpu also the assistant, which CUDA refuses by name.
#[test]
fn devices_draft_with_files() {
    for name in ["cuda-simt", "wgpu"] {
        for (at, pair) in PAIRS.iter().take(3).enumerate() {
            let runs = at < 2 || name == "wgpu";
            let Pair { model, draft, reference, .. } = *pair;
            let Some(([model, draft], backend)) = files(model, draft).zip(support::case::backend(name, 1))
            else {
                continue;
            };
            let options = EngineOptions {
                n_ctx: Some(128),
                outputs: 64,
                drafts: 3,
                mtp: Mtp::Needed,
                draft: draft_of(&draft),
                cache_type_k: "f32".parse().unwrap(),
                cache_type_v: "f32".parse().unwrap(),
                ..EngineOptions::default()
            };
            let engine = Engine::on_backend(Gguf::open(&model).unwrap(), &options, backend, |_| ());
            let engine = match engine {
                Ok(engine) => engine,
                Err(err) => {
                    let err = err.to_string();
                    assert!(!runs && err.contains("the cpu backend has all of them"), "{name}: {err}");
                    continue;
                }
            };
            assert!(runs, "{name}: {}", draft.display());
            let text = std::fs::read_to_string(golden(&format!("{reference}.draft.txt")).unwrap()).unwrap();
            let want = npy(&golden(&format!("{reference}.draft-logits.npy")).unwrap()).f32s();
            let mut session = engine.session().unwrap();
            let mut logits = Vec::new();
            for (prompt, line) in prompts().iter().zip(text.lines()).take(3) {
                let picked = line.split(' ').next().unwrap().parse().unwrap();
                session.cut_back(0);
                session.decode(prompt).unwrap();
                let (_, rows) = session.mtp_draft(picked, 3).unwrap();
                logits.extend(rows.iter().filter(|logit| **logit != f32::NEG_INFINITY));
            }
            let of_drafts = far(&logits, &want[..logits.len()]);
            eprintln!("{name}, {}: {of_drafts:e}", draft.display());
            // f32 sums in another order.
            assert!(of_drafts <= 2e-4, "{name}: {of_drafts}");
            drop(session);
            let (want, _) = generate(&mut engine.session().unwrap(), &prompts()[1], &greedy(24));
            let options = with_drafts(&engine, greedy(24));
            let (got, stats) = generate(&mut engine.session().unwrap(), &prompts()[1], &options);
            assert!(got == want && stats.drafted_tokens > 8, "{name}: {stats:?}");
        }
    }
}
