//! Bases of keys: measured when a model is loaded, read from a file that has them, and part of what a saved
//! session must share with an engine.

use std::io::Cursor;

use ggml_types::turboquant::{KeyBasis, KeyVariances};
use sterna::engine::{Engine, EngineOptions};
use sterna::eval::probe::Probe;
use sterna::gguf::{Gguf, Metadata, Rewrite, Value};
use sterna::program::{PAGE, Rope, Stage};
use sterna::tokenizer::Special;

const TEXT: &str = include_str!("../../src/engine/key_stats.txt");
const N_PAGES: usize = 4;

fn demo() -> Gguf {
    Gguf::open(&support::root().join("assets/world.gguf")).unwrap()
}

fn options() -> EngineOptions {
    let codec = "turboquant".parse().unwrap();
    EngineOptions {
        device: "cpu".parse().unwrap(),
        threads: Some(2),
        n_ctx: Some(320),
        cache_type_k: codec,
        cache_type_v: codec,
        ..EngineOptions::default()
    }
}

fn open(gguf: Gguf) -> Engine {
    Engine::from_gguf(gguf, &options(), |_| ()).unwrap()
}

/// Share of equal elements of all bases.
fn alike<T: PartialEq>(a: &Engine, b: &[Vec<KeyBasis>], of: impl Fn(&KeyBasis) -> Vec<T>) -> f64 {
    let all =
        |bases: &[&[KeyBasis]]| bases.iter().flat_map(|bases| bases.iter()).flat_map(&of).collect::<Vec<_>>();
    let a: Vec<&[KeyBasis]> = a.program().kvs.iter().map(|kv| &**kv.basis.as_ref().unwrap()).collect();
    let (a, b) = (all(&a), all(&b.iter().map(Vec::as_slice).collect::<Vec<_>>()));
    assert_eq!(a.len(), b.len());
    a.iter().zip(&b).filter(|(a, b)| a == b).count() as f64 / a.len() as f64
}

/// The bases of a model whose keys and queries are read out in f32, by this test's own sums.
fn bases(engine: &Engine) -> Vec<Vec<KeyBasis>> {
    let tokens = engine.tokenizer().unwrap().encode(TEXT, Special::AsText, true);
    let tokens: Vec<u32> = tokens.into_iter().cycle().take(N_PAGES * PAGE).collect();
    let program = engine.program();
    let mut all = Vec::new();
    let mut probe = Probe::new(engine.gguf(), &options(), tokens.len()).unwrap();
    probe
        .run(&tokens, |layer, v| {
            let rope = program.stages.iter().find_map(|(_, stage)| match stage {
                Stage::AttnIn(s) if s.kv.0 as usize == layer => Some(s.rope),
                _ => None,
            });
            let rope = rope.unwrap().map(|rope| &program.ropes[rope.0 as usize]);
            let pairs = Rope::pairs(rope, v.head_dim);
            let group = v.n_heads / v.n_kv_heads;
            let key = |pos: usize, head: usize, i: usize| {
                f64::from(v.k[(pos * v.n_kv_heads + head) * v.head_dim + i])
            };
            let query =
                |pos: usize, head: usize, i: usize| f64::from(v.q[(pos * v.n_heads + head) * v.head_dim + i]);
            let mean = |values: &mut dyn Iterator<Item = f64>| {
                let (sum, n) = values.fold((0.0, 0.0), |(sum, n), x| (sum + x, n + 1.0));
                sum / n
            };
            let of_head = |head: usize| {
                let of_keys = |i: usize| {
                    let of_page = |page: usize| {
                        let page = page * PAGE..(page + 1) * PAGE;
                        let centre = mean(&mut page.clone().map(|pos| key(pos, head, i)));
                        mean(&mut page.map(|pos| (key(pos, head, i) - centre).powi(2)))
                    };
                    mean(&mut (1..N_PAGES).map(of_page))
                };
                let of_queries = |i: usize| {
                    let of_pos = |pos: usize| (head * group..(head + 1) * group).map(move |head| (pos, head));
                    let all = (PAGE..N_PAGES * PAGE).flat_map(of_pos);
                    mean(&mut all.map(|(pos, head)| query(pos, head, i).powi(2)))
                };
                let of_pairs = |of: &dyn Fn(usize) -> f64| -> Vec<f64> {
                    pairs.iter().map(|[a, b]| (of(usize::from(*a)) + of(usize::from(*b))) / 2.0).collect()
                };
                let (keys, queries) = (of_pairs(&of_keys), of_pairs(&of_queries));
                KeyBasis::of(&KeyVariances { pairs: pairs.clone(), keys, queries }).unwrap()
            };
            all.push((0..v.n_kv_heads).map(of_head).collect());
        })
        .unwrap();
    all
}

/// Variances over keys in f16 may put a factor on the other side of a step.
#[test]
fn bases_are_those_of_the_models_own_keys() {
    let engine = open(demo());
    let want = bases(&engine);
    let factors = alike(&engine, &want, |basis| basis.exponents().to_vec());
    let groups = alike(&engine, &want, KeyBasis::first_group);
    assert!(factors > 0.99 && groups > 0.99, "{factors}, {groups}");
    // A model's own keys are neither balanced nor sorted.
    let plain: Vec<Vec<KeyBasis>> = want
        .iter()
        .map(|bases| bases.iter().map(|basis| KeyBasis::plain(basis.dim()).unwrap()).collect())
        .collect();
    let (factors, groups) = (
        alike(&engine, &plain, |basis| basis.exponents().to_vec()),
        alike(&engine, &plain, KeyBasis::first_group),
    );
    assert!(factors < 0.5 && groups < 0.9, "{factors}, {groups}");
    // The same again.
    assert!(engine.key_bases().unwrap() == open(demo()).key_bases().unwrap());
}

/// The demo with other metadata.
fn with(change: impl FnOnce(&mut Metadata)) -> Gguf {
    let gguf = demo();
    let mut metadata = gguf.metadata().clone();
    change(&mut metadata);
    let mut bytes = Vec::new();
    let whole = Rewrite::whole(&gguf, &metadata).unwrap();
    whole.write(&mut bytes, |_| std::ops::ControlFlow::Continue(())).unwrap();
    Gguf::from_bytes(bytes.into()).unwrap()
}

#[test]
fn bases_in_a_file_are_used_instead() {
    let [mut exponents, first] = open(demo()).key_bases().unwrap();
    let Value::Array(array) = &mut exponents.1 else { panic!("an array") };
    // Another factor for one element, which no measurement would find.
    let mut values: Vec<Value> = array.values().collect();
    values[5] = Value::I8(77);
    *array = sterna::gguf::Array::from_values(array.elem_type(), &values);
    let engine = open(with(|metadata| {
        metadata.set(exponents.0, exponents.1.clone());
        metadata.set(first.0, first.1.clone());
    }));
    assert_eq!(engine.key_bases().unwrap(), [exponents.clone(), first.clone()]);
    assert_eq!(engine.program().kvs[0].basis.as_ref().unwrap()[0].exponents()[5], 77);

    // Sessions depend on them.
    let mut session = open(demo()).session().unwrap();
    session.prefill(&(1..200).collect::<Vec<u32>>()).unwrap();
    let mut bytes = Vec::new();
    session.save(&mut bytes).unwrap();
    let refused = engine.restore(&mut Cursor::new(&bytes)).unwrap_err().to_string();
    assert!(refused.contains("saved with bases of keys"), "{refused}");

    // Metadata that does not fit is an error, and not replaced by a measurement.
    for (key, value) in [(exponents.0, first.1.clone()), (first.0, Value::U32(3))] {
        let gguf = with(|metadata| {
            metadata.set(exponents.0, exponents.1.clone());
            metadata.set(first.0, first.1.clone());
            metadata.set(key, value);
        });
        let refused = Engine::from_gguf(gguf, &options(), |_| ()).unwrap_err().to_string();
        assert!(refused.contains(key), "{refused}");
    }
    let half = with(|metadata| metadata.set(exponents.0, exponents.1.clone()));
    let refused = Engine::from_gguf(half, &options(), |_| ()).unwrap_err().to_string();
    assert!(refused.contains(first.0) && refused.contains("file has nothing"), "{refused}");
    // Other caches do not read them.
    let other = EngineOptions { cache_type_k: "f16".parse().unwrap(), ..options() };
    let half = with(|metadata| metadata.set(exponents.0, exponents.1.clone()));
    assert!(Engine::from_gguf(half, &other, |_| ()).unwrap().key_bases().is_none());
}
