//! One layer of BitNet 2B-4T, stage by stage: a decode step and a prompt of 512 tokens; and its attention at
//! contexts of up to 131072 positions, with every KV codec. Compare times only as ratios within one run,
//! because the machine also runs other work.
//!
//! `cargo bench --bench stages -- attend`, `-- context`
#![allow(missing_docs)] // The macros generate public modules without docs.

use std::time::Duration;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use ggml_types::{HostTensor, KvCodec, KvSide, by_name, kv, kv_by_name, kv_on};
use sterna::backend::cpu::Cpu;
use sterna::backend::{Backend, Exec, physical_cores};
use sterna::program::{
    Act, ActQuant, Attend, AttnIn, FfnIn, KvDecl, KvWindow, Limits, Linear, Norm, NormKind, PAGE, PageTable,
    Program, ProjAdd, Rope, RopeStyle, Row, RowsOf, Step, Weight,
};

const DIM: usize = 2560;
const FFN_DIM: usize = 6912;
const N_KV_HEADS: usize = 5;
const HEAD_DIM: usize = 128;
const MAX_ROWS: usize = 512;
const N_CTX: usize = 4096;

/// A weight with pseudo-random bytes: 0x55 and 0xaa are codes 1 and 2.
fn weight(p: &mut Program, all: &mut Vec<HostTensor>, ty: &str, rows: usize, cols: usize) -> Weight {
    let ty = by_name(ty).expect("a type of the registry");
    let len = ty.byte_len(rows, cols).expect("a shape of the type");
    let bytes: Bytes = match ty.name() {
        "f32" => vec![1.0_f32; rows * cols].iter().flat_map(|x| x.to_le_bytes()).collect(),
        _ => (0..len).map(|i| [0x55, 0x46, 0x91, 0xa2, 0x19][i * 7919 % 5]).collect(),
    };
    let name = format!("w{}", all.len());
    all.push(HostTensor { name: name.clone(), ty, rows, cols, bytes });
    p.weight(name, ty, rows, cols)
}

fn layer() -> (Program, Vec<HostTensor>) {
    let limits = Limits {
        rows: MAX_ROWS,
        outputs: 1,
        seqs: 1,
        pages: N_CTX / PAGE,
        exact_pages: 0,
        sliding_pages: 0,
        states: 0,
    };
    let (mut p, mut all) = (Program::new("one layer", limits), Vec::new());
    let [x, q, y] = ["x", "q", "y"].map(|name| p.buf(name, RowsOf::Step, DIM));
    let h = p.buf("h", RowsOf::Step, FFN_DIM);
    let linear = |p: &mut Program, all: &mut Vec<HostTensor>, rows, cols| {
        let w = weight(p, all, "i2_s", rows, cols);
        Linear { act: ActQuant::I8PerToken, ..Linear::of(w) }
    };
    let norm = |p: &mut Program, all: &mut Vec<HostTensor>, len| {
        let weight = weight(p, all, "f32", 1, len);
        Norm { kind: NormKind::Rms, weight, bias: None, eps: 1e-5 }
    };
    let inv_freq = (0..HEAD_DIM / 2).map(|i| 500_000.0_f64.powf(-2.0 * i as f64 / HEAD_DIM as f64)).collect();
    let rope =
        Some(p.rope(Rope { style: RopeStyle::Halves, inv_freq, magnitude: 1.0, axes: None, ahead: 0 }));
    let f16 = kv_by_name("f16").expect("a codec of the registry");
    let kv = p.kv(KvDecl {
        n_kv_heads: N_KV_HEADS,
        head_dim: HEAD_DIM,
        k: f16,
        v: f16,
        basis: None,
        window: KvWindow::default(),
        sliding: None,
        values_are_keys: false,
    });
    let attn_norm = norm(&mut p, &mut all, DIM);
    let [wq, wk, wv] =
        [DIM, N_KV_HEADS * HEAD_DIM, N_KV_HEADS * HEAD_DIM].map(|rows| linear(&mut p, &mut all, rows, DIM));
    p.push("attn_in", AttnIn { rope, ..AttnIn::of(x, attn_norm, [wq, wk, wv], kv, q) });
    p.push("attend", Attend::causal(q, kv, 1.0 / (HEAD_DIM as f32).sqrt(), y));
    let sub_norm = Some(norm(&mut p, &mut all, DIM));
    let w = Linear { norm: sub_norm, ..linear(&mut p, &mut all, DIM, DIM) };
    p.push("attn_out", ProjAdd::plain(y, w, x));
    let ffn_norm = norm(&mut p, &mut all, DIM);
    let [gate, up] = [FFN_DIM; 2].map(|rows| linear(&mut p, &mut all, rows, DIM));
    p.push("ffn_in", FfnIn::gated(x, ffn_norm, gate, up, Act::Relu2, h));
    let sub_norm = Some(norm(&mut p, &mut all, FFN_DIM));
    let w = Linear { norm: sub_norm, ..linear(&mut p, &mut all, DIM, FFN_DIM) };
    p.push("ffn_out", ProjAdd::plain(h, w, x));
    (p, all)
}

fn bench(c: &mut Criterion) {
    let (p, all) = layer();
    let mut cpu = Cpu::new(physical_cores()).expect("threads");
    let ids: Vec<_> = all.iter().map(|w| cpu.upload(w).expect("an upload")).collect();
    let exec = cpu.compile(&p, &ids).expect("a program that compiles");
    let mut pages = PageTable::new(1, N_CTX / PAGE);
    pages.seq_mut(0).extend(0..(N_CTX / PAGE) as u32);
    let rows = |positions: std::ops::Range<usize>| -> Vec<Row> {
        positions.map(|pos| Row { token: 0, pos: pos as u32, seq: 0, logits: false }).collect()
    };
    let values: Vec<f32> = (0..MAX_ROWS * FFN_DIM).map(|i| (i as f32 * 0.37).sin()).collect();
    let fill = |cpu: &mut Cpu, exec: Exec| {
        for (i, buf) in p.bufs.iter().enumerate() {
            let buf_values = &values[..MAX_ROWS * buf.cols];
            cpu.write(exec, sterna::program::Buf(i as u32), 0, buf_values).expect("a write");
        }
    };
    for start in (0..N_CTX).step_by(MAX_ROWS) {
        fill(&mut cpu, exec);
        let step = Step { rows: &rows(start..start + MAX_ROWS), pages: &pages, sampling: &[], changes: &[] };
        cpu.run_stages(exec, 0..1, &step).expect("a run");
    }
    let turns = [("tg @ 0", rows(0..1)), ("tg @ 4095", rows(N_CTX - 1..N_CTX)), ("pp512", rows(0..MAX_ROWS))];
    for (i, (label, _)) in p.stages.iter().enumerate() {
        let mut group = c.benchmark_group(label);
        for (turn, rows) in &turns {
            fill(&mut cpu, exec);
            let step = Step { rows, pages: &pages, sampling: &[], changes: &[] };
            group.bench_function(*turn, |b| b.iter(|| cpu.run_stages(exec, i..i + 1, &step).expect("a run")));
        }
        group.finish();
    }
}

/// Context lengths at which attention is timed.
const CONTEXTS: [usize; 5] = [1024, 4096, 16_384, 65_536, 131_072];

/// Exact pages: those that a step of [`MAX_ROWS`] rows writes before they are encoded, the newest, and the
/// first.
const EXACT_PAGES: usize = MAX_ROWS / PAGE + 8;

/// The attention of one layer, with narrow inputs: the contents of the cache do not matter.
fn attention(codec: &'static dyn KvCodec) -> (Program, Vec<HostTensor>) {
    let pages = CONTEXTS[CONTEXTS.len() - 1] / PAGE;
    let limits = Limits {
        rows: MAX_ROWS,
        outputs: 1,
        seqs: 1,
        pages,
        exact_pages: EXACT_PAGES,
        sliding_pages: 0,
        states: 0,
    };
    let (mut p, mut all) = (Program::new("attention", limits), Vec::new());
    let narrow = 128;
    let x = p.buf("x", RowsOf::Step, narrow);
    let [q, y] = ["q", "y"].map(|name| p.buf(name, RowsOf::Step, DIM));
    let [wq, wk, wv] = [DIM, N_KV_HEADS * HEAD_DIM, N_KV_HEADS * HEAD_DIM].map(|rows| {
        let w = weight(&mut p, &mut all, "i2_s", rows, narrow);
        Linear { act: ActQuant::I8PerToken, ..Linear::of(w) }
    });
    let norm_weight = weight(&mut p, &mut all, "f32", 1, narrow);
    let norm = Norm { kind: NormKind::Rms, weight: norm_weight, bias: None, eps: 1e-5 };
    let v = kv_on(KvSide::Values, codec);
    let kv = p.kv(KvDecl {
        n_kv_heads: N_KV_HEADS,
        head_dim: HEAD_DIM,
        k: codec,
        v,
        basis: None,
        window: KvWindow::default(),
        sliding: None,
        values_are_keys: false,
    });
    p.push("attn_in", AttnIn::of(x, norm, [wq, wk, wv], kv, q));
    p.push("attend", Attend::causal(q, kv, 1.0 / (HEAD_DIM as f32).sqrt(), y));
    (p, all)
}

/// One row at contexts of several lengths.
fn contexts(c: &mut Criterion) {
    for &codec in kv::REGISTRY {
        let (p, all) = attention(codec);
        let mut cpu = Cpu::new(physical_cores()).expect("threads");
        let ids: Vec<_> = all.iter().map(|w| cpu.upload(w).expect("an upload")).collect();
        let exec = cpu.compile(&p, &ids).expect("a program that compiles");
        let n_pages = p.limits.pages as u32;
        let mut pages = PageTable::new(1, n_pages as usize);
        pages.seq_mut(0).extend(0..n_pages);
        // A row reads only the first page and the newest pages exactly, so the pages between may share
        // theirs.
        let exact = |i: u32| Some(if i == 0 { 0 } else { 1 + i % (EXACT_PAGES as u32 - 1) });
        pages.exact_mut(0).extend((0..n_pages).map(exact));
        let rows = |positions: std::ops::Range<usize>| -> Vec<Row> {
            positions.map(|pos| Row { token: 0, pos: pos as u32, seq: 0, logits: false }).collect()
        };
        let values: Vec<f32> = (0..MAX_ROWS * DIM).map(|i| (i as f32 * 0.37).sin()).collect();
        let mut group = c.benchmark_group(format!("context, {}", codec.name()));
        let mut filled = 0;
        for context in CONTEXTS {
            while filled < context {
                cpu.write(exec, sterna::program::Buf(0), 0, &values[..MAX_ROWS * 128]).expect("a write");
                let step = Step {
                    rows: &rows(filled..filled + MAX_ROWS),
                    pages: &pages,
                    sampling: &[],
                    changes: &[],
                };
                cpu.run_stages(exec, 0..1, &step).expect("a run");
                filled += MAX_ROWS;
            }
            let step = Step { rows: &rows(context - 1..context), pages: &pages, sampling: &[], changes: &[] };
            group.bench_function(format!("{context}"), |b| {
                b.iter(|| cpu.run_stages(exec, 1..2, &step).expect("a run"));
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = stages;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = bench, contexts
}
criterion_main!(stages);
