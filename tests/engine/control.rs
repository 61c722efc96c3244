//! Control vectors: logits against numpy in float64 (`scripts/golden/tiny control`), and files that are not
//! of the model.

use std::ops::RangeInclusive;

use sterna::backend::Backend;
use sterna::engine::{ActType, ControlVector, Engine, EngineOptions};
use sterna::gguf::Gguf;
use support::case::{cpus, simt, wgpus};
use support::logits::all_logits;
use support::{golden, lora, npy};

/// Models, the factor of their directions, and the last layer after which these are added: dense, with norms
/// after the projections, and with experts.
const MODELS: [(&str, f32, usize); 3] = [("smollm3", 2.5, 2), ("gemma3", 2.5, 2), ("qwen3moe", -1.5, 1)];

fn open(name: &str) -> Gguf {
    let path = golden(&format!("tiny/{name}.gguf")).expect("it is in tests/data");
    Gguf::open(&path).expect("a golden file")
}

fn options(control: Vec<ControlVector>) -> EngineOptions {
    EngineOptions {
        n_ctx: Some(64),
        outputs: 64,
        cache_type_k: "f32".parse().unwrap(),
        cache_type_v: "f32".parse().unwrap(),
        act_type: ActType::Trained,
        control,
        ..EngineOptions::default()
    }
}

fn vector(model: &str, scale: f32) -> ControlVector {
    let gguf = open(&format!("{model}.control"));
    ControlVector::new("mine.gguf", &gguf, scale).expect("a control vector")
}

fn engine(model: &str, options: &EngineOptions, backend: Box<dyn Backend>) -> Engine {
    Engine::on_backend(open(model), options, backend, |_| ()).expect("kernels for it")
}

#[test]
fn logits_match_the_reference() {
    for (model, scale, last) in MODELS {
        let file = |ext: &str| npy(&golden(&format!("tiny/{model}.{ext}.npy")).expect("it is in tests/data"));
        let tokens = [file("tokens").f32s().into_iter().map(|token| token as u32).collect::<Vec<_>>()];
        let (plain, want) = (file("np-fp64").f32s(), file("control.np-fp64").f32s());
        // Two files are summed.
        let control = vec![vector(model, scale - 1.0), vector(model, 1.0)];
        let options = EngineOptions { control_layers: Some(1..=last), ..options(control) };
        let backends = cpus(&[2]).into_iter().chain(wgpus().into_iter().take(1)).chain(simt(1));
        for backend in backends {
            let device = backend.device();
            let engine = engine(model, &options, backend);
            let got = all_logits(&engine, &tokens);
            let far = |other: &[f32]| got.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let what = format!("{model}, {device}: {:e}, and {} from those without", far(&want), far(&plain));
            eprintln!("{what}");
            // f32 sums in another order, of logits up to 5.
            assert!(far(&want) <= 5e-4 && far(&plain) > 0.5, "{what}");
            let text = engine.program().to_string();
            assert!(text.contains("\n1.control: x += control vector of layer 1, "), "{text}");
            assert!(!text.contains(&format!("\n{}.control", last + 1)), "{text}");
        }
    }
}

/// Sessions belong to the sum of control vectors that they were computed with.
#[test]
fn sessions_belong_to_control_vectors() {
    let open = |control| engine("smollm3", &options(control), cpus(&[1]).remove(0));
    let saved = |engine: &Engine| {
        let mut session = engine.session().expect("room");
        session.prefill(&[1, 2, 3]).expect("room");
        let mut out = Vec::new();
        session.save(&mut out).expect("memory");
        out
    };
    let [none, one, two] = [vec![], vec![vector("smollm3", 1.0)], vec![vector("smollm3", 2.0)]].map(open);
    let file = saved(&one);
    assert!(one.restore(&mut &file[..]).is_ok());
    assert!(none.restore(&mut &file[..]).is_err() && two.restore(&mut &file[..]).is_err());
    assert!(one.restore(&mut &saved(&none)[..]).is_err());
}

#[test]
fn faults_of_control_vectors_are_named() {
    let refused = |architecture: &str, tensors: &[(&str, &[usize], f32)], want: &[&str]| {
        let tensors: Vec<_> =
            tensors.iter().map(|(name, dims, value)| (*name, *dims, std::slice::from_ref(value))).collect();
        let bytes = lora::file(&[("general.architecture", architecture)], &tensors);
        let gguf = Gguf::from_bytes(bytes.into()).expect("a valid file");
        let err = match ControlVector::new("mine.gguf", &gguf, 1.0) {
            Err(err) => err,
            Ok(vector) => sterna::engine::program(&open("smollm3"), &options(vec![vector]))
                .expect_err("not of this model"),
        };
        let err = err.to_string();
        assert!(err.starts_with("control vector mine.gguf: "), "{err}");
        want.iter().for_each(|want| assert!(err.contains(want), "{err} without {want}"));
    };
    const ONE: (&str, &[usize], f32) = ("direction.1", &[32], 0.5);
    refused("llama", &[ONE], &["general.architecture", "controlvector", "llama"]);
    refused("controlvector", &[], &["at least one direction"]);
    refused("controlvector", &[("direction.0", &[32], 0.5)], &["direction.0", "from 1 on"]);
    refused("controlvector", &[("steer.1", &[32], 0.5)], &["steer.1", "direction.N"]);
    refused("controlvector", &[("direction.1", &[31], 0.5)], &["direction.1", "[32]", "[31]"]);
    refused("controlvector", &[("direction.1", &[2, 32], 0.5)], &["direction.1", "[2, 32]"]);
    refused("controlvector", &[ONE, ("direction.2", &[31], 0.5)], &["direction.2", "[31]"]);
    refused("controlvector", &[("direction.4", &[32], 0.5)], &["direction.4", "1 to 3"]);
    refused("controlvector", &[("direction.1", &[32], f32::INFINITY)], &["direction.1", "finite", "inf"]);
    for ([start, end], part) in [([3, 2], "3 to 2"), ([1, 5], "at most 4")] {
        let options = EngineOptions {
            control_layers: Some(RangeInclusive::new(start, end)),
            ..options(vec![vector("smollm3", 1.0)])
        };
        let err = sterna::engine::program(&open("smollm3"), &options).expect_err("other layers").to_string();
        assert!(err.contains("EngineOptions::control_layers") && err.contains(part), "{err}");
    }
}
