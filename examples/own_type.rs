//! A custom weight type without changes to Sterna: registered at run time, quantised to, read from a file and
//! run on the CPU; other backends reject it with an error that names it.
//!
//! `cargo run --release --example own_type -- MODEL-f16.gguf 'Once upon'`

use std::error::Error;
use std::ops::ControlFlow;

use bytes::Bytes;
use ggml_types::{Dialect, QuantError, QuantType, register};
use sterna::engine::{Engine, EngineOptions, GenerateOptions};
use sterna::gguf::Gguf;
use sterna::quantize::{QuantizeOptions, Quantizer, Recipe};
use sterna::tokenizer::Special;

/// 36 bytes for 32 weights: f32 scale, then one signed byte each; value = scale x (byte / 127)^3, so that
/// small weights have finer steps than large ones.
#[derive(Debug)]
pub struct Cube8;

const ELEMS: usize = 32;
const BYTES: usize = 36;

impl Cube8 {
    fn wrong(&self, detail: String) -> QuantError {
        QuantError::Shape { ty: self.name(), detail }
    }
}

impl QuantType for Cube8 {
    fn name(&self) -> &'static str {
        "cube8"
    }

    fn ids(&self) -> &'static [(Dialect, u32)] {
        // Far above the ids that other projects use.
        &[(Dialect::Ggml, 70_001), (Dialect::BitNet, 70_001)]
    }

    fn block_elems(&self) -> usize {
        ELEMS
    }

    fn row_bytes(&self, cols: usize) -> Result<usize, QuantError> {
        if !cols.is_multiple_of(ELEMS) {
            return Err(self.wrong(format!("want columns in blocks of {ELEMS}, found {cols}")));
        }
        let bytes = (cols / ELEMS).checked_mul(BYTES);
        bytes.ok_or(QuantError::Overflow { ty: self.name(), rows: 1, cols })
    }

    fn byte_len(&self, rows: usize, cols: usize) -> Result<usize, QuantError> {
        let bytes = self.row_bytes(cols)?.checked_mul(rows);
        bytes.ok_or(QuantError::Overflow { ty: self.name(), rows, cols })
    }

    fn decode_row(&self, bytes: &[u8], rows: usize, row: usize, out: &mut [f32]) -> Result<(), QuantError> {
        let (want, row_bytes) = (self.byte_len(rows, out.len())?, self.row_bytes(out.len())?);
        if row >= rows {
            return Err(self.wrong(format!("want a row below {rows}, found {row}")));
        }
        if bytes.len() < want {
            return Err(QuantError::Truncated { ty: self.name(), want, got: bytes.len() });
        }
        let blocks = bytes[row * row_bytes..][..row_bytes].chunks_exact(BYTES);
        for (block, out) in blocks.zip(out.chunks_exact_mut(ELEMS)) {
            let scale = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
            for (byte, out) in block[4..].iter().zip(out) {
                *out = scale * (f32::from(byte.cast_signed()) / 127.0).powi(3);
            }
        }
        Ok(())
    }

    fn encode(&self, values: &[f32], rows: usize, cols: usize) -> Result<Vec<u8>, QuantError> {
        if rows.checked_mul(cols) != Some(values.len()) {
            return Err(self.wrong(format!("want {rows} x {cols} values, found {}", values.len())));
        }
        let mut bytes = Vec::with_capacity(self.byte_len(rows, cols)?);
        for block in values.chunks_exact(ELEMS) {
            let scale = block.iter().fold(0_f32, |max, value| max.max(value.abs()));
            bytes.extend(scale.to_le_bytes());
            let code = |value: &f32| if scale > 0.0 { (value / scale).cbrt() * 127.0 } else { 0.0 };
            bytes.extend(block.iter().map(|value| (code(value).round() as i8).cast_unsigned()));
        }
        Ok(bytes)
    }

    fn error_bound(&self, absmax: f32) -> f32 {
        // Half a step where steps are largest: the derivative of a cube at 1 is 3.
        absmax * 3.1 / 254.0
    }
}

/// Quantises a model with float weights to [`Cube8`].
///
/// # Errors
/// Any error of the file or its weights.
pub fn quantised(gguf: &Gguf) -> Result<Bytes, Box<dyn Error>> {
    let options = QuantizeOptions { pure: true, ..QuantizeOptions::new(Recipe::Type(&Cube8)) };
    let mut file = Vec::new();
    Quantizer::new(gguf, options)?.write(&mut file, |_| ControlFlow::Continue(()))?;
    Ok(file.into())
}

/// Runs the program with its arguments.
///
/// # Errors
/// Any error from reading, quantising or running the model.
pub fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, model, prompt] = args.as_slice() else { return Err("usage: own_type MODEL.gguf PROMPT".into()) };
    register(&Cube8)?;
    let file = quantised(&Gguf::open(model.as_ref())?)?;
    let on = |backend: &str| {
        Engine::from_bytes(
            file.clone(),
            &EngineOptions { device: backend.parse()?, ..EngineOptions::default() },
        )
    };
    for backend in sterna::backend::NAMES.iter().filter(|name| **name != "cpu") {
        match on(backend) {
            Ok(_) => println!("{backend}: runs it"),
            Err(err) => println!("{backend}: {err}"),
        }
    }
    let engine = on("cpu")?;
    let prompt = engine.tokenizer()?.encode(prompt, Special::Parse, true);
    let options = GenerateOptions { max_tokens: Some(32), ..GenerateOptions::default() };
    for piece in engine.session()?.generate(&prompt, &options)? {
        print!("{}", piece?);
    }
    println!();
    Ok(())
}
