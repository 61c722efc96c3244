//! Windowed KV caches: attention against an f64 reference over the codecs' own definition; prompts in parts,
//! cuts, branches and interleaved sessions against single sessions.

use ggml_types::turboquant::{KeyBasis, ScaleRule};
use sterna::backend::{Backend, KvPage};
use sterna::engine::{Engine, EngineOptions, Session};
use sterna::program::{Attend, KvDecl, KvWindow, PAGE, Program};
use support::case::window::{Attention, Centre, DIM, Heads, RIGHT, Rule, TWO_OF_TWO, codec, distance};
use support::case::{StepCase, cpus, rows, simt, simt_of_cards, wgpus, windowed_limits, windowed_pages};

/// The same for [`TWO_OF_TWO`] on every kind of backend.
fn attends_as(codecs: [&str; 2], rule: Rule, wrong: &[(&str, Rule)]) {
    let backends = cpus(&[3]).into_iter().chain(wgpus()).chain(simt(2)).collect();
    support::case::window::attends_as(TWO_OF_TWO, codecs, rule, wrong, 330, backends);
}

#[test]
fn attention_matches_the_decoded_codes() {
    for (name, bits) in [("turboquant-mse", 3), ("turboquant-4", 4)] {
        let rule = Rule { bits, ..RIGHT };
        let wrong = [
            ("no rotation", Rule { rotated: false, ..rule }),
            ("no mean", Rule { centre: Centre::Nothing, ..rule }),
            ("the mean of the first page", Rule { centre: Centre::FirstPage, ..rule }),
            ("a mean that is not rounded", Rule { centre: Centre::OwnPageInFull, ..rule }),
            ("the scale of values for keys", Rule { key_scale: ScaleRule::LeastSquares, ..rule }),
            ("the scale of keys for values", Rule { value_scale: ScaleRule::InnerProduct, ..rule }),
            ("no window", Rule { window_pages: 0, ..rule }),
            ("a page more in the window", Rule { window_pages: 2, ..rule }),
            ("the first page encoded", Rule { sink_pages: 0, ..rule }),
        ];
        attends_as([name; 2], rule, &wrong);
    }
}

/// An encoded page depends on its own positions only.
#[test]
fn encoded_pages_are_complete() {
    for k in ["turboquant", "turboquant-t", "turboquant-4", "turboquant-mse", "tq3_0"] {
        let mut attention = Attention::new(TWO_OF_TWO, k, k, KvWindow::default());
        let inputs = attention.case.numbers.values(2 * PAGE * DIM);
        let mut others = inputs.clone();
        others[..PAGE * DIM].reverse();
        let pages = windowed_pages(1, 6);
        let second = KvPage::Quantised(pages.seq(0)[1]);
        for mut backend in cpus(&[1]).into_iter().chain(wgpus()).chain(simt(1)) {
            let device = backend.device();
            let mut running = attention.case.on(&mut *backend);
            let mut encoded = |inputs: &[f32]| {
                for start in (0..2 * PAGE).step_by(32) {
                    let inputs = vec![(attention.x, inputs[start * DIM..(start + 32) * DIM].to_vec())];
                    let rows = rows(0, start as u32..start as u32 + 32);
                    running.run_step(&StepCase { rows, stages: 0..2, inputs, read: vec![] }, &pages, &[]);
                }
                let mut bytes = vec![0; running.backend.page_bytes(running.exec, second)];
                running.backend.read_page(running.exec, second, &mut bytes).unwrap();
                bytes
            };
            let (after_others, after_own) = (encoded(&others), encoded(&inputs));
            assert!(after_own.iter().any(|byte| *byte != 0) && after_own == after_others, "{k} on {device}");
        }
    }
}

/// A mean of zeros has the scale 0.
#[test]
fn keys_can_be_zero() {
    for (name, bits) in [("turboquant-mse", 3), ("turboquant-4", 4)] {
        let mut attention = Attention::new(TWO_OF_TWO, name, name, KvWindow::default());
        attention.zero_keys();
        let backends = cpus(&[1]).into_iter().chain(wgpus()).chain(simt(1)).collect();
        support::case::window::attended_as(attention, [name; 2], Rule { bits, ..RIGHT }, &[], 200, backends);
    }
}

fn leak(bases: Vec<KeyBasis>) -> &'static [KeyBasis] {
    bases.leak()
}

/// Arbitrary bases of two heads, and the same with the groups the other way round.
fn bases(head_dim: usize, reversed: bool) -> Vec<KeyBasis> {
    let of_head = |head: usize| {
        let exponents = (0..head_dim).map(|i| ((i * 7 + head * 3) % 17) as i8 - 8).collect();
        let is_first = |i: usize| ((i * 5 + head) % 8 < 4) != reversed;
        KeyBasis::from_parts(exponents, &(0..head_dim).map(is_first).collect::<Vec<_>>()).unwrap()
    };
    (0..2).map(of_head).collect()
}

/// Keys in two groups, in units of codes and (heads of 32) vector by vector.
#[test]
fn attention_matches_keys_in_two_groups() {
    let leak = |bases| Some(leak(bases));
    for (i, head_dim) in [32, 64, 128, 256].into_iter().enumerate() {
        let plain = |_| KeyBasis::plain(head_dim).unwrap();
        let right = bases(head_dim, false);
        let swapped = vec![right[1].clone(), right[0].clone()];
        let rule = Rule { bases: leak(right), ..RIGHT };
        let wrong = [
            ("no bases", Rule { bases: leak((0..2).map(plain).collect()), ..rule }),
            ("the other head's basis", Rule { bases: leak(swapped), ..rule }),
            ("the other groups", Rule { bases: leak(bases(head_dim, true)), ..rule }),
            ("turboquant-mse", Rule { bases: None, ..rule }),
            ("the mean of the first page", Rule { centre: Centre::FirstPage, ..rule }),
        ];
        let heads = Heads { head_dim, ..TWO_OF_TWO };
        let codecs = ["turboquant", "turboquant-mse"];
        let gpus = wgpus().into_iter().nth(i % 2).into_iter().chain(simt(1));
        let backends = cpus(&[3]).into_iter().chain(gpus).collect();
        support::case::window::attends_as(heads, codecs, rule, &wrong, 330, backends);
    }
}

/// Codes of trellises of keys and values, or of values alone.
#[test]
fn attention_matches_the_codes_of_trellises() {
    attends_as_trellises([32, 128]);
}

/// Heads of the other sizes.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn attention_matches_the_codes_of_trellises_of_every_size() {
    attends_as_trellises([64, 256]);
}

fn attends_as_trellises(head_dims: [usize; 2]) {
    for (i, head_dim) in head_dims.into_iter().enumerate() {
        let heads = Heads { head_dim, ..TWO_OF_TWO };
        let bases = Some(leak(bases(head_dim, false)));
        for (j, (k, trellis)) in
            [("turboquant-t", [true, true]), ("turboquant", [false, true])].into_iter().enumerate()
        {
            let rule = Rule { bases, trellis, ..RIGHT };
            let wrong = [
                ("Lloyd-Max codes of values", Rule { trellis: [trellis[0], false], ..rule }),
                ("the other codes of keys", Rule { trellis: [!trellis[0], true], ..rule }),
                ("the mean of the first page", Rule { centre: Centre::FirstPage, ..rule }),
            ];
            // CUDA has no kernels for values alone.
            let on_cuda = if trellis[0] { simt(1) } else { None };
            let gpu = wgpus().into_iter().nth((i + j) % 2);
            let backends = cpus(&[1, 3]).into_iter().chain(gpu).chain(on_cuda).collect();
            support::case::window::attends_as(heads, [k, "turboquant-t"], rule, &wrong, 330, backends);
        }
    }
}

#[test]
fn sinks_and_window_can_be_larger() {
    let rule = Rule { sink_pages: 2, window_pages: 2, ..RIGHT };
    let wrong = [
        ("one page of sinks", Rule { sink_pages: 1, ..rule }),
        ("a window of one page", Rule { window_pages: 1, ..rule }),
    ];
    attends_as(["turboquant-mse"; 2], rule, &wrong);
    assert_eq!(KvWindow::default(), KvWindow { sink_pages: 1, newest_pages: 1 });
    assert_eq!(KvWindow::of_positions(65, 128), KvWindow { sink_pages: 2, newest_pages: 2 });
    let all = Rule { sink_pages: 6, ..RIGHT };
    attends_as(["turboquant-mse"; 2], all, &[("codes", RIGHT)]);
}

/// Heads of every size, alone and in groups that a block processes as a whole, in parts, or in several tiles:
/// cards have different kernels for them.
#[test]
fn heads_of_every_shape_over_codes() {
    over_codes(4, || simt(1).into_iter().collect());
}

/// On cards that exist, lanes share rows of weights in other numbers, so that keys and values have other last
/// bits, and some of them other codes.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn heads_of_every_shape_over_codes_on_cards() {
    over_codes(0, simt_of_cards);
}

/// Every shape over `turboquant`, those from `first` over `turboquant-mse`, and some over the others.
fn over_codes(first: usize, on_cards: fn() -> Vec<Box<dyn Backend>>) {
    let all =
        [(1, 1, 128), (2, 3, 128), (1, 8, 128), (1, 9, 64), (2, 1, 64), (1, 17, 64), (1, 5, 32), (1, 3, 256)];
    for (codec, bits, shapes) in [
        ("turboquant-mse", 3, &all[first..]),
        ("turboquant-4", 4, &all[1..4]),
        ("turboquant", 3, &all[..]),
        ("turboquant-t", 3, &all[3..6]),
    ] {
        for &(n_kv_heads, group, head_dim) in shapes {
            let heads = Heads { n_kv_heads, group, head_dim, value_scale: 1.0 };
            let has_bases = ["turboquant", "turboquant-t"].contains(&codec);
            let bases = has_bases.then(|| &leak(bases(head_dim, false))[..n_kv_heads]);
            let rule = Rule { bits, bases, trellis: [codec == "turboquant-t"; 2], ..RIGHT };
            let window = KvWindow { sink_pages: rule.sink_pages, newest_pages: rule.window_pages };
            let mut attention = Attention::new(heads, codec, codec, window);
            // With the first draws, an element of a key is within float rounding of a threshold of codes.
            attention.case.numbers.value();
            support::case::window::attended_as(attention, [codec; 2], rule, &[], 260, on_cards());
        }
    }
}

/// The same over block codecs, and over a block codec together with f16.
#[test]
fn heads_of_every_shape_over_blocks() {
    over_blocks(|| simt(1).into_iter().collect());
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn heads_of_every_shape_over_blocks_on_cards() {
    over_blocks(simt_of_cards);
}

fn over_blocks(on_cards: fn() -> Vec<Box<dyn Backend>>) {
    for (names, n_kv_heads, group, head_dim) in [
        (["q8_0", "q8_0"], 1, 1, 128),
        (["q4_0", "q4_0"], 2, 3, 128),
        (["q8_0", "f16"], 1, 9, 64),
        (["f16", "q4_0"], 1, 17, 64),
        (["q4_0", "q8_0"], 1, 3, 256),
        (["f16", "q8_0"], 1, 2, 256),
        (["q8_0", "q8_0"], 1, 5, 32),
    ] {
        let heads = Heads { n_kv_heads, group, head_dim, value_scale: 1.0 };
        let rule = Rule { at_once: Some(names.map(codec)), ..RIGHT };
        support::case::window::attends_as(heads, names, rule, &[], 260, on_cards());
    }
}

/// Single rows and tiles, on the kernels for each head size.
#[test]
fn bidirectional_attention_over_blocks() {
    for (names, head_dim, sliding, ahead, n_rows) in [
        (["q8_0", "q8_0"], 64, None, Attend::ALL, 70),
        (["q8_0", "q4_0"], 64, None, Attend::ALL, 10),
        (["q4_0", "q4_0"], 128, None, Attend::ALL, 67),
        (["f16", "q8_0"], 256, Some(9), 8, 70),
        (["q4_0", "f16"], 32, Some(65), 64, 70),
    ] {
        let heads = Heads { head_dim, ..TWO_OF_TWO };
        let rule = Rule { at_once: Some(names.map(codec)), sliding, ahead, ..RIGHT };
        let causal = [("nothing ahead", Rule { ahead: 0, ..rule })];
        let backends = cpus(&[1]).into_iter().chain(simt(1)).collect();
        support::case::window::attends_as(heads, names, rule, &causal, n_rows, backends);
    }
}

/// Windows that begin inside a page of codes, inside an exact page, and at a page boundary, with head sizes
/// that have different kernels on cards, in single rows and in tiles.
#[test]
fn sliding_windows_over_codes_and_blocks() {
    let right = |bits, sliding| Rule { bits, sliding: Some(sliding), ..RIGHT };
    let blocks = Rule { at_once: Some(["q8_0"; 2].map(codec)), ..right(3, 90) };
    for (i, (names, rule, head_dim)) in [
        (["turboquant-mse"; 2], right(3, 100), 64),
        (["turboquant-mse"; 2], right(3, 1), 64),
        (["turboquant-4"; 2], right(4, 128), 128),
        (["turboquant-mse"; 2], right(3, 77), 32),
        (["q8_0"; 2], blocks, 64),
    ]
    .into_iter()
    .enumerate()
    {
        let heads = Heads { head_dim, ..TWO_OF_TWO };
        let one_wgpu = wgpus().into_iter().nth(i % 2);
        let backends = cpus(&[1]).into_iter().chain(one_wgpu).chain(simt(1)).collect();
        let longer = Rule { sliding: rule.sliding.map(|n| n + 1), ..rule };
        let wrong = [("a position more", longer), ("no window", Rule { sliding: None, ..rule })];
        support::case::window::attends_as(heads, names, rule, &wrong, 260, backends);
    }
}

/// Values near the smallest normal f16, and near the largest.
#[test]
fn values_can_be_small_or_large() {
    for value_scale in [1e-4, 3e3] {
        let heads = Heads { value_scale, ..TWO_OF_TWO };
        support::case::window::attends_as(
            heads,
            ["turboquant-mse"; 2],
            RIGHT,
            &[],
            260,
            simt(1).into_iter().collect(),
        );
    }
}

/// NaN and values too large for f16 are clamped when stored, and counted; later rows stay finite.
#[test]
fn hostile_vectors_are_clamped_and_counted() {
    for name in ["turboquant", "turboquant-t", "turboquant-mse", "turboquant-4", "q8_0", "q4_0"] {
        for (i, (bad, value_scale, clamped)) in [
            // Keys and values of three rows, for each head.
            (f32::NAN, 1.0, 3 * 2 * TWO_OF_TWO.n_kv_heads),
            (f32::INFINITY, 1.0, 3 * 2 * TWO_OF_TWO.n_kv_heads),
            // The values of all rows except the zero ones.
            (0.0, 1e7, (200 - 3) * TWO_OF_TWO.n_kv_heads),
        ]
        .into_iter()
        .enumerate()
        {
            let mut attention = Attention::new(TWO_OF_TWO, name, name, KvWindow::default());
            let sterna::program::Stage::AttnIn(s) = &mut attention.case.p.stages[0].1 else { unreachable!() };
            s.wv.as_mut().expect("a layer").scale = value_scale;
            let mut inputs = attention.case.numbers.values(200 * DIM);
            // In the page that stays exact, in one that is encoded, and in the newest one.
            for row in [20, 70, 190] {
                inputs[row * DIM..(row + 1) * DIM].fill(bad);
            }
            let pages = windowed_pages(1, 6);
            let one_wgpu = wgpus().into_iter().nth(i % 2);
            // CUDA does not have it.
            let simt = simt(1).filter(|_| name != "turboquant-t");
            for mut backend in cpus(&[2]).into_iter().chain(simt).chain(one_wgpu) {
                let device = format!("{name} of {bad} on {}", backend.device());
                let mut running = attention.case.on(&mut *backend);
                for start in (0..200).step_by(50) {
                    let inputs = vec![(attention.x, inputs[start * DIM..(start + 50) * DIM].to_vec())];
                    let rows = rows(0, start as u32..start as u32 + 50);
                    running.run_step(&StepCase { rows, stages: 0..2, inputs, read: vec![] }, &pages, &[]);
                    let y = running.read(attention.y, 50);
                    for (i, y) in y.chunks_exact(TWO_OF_TWO.cols()).enumerate() {
                        let is_bad = [20, 70, 190].contains(&(start + i)) && bad != 0.0;
                        assert!(is_bad || y.iter().all(|y| y.is_finite()), "{device}: row {}", start + i);
                    }
                }
                // The scales of two encoded pages may exceed f16, too.
                let again =
                    if bad == 0.0 && !name.starts_with('q') { 2 * 64 * TWO_OF_TWO.n_kv_heads } else { 0 };
                let (count, least) = (running.clamped().expect("a count"), clamped as u64);
                assert!((least..=least + again as u64).contains(&count), "{device}: {count}, not {least}");
            }
        }
    }
}

#[test]
fn attention_matches_decoded_rotated_blocks() {
    for name in ["q8_0", "q4_0"] {
        let rule = Rule { at_once: Some([codec(name); 2]), ..RIGHT };
        attends_as([name; 2], rule, &[("no rotation", Rule { rotated: false, ..rule })]);
    }
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn keys_and_values_can_have_different_block_codecs() {
    for names in [
        ["q8_0", "q4_0"],
        ["q4_0", "q8_0"],
        ["f16", "q8_0"],
        ["q8_0", "f16"],
        ["f16", "q4_0"],
        ["q4_0", "f16"],
    ] {
        let rule = Rule { at_once: Some(names.map(codec)), ..RIGHT };
        attends_as(names, rule, &[]);
    }
}

/// An arbitrary token sequence.
fn tokens(seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (seed * 131 + i * i * 7 + i * 13) % 500).collect()
}

fn engine(codec: &str, batch: usize, n_seqs: usize) -> Engine {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let options = EngineOptions {
        device: "cpu".parse().unwrap(),
        threads: Some(1),
        n_ctx: Some(384),
        batch,
        outputs: batch,
        n_seqs,
        cache_type_k: codec.parse().unwrap(),
        cache_type_v: codec.parse().unwrap(),
        ..EngineOptions::default()
    };
    Engine::open(path, &options).unwrap()
}

/// Logits after each of the tokens, as bits.
fn feed(session: &mut Session, tokens: &[u32]) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    let keep = |_, logits: &[f32]| -> Result<(), sterna::Error> {
        assert!(logits.iter().all(|x| x.is_finite()));
        all.push(logits.iter().map(|x| x.to_bits()).collect());
        Ok(())
    };
    session.logits_each(tokens, keep).unwrap();
    all
}

#[test]
fn prompts_in_batches_match_single_tokens() {
    let prompt = tokens(1, 330);
    let one_by_one = feed(&mut engine("turboquant", 1, 1).session().unwrap(), &prompt);
    let exact = feed(&mut engine("f16", 1, 1).session().unwrap(), &prompt);
    let same = one_by_one.iter().zip(&exact).take_while(|(a, b)| a == b).count();
    assert!(same < 192, "{same} positions are the same as with f16, so no page was encoded");
    for batch in [7, 63, 64, 65, 128, 192, 330] {
        let got = feed(&mut engine("turboquant", batch, 1).session().unwrap(), &prompt);
        for (pos, (got, want)) in got.iter().zip(&one_by_one).enumerate() {
            assert!(got == want, "batches of {batch}: position {pos}");
        }
    }
}

#[test]
fn cuts_within_the_window_leave_no_trace() {
    for codec in ["f16", "turboquant"] {
        let engine = engine(codec, 80, 2);
        for (i, n) in [40, 64, 127, 128, 191, 192, 200, 255, 256, 257, 300].into_iter().enumerate() {
            for by in [[1, 64], [20, 63]][i % 2] {
                let mut cut = engine.session().unwrap();
                feed(&mut cut, &tokens(2, n));
                let keep = n.saturating_sub(by);
                cut.cut_back(keep);
                let mut alone = engine.session().unwrap();
                feed(&mut alone, &tokens(2, keep));
                let tail = tokens(3, 70);
                assert!(feed(&mut cut, &tail) == feed(&mut alone, &tail), "{codec}: {n} cut by {by}");
            }
        }
    }
}

/// Encoded pages stay encoded after the cut; the results are close to those without one.
#[test]
fn longer_cuts_continue_from_the_codes() {
    let engine = engine("turboquant", 80, 2);
    let mut cut = engine.session().unwrap();
    feed(&mut cut, &tokens(4, 330));
    cut.cut_back(150);
    assert_eq!((cut.position(), cut.remaining()), (150, 234));
    let mut alone = engine.session().unwrap();
    feed(&mut alone, &tokens(4, 150));
    let tail = tokens(5, 100);
    let (cut, alone) = (feed(&mut cut, &tail), feed(&mut alone, &tail));
    let numbers = |logits: &[Vec<u32>]| -> Vec<Vec<f64>> {
        logits.iter().map(|row| row.iter().map(|x| f64::from(f32::from_bits(*x))).collect()).collect()
    };
    let distance = distance(&numbers(&cut), &numbers(&alone));
    assert!(distance > 0.0 && distance < 0.2, "{distance}");
}

#[test]
fn branches_are_independent() {
    for codec in ["f16", "turboquant"] {
        let engine = engine(codec, 80, 3);
        for (n, at) in
            [(10, 10), (64, 64), (100, 70), (192, 191), (200, 200), (300, 300), (319, 255), (300, 240)]
        {
            let mut trunk = engine.session().unwrap();
            feed(&mut trunk, &tokens(6, n));
            let mut branch = trunk.branch(at).unwrap();
            assert_eq!(branch.tokens(), &trunk.tokens()[..at]);
            let (left, right) = (tokens(7, 30), tokens(8, 30));
            // Interleaved, so that a write to a shared page would show.
            let mut got = [Vec::new(), Vec::new()];
            for i in (0..30).step_by(10) {
                got[0].extend(feed(&mut trunk, &left[i..i + 10]));
                got[1].extend(feed(&mut branch, &right[i..i + 10]));
            }
            trunk.cut_back(at.min(n) / 2);
            drop(trunk);
            got[1].extend(feed(&mut branch, &left));
            for (got, keep, tail) in [(&got[0], n, left.clone()), (&got[1], at, [right, left].concat())] {
                let mut alone = engine.session().unwrap();
                feed(&mut alone, &tokens(6, keep));
                assert!(*got == feed(&mut alone, &tail), "{codec}: {n} tokens, branch at {at}");
            }
        }
    }
}

#[test]
fn interleaved_sessions_are_independent() {
    let together = engine("turboquant", 50, 3);
    let mut sessions: Vec<_> = (0..3).map(|_| together.session().unwrap()).collect();
    let mut got = vec![Vec::new(); 3];
    for start in (0..300).step_by(50) {
        for (i, session) in sessions.iter_mut().enumerate() {
            got[i].extend(feed(session, &tokens(i as u32, 300)[start..start + 50]));
        }
    }
    for (i, got) in got.iter().enumerate() {
        let want = feed(&mut engine("turboquant", 300, 1).session().unwrap(), &tokens(i as u32, 300));
        assert!(*got == want, "session {i}");
    }
}

#[test]
fn head_sizes_without_a_rotation_are_refused() {
    let mut p = Program::new("odd", windowed_limits(1, 1, 1));
    let decl = KvDecl {
        n_kv_heads: 1,
        head_dim: 80,
        k: codec("turboquant-mse"),
        v: codec("f16"),
        basis: None,
        window: KvWindow::default(),
        sliding: None,
        values_are_keys: false,
    };
    assert!(decl.k.vec_bytes(80).unwrap_err().to_string().contains("power of two"));
    p.kv(decl);
    let backend = sterna::backend::cpu::Cpu::new(1).unwrap();
    assert!(Backend::plan(&backend, &p).is_err());
}

/// A backend without the kernels gives an error with an alternative before anything is loaded.
#[cfg(feature = "simt")]
#[test]
fn missing_codecs_are_refused_with_an_alternative() {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    for (k, v, what) in [
        ("f32", "q4_0", "(one cache can mix f16, q8_0, q4_0)"),
        ("f16", "turboquant-4", "keys of f16 and values of turboquant-4"),
        (
            "q5_1",
            "q5_1",
            "attend__q5_1 (supported caches: f16, f32, q8_0, q4_0, turboquant, turboquant-t, turboquant-4, \
             turboquant-mse, tq3_0)",
        ),
        (
            "turboquant",
            "turboquant-t",
            "attend with keys of turboquant and values of turboquant-t (one cache can mix f16, q8_0, q4_0)",
        ),
    ] {
        let options = EngineOptions {
            device: "cuda-simt".parse().unwrap(),
            cache_type_k: k.parse().unwrap(),
            cache_type_v: v.parse().unwrap(),
            ..EngineOptions::default()
        };
        let err = Engine::open(&path, &options).unwrap_err().to_string();
        assert!(err.contains(what) && err.contains("the cpu backend"), "{err}");
    }
}
