//! Images and vision towers: attention of the rows of an image to its later rows, RoPE of several axes, and
//! bounds of linear layers, against the f64 oracle. CUDA refuses bounds by name.

use ggml_types::kv_by_name;
use sterna::program::{
    ActQuant, Attend, AttnIn, Axis, Clamp, ImageSpan, KvDecl, KvWindow, Linear, NormKind, ProjAdd, Rope,
    RopeStyle, Row,
};
use support::case::{Case, StepCase, backends, limits, rows, shuffled_pages, ty};

const DIM: usize = 64;

/// Compares the backends whose names begin with `of` with the oracle; CUDA refuses bounds.
fn check(window: Option<u32>, style: RopeStyle, codec: &str, has_bounds: bool, of: &str) {
    let mut case = Case::new(&format!("window {window:?}, {style:?}, {codec}"), limits(80, 2, 4));
    let [x, q, y, out] = [("x", DIM), ("q", 128), ("y", 128), ("o", DIM)].map(|(name, n)| case.buf(name, n));
    let norm = case.norm(NormKind::Rms, DIM);
    let mut layer = |outputs, inputs| {
        let clamp = has_bounds.then_some(Clamp { input: [-0.5, 0.75], output: [-1.0, 1.25] });
        Linear { clamp, ..case.linear_with_bias(ty("f16"), outputs, inputs, ActQuant::None) }
    };
    let (qkv, w) = ([layer(128, DIM), layer(64, DIM), layer(64, DIM)], layer(DIM, 128));
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

    let image = |start, grid, block| ImageSpan { start, grid, block };
    let mut pages = shuffled_pages(2, 4);
    // Two images, the second one across a page; and one that is listed in blocks.
    pages.set_images(0, [image(5, [3, 4], 1), image(58, [4, 3], 1)]);
    pages.set_images(1, [image(0, [4, 2], 2)]);
    let mut step = |parts: &[(u32, u32, u32)]| {
        let rows: Vec<Row> = parts.iter().flat_map(|&(seq, from, to)| rows(seq, from..to)).collect();
        let inputs = [x, out].map(|buf| (buf, case.numbers.values(rows.len() * DIM))).into();
        StepCase { rows, stages: 0..3, inputs, read: vec![q, y, out] }
    };
    let steps = [
        (pages.clone(), step(&[(0, 0, 58), (1, 0, 10)])),
        // The rest of an image whose first rows are cached, then text after it.
        (pages.clone(), step(&[(0, 58, 72)])),
        (pages.clone(), step(&[(1, 10, 12), (0, 72, 73)])),
    ];
    let all = backends().into_iter().filter(|backend| backend.name().starts_with(of));
    let (refusing, others): (Vec<_>, Vec<_>) = all.partition(|_| has_bounds && of == "cuda");
    case.check_each(others, &steps);
    for cuda in refusing {
        let refused = cuda.plan(&case.p).map_err(|err| err.to_string());
        let said = refused.expect_err("it has no kernels for bounds");
        assert!(said.contains("bounds"), "{said}");
    }
}

#[test]
fn images_on_the_cpu() {
    for window in [None, Some(20)] {
        for style in [RopeStyle::Halves, RopeStyle::Adjacent] {
            check(window, style, "f32", true, "cpu");
        }
    }
}

#[test]
fn images_on_wgpu() {
    check(Some(20), RopeStyle::Adjacent, "f32", true, "wgpu");
}

/// With and without tensor cores.
#[test]
fn images_on_cuda() {
    check(Some(20), RopeStyle::Adjacent, "f16", false, "cuda");
    check(None, RopeStyle::Halves, "f32", false, "cuda");
    check(None, RopeStyle::Halves, "f32", true, "cuda");
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
