//! LoRA adapters against the f64 oracle: rows with different adapters in one step, for every type of weights
//! (on devices some) and of pairs, every stage that has layers, and the embedding; and that rows are the same
//! alone.

use ggml_types::types::REGISTRY;
use sterna::backend::Backend;
use sterna::program::{
    Act, ActQuant, AdapterScale, Buf, Embed, Experts, FfnIn, Linear, Logits, Lora, NormKind, PageTable,
    ProjAdd, ProjIn, Row, RowsOf, Step,
};
use support::case::{Case, StepCase, cpus, few_backends, limits, rows, shuffled_pages, simt, ty, wgpus};

use super::conformance::cols_of;

const N_SEQS: usize = 4;

/// Adapters of each sequence: none, one, two with other scales, the second.
const USES: [&[(u32, f32)]; N_SEQS] = [&[], &[(0, 1.0)], &[(0, -0.5), (1, 1.25)], &[(1, 2.0), (0, 0.0)]];

fn with_adapters(mut pages: PageTable) -> PageTable {
    for (seq, uses) in USES.iter().enumerate() {
        let uses = uses.iter().map(|&(adapter, scale)| AdapterScale { adapter, scale });
        pages.set_adapters(seq as u32, uses.collect());
    }
    pages
}

/// A row of each sequence in turn.
fn mixed(n: usize) -> Vec<Row> {
    (0..n).flat_map(|i| rows((i % N_SEQS) as u32, (i / N_SEQS) as u32..(i / N_SEQS) as u32 + 1)).collect()
}

fn case(name: &str, n_rows: usize) -> Case {
    let mut case = Case::new(name, limits(n_rows + 1, N_SEQS, N_SEQS));
    case.p.adapters = vec!["one".to_owned(), "two".to_owned()];
    case
}

/// Adds pairs of two adapters to a layer, of ranks 3 and 32.
pub(super) fn adapted(case: &mut Case, linear: Linear) -> Linear {
    let (outputs, inputs) = {
        let decl = case.p.weight_decl(linear.w);
        (decl.rows, decl.cols)
    };
    let lora = pairs(case, [["f16", "f32"], ["f32", "q8_0"]], |rank| [[rank, inputs], [outputs, rank]]);
    Linear { lora, ..linear }
}

fn pairs(case: &mut Case, types: [[&str; 2]; 2], shapes: impl Fn(usize) -> [[usize; 2]; 2]) -> Vec<Lora> {
    let mut pair = |adapter: u32, rank: usize, types: [&str; 2]| {
        let [a, b] = shapes(rank);
        let [a, b] =
            [(a, types[0]), (b, types[1])].map(|([rows, cols], name)| case.weight(ty(name), rows, cols));
        Lora { adapter, a, b, scale: [0.75, 1.5][adapter as usize] }
    };
    vec![pair(0, 3, types[0]), pair(1, 32, types[1])]
}

/// A layer of BitNet 2B-4T with a pair of rank 16, which the only sequence uses.
#[cfg(feature = "simt")]
pub(super) fn layer_of_2b() -> (Case, PageTable) {
    const DIM: usize = 2560;
    let mut case = Case::new("a layer with an adapter", limits(64, 1, 3));
    case.p.adapters = vec!["one".to_owned()];
    let (y, x) = (case.buf("y", DIM), case.buf("x", DIM));
    let w = case.linear(ty("i2_s"), DIM, DIM, ActQuant::I8PerToken);
    let [a, b] = [[16, DIM], [DIM, 16]].map(|[rows, cols]| case.weight(ty("f16"), rows, cols));
    let lora = vec![Lora { adapter: 0, a, b, scale: 1.0 }];
    case.p.push("proj_add", ProjAdd::plain(y, Linear { lora, ..w }, x));
    let mut pages = shuffled_pages(1, 3);
    pages.set_adapters(0, [AdapterScale { adapter: 0, scale: 1.0 }].into());
    (case, pages)
}

#[test]
fn layers_of_every_type() {
    for ty in REGISTRY {
        for act in [ActQuant::None, ActQuant::I8PerToken, ActQuant::I8PerBlock] {
            let (n_rows, cols) = (9, cols_of(ty.block_elems(), 300));
            let outputs = 21_usize.next_multiple_of(ty.rows_together());
            let mut case = case(&format!("adapters of {} {act:?}", ty.name()), n_rows);
            let (y, x) = (case.buf("y", cols), case.buf("x", outputs));
            let norm = Some(case.norm(NormKind::Rms, cols));
            let w = Linear { norm, ..case.linear_with_bias(*ty, outputs, cols, act) };
            let w = adapted(&mut case, w);
            case.p.push("proj_add", ProjAdd::plain(y, w, x));
            let inputs =
                vec![(y, case.numbers.values(n_rows * cols)), (x, case.numbers.values(n_rows * outputs))];
            let step = StepCase { rows: mixed(n_rows), stages: 0..1, inputs, read: vec![x] };
            // How a layer's weights are multiplied matters to adapters only where its input is quantised.
            let is_typical = ["f16", "q4_k", "i2_s", "q8_0"].contains(&ty.name());
            let backends = if is_typical { few_backends() } else { cpus(&[2]) };
            case.check(backends, &with_adapters(shuffled_pages(N_SEQS, 1)), &[step]);
        }
    }
}

/// The cutoff of a gate is that of its products with adapters.
#[test]
fn gates_with_a_cutoff() {
    let (n_rows, cols) = (9, 96);
    let mut case = case("adapters of a gate with a cutoff", n_rows);
    let (x, h) = (case.buf("x", cols), case.buf("h", 160));
    let [gate, up] = [(); 2].map(|()| {
        let linear = case.linear(ty("f16"), 160, cols, ActQuant::None);
        adapted(&mut case, linear)
    });
    let stage = FfnIn::gated(x, None, gate, up, Act::GeluTanh, h);
    case.p.push("ffn_in", FfnIn { cutoff: Some(0.5), ..stage });
    let inputs = vec![(x, case.numbers.values(n_rows * cols))];
    let step = StepCase { rows: mixed(n_rows), stages: 0..1, inputs, read: vec![h] };
    case.check(few_backends(), &with_adapters(shuffled_pages(N_SEQS, 1)), &[step]);
}

/// A program of all stages with layers, and the buffers to compare; with experts, whose inputs are quantised
/// as given, and a soft cap of logits, or without both.
fn stages(n_rows: usize, of_experts: Option<ActQuant>) -> (Case, Vec<Buf>) {
    const DIM: usize = 96;
    let mut case = case(&format!("stages with adapters, experts with {of_experts:?}"), n_rows);
    let f16 = ty("f16");
    let [x, h, u, z] =
        [("x", DIM), ("h", 160), ("u", 40), ("z", 24)].map(|(name, cols)| case.buf(name, cols));
    let logits = case.p.buf("logits", RowsOf::Outputs, 50);
    let layer = |case: &mut Case, rows: usize, cols: usize| {
        let linear = case.linear(f16, rows, cols, ActQuant::None);
        adapted(case, linear)
    };
    let norm = case.norm(NormKind::Rms, DIM);
    let table = case.weight(f16, 50, DIM);
    let lora = pairs(&mut case, [["f32", "f16"], ["q8_0", "f32"]], |rank| [[50, rank], [DIM, rank]]);
    case.p.push("embed", Embed { scale: 1.5, lora, ..Embed::tokens(table, x) });
    let products = vec![(layer(&mut case, 40, DIM), u), (layer(&mut case, 24, DIM), z)];
    case.p.push("proj_in", ProjIn { x, norm: norm.clone(), products });
    let [gate, up] = [(); 2].map(|()| layer(&mut case, 160, DIM));
    // Its input is normalised once more.
    let up = Linear { norm: Some(case.norm(NormKind::Rms, DIM)), ..up };
    case.p.push("ffn_in", FfnIn::gated(x, norm.clone(), gate, up, Act::Silu, h));
    let down = layer(&mut case, DIM, 160);
    case.p.push("ffn_out", ProjAdd::plain(h, down, x));
    let [up, share] = [64, 1].map(|rows| layer(&mut case, rows, DIM));
    let alone = case.buf("alone", 64);
    let ungated = FfnIn {
        x,
        norm: Some(norm.clone()),
        gate: None,
        up,
        act: Act::GeluTanh,
        share: Some(share),
        times: None,
        cutoff: None,
        h: alone,
    };
    case.p.push("ffn_ungated", ungated);
    if let Some(act) = of_experts {
        let mut experts = case.experts(["f16"; 3], [5, DIM, 64], act);
        for expert in &mut experts {
            for linear in expert.gate.iter_mut().chain([&mut expert.up, &mut expert.down]) {
                *linear = adapted(&mut case, linear.clone());
            }
        }
        let router = layer(&mut case, 5, DIM);
        case.p.push("experts", Experts::of(x, norm.clone(), router, experts, 2, Act::Silu));
    }
    let w = layer(&mut case, 50, DIM);
    case.p.push("logits", Logits { x, norm, w, soft_cap: of_experts.map(|_| 2.0), logits });
    case.p.check().expect("a valid program");
    (case, vec![x, h, u, z, alone, logits])
}

fn rows_of_all_sequences(n: usize) -> Vec<Row> {
    let mut rows = mixed(n);
    for (i, row) in rows.iter_mut().enumerate() {
        (row.token, row.logits) = ((i * 7 % 50) as u32, i % 3 != 0);
    }
    rows
}

#[test]
fn stages_with_several_layers() {
    let n_rows = 10;
    let pages = with_adapters(shuffled_pages(N_SEQS, 1));
    for of_experts in [None, Some(ActQuant::None), Some(ActQuant::I8PerToken)] {
        let (case, read) = stages(n_rows, of_experts);
        let rows = rows_of_all_sequences(n_rows);
        let step = StepCase { rows, stages: 0..case.p.stages.len(), inputs: Vec::new(), read };
        case.check(few_backends(), &pages, &[step]);
    }
}

/// A row has the same bits alone and with others, whose adapters differ. On devices this holds for up to 8
/// rows, for which the layers themselves have the same sums; on CUDA not for experts of f16, whose tiles of
/// rows use tensor cores.
#[test]
fn rows_are_the_same_alone() {
    let others = cpus(&[2]).into_iter().chain(wgpus());
    others.for_each(|backend| assert_same_alone(backend, Some(ActQuant::None)));
    simt(1).into_iter().for_each(|backend| assert_same_alone(backend, None));
}

fn assert_same_alone(mut backend: Box<dyn Backend>, of_experts: Option<ActQuant>) {
    let pages = with_adapters(shuffled_pages(N_SEQS, 1));
    let all = rows_of_all_sequences(8);
    let (case, _) = stages(all.len(), of_experts);
    if !case.has_kernels(&*backend) {
        return;
    }
    let device = backend.device();
    let mut running = case.on(&mut *backend);
    let x = Buf(0);
    let mut run = |rows: &[Row]| {
        running.run(0..case.p.stages.len(), &Step { rows, pages: &pages, sampling: &[], changes: &[] });
        running.read(x, rows.len())
    };
    let together = run(&all);
    let alone: Vec<f32> = all.iter().flat_map(|row| run(std::slice::from_ref(row))).collect();
    let same = together.iter().zip(&alone).filter(|(a, b)| a.to_bits() == b.to_bits()).count();
    assert_eq!(same, together.len(), "{device}");
}
