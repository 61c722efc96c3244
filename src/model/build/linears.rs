//! Linear layers of a model that is being built: whole tensors, and rows of combined ones.

use std::ops::Range;

use ggml_types::Ternary;

use super::{Builder, floats, wrong};
use crate::ModelError;
use sterna_gguf::FileTensor;
use sterna_program::{ActQuant, Linear, PartOf, Weight};

impl Builder<'_> {
    /// A [`projection`](Self::projection) of two vectors of `inputs` elements, one after the other, as the
    /// layers of each, whose products are added.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if it is missing, of another shape, or of a type whose rows have no halves.
    pub(crate) fn of_two(
        &mut self,
        stem: &str,
        outputs: usize,
        inputs: usize,
    ) -> Result<[Linear; 2], ModelError> {
        let name = format!("{stem}.weight");
        let whole = self.tensor(&name, outputs, 2 * inputs)?;
        let scale = self.scales(stem, 1)?[0];
        let mut half = |which: &str, second: bool| -> Result<Linear, ModelError> {
            let half = whole.half_rows(format!("{name} {which} half"), second).ok_or_else(|| {
                let want = format!("a type whose rows of {} can be divided in the middle", 2 * inputs);
                wrong(&name, want, whole.ty.name().to_owned())
            })?;
            let w = self.declare(half);
            self.program.weights[w.0 as usize].part_of =
                Some(PartOf { tensor: name.clone(), rows: std::iter::once(0..outputs).collect() });
            Ok(Linear { scale, ..Linear::of(w) })
        };
        Ok([half("first", false)?, half("second", true)?])
    }

    /// A linear layer: `stem.weight` of `[outputs, inputs]`, with `stem.bias`, `stem.scale` and a norm of its
    /// input, `stem_norm_in.weight`, if the file has them. Its input is quantised to int8 only if the
    /// weight's type is trained that way (ternary with a scale per tensor or per row: I2_S, IQ2_BN).
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if a tensor is missing or of another shape, and if a layer of a feed-forward
    /// network has both a scale and a bias: llama.cpp scales after the bias there, and no converter writes
    /// such a file.
    pub fn projection(&mut self, stem: &str, outputs: usize, inputs: usize) -> Result<Linear, ModelError> {
        if stem.contains(".ffn_") {
            self.check_scale(stem)?;
        }
        let weight = self.gguf.find(&format!("{stem}.weight"));
        let act = match weight.and_then(|weight| weight.ty).and_then(|ty| ty.ternary()) {
            Some(Ternary::PerTensor | Ternary::PerRow) => ActQuant::I8PerToken,
            Some(Ternary::PerBlock) | None => ActQuant::None,
        };
        self.linear(stem, outputs, inputs, act)
    }

    /// A [`projection`](Self::projection) whose input is quantised to int8 for every weight type (BitNet).
    ///
    /// # Errors
    /// As [`projection`](Self::projection).
    pub fn int8(&mut self, stem: &str, outputs: usize, inputs: usize) -> Result<Linear, ModelError> {
        self.linear(stem, outputs, inputs, ActQuant::I8PerToken)
    }

    /// A [`projection`](Self::projection) whose output is multiplied by `factor`, the bias included.
    ///
    /// # Errors
    /// As [`projection`](Self::projection).
    pub(crate) fn scaled_projection(
        &mut self,
        stem: &str,
        outputs: usize,
        inputs: usize,
        factor: f32,
    ) -> Result<Linear, ModelError> {
        if factor == 1.0 {
            return self.projection(stem, outputs, inputs);
        }
        let w = self.table(&format!("{stem}.weight"), outputs, inputs)?;
        let bias = format!("{stem}.bias");
        let mut scaled = None;
        if self.has(&bias) {
            let values: Vec<f32> = self.elements(&bias, outputs)?.iter().map(|x| factor * x).collect();
            scaled = Some(self.declare(floats(bias, &values)));
        }
        Ok(Linear { bias: scaled, scale: factor * self.scales(stem, 1)?[0], ..Linear::of(w) })
    }

    /// A [`projection`](Self::projection) whose input is never quantised: a router, a share, a head.
    ///
    /// # Errors
    /// As [`projection`](Self::projection).
    pub fn exact(&mut self, stem: &str, outputs: usize, inputs: usize) -> Result<Linear, ModelError> {
        self.linear(stem, outputs, inputs, ActQuant::None)
    }

    pub(super) fn linear(
        &mut self,
        stem: &str,
        outputs: usize,
        inputs: usize,
        act: ActQuant,
    ) -> Result<Linear, ModelError> {
        let w = self.table(&format!("{stem}.weight"), outputs, inputs)?;
        let bias = format!("{stem}.bias");
        let bias = if self.has(&bias) { Some(self.vector(&bias, outputs)?) } else { None };
        let norm = format!("{stem}_norm_in");
        let norm =
            if self.has(&format!("{norm}.weight")) { Some(self.rms_norm(&norm, inputs)?) } else { None };
        let basis = self.basis_of(&format!("{stem}.weight"), inputs)?;
        Ok(Linear { norm, bias, act, scale: self.scales(stem, 1)?[0], basis, ..Linear::of(w) })
    }

    /// A linear layer of `[outputs, inputs]` with these weights, computed from `stem.weight`, and `stem.bias`
    /// if the file has it.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] for a bias of another shape.
    pub(crate) fn layer_of(
        &mut self,
        stem: &str,
        weights: Vec<f32>,
        outputs: usize,
        inputs: usize,
    ) -> Result<Linear, ModelError> {
        let mut tensor = floats(format!("{stem}.weight"), &weights);
        (tensor.rows, tensor.cols) = (outputs, inputs);
        let w = self.declare(tensor);
        let bias = format!("{stem}.bias");
        let bias = if self.has(&bias) { Some(self.vector(&bias, outputs)?) } else { None };
        Ok(Linear { bias, ..Linear::of(w) })
    }

    /// A layer for the host (pooling): `stem.weight` of `[outputs, inputs]` and `stem.bias`, returned without
    /// declaring them.
    ///
    /// # Errors
    /// As [`table`](Self::table).
    pub(crate) fn host_layer(
        &mut self,
        stem: &str,
        outputs: usize,
        inputs: usize,
    ) -> Result<(FileTensor, Option<FileTensor>), ModelError> {
        let weight = self.tensor(&format!("{stem}.weight"), outputs, inputs)?;
        let bias = format!("{stem}.bias");
        let bias = if self.has(&bias) { Some(self.tensor(&bias, 1, outputs)?) } else { None };
        Ok((weight, bias))
    }

    /// The scale factors of products, `stem.scale` of `[n]`, if the file has them: low-bit types have no
    /// space for them.
    pub(super) fn scales(&mut self, stem: &str, n: usize) -> Result<Vec<f32>, ModelError> {
        let name = format!("{stem}.scale");
        if !self.has(&name) {
            return Ok(vec![1.0; n]);
        }
        let scales = self.values(&name, n)?;
        match scales.iter().find(|scale| !scale.is_finite()) {
            Some(scale) => Err(wrong(&name, "finite numbers", scale.to_string())),
            None => Ok(scales),
        }
    }

    /// Checks that a layer of a feed-forward network does not have both a scale and a bias.
    pub(super) fn check_scale(&self, stem: &str) -> Result<(), ModelError> {
        let [scale, bias] = ["scale", "bias"].map(|what| format!("{stem}.{what}"));
        match self.has(&scale) && self.has(&bias) {
            true => Err(wrong(&scale, "no scale with a bias in a feed-forward network", "both".to_owned())),
            false => Ok(()),
        }
    }

    /// The query, key and value layers of a block, `[q, dim]`, `[kv, dim]` and `[kv, dim]`: three tensors, or
    /// the rows of one, `attn_qkv`.
    ///
    /// # Errors
    /// As [`projection`](Self::projection); [`ModelError::Tensor`] if the combined tensor has a type whose
    /// rows depend on each other.
    pub fn qkv(&mut self, blk: &str, q: usize, kv: usize, dim: usize) -> Result<[Linear; 3], ModelError> {
        let stem = format!("{blk}.attn_qkv");
        let name = format!("{stem}.weight");
        if !self.has(&name) {
            let [wq, wk, wv] = ["q", "k", "v"].map(|which| format!("{blk}.attn_{which}"));
            return Ok([
                self.projection(&wq, q, dim)?,
                self.projection(&wk, kv, dim)?,
                self.projection(&wv, kv, dim)?,
            ]);
        }
        self.divided(&stem, [q, kv, kv], dim)
    }

    /// The gate and up projections of a block, which are the rows of one tensor, `ffn_up`.
    ///
    /// # Errors
    /// As [`qkv`](Self::qkv) for a combined tensor.
    pub fn gate_up(&mut self, blk: &str, ffn_dim: usize, dim: usize) -> Result<[Linear; 2], ModelError> {
        let stem = format!("{blk}.ffn_up");
        self.check_scale(&stem)?;
        self.divided(&stem, [ffn_dim, ffn_dim], dim)
    }

    /// Layers with these numbers of outputs, which are the rows of one tensor, `stem.weight`, in this order.
    ///
    /// # Errors
    /// As [`qkv`](Self::qkv) for a combined tensor.
    pub fn divided<const N: usize>(
        &mut self,
        stem: &str,
        outputs: [usize; N],
        inputs: usize,
    ) -> Result<[Linear; N], ModelError> {
        let scale = self.scales(stem, 1)?[0];
        let mut end = 0;
        let rows = outputs.map(|n| {
            end += n;
            end - n..end
        });
        let mut parts = self.parts(stem, end, inputs, rows)?.into_iter();
        Ok(std::array::from_fn(|_| Linear { scale, ..parts.next().expect("one per range") }))
    }

    /// Layers of `n` heads, each `[outputs, inputs]`, which are concatenated in a tensor.
    ///
    /// # Errors
    /// As [`qkv`](Self::qkv) for a combined tensor.
    pub fn heads(
        &mut self,
        stem: &str,
        n: usize,
        outputs: usize,
        inputs: usize,
    ) -> Result<Vec<Linear>, ModelError> {
        let scale = self.scales(stem, 1)?[0];
        let parts = self.parts(stem, n * outputs, inputs, (0..n).map(|i| i * outputs..(i + 1) * outputs))?;
        Ok(parts.into_iter().map(|layer| Linear { scale, ..layer }).collect())
    }

    /// Rows of `stem.weight`, `[rows, inputs]`, as a layer, with its bias if the file has one.
    ///
    /// # Errors
    /// As [`qkv`](Self::qkv) for a combined tensor.
    pub fn part(
        &mut self,
        stem: &str,
        [rows, inputs]: [usize; 2],
        range: Range<usize>,
    ) -> Result<Linear, ModelError> {
        Ok(self.parts(stem, rows, inputs, [range])?.remove(0))
    }

    /// Layers that are concatenated in a tensor: `stem.weight` of `[rows, inputs]` and, if the file has it,
    /// `stem.bias`, split into ranges of rows.
    pub(super) fn parts(
        &mut self,
        stem: &str,
        rows: usize,
        inputs: usize,
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<Vec<Linear>, ModelError> {
        let name = format!("{stem}.weight");
        let ranges: Vec<Range<usize>> = ranges.into_iter().collect();
        let (whole, act) = self.divisible(&name, rows, inputs, &ranges)?;
        let bias = format!("{stem}.bias");
        let bias = if self.has(&bias) { Some(self.elements(&bias, rows)?) } else { None };
        let basis = self.basis_of(&name, inputs)?;
        let part = |part: Range<usize>| {
            let name_of = |what: &str| format!("{stem}.{what} rows {} to {}", part.start, part.end - 1);
            let w = self.declare(whole.cut(name_of("weight"), part.clone()));
            let of = PartOf { tensor: name.clone(), rows: vec![part.clone()] };
            self.program.weights[w.0 as usize].part_of = Some(of);
            let bias =
                bias.as_ref().map(|values| self.declare(floats(name_of("bias"), &values[part.clone()])));
            Linear { bias, act, basis, ..Linear::of(w) }
        };
        Ok(ranges.into_iter().map(part).collect())
    }

    /// A [`projection`](Self::projection) without a bias, whose rows are ranges of those of `stem.weight`,
    /// `[rows, inputs]`, in this order; `order` describes it in the weight's name.
    ///
    /// # Errors
    /// As [`qkv`](Self::qkv) for a combined tensor.
    pub fn gathered(
        &mut self,
        stem: &str,
        [rows, inputs]: [usize; 2],
        order: &str,
        ranges: &[Range<usize>],
    ) -> Result<Linear, ModelError> {
        let name = format!("{stem}.weight");
        let (whole, act) = self.divisible(&name, rows, inputs, ranges)?;
        let basis = self.basis_of(&name, inputs)?;
        let scale = self.scales(stem, 1)?[0];
        let w = self.declare(whole.gather(format!("{name} {order}"), ranges));
        self.program.weights[w.0 as usize].part_of = Some(PartOf { tensor: name, rows: ranges.to_vec() });
        Ok(Linear { act, basis, scale, ..Linear::of(w) })
    }

    /// Ranges of elements of a vector or small table of `n` elements, concatenated in f32.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if it is missing or of another size.
    pub fn gathered_f32(
        &mut self,
        name: &str,
        n: usize,
        ranges: &[Range<usize>],
    ) -> Result<Weight, ModelError> {
        let all = self.elements(name, n)?;
        let values: Vec<f32> = ranges.iter().flat_map(|range| &all[range.clone()]).copied().collect();
        Ok(self.declare(floats(name.to_owned(), &values)))
    }

    /// A tensor that may be divided into these ranges of rows, and the quantisation of its input.
    pub(super) fn divisible(
        &mut self,
        name: &str,
        rows: usize,
        inputs: usize,
        ranges: &[Range<usize>],
    ) -> Result<(FileTensor, ActQuant), ModelError> {
        let whole = self.tensor(name, rows, inputs)?;
        let quant = |source| ModelError::Quant { tensor: name.to_owned(), source };
        let row_bytes = whole.ty.row_bytes(inputs).map_err(quant)?;
        let together = whole.ty.rows_together();
        let is_whole =
            |range: &Range<usize>| [range.start, range.end].iter().all(|row| row.is_multiple_of(together));
        if whole.ty.byte_len(rows, inputs).map_err(quant)? != rows * row_bytes || !ranges.iter().all(is_whole)
        {
            return Err(wrong(name, "a type with independent rows", whole.ty.name().to_owned()));
        }
        let act = match whole.ty.ternary() {
            Some(Ternary::PerRow) => ActQuant::I8PerToken,
            _ => ActQuant::None,
        };
        Ok((whole, act))
    }
}
