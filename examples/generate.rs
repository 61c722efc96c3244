//! Streams a continuation of a prompt: `cargo run --release --example generate -- MODEL.gguf 'Once upon'`.

use std::io::{Write, stdout};

use sterna::engine::{Engine, EngineOptions, GenerateOptions};
use sterna::tokenizer::Special;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, model, prompt] = args.as_slice() else { return Err("usage: generate MODEL.gguf PROMPT".into()) };
    let engine = Engine::open(model, &EngineOptions::default())?;
    let prompt = engine.tokenizer()?.encode(prompt, Special::Parse, true);
    let options = GenerateOptions { max_tokens: Some(64), ..GenerateOptions::default() };
    for piece in engine.session()?.generate(&prompt, &options)? {
        print!("{}", piece?);
        stdout().flush()?;
    }
    Ok(())
}
