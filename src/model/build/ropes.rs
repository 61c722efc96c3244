//! Rotary embeddings of a model that is being built.

use super::{Builder, wrong};
use crate::hyper::{RopeHyper, RopeScaling};
use crate::{ModelError, rope};
use sterna_gguf::Value;
use sterna_program::{Axis, Rope, RopeId, RopeStyle};

impl Builder<'_> {
    /// Declares the model's rotary embedding; its frequencies are divided by `rope_freqs.weight` if the file
    /// has it.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if `rope_freqs.weight` is not one positive number per pair.
    pub fn rope(&mut self, style: RopeStyle) -> Result<RopeId, ModelError> {
        const FACTORS: &str = "rope_freqs.weight";
        let factors = if self.has(FACTORS) { self.rope_factors(FACTORS)? } else { None };
        self.note_unused_yarn()?;
        Ok(self.program.rope(rope::rope(&self.hyper.rope, style, factors.as_deref())))
    }

    /// Like [`rope`](Self::rope), with one axis per pair: M-RoPE.
    ///
    /// # Errors
    /// As [`rope`](Self::rope).
    pub(crate) fn rope_of_axes(
        &mut self,
        style: RopeStyle,
        axes: impl Iterator<Item = Axis>,
    ) -> Result<RopeId, ModelError> {
        let id = self.rope(style)?;
        let rope = &mut self.program.ropes[id.0 as usize];
        rope.axes = Some(axes.take(rope.inv_freq.len()).collect());
        Ok(id)
    }

    /// One axis per pair of M-RoPE, by the sections in the file for time, rows and columns: consecutive
    /// pairs, or `interleaved` ones, whose surplus belongs to time. Empty if prompts have no images, because
    /// all positions of a text are equal.
    ///
    /// # Errors
    /// [`ModelError::Metadata`] if the sections are not as many pairs as the heads have.
    pub(crate) fn axes(&self, interleaved: bool) -> Result<Vec<Axis>, ModelError> {
        const SECTIONS: &str = "rope.dimension_sections";
        let sections: Vec<i128> = match self.value(SECTIONS) {
            Some(Value::Array(array)) => array.values().filter_map(|value| value.as_int()).collect(),
            _ => Vec::new(),
        };
        if !self.options.images {
            return Ok(Vec::new());
        }
        let n_pairs = self.hyper.rope.dims / 2;
        let [time, rows, columns] = match sections[..] {
            [time, rows, columns] | [time, rows, columns, 0]
                if sections.iter().all(|n| (0..=n_pairs as i128).contains(n))
                    && time + rows + columns == n_pairs as i128 =>
            {
                [time, rows, columns].map(|n| n as usize)
            }
            _ => {
                let want = format!("sections for time, rows and columns with {n_pairs} pairs in total");
                return Err(self.wrong(SECTIONS, want, format!("{sections:?}")));
            }
        };
        let axis = |pair: usize| match (interleaved, pair % 3) {
            (true, 1) if pair < 3 * rows => Axis::Row,
            (true, 2) if pair < 3 * columns => Axis::Column,
            (true, _) => Axis::Time,
            (false, _) if pair < time => Axis::Time,
            (false, _) if pair < time + rows => Axis::Row,
            (false, _) => Axis::Column,
        };
        Ok((0..n_pairs).map(axis).collect())
    }

    /// Like [`rope`](Self::rope), without YaRN's factor on queries and keys. Also returns the factor by which
    /// YaRN extends the context, or 1.
    ///
    /// # Errors
    /// As [`rope`](Self::rope).
    pub fn rope_without_magnitude(&mut self, style: RopeStyle) -> Result<(RopeId, f64), ModelError> {
        let id = self.rope(style)?;
        self.program.ropes[id.0 as usize].magnitude = 1.0;
        match self.hyper.rope.scaling {
            RopeScaling::Yarn { factor, .. } => Ok((id, factor)),
            RopeScaling::None | RopeScaling::Linear { .. } => Ok((id, 1.0)),
        }
    }

    /// Declares a rotary embedding whose frequencies are divided by one of two tables if the file has them:
    /// `rope_factors_long.weight` for contexts beyond the original one, or else `rope_factors_short.weight`.
    /// Queries and keys are multiplied by `rope.scaling.attn_factor` with either.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] for a table that is missing or not one positive number per pair;
    /// [`ModelError::Metadata`] for an invalid factor, or for tables with another scaling.
    pub fn long_rope(&mut self, style: RopeStyle) -> Result<RopeId, ModelError> {
        const TABLES: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];
        if !TABLES.iter().any(|table| self.has(table)) {
            return self.rope(style);
        }
        const KIND: &str = "rope.scaling.type";
        if self.hyper.rope.scaling != RopeScaling::None {
            return Err(self.wrong(KIND, "no other scaling in a file with RoPE factors", "one"));
        }
        let [short, long] = TABLES.map(|table| self.rope_factors(table));
        let (short, long) = (short?, long?);
        let original = self.number_or("rope.scaling.original_context_length", self.hyper.n_ctx_train)?;
        let factors = if self.n_ctx() > original { long } else { short };
        let magnitude = self.factor("rope.scaling.attn_factor", 1.0)?;
        let rope = rope::rope(&self.hyper.rope, style, factors.as_deref());
        Ok(self.program.rope(Rope { magnitude, ..rope }))
    }

    /// Divisors of the rotary frequencies, one per pair. A header-only file has no tensor data, and memory
    /// planning does not depend on them.
    fn rope_factors(&mut self, name: &str) -> Result<Option<Vec<f32>>, ModelError> {
        let factors = Some(self.values(name, self.hyper.rope.dims / 2)?).filter(|_| !self.gguf.is_header());
        match factors.iter().flatten().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
            Some(bad) => Err(wrong(name, "finite numbers above 0", bad.to_string())),
            None => Ok(factors),
        }
    }

    /// Notes YaRN keys of the file that are ignored, here and in llama.cpp.
    fn note_unused_yarn(&mut self) -> Result<(), ModelError> {
        /// Each with the value that is used instead.
        const UNUSED: [(&str, f32); 4] =
            [("beta_fast", 32.0), ("beta_slow", 1.0), ("attn_factor", 1.0), ("ext_factor", 1.0)];
        for (name, usual) in UNUSED {
            let key = self.key(&format!("rope.scaling.yarn_{name}"));
            let RopeScaling::Yarn { factor, .. } = self.hyper.rope.scaling else { continue };
            // OLMo 3's files have YaRN's own factor there, which is used.
            let own = (1.0 + 0.1 * factor.ln()) as f32;
            let is_used =
                |value: f32| value == usual || name == "attn_factor" && (value / own - 1.0).abs() < 1e-5;
            if let Some(value) = self.gguf.metadata().f32(&key)?.filter(|value| !is_used(*value)) {
                self.note(format!("{key} is {value} in the file and is ignored: {usual} is used"));
            }
        }
        Ok(())
    }

    /// Multiplies YaRN's factor on queries and keys, if the file has YaRN, by a function of the factor by
    /// which the context is extended.
    pub fn scale_yarn(&mut self, by: impl Fn(f64) -> f64) {
        if let RopeScaling::Yarn { factor, attn_factor, .. } = &mut self.hyper.rope.scaling {
            *attn_factor *= by(*factor);
        }
    }

    /// Declares the rotary embedding of sliding-window layers: its base is `rope.freq_base_swa`, or `base` if
    /// the file does not specify one, it rotates `rope.dimension_count_swa` elements, by default as many as
    /// the other layers, and it is never scaled.
    ///
    /// # Errors
    /// [`ModelError::Metadata`].
    pub fn rope_of_windows(&mut self, style: RopeStyle, base: f32) -> Result<RopeId, ModelError> {
        let key = self.key("rope.freq_base_swa");
        let base = self.gguf.metadata().f32(&key)?.unwrap_or(base);
        if !(base.is_finite() && base > 1.0) {
            return Err(ModelError::Metadata { key, want: "a number above 1".into(), got: base.to_string() });
        }
        const DIMS: &str = "rope.dimension_count_swa";
        let (dims, scaling) = (self.number_or(DIMS, self.hyper.rope.dims)?, RopeScaling::None);
        if dims == 0 || dims > self.hyper.head_dim || !dims.is_multiple_of(2) {
            return Err(self.wrong(DIMS, format!("an even number up to {}", self.hyper.head_dim), dims));
        }
        let hyper = RopeHyper { dims, freq_base: base.into(), scaling };
        Ok(self.program.rope(rope::rope(&hyper, style, None)))
    }
}
