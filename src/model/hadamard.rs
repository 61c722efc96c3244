//! Weights in a rotated basis (Hadamard), specified by the keys `prism.hadamard.*` (PrismML's Bonsai 2).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::ModelError;
use sterna_gguf::{Gguf, Value};
use sterna_program::Basis;

const PREFIX: &str = "prism.hadamard.";
const TABLE: &str = "token_embd.weight";

/// Maximum number of elements of a run.
const MAX_BLOCK: usize = 1 << 16;

/// Rotation specified by a file.
#[derive(Clone, Debug)]
pub struct Hadamard {
    block: usize,
    /// Signs per input length; `None` if all are 1.
    signs: Option<HashMap<usize, Arc<[f32]>>>,
    /// Weights whose inputs are rotated.
    turned: HashSet<String>,
    /// True if the embedding's rows are rotated back.
    pub table: bool,
    /// True if the head is the embedding table.
    pub is_tied: bool,
    /// True if columns after delta nets are grouped by their keys.
    pub grouped: bool,
}

impl Hadamard {
    /// Reads the keys; `None` for a file without them.
    ///
    /// # Errors
    /// [`ModelError::Metadata`] for a key that is missing or unknown, or has an unsupported value.
    pub fn read(gguf: &Gguf) -> Result<Option<Self>, ModelError> {
        const KNOWN: [&str; 11] = [
            "version",
            "block_size",
            "transform",
            "axis",
            "sign_mode",
            "sign_widths",
            "sign_values",
            "weight_names",
            "inverse_weight_names",
            "gdn_v_grouped",
            "tied_output",
        ];
        let keys = Keys(gguf);
        let names = gguf.metadata().iter().filter_map(|(key, _)| key.strip_prefix(PREFIX));
        let names: Vec<&str> = names.collect();
        if names.is_empty() {
            return Ok(None);
        }
        if let Some(name) = names.iter().find(|name| !KNOWN.contains(*name)) {
            return Err(wrong(name, "no unknown key of a rotated basis", "one"));
        }
        let version = keys.number("version")?;
        if !(1..=2).contains(&version) {
            return Err(wrong("version", "1 or 2", version));
        }
        let block = keys.number("block_size")?;
        if !block.is_power_of_two() || !(2..=MAX_BLOCK).contains(&block) {
            return Err(wrong("block_size", format!("a power of two from 2 to {MAX_BLOCK}"), block));
        }
        for (name, want) in
            [("transform", "normalized-sylvester-walsh-hadamard"), ("axis", "input-last-dimension")]
        {
            let got = keys.text(name)?;
            if got != want {
                return Err(wrong(name, want, got));
            }
        }
        let signs = match keys.text("sign_mode")? {
            "identity" => None,
            "explicit" => Some(keys.signs()?),
            other => return Err(wrong("sign_mode", "identity or explicit", other)),
        };
        let turned: HashSet<String> = keys.names("weight_names")?.into_iter().collect();
        if let Some(name) = turned.iter().find(|name| gguf.find(name).is_none()) {
            return Err(wrong("weight_names", "tensors of the file", name));
        }
        let back = match names.contains(&"inverse_weight_names") {
            true => keys.names("inverse_weight_names")?,
            false => Vec::new(),
        };
        if let Some(name) = back.iter().find(|name| *name != TABLE) {
            return Err(wrong("inverse_weight_names", TABLE, name));
        }
        let is_tied = keys.truth("tied_output")?.unwrap_or(false);
        let has_head = gguf.find("output.weight").is_some();
        if is_tied != (version == 2) || is_tied == has_head {
            let want = "true with version 2 and no output.weight, false with version 1 and an output.weight";
            return Err(wrong("tied_output", want, format!("{is_tied}, version {version}")));
        }
        let grouped = keys.truth("gdn_v_grouped")?.unwrap_or(false);
        Ok(Some(Self { block, signs, turned, table: !back.is_empty(), is_tied, grouped }))
    }

    /// The basis of a weight's inputs; `None` if they are not rotated.
    ///
    /// # Errors
    /// As [`basis`](Self::basis).
    pub fn of_weight(&self, name: &str, cols: usize) -> Result<Option<Basis>, ModelError> {
        if self.turned.contains(name) { self.basis(cols).map(Some) } else { Ok(None) }
    }

    /// The basis of vectors of `cols` elements.
    ///
    /// # Errors
    /// [`ModelError::Metadata`] if the block size does not divide `cols`, or there are no signs for this
    /// length.
    pub fn basis(&self, cols: usize) -> Result<Basis, ModelError> {
        if !cols.is_multiple_of(self.block) {
            return Err(wrong("block_size", format!("a divisor of {cols} inputs"), self.block));
        }
        let signs = match &self.signs {
            None => Some(vec![1.0; cols].into()),
            Some(all) => all.get(&cols).map(Arc::clone),
        };
        let signs = signs.ok_or_else(|| wrong("sign_widths", format!("signs for {cols} inputs"), "none"))?;
        Ok(Basis { block: self.block, signs })
    }

    /// The error for a listed weight that `is_known` does not know: no linear layer uses it.
    pub fn unknown(&self, is_known: impl Fn(&str) -> bool) -> Option<ModelError> {
        let unknown = self.turned.iter().filter(|name| !is_known(name)).min()?;
        Some(wrong("weight_names", "weights of linear layers", unknown))
    }
}

/// The metadata under the prefix.
struct Keys<'a>(&'a Gguf);

impl<'a> Keys<'a> {
    fn get(&self, name: &str) -> Result<&'a Value, ModelError> {
        let value = self.0.metadata().get(&format!("{PREFIX}{name}"));
        value.ok_or_else(|| wrong(name, "a value", "none"))
    }

    fn number(&self, name: &str) -> Result<usize, ModelError> {
        let number = self.get(name)?.as_int().and_then(|number| usize::try_from(number).ok());
        number.ok_or_else(|| wrong(name, "a number", "another type"))
    }

    fn text(&self, name: &str) -> Result<&'a str, ModelError> {
        match self.get(name)? {
            Value::Str(text) => Ok(text),
            _ => Err(wrong(name, "a string", "another type")),
        }
    }

    fn truth(&self, name: &str) -> Result<Option<bool>, ModelError> {
        match self.get(name) {
            Err(_) => Ok(None),
            Ok(Value::Bool(truth)) => Ok(Some(*truth)),
            Ok(_) => Err(wrong(name, "a boolean", "another type")),
        }
    }

    fn names(&self, name: &str) -> Result<Vec<String>, ModelError> {
        let text = |value: Value| if let Value::Str(text) = value { Some(text.to_string()) } else { None };
        let names = match self.get(name)? {
            Value::Array(array) => array.values().map(text).collect(),
            _ => None,
        };
        names.ok_or_else(|| wrong(name, "an array of strings", "another type"))
    }

    fn numbers(&self, name: &str) -> Result<Vec<i128>, ModelError> {
        let numbers = match self.get(name)? {
            Value::Array(array) => array.values().map(|value| value.as_int()).collect(),
            _ => None,
        };
        numbers.ok_or_else(|| wrong(name, "an array of numbers", "another type"))
    }

    fn signs(&self) -> Result<HashMap<usize, Arc<[f32]>>, ModelError> {
        let (widths, values) = (self.numbers("sign_widths")?, self.numbers("sign_values")?);
        let mut left = values.as_slice();
        let mut all = HashMap::new();
        for width in widths {
            let taken = usize::try_from(width).ok().filter(|width| *width > 0);
            let Some((signs, rest)) = taken.and_then(|width| left.split_at_checked(width)) else {
                let want = format!("widths whose sum is the {} sign_values", values.len());
                return Err(wrong("sign_widths", want, width));
            };
            if let Some(sign) = signs.iter().find(|sign| sign.abs() != 1) {
                return Err(wrong("sign_values", "1 or -1", sign));
            }
            all.insert(signs.len(), signs.iter().map(|sign| *sign as f32).collect());
            left = rest;
        }
        match left.is_empty() {
            true => Ok(all),
            false => Err(wrong(
                "sign_values",
                format!("as many values as sign_widths specifies, {} fewer", left.len()),
                values.len(),
            )),
        }
    }
}

fn wrong(name: &str, want: impl Into<String>, got: impl ToString) -> ModelError {
    ModelError::Metadata { key: format!("{PREFIX}{name}"), want: want.into(), got: got.to_string() }
}
