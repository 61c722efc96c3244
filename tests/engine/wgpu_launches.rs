//! Launches, barriers and submissions of a step on wgpu by model, compared with a file in `tests/snapshots`.
//! They are counted without weights and kernels. After an intended change, `STERNA_UPDATE_SNAPSHOTS=1 cargo
//! test --test engine launches` rewrites the file. The numbers should only fall.

use std::fmt::Write as _;
use std::sync::Arc;

use sterna::backend::wgpu::device::{Gpu, Options};
use sterna::backend::wgpu::{Launches, Wgpu};
use sterna::engine::{self, EngineOptions};
use sterna::program::{Sampling, Step};
use sterna::synth::{Preset, Spec};
use support::case::{rows, shuffled_pages};

use crate::hollow::hollow_of;

/// Position of a decode step's row.
const POSITION: u32 = 127;

#[test]
fn launches_match_the_snapshot() {
    // Weights in one part each, as on most GPUs.
    let options = Options { max_buffer_bytes: Some((2 << 30) - 4), ..Options::default() };
    let gpu = match Gpu::open(&options) {
        Ok(gpu) => gpu,
        Err(err) => return support::print_note(format_args!("wgpu: not run: no adapter ({err})")),
    };
    let backend = Wgpu::on(Arc::new(gpu));
    let dir = tempfile::tempdir().unwrap();
    let mut text = String::from("model                KV            rows  launches  barriers  submissions\n");
    for (name, kv) in [
        ("bitnet-2b-4t", "f16"),
        ("llama-3.2-1b", "f16"),
        ("llama-3.2-1b", "turboquant-t"),
        ("gemma-3-1b", "f16"),
        ("qwen3moe-small", "f16"),
        ("qwen35-0.8b", "f16"),
        ("falcon-h1-0.5b", "f16"),
        ("glm-4.7-flash", "f16"),
    ] {
        let spec = Preset::by_name(name).unwrap().spec(None, None, 1).unwrap();
        // A small vocabulary is written quickly, and so are few experts: 4 of 47 layers.
        let n_layers = if name.starts_with("glm") { 4 } else { spec.n_layers };
        let gguf = hollow_of(&Spec { n_vocab: 2048, n_layers, ..spec }, dir.path());
        let options = EngineOptions {
            n_ctx: Some(1024),
            act_type: if name.starts_with("bitnet") { "i8" } else { "f32" }.parse().unwrap(),
            cache_type_k: kv.parse().unwrap(),
            cache_type_v: kv.parse().unwrap(),
            ..EngineOptions::default()
        };
        let program = engine::program(&gguf, &options).unwrap();
        let pages = shuffled_pages(1, 16);
        for n in [1, 512] {
            let mut rows = rows(0, if n == 1 { POSITION..POSITION + 1 } else { 0..n });
            rows.last_mut().unwrap().logits = true;
            let step = Step { rows: &rows, pages: &pages, sampling: &[Some(Sampling::GREEDY)], changes: &[] };
            let Launches { launches, barriers, submissions } = backend.launches(&program, &step).unwrap();
            writeln!(text, "{name:20} {kv:12} {n:5} {launches:9} {barriers:9} {submissions:12}").unwrap();
        }
    }
    support::snapshot("launches.txt", &text);
}
