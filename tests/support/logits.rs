//! Logits of token sequences, and the distance between two sets of them.

use std::path::Path;

use sterna::backend::cpu::Cpu;
use sterna::backend::cpu::simd::Kernels;
use sterna::engine::{ActType, Engine, EngineOptions};
use sterna::gguf::Gguf;

/// Sequences of token ids, one per line.
pub fn sequences(path: &Path) -> Vec<Vec<u32>> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
    text.lines().map(|line| line.split_whitespace().map(|id| id.parse().unwrap()).collect()).collect()
}

/// Creates an engine on the CPU with these kernels and KV caches of type `kv`, for the logits of every
/// position.
pub fn engine(
    gguf: Gguf,
    kv: &str,
    kernels: &'static Kernels,
    change: impl FnOnce(&mut EngineOptions),
) -> Engine {
    let mut options = EngineOptions {
        n_ctx: Some(192),
        outputs: 64,
        cache_type_k: kv.parse().unwrap(),
        cache_type_v: kv.parse().unwrap(),
        act_type: ActType::Trained,
        ..EngineOptions::default()
    };
    change(&mut options);
    // One thread: tests already run in parallel, and the number of threads does not affect the results.
    let cpu = Cpu::with_kernels(1, kernels).unwrap();
    Engine::on_backend(gguf, &options, Box::new(cpu), |_| ()).unwrap()
}

/// Logits of all positions of all sequences, `[positions, n_vocab]`.
pub fn all_logits(engine: &Engine, sequences: &[Vec<u32>]) -> Vec<f32> {
    let mut session = engine.session().unwrap();
    let mut all = Vec::new();
    for sequence in sequences {
        session.cut_back(0);
        let keep = |_, logits: &[f32]| -> Result<(), sterna::Error> {
            all.extend_from_slice(logits);
            Ok(())
        };
        session.logits_each(sequence, keep).unwrap();
    }
    all
}

#[derive(Debug)]
pub struct Distance {
    /// Largest difference at position 0 of any sequence.
    pub first: f64,
    pub mean: f64,
    /// Mean over the positions of the cosine between them.
    pub mean_cosine: f64,
}

/// Computes the distance between two sets of logits of `sequences`.
pub fn distance(got: &[f32], want: &[f32], sequences: &[Vec<u32>]) -> Distance {
    assert_eq!(got.len(), want.len());
    let n_rows: usize = sequences.iter().map(Vec::len).sum();
    let n_vocab = got.len() / n_rows;
    let difference = |(a, b): (&f32, &f32)| f64::from(a - b).abs();
    let mut first = 0.0f64;
    let mut row = 0;
    for sequence in sequences {
        let range = row * n_vocab..(row + 1) * n_vocab;
        let pairs = got[range.clone()].iter().zip(&want[range]);
        first = pairs.map(difference).fold(first, f64::max);
        row += sequence.len();
    }
    let mean = got.iter().zip(want).map(difference).sum::<f64>() / got.len() as f64;
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let cosines = got.chunks(n_vocab).zip(want.chunks(n_vocab));
    let cosines = cosines.map(|(a, b)| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt());
    Distance { first, mean, mean_cosine: cosines.sum::<f64>() / n_rows as f64 }
}
