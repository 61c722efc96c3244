//! The text of programs, compared with files in `tests/snapshots`; `every_architecture.rs` does this for each
//! architecture. After an intended change, `STERNA_UPDATE_SNAPSHOTS=1 cargo test --test engine --
//! program_text every_arch` rewrites them.

use std::ops::ControlFlow;

use sterna::gguf::Gguf;
use sterna::model::{Hyper, Model, Options};
use sterna::program::{Limits, Program};
use sterna::synth::{Preset, Spec, Synth};

use super::hostile_model::without;

fn check(model: &str, snapshot: &str) {
    let Some(path) = support::golden(model) else { return };
    check_file(&Gguf::open(&path).unwrap(), model, snapshot);
}

fn program(gguf: &Gguf) -> Program {
    let f16 = ggml_types::kv_by_name("f16").unwrap();
    let limits =
        Limits { rows: 512, outputs: 1, seqs: 1, pages: 64, exact_pages: 0, sliding_pages: 0, states: 0 };
    let n_vocab = gguf.find("token_embd.weight").unwrap().rows();
    let hyper = Hyper::read(gguf.metadata(), n_vocab).unwrap();
    let options = Options::new(limits, f16, f16);
    let program = Model::build(gguf, hyper, &options).unwrap().program;
    program.check().unwrap();
    program
}

pub(super) fn check_file(gguf: &Gguf, model: &str, snapshot: &str) {
    let program = program(gguf);
    check_stages_as_parts(&program);
    let text = program.to_string();
    let file = support::root().join("tests/snapshots").join(snapshot);
    if std::env::var_os("STERNA_UPDATE_SNAPSHOTS").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, &text).unwrap();
    }
    let want = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(text == want, "{snapshot} is not the program of {model}, which is now:\n{text}");
}

/// Checks that the text of each stage as a separate program is the same as in the whole one.
fn check_stages_as_parts(whole: &Program) {
    // The numbers of caches, ropes and states are different in a part.
    let stage_texts = |program: &Program| -> Vec<String> {
        let text = program.to_string();
        let stages = text.lines().rev().take(program.stages.len());
        let without_numbers = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let names = |i: &usize| *i == 0 || !["kv", "rope", "state"].contains(&words[i - 1]);
            (0..words.len()).filter(names).map(|i| words[i]).collect::<Vec<_>>().join(" ")
        };
        stages.map(without_numbers).collect()
    };
    let all = stage_texts(whole);
    for (i, want) in all.iter().rev().enumerate() {
        let part = whole.part(i..i + 1).program;
        part.check().unwrap();
        assert_eq!(stage_texts(&part), [want.as_str()]);
    }
}

/// As in llama.cpp: every layer attends to all positions, with the model's RoPE base.
#[test]
fn gemma3_without_a_window_attends_to_everything() {
    let path = support::golden("tiny/gemma3.gguf").expect("it is in tests/data");
    let file = without(std::fs::read(path).unwrap(), "gemma3.attention.sliding_window");
    let text = program(&Gguf::from_bytes(file.into()).unwrap()).to_string();
    assert!(text.contains("0.attend: ") && !text.contains("window") && !text.contains("rope 1"), "{text}");
}

#[test]
fn bitnet_embedding_with_a_norm_per_input() {
    let spec = Preset::by_name("bitnet-embedding-0.6b").unwrap().spec(None, None, 1).unwrap();
    let spec = Spec { n_layers: 1, dim: 128, ffn_dim: 256, n_vocab: 640, ..spec };
    let mut file = Vec::new();
    Synth::new(&spec).unwrap().write(&mut file, |_| ControlFlow::Continue(())).unwrap();
    check_file(&Gguf::from_bytes(file.into()).unwrap(), &spec.name, "bitnet-embedding.txt");
}

#[test]
fn llama_with_ternary_weights() {
    check("llama-i2_s/tiny-i2_s.gguf", "llama-i2_s.txt");
}

#[test]
fn bitnet_with_a_q6_k_embedding() {
    check("bitnet/wide-i2_s-embq6k.gguf", "bitnet-b1.58-q6_k.txt");
}
