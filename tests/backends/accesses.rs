//! Memory accesses of the CUDA kernels, compared with a file in `tests/snapshots`: sectors of global memory
//! and passes of shared memory, counted by the CPU build of the kernels in the first block of each launch.
//! After an intended change, `STERNA_UPDATE_SNAPSHOTS=1 cargo test --features simt,support/simt --test
//! backends accesses` rewrites the file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use sterna::backend::Backend;
use sterna::backend::cuda::Cuda;
use sterna::backend::cuda::driver::cards::Spec;
use sterna::backend::cuda::driver::simt::{Simt, host::Counts};
use sterna::program::{PageTable, Row, Step};
use support::case::model::Model;
use support::case::{Case, limits, shuffled_pages, windowed_limits, windowed_pages};

/// One layer of BitNet 2B-4T, with a smaller vocabulary.
const LAYER: Model = Model {
    n_layers: 1,
    dim: 2560,
    ffn_dim: 6912,
    n_heads: 20,
    n_kv_heads: 5,
    head_dim: 128,
    n_vocab: 300,
    weights: "i2_s",
    kv: "f16",
    head_norms: false,
    other: None,
    experts: None,
};

/// The model and the page table of one sequence of three pages.
fn case(model: Model) -> (Case, PageTable) {
    let windowed = model.kv.starts_with("turboquant");
    let limits = if windowed { windowed_limits(64, 1, 3) } else { limits(64, 1, 3) };
    let pages = if windowed { windowed_pages(1, 3) } else { shuffled_pages(1, 3) };
    (model.case("a layer", limits).0, pages)
}

/// Counts by kernel for a step of `n` rows after 64 positions, on an RTX 5080.
fn counts(case: &Case, pages: &PageTable, n: u32) -> BTreeMap<String, Counts> {
    let counts = Arc::default();
    let card = Spec::find("rtx-5080").expect("a card of the table");
    let driver = Simt::of_card(2, 0, card).counting(Arc::clone(&counts));
    let mut backend: Box<dyn Backend> = Box::new(Cuda::on(Box::new(driver)));
    let running = case.on(&mut *backend);
    let row = |pos: u32| Row { token: pos % 300, pos, seq: 0, logits: pos + 1 == 64 + n };
    let rows: Vec<Row> = (64..64 + n).map(row).collect();
    running
        .backend
        .run(running.exec, &Step { rows: &rows, pages, sampling: &[], changes: &[] })
        .expect("a run");
    let counts: &Mutex<BTreeMap<String, Counts>> = &counts;
    counts.lock().expect("not poisoned").clone()
}

#[test]
fn memory_accesses_match_the_snapshot() {
    let mut text = String::from(
        "rows  kernel                          sectors  times the least  passes  times the least\n",
    );
    let nets = crate::delta::nets_of_27b();
    for (what, (case, pages), rows) in [
        (LAYER, &[1, 8, 32][..]),
        (Model { weights: "tq2_0", ..LAYER }, &[32]),
        (Model { weights: "q8_0", ..LAYER }, &[1, 32]),
        (Model { weights: "q4_k", ..LAYER }, &[1, 8, 64]),
        (Model { kv: "turboquant", ..LAYER }, &[1, 32]),
        (Model { kv: "turboquant-t", ..LAYER }, &[1, 32]),
    ]
    .map(|(model, rows)| (format!("weights {}, KV {}", model.weights, model.kv), case(model), rows))
    .into_iter()
    .chain([("a delta net".to_owned(), nets, &[1, 64][..])])
    .chain([("a layer with an adapter".to_owned(), crate::lora::layer_of_2b(), &[1, 8][..])])
    {
        writeln!(text, "{what}").expect("a string is writable");
        for &n in rows {
            for (kernel, counts) in counts(&case, &pages, n) {
                let Counts { sectors, least_sectors, passes, least_passes } = counts;
                if counts == Counts::default() {
                    continue;
                }
                let times = |n: u64, least: u64| if least == 0 { 0.0 } else { n as f64 / least as f64 };
                let (global, shared) = (times(sectors, least_sectors), times(passes, least_passes));
                writeln!(text, "{n:4}  {kernel:30} {sectors:8} {global:16.3} {passes:7} {shared:16.3}")
                    .expect("a string is writable");
            }
        }
    }
    support::snapshot("accesses.txt", &text);
}
