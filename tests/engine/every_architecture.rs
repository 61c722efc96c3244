//! Every name of every architecture in `model::REGISTRY` has a small model in `tests/data` with the output of
//! another implementation, a snapshot of its program, and its rows in the documents; the test reports what is
//! missing. `scripts/golden/tiny` creates most of the models.

use std::fs;
use std::path::{Path, PathBuf};

use sterna::backend::cpu::simd;
use sterna::engine::{Engine, EngineOptions};
use sterna::gguf::{Gguf, GgufWriter};
use sterna::model::{self, Hyper, Model, ModelError, Options, Pooling};
use sterna::program::Limits;
use support::logits::{all_logits, sequences};
use support::{npy, root};

use super::program_text::check_file;
use super::vectors::alone;

/// Names whose files are not `tiny/NAME`: model, tokens, reference.
const ELSEWHERE: [(&str, [&str; 3]); 4] = [
    ("gpt-oss", ["gpt-oss/tiny-mxfp4.gguf", "gpt-oss/mxfp4.tokens.npy", "gpt-oss/mxfp4.hf-fp32.logits.npy"]),
    (
        "minicpm",
        ["minicpm/tiny-points.gguf", "minicpm/points.tokens.npy", "minicpm/points.hf-fp32.logits.npy"],
    ),
    ("qwen35", ["hf/qwen35.llamacpp-f16.gguf", "hf/prompts.txt", "hf/qwen35.hf-fp32.logits.npy"]),
    ("qwen35moe", ["hf/qwen35moe.llamacpp-f16.gguf", "hf/prompts.txt", "hf/qwen35moe.hf-fp32.logits.npy"]),
];

/// Names with a model that `scripts/golden/transformers` creates, with logits by transformers.
const OF_TRANSFORMERS: [&str; 21] = [
    "apertus",
    "laguna",
    "muse-glimmer",
    "mellum",
    "arcee",
    "seed_oss",
    "ernie4_5",
    "hunyuan-dense",
    "exaone4",
    "cohere2",
    "command-r",
    "starcoder2",
    "stablelm",
    "lfm2moe",
    "nemotron_h_moe",
    "qwen2moe",
    "ernie4_5-moe",
    "hunyuan-moe",
    "dots1",
    "bailingmoe2",
    "afmoe",
];

/// Names that `card.rs` does not translate, because readers of model cards have no other name for them.
const UNNAMED_IN_CARDS: [&str; 2] = ["qwen35", "qwen35moe"];

fn names() -> impl Iterator<Item = &'static str> {
    model::REGISTRY.iter().flat_map(|architecture| architecture.names).copied()
}

fn in_tree(name: &str, path: &str) -> PathBuf {
    let found = root().join("tests/data/golden").join(path);
    assert!(found.is_file(), "{name}: tests/data/golden/{path} is missing (scripts/golden/tiny)");
    found
}

/// A model's file, token sequences, and the reference's rows: logits, or the normalised rows of an encoder.
fn golden(name: &str) -> (PathBuf, Vec<Vec<u32>>, Vec<f32>) {
    let tiny = match OF_TRANSFORMERS.contains(&name) {
        true => {
            [".gguf", ".tokens.npy", ".hf-fp32.logits.npy"].map(|ext| format!("transformers/{name}{ext}"))
        }
        false => [".gguf", ".tokens.npy", ".np-fp64.npy"].map(|ext| format!("tiny/{name}{ext}")),
    };
    let elsewhere = ELSEWHERE.iter().find(|(known, _)| *known == name);
    let paths = elsewhere.map_or(tiny, |(_, paths)| paths.map(str::to_owned));
    let [model, tokens, reference] = paths.map(|path| in_tree(name, &path));
    let tokens = match tokens.extension().is_some_and(|ext| ext == "txt") {
        // The reference has all rows of these, and some rows of a third.
        true => sequences(&tokens).into_iter().take(2).collect(),
        false => vec![npy(&tokens).f32s().into_iter().map(|token| token as u32).collect()],
    };
    (model, tokens, npy(&reference).f32s())
}

fn engine(path: &Path, tokens: &[Vec<u32>], kernels: &'static simd::Kernels) -> Engine {
    let longest = tokens.iter().map(Vec::len).max().expect("some tokens");
    support::logits::engine(
        Gguf::open(path).expect("a golden file"),
        "f32",
        kernels,
        |options: &mut EngineOptions| {
            options.n_ctx = Some(longest.next_multiple_of(32));
            options.pooling = Some(Pooling::None);
        },
    )
}

/// Rows of all sequences, `[positions, width]`.
fn rows(engine: &Engine, tokens: &[Vec<u32>]) -> Vec<f32> {
    match engine.generates() {
        true => all_logits(engine, tokens),
        false => tokens.iter().flat_map(|text| alone(engine, text)).collect(),
    }
}

/// Models whose layers differ from each other.
const LAYERED: [&str; 1] = ["llama-layers"];

#[test]
fn rows_match_the_reference() {
    for name in names().chain(LAYERED) {
        let (path, tokens, want) = golden(name);
        for kernels in simd::all() {
            let got = rows(&engine(&path, &tokens, kernels), &tokens);
            assert!(got.len() <= want.len(), "{name}: {} of {} values", got.len(), want.len());
            let deviation =
                (want.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / want.len() as f64).sqrt();
            let off: Vec<f64> =
                got.iter().zip(&want).map(|(a, b)| f64::from(a - b).abs() / deviation).collect();
            let mean = off.iter().sum::<f64>() / off.len() as f64;
            let most = off.iter().copied().fold(0.0, f64::max);
            eprintln!("{name}, {}: mean {mean:.1e}, max {most:.1e}", kernels.name);
            // f32 sums in another order; no int8 rounding of these tokens is a near tie.
            assert!(mean <= 1e-5 && most <= 2e-4, "{name}, {}: {mean:e}, {most:e}", kernels.name);
        }
    }
}

#[test]
fn decode_matches_prefill_to_the_bit() {
    for name in names().chain(LAYERED) {
        let (path, tokens, _) = golden(name);
        let engine = engine(&path, &tokens, simd::best());
        if !engine.generates() {
            continue;
        }
        let text = tokens.iter().max_by_key(|text| text.len()).expect("some tokens");
        let whole = all_logits(&engine, std::slice::from_ref(text));
        let mut session = engine.session().expect("room");
        let n_vocab = whole.len() / text.len();
        for (token, want) in text.iter().zip(whole.chunks(n_vocab)) {
            assert!(session.logits(&[*token]).expect("a step") == want, "{name}: bits differ");
        }
    }
}

#[test]
fn every_architecture_has_a_program_snapshot() {
    for name in names() {
        let (path, ..) = golden(name);
        check_file(&Gguf::open(&path).expect("a golden file"), name, &format!("architectures/{name}.txt"));
    }
}

#[test]
fn every_architecture_is_in_the_documents() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect(path);
    let (limits, card) = (read("docs/limits.md"), read("src/card.rs"));
    let support = read("docs/support.md");
    for name in names() {
        for (path, text) in [("docs/support.md", &support), ("docs/limits.md", &limits)] {
            assert!(text.contains(&format!("`{name}`")), "{name} is missing in {path}");
        }
        let (path, tokens, _) = golden(name);
        let generates = engine(&path, &tokens, simd::best()).generates();
        let has_class = card.contains(&format!("(\"{name}\", \""));
        assert!(
            has_class || !generates || UNNAMED_IN_CARDS.contains(&name),
            "{name} is missing in src/card.rs"
        );
    }
}

fn build(gguf: &Gguf, hyper: Hyper) -> Result<Model, ModelError> {
    let f32s = ggml_types::kv_by_name("f32").expect("a codec");
    let limits =
        Limits { rows: 8, outputs: 1, seqs: 1, pages: 4, exact_pages: 0, sliding_pages: 0, states: 0 };
    Model::build(gguf, hyper, &Options::new(limits, f32s, f32s))
}

fn notes(gguf: &Gguf) -> Vec<String> {
    build(gguf, model::hyper(gguf).expect("a model")).expect("a model").notes
}

/// A key that nothing reads gives a note; ordinary files have none.
#[test]
fn unread_keys_are_noted() {
    for name in names() {
        let (path, ..) = golden(name);
        assert_eq!(notes(&Gguf::open(&path).expect("a golden file")), [""; 0], "{name}");
    }
    let demo = root().join("assets/world.gguf");
    assert_eq!(notes(&Gguf::open(&demo).expect("the demo model")), [""; 0]);
    let mut file = fs::read(in_tree("llama", "tiny/llama.gguf")).expect("a golden file");
    let [from, to] = ["llama.attention.value_length", "llama.attn_logit_softcapping"].map(str::as_bytes);
    let at = file.windows(from.len()).position(|window| window == from).expect("the key");
    file[at..at + from.len()].copy_from_slice(to);
    let noted = notes(&Gguf::from_bytes(file.into()).expect("a file"));
    assert_eq!(noted.len(), 1, "{noted:?}");
    assert!(
        noted[0].starts_with("llama.attn_logit_softcapping is 16 in the file and is ignored"),
        "{noted:?}"
    );
}

/// A key and a tensor that an architecture does not have are named.
#[test]
fn unknown_keys_and_tensors_are_named() {
    for name in names() {
        let (path, ..) = golden(name);
        let file = Gguf::open(&path).expect("a golden file");
        let with = |tensor: Option<&str>| {
            let mut metadata = file.metadata().clone();
            metadata.set(format!("{name}.not_a_key"), 7_u32);
            let mut writer = GgufWriter::new(metadata).expect("a writer");
            let all = || file.tensors().iter();
            for info in all() {
                writer.tensor(&info.name, &info.dims, info.type_id, info.n_bytes).expect("a tensor");
            }
            if let Some(tensor) = tensor {
                writer.tensor(tensor, &[1], 0, 4).expect("a tensor");
            }
            let mut data = writer.begin(Vec::new()).expect("a header");
            for info in all() {
                data.tensor([file.raw_bytes(info).expect("its bytes")]).expect("its bytes");
            }
            if tensor.is_some() {
                data.tensor([[0; 4]]).expect("its bytes");
            }
            Gguf::from_bytes(data.finish().expect("a file").into()).expect("a file")
        };
        let noted = notes(&with(None));
        let key = format!("{name}.not_a_key is 7 in the file and is ignored");
        assert!(noted.len() == 1 && noted[0].starts_with(&key), "{name}: {noted:?}");
        let more = with(Some("blk.0.not_a_tensor.weight"));
        let hyper = model::hyper(&more).expect("a model");
        let message = build(&more, hyper).map(drop).expect_err("an unknown tensor").to_string();
        assert!(message.contains("blk.0.not_a_tensor.weight"), "{name}: {message}");
    }
}

/// Blocks of different widths, in an architecture that supports only one.
#[test]
fn differing_blocks_are_refused_if_unsupported() {
    let gguf = Gguf::open(&in_tree("gemma3", "tiny/gemma3.gguf")).expect("a golden file");
    let mut hyper = model::hyper(&gguf).expect("a model");
    let mut layers = vec![hyper.layer(0); hyper.n_layers];
    layers[1].n_kv_heads *= 2;
    hyper.differing = Some(layers);
    let message = build(&gguf, hyper).map(drop).expect_err("one width").to_string();
    assert!(
        message.contains("gemma3.attention.head_count_kv: want the same number in all layers"),
        "{message}"
    );
}

/// The maximum context selects the table of RoPE factors.
#[test]
fn context_selects_the_rope_factors() {
    let path = in_tree("phi3", "tiny/phi3.gguf");
    let gguf = Gguf::open(&path).expect("a golden file");
    let f32s = ggml_types::kv_by_name("f32").expect("a codec");
    let limits =
        Limits { rows: 8, outputs: 1, seqs: 1, pages: 4, exact_pages: 0, sliding_pages: 0, states: 0 };
    for (n_ctx, table) in [(16, "short"), (17, "long")] {
        let options = Options { n_ctx, ..Options::new(limits, f32s, f32s) };
        let model = Model::build(&gguf, model::hyper(&gguf).expect("a model"), &options).expect("a model");
        let rope = &model.program.ropes[0];
        let info = gguf.find(&format!("rope_factors_{table}.weight")).expect("a table");
        let bytes = gguf.raw_bytes(info).expect("its bytes");
        for (pair, bytes) in bytes.as_chunks().0.iter().enumerate() {
            let want = 5000_f64.powf(-2.0 * pair as f64 / 8.0) / f64::from(f32::from_le_bytes(*bytes));
            assert!((rope.inv_freq[pair] / want - 1.0).abs() < 1e-9, "{table}, pair {pair}");
        }
        assert_eq!((rope.inv_freq.len(), rope.magnitude), (4, 1.2));
    }
}
