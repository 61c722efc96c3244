//! Prints the ten largest logits after a text or after token ids. Use it to compare an architecture with its
//! reference, without the crates for the server, grammars and the command line.
//!
//! ```text
//! cargo run --release -p sterna-engine --example logits -- \
//!     FILE [--tokens 1,2,3 | TEXT] [--backend NAME] [--out FILE]
//! ```
//!
//! `--out` writes the logits of every position as little-endian f32, `[positions, n_vocab]`. The KV cache is
//! f32, and activations are quantised as the model was trained, so the result should differ from a reference
//! only by summation order. Backends other than `cpu` are features of the backend's crate:
//! `--features sterna-backend/wgpu`.

use std::fs::File;
use std::io::{BufWriter, Write};

use sterna_engine::{Engine, EngineOptions};
use sterna_tokenizer::Special;

/// Positions whose logits are computed in one step.
const OUTPUTS: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut words, mut tokens, mut backend, mut out) = (Vec::new(), None, "cpu".to_owned(), None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--tokens" => {
                let ids = value()?.split(',').map(|id| id.trim().parse()).collect::<Result<Vec<u32>, _>>();
                tokens = Some(ids.map_err(|err| format!("--tokens: {err}"))?);
            }
            "--backend" => backend = value()?,
            "--out" => out = Some(BufWriter::new(File::create(value()?)?)),
            _ => words.push(arg),
        }
    }
    let [file, text @ ..] = words.as_slice() else {
        return Err("usage: logits FILE [--tokens 1,2,3 | TEXT] [--backend NAME] [--out FILE]".into());
    };
    let options = EngineOptions {
        device: backend.parse()?,
        outputs: OUTPUTS,
        cache_type_k: "f32".parse()?,
        cache_type_v: "f32".parse()?,
        act_type: "trained".parse()?,
        ..EngineOptions::default()
    };
    let engine = Engine::open(file, &options)?;
    let tokens = match tokens {
        Some(tokens) => tokens,
        None => engine.tokenizer()?.encode(&text.join(" "), Special::Parse, true),
    };
    let mut last = Vec::new();
    engine.session()?.logits_each(&tokens, |_, logits: &[f32]| {
        last = logits.to_vec();
        let write =
            |out: &mut BufWriter<File>| logits.iter().try_for_each(|x| out.write_all(&x.to_le_bytes()));
        out.as_mut().map_or(Ok(()), write)?;
        Ok::<_, Box<dyn std::error::Error>>(())
    })?;
    out.map_or(Ok(()), |mut out| out.flush())?;
    let mut ids: Vec<usize> = (0..last.len()).collect();
    ids.sort_by(|a, b| last[*b].total_cmp(&last[*a]));
    println!("after {} tokens, {tokens:?}:", tokens.len());
    // A random model may have no vocabulary.
    let tokenizer = engine.tokenizer().ok();
    for id in ids.into_iter().take(10) {
        let text = tokenizer.map(|known| String::from_utf8_lossy(known.token_bytes(id as u32)));
        println!("{id:>8} {:>12.6}  {:?}", last[id], text.unwrap_or_default());
    }
    Ok(())
}
