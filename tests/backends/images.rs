//! Images and vision towers: attention of the rows of an image to its later rows, RoPE of several axes, and
//! bounds of linear layers, against the f64 oracle.

use ggml_types::kv_by_name;
use sterna::program::{
    Act, ActQuant, Attend, AttnIn, Axis, Clamp, FfnIn, ImageSpan, KvDecl, KvWindow, Linear, NormKind,
    ProjAdd, Rope, RopeStyle, Row,
};
use support::case::{Case, StepCase, backends, limits, rows, shuffled_pages, ty};

const DIM: usize = 64;
const FFN_DIM: usize = 96;

/// Compares the backends whose names begin with `of` with the oracle. Inputs of q8_0 are quantised by block.
fn check(window: Option<u32>, style: RopeStyle, codec: &str, (weights, has_bounds): (&str, bool), of: &str) {
    let mut case = Case::new(&format!("window {window:?}, {style:?}, {codec}"), limits(80, 2, 4));
    let bufs = [("x", DIM), ("q", 128), ("y", 128), ("o", DIM), ("h", FFN_DIM)];
    let [x, q, y, out, h] = bufs.map(|(name, n)| case.buf(name, n));
    let norm = case.norm(NormKind::Rms, DIM);
    let act = if weights == "q8_0" { ActQuant::I8PerBlock } else { ActQuant::None };
    let mut layer = |outputs, inputs, bounds: [f32; 2]| {
        let output = bounds.map(|bound| bound * if outputs == FFN_DIM { 0.5 } else { 2.0 });
        let clamp = has_bounds.then_some(Clamp { input: bounds, output });
        Linear { clamp, ..case.linear_with_bias(ty(weights), outputs, inputs, act) }
    };
    // Queries and keys have the same input, values another one; bounds may be infinite.
    let qkv = [
        layer(128, DIM, [-0.5, 0.75]),
        layer(64, DIM, [-0.5, 0.75]),
        layer(64, DIM, [f32::NEG_INFINITY, 0.625]),
    ];
    let w = layer(DIM, 128, [-0.25, 0.5]);
    let [gate, up] = [[-0.75, 0.5], [-0.5, 1.0]].map(|bounds| layer(FFN_DIM, DIM, bounds));
    let axes = [Axis::Time, Axis::Row, Axis::Column].into_iter().cycle().take(12).collect();
    let inv_freq = (0..12).map(|i| 0.7_f64.powi(i)).collect();
    let rope = Some(case.p.rope(Rope { style, inv_freq, magnitude: 1.0, axes: Some(axes), ahead: 0 }));
    let codec = kv_by_name(codec).expect("a codec of the registry");
    let kv = case.p.kv(KvDecl {
        n_kv_heads: 2,
        head_dim: 32,
        k: codec,
        v: codec,
        basis: None,
        window: KvWindow::default(),
        sliding: None,
        values_are_keys: false,
    });
    case.p.push("attn_in", AttnIn { rope, ..AttnIn::of(x, norm, qkv, kv, q) });
    case.p.push("attend", Attend { window, whole_images: true, ..Attend::causal(q, kv, 0.2, y) });
    let post = Some(case.norm(NormKind::Rms, DIM));
    case.p.push("attn_out", ProjAdd { post, ..ProjAdd::plain(y, w, out) });
    let norm = case.norm(NormKind::Rms, DIM);
    case.p.push("ffn_in", FfnIn::gated(out, norm, gate, up, Act::GeluTanh, h));

    let image = |start, grid, block| ImageSpan { start, grid, block };
    let mut pages = shuffled_pages(2, 4);
    // Two images, the second one across a page; and one that is listed in blocks.
    pages.set_images(0, [image(5, [3, 4], 1), image(58, [4, 3], 1)]);
    pages.set_images(1, [image(0, [4, 2], 2)]);
    let mut step = |parts: &[(u32, u32, u32)]| {
        let rows: Vec<Row> = parts.iter().flat_map(|&(seq, from, to)| rows(seq, from..to)).collect();
        let inputs = [x, out].map(|buf| (buf, case.numbers.values(rows.len() * DIM))).into();
        StepCase { rows, stages: 0..4, inputs, read: vec![q, y, out, h] }
    };
    let steps = [
        (pages.clone(), step(&[(0, 0, 58), (1, 0, 10)])),
        // The rest of an image whose first rows are cached, then text after it.
        (pages.clone(), step(&[(0, 58, 72)])),
        (pages.clone(), step(&[(1, 10, 12), (0, 72, 73)])),
    ];
    let all: Vec<_> = backends().into_iter().filter(|backend| backend.name().starts_with(of)).collect();
    case.check_each(all, &steps);
}

#[test]
fn images_on_the_cpu() {
    for window in [None, Some(20)] {
        for style in [RopeStyle::Halves, RopeStyle::Adjacent] {
            check(window, style, "f32", ("f16", true), "cpu");
        }
    }
}

#[test]
fn images_on_wgpu() {
    check(Some(20), RopeStyle::Adjacent, "f32", ("f16", true), "wgpu");
}

/// With and without tensor cores.
#[test]
fn images_on_cuda() {
    check(Some(20), RopeStyle::Adjacent, "f16", ("f16", false), "cuda");
    check(None, RopeStyle::Halves, "f32", ("f16", false), "cuda");
    check(None, RopeStyle::Halves, "f32", ("f16", true), "cuda");
    check(Some(20), RopeStyle::Adjacent, "f32", ("q8_0", true), "cuda");
}

/// Layers with bounds and another preparation of their input, which no model has, are refused by name.
#[test]
fn cuda_refuses_bounds_in_unusual_layers() {
    let mut case = Case::new("unusual bounds", limits(8, 1, 1));
    let [x, h] = ["x", "h"].map(|name| case.buf(name, DIM));
    let norm = case.norm(NormKind::Rms, DIM);
    let w = case.linear_with_bias(ty("f16"), DIM, DIM, ActQuant::None);
    let clamp = Some(Clamp { input: [-1.0, 1.0], output: [-1.0, 1.0] });
    let twice = Linear { norm: Some(case.norm(NormKind::Rms, DIM)), clamp, ..w };
    case.p.push("twice", FfnIn::plain(x, norm, twice, Act::Silu, h));
    for cuda in backends().into_iter().filter(|backend| backend.name().starts_with("cuda")) {
        let said = cuda.plan(&case.p).expect_err("a layer with bounds and a second norm").to_string();
        assert!(said.contains("bounds of a layer with a second norm"), "{said}");
    }
}

/// A cut image is a bug of the caller.
#[test]
#[should_panic(expected = "is cut after position")]
fn a_cut_image_is_found() {
    let mut pages = shuffled_pages(1, 1);
    pages.set_images(0, [ImageSpan { start: 1, grid: [2, 2], block: 1 }]);
    let mut case = Case::new("cut", limits(8, 1, 1));
    let [q, y] = ["q", "y"].map(|name| case.buf(name, 32));
    let codec = kv_by_name("f32").expect("a codec of the registry");
    let kv = KvDecl {
        n_kv_heads: 1,
        head_dim: 32,
        k: codec,
        v: codec,
        basis: None,
        window: KvWindow::default(),
        sliding: None,
        values_are_keys: false,
    };
    let kv = case.p.kv(kv);
    case.p.push("attend", Attend { whole_images: true, ..Attend::causal(q, kv, 1.0, y) });
    let rows = rows(0, 0..3);
    let inputs = vec![(q, case.numbers.values(rows.len() * 32))];
    let step = StepCase { rows, stages: 0..1, inputs, read: vec![] };
    case.p.assert_fits(&case.p.stages, &step.step(&pages, &[]));
}
