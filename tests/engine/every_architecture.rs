//! Every name of every architecture in `model::REGISTRY` has a small model in `tests/data` with the output of
//! another implementation, a snapshot of its program, and its rows in the documents; the test reports what is
//! missing. `scripts/golden/tiny` creates most of the models.

use std::fs;
use std::path::{Path, PathBuf};

use sterna::backend::cpu::simd;
use sterna::engine::{ActType, Engine, EngineOptions};
use sterna::gguf::{Gguf, GgufWriter, Value};
use sterna::model::{self, Hyper, Model, ModelError, Options, Pooling};
use sterna::program::Limits;
use support::case::{cpus, simt, wgpus};
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

/// Names with a model that `scripts/golden/transformers` or `qwen3vl` creates, with logits by transformers.
const OF_TRANSFORMERS: [&str; 38] = [
    "chatglm",
    "olmo",
    "olmo-bounded",
    "starcoder",
    "minimax-m2",
    "mamba2",
    "gemma",
    "olmoe",
    "exaone",
    "phi2",
    "nemotron",
    "gptneox",
    "falcon",
    "falcon-40b",
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
    "qwen3vl",
    "qwen3vlmoe",
    "qwen2vl",
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

/// Further models of an architecture: one whose layers differ from each other, one with two norms before
/// attention and the feed-forward network, and one with bounds of queries, keys and values.
const FURTHER: [&str; 3] = ["llama-layers", "falcon-40b", "olmo-bounded"];

#[test]
fn rows_match_the_reference() {
    for name in names().chain(FURTHER) {
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
    for name in names().chain(FURTHER) {
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

/// Latent attention on devices: a prompt matches the reference and the CPU, and its tokens one by one match
/// the prompt.
#[test]
fn latent_attention_on_devices_matches_the_reference() {
    let (path, tokens, want) = golden("deepseek2");
    let text = tokens.iter().max_by_key(|text| text.len()).expect("some tokens");
    let largest = want.iter().copied().map(f32::abs).fold(0.0, f32::max);
    // f32 sums are in another order, so elements of a key may round to the next f16, which is 2^-11 away.
    for (kv, most, most_apart) in [("f32", 1e-5, 1e-5), ("f16", 5e-3, 1.0 / 2048.0)] {
        let options = EngineOptions {
            n_ctx: Some(64),
            outputs: 64,
            cache_type_k: kv.parse().unwrap(),
            cache_type_v: kv.parse().unwrap(),
            act_type: ActType::Trained,
            ..EngineOptions::default()
        };
        let far = |got: &[f32], want: &[f32]| {
            let off = got.iter().zip(want).map(|(got, want)| (got - want).abs() / largest);
            off.fold(0.0, f32::max)
        };
        let on = |backend| {
            let gguf = Gguf::open(&path).expect("a golden file");
            Engine::on_backend(gguf, &options, backend, |_| ()).expect("kernels for it")
        };
        let cpu = all_logits(&on(cpus(&[2]).remove(0)), std::slice::from_ref(text));
        for backend in simt(1).into_iter().chain(wgpus()) {
            let device = backend.device();
            let engine = on(backend);
            let all = all_logits(&engine, std::slice::from_ref(text));
            assert!(far(&all, &want) <= most, "{device}, {kv}: {:e}", far(&all, &want));
            assert!(far(&all, &cpu) <= most_apart, "{device}, {kv}, CPU: {:e}", far(&all, &cpu));
            let mut session = engine.session().expect("room");
            for (token, prompt) in text.iter().zip(all.chunks(all.len() / text.len())) {
                let alone = session.logits(&[*token]).expect("a step");
                assert!(far(alone, prompt) <= most_apart, "{device}, {kv}: {:e}", far(alone, prompt));
            }
        }
    }
}

/// xIELU, gates with softplus, alternating updates and layers without attention on devices: models that have
/// them match the reference.
#[test]
fn further_models_on_devices_match_the_reference() {
    // Gemma 3n rescales its streams and cuts its gates, which amplifies roundings.
    for (name, most) in [("apertus", 1e-5), ("laguna", 1e-5), ("gemma3n", 5e-5), ("mamba2", 1e-5)] {
        let (path, tokens, want) = golden(name);
        let largest = want.iter().copied().map(f32::abs).fold(0.0, f32::max);
        let options = EngineOptions {
            n_ctx: Some(64),
            outputs: 64,
            cache_type_k: "f32".parse().unwrap(),
            cache_type_v: "f32".parse().unwrap(),
            act_type: ActType::Trained,
            ..EngineOptions::default()
        };
        for backend in simt(1).into_iter().chain(wgpus()) {
            let device = backend.device();
            let gguf = Gguf::open(&path).expect("a golden file");
            let engine = Engine::on_backend(gguf, &options, backend, |_| ()).expect("kernels for it");
            let got = all_logits(&engine, &tokens);
            let far =
                got.iter().zip(&want).map(|(got, want)| (got - want).abs() / largest).fold(0.0, f32::max);
            eprintln!("{name}, {device}: {far:.1e}");
            // f32 sums in another order.
            assert!(got.len() == want.len() && far <= most, "{name}, {device}: {far:e}");
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

/// Ordinary files have no notes.
#[test]
fn golden_files_have_no_notes() {
    for name in names() {
        let (path, ..) = golden(name);
        assert_eq!(notes(&Gguf::open(&path).expect("a golden file")), [""; 0], "{name}");
    }
    let demo = root().join("assets/world.gguf");
    assert_eq!(notes(&Gguf::open(&demo).expect("the demo model")), [""; 0]);
}

/// A file with another value under a key, and possibly one more tensor.
pub(super) fn rewritten(file: &Gguf, key: &str, value: impl Into<Value>, tensor: Option<&str>) -> Gguf {
    let mut metadata = file.metadata().clone();
    metadata.set(key, value);
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
}

/// The error of a file that is not a model.
fn refused(gguf: &Gguf) -> String {
    let hyper = match model::hyper(gguf) {
        Ok(hyper) => hyper,
        Err(err) => return err.to_string(),
    };
    build(gguf, hyper).map_or_else(|err| err.to_string(), |_| String::new())
}

/// A key and a tensor that an architecture does not have are named.
#[test]
fn unknown_keys_and_tensors_are_named() {
    for name in names() {
        let (path, ..) = golden(name);
        let file = Gguf::open(&path).expect("a golden file");
        let key = format!("{name}.not_a_key");
        let message = refused(&rewritten(&file, &key, 7_u32, None));
        let want = format!("metadata {key}: want no key that the architecture `{name}` does not use");
        assert!(message.starts_with(&want) && message.ends_with("file has 7"), "{name}: {message}");
        let message = refused(&rewritten(&file, &key, 7_u32, Some("blk.0.not_a_tensor.weight")));
        assert!(message.contains("blk.0.not_a_tensor.weight"), "{name}: {message}");
        let key = "not_the_model.not_a_key";
        assert_eq!(refused(&rewritten(&file, key, 7_u32, None)), "", "{name}: keys of other tools");
    }
}

/// Keys that llama.cpp's converter may write for any text model (`conversion/base.py`).
const OF_EVERY_MODEL: [&str; 26] = [
    "attention.causal",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "pooling_type",
    "rope.dimension_count",
    "rope.dimension_sections",
    "rope.freq_base",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "tensor_data_layout",
    "vocab_size",
];

/// Keys of mixtures with groups, of those with a routing that files describe, and of shared experts.
const ROUTED: [&str; 8] = [
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_gating_func",
    "expert_group_count",
    "expert_group_used_count",
    "expert_weights_norm",
    "expert_weights_scale",
];
const SHARED: [&str; 3] =
    ["expert_shared_count", "expert_shared_feed_forward_length", "leading_dense_block_count"];
const WINDOWS: [&str; 2] = ["attention.sliding_window", "attention.sliding_window_pattern"];
const MAMBA: [&str; 5] =
    ["ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count"];
const GRANITE: [&str; 6] = [
    "attention.scale",
    "embedding_scale",
    "logit_scale",
    "residual_scale",
    "deepstack_mapping",
    "expert_shared_feed_forward_length",
];

/// Keys that llama.cpp's converter writes for architectures, besides [`OF_EVERY_MODEL`].
const OF_LLAMA_CPP: [(&str, &[&[&str]]); 32] = [
    ("afmoe", &[&ROUTED, &SHARED, &WINDOWS]),
    ("bailingmoe2", &[&ROUTED, &SHARED, &["nextn_predict_layers"]]),
    ("bert", &[&["classifier.output_labels"]]),
    ("cohere2", &[&WINDOWS, &["logit_scale"]]),
    ("command-r", &[&["logit_scale"]]),
    (
        "deepseek2",
        &[
            &ROUTED,
            &SHARED,
            &["attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_mla"],
            &["attention.value_length_mla", "rope.scaling.yarn_log_multiplier", "nextn_predict_layers"],
        ],
    ),
    ("dots1", &[&ROUTED, &SHARED]),
    ("ernie4_5-moe", &[&SHARED, &["expert_feed_forward_length", "interleave_moe_layer_step"]]),
    ("exaone4", &[&WINDOWS, &["nextn_predict_layers"]]),
    ("falcon-h1", &[&MAMBA]),
    ("gemma-embedding", &[&WINDOWS, &["dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in"]]),
    ("gemma2", &[&["attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"]]),
    ("gemma3", &[&["attention.sliding_window", "final_logit_softcapping", "rope.freq_base_swa"]]),
    (
        "gemma4",
        &[
            &WINDOWS,
            &["attention.key_length_swa", "attention.value_length_swa", "attention.shared_kv_layers"],
            &["embedding_length_per_layer_input", "rope.dimension_count_swa", "rope.freq_base_swa"],
            &["final_logit_softcapping", "expert_feed_forward_length"],
        ],
    ),
    ("glm4", &[&["nextn_predict_layers"]]),
    ("glm4moe", &[&ROUTED, &SHARED, &["nextn_predict_layers"]]),
    ("gpt-oss", &[&["attention.sliding_window", "expert_feed_forward_length"]]),
    ("granite", &[&GRANITE]),
    ("granitehybrid", &[&GRANITE, &MAMBA]),
    ("granitemoe", &[&GRANITE]),
    ("hunyuan-moe", &[&["expert_feed_forward_length"], &["expert_shared_count"]]),
    ("lfm2", &[&["shortconv.l_cache", "attention.sliding_window"]]),
    ("lfm2moe", &[&["shortconv.l_cache", "expert_feed_forward_length", "expert_gating_func"]]),
    ("mellum", &[&WINDOWS, &["expert_feed_forward_length"]]),
    ("minicpm", &[&["embedding_scale", "logit_scale", "residual_scale"]]),
    ("mistral3", &[&["attention.temperature_scale", "rope.scaling.yarn_log_multiplier"]]),
    ("nemotron_h", &[&MAMBA]),
    ("nemotron_h_moe", &[&MAMBA, &ROUTED, &SHARED]),
    ("olmo2", &[&WINDOWS]),
    ("phi3", &[&["attention.sliding_window"]]),
    ("qwen2moe", &[&["expert_feed_forward_length", "expert_shared_feed_forward_length"]]),
    ("stablelm", &[&["use_parallel_residual"]]),
];

/// No key that llama.cpp's converter writes for an architecture is unknown to it: a text under such a key is
/// ignored, or of the wrong type.
#[test]
fn keys_of_the_converter_are_known() {
    for name in names() {
        let (path, ..) = golden(name);
        let file = Gguf::open(&path).expect("a golden file");
        let own = OF_LLAMA_CPP.iter().find(|(of, _)| *of == name).map_or(&[][..], |(_, keys)| *keys);
        for key in OF_EVERY_MODEL.iter().chain(own.iter().copied().flatten()) {
            let key = format!("{name}.{key}");
            if file.metadata().get(&key).is_none() {
                let message = refused(&rewritten(&file, &key, "a text", None));
                assert!(!message.contains("does not use"), "{message}");
            }
        }
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
