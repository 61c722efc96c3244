//! Ternary weights of a checkpoint: their packing, the meaning of their scales, and the GGUF type that stores
//! them.

use ggml_types::{HostTensor, QuantType, types};
use half::bf16;

use super::checkpoint::Elem;

/// Meaning of `weight_scale` of packed codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleMeaning {
    /// Weight = code x scale: `autobitlinear`, as in BitNet b1.58 2B-4T.
    Multiply,
    /// Weight = code / scale: `bitlinear`, as in Falcon3 1.58bit, Falcon-E and Llama3-8B-1.58.
    Divide,
}

/// Row scales with a smaller relative difference are considered equal: the step of bf16.
const SHARED: f32 = 1.0 / 512.0;

/// Unpacks the hub's layout: byte `[r, c]` of `[rows / 4, cols]` has rows `r`, `r + rows / 4` and so on in
/// its bit pairs, starting with the lowest. Returns the values -1, 0 and 1, `[rows, cols]`.
///
/// # Errors
/// Row and column of an invalid code 3.
pub fn unpack(packed: &[u8], cols: usize) -> Result<Vec<i8>, (usize, usize)> {
    let quarter = packed.len() / cols.max(1);
    let mut out = Vec::with_capacity(packed.len() * 4);
    for shift in [0, 2, 4, 6] {
        for (at, byte) in packed.iter().enumerate() {
            let code = byte >> shift & 3;
            if code == 3 {
                return Err((shift / 2 * quarter + at / cols, at % cols));
            }
            out.push(code as i8 - 1);
        }
    }
    Ok(out)
}

/// Inverse of [`unpack`]: values -1, 0 and 1, `[rows, cols]` with rows divisible by 4.
///
/// # Panics
/// If the number of rows is not divisible by 4 or a value is not ternary.
pub fn pack(values: &[i8], cols: usize) -> Vec<u8> {
    assert!(values.len().is_multiple_of(4 * cols), "rows are divisible by 4");
    let code = |value: &i8| {
        assert!((-1..=1).contains(value), "{value} is not ternary");
        (value + 1) as u8
    };
    let quarter = values.len() / 4;
    (0..quarter)
        .map(|at| (0..4).fold(0, |byte, i| byte | code(&values[i * quarter + at]) << (2 * i)))
        .collect()
}

/// The scales of a packed matrix as factors of its codes: one, or one per row.
///
/// # Errors
/// Reason why the tensor cannot be the scales.
pub fn scales(elem: Elem, bytes: &[u8], rows: usize, meaning: ScaleMeaning) -> Result<Vec<f32>, String> {
    let values = reals(elem, bytes).ok_or_else(|| format!("want real numbers, found {}", elem.name()))?;
    if values.len() != 1 && values.len() != rows {
        return Err(format!("want 1 scale or {rows} (one per row), found {}", values.len()));
    }
    let factor = |scale: f32| match meaning {
        ScaleMeaning::Multiply => scale,
        ScaleMeaning::Divide => 1.0 / scale,
    };
    let factors: Vec<f32> = values.iter().map(|scale| factor(*scale)).collect();
    match factors.iter().position(|scale| !scale.is_finite() || *scale < 0.0) {
        Some(at) => Err(format!("want a finite number above 0, found {} (scale {at})", values[at])),
        None => Ok(one_if_shared(factors)),
    }
}

/// Returns one scale, the mean, if all rows share it to a step of bf16.
fn one_if_shared(scales: Vec<f32>) -> Vec<f32> {
    let (least, most) = scales.iter().fold((f32::MAX, 0.0f32), |(a, b), s| (a.min(*s), b.max(*s)));
    if scales.len() == 1 || most - least > SHARED * most {
        return scales;
    }
    let is_same = least == most;
    let mean = scales.iter().map(|scale| f64::from(*scale)).sum::<f64>() / scales.len() as f64;
    vec![if is_same { least } else { mean as f32 }]
}

/// Real numbers of a checkpoint as f32.
pub fn reals(elem: Elem, bytes: &[u8]) -> Option<Vec<f32>> {
    let halves = || bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    match elem {
        Elem::Bf16 => Some(halves().map(|b| bf16::from_le_bytes(b).to_f32()).collect()),
        Elem::F16 => Some(halves().map(|b| half::f16::from_le_bytes(b).to_f32()).collect()),
        Elem::F32 => Some(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
        Elem::F64 => Some(bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect()),
        Elem::U8 | Elem::Other(_) => None,
    }
}

/// BitNet's rule for master weights, as applied by transformers when it loads a model:
/// `s = 1 / max(mean |w|, 1e-5)` over the whole tensor and `clamp(round(w s), -1, 1) / s`, with ties to even.
/// The mean is summed in f64, and the scale is the mean itself instead of a second reciprocal.
pub fn absmean(weights: &mut [f32]) {
    let sum: f64 = weights.iter().map(|weight| f64::from(weight.abs())).sum();
    let scale = ((sum / weights.len().max(1) as f64) as f32).max(1e-5);
    let inverse = 1.0 / scale;
    for weight in weights {
        // A NaN remains and is rejected when the tensor is encoded.
        *weight = (*weight * inverse).round_ties_even().clamp(-1.0, 1.0) * scale;
    }
}

/// True if a type is for ternary weights. Q2_0 and PQ2_0 have a fourth code, which no quantiser writes.
pub fn is_for_ternary(ty: &dyn QuantType) -> bool {
    ty.ternary().is_some() || ty.is(&types::Q2_0) || ty.is(&types::Pq2_0)
}

/// Part of a matrix whose weights share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScaleSpan {
    /// Values -s, 0 and s with one s for the whole matrix.
    Tensor,
    /// One s per row.
    Row,
    /// One s for every 256 columns of a row.
    Block256,
    /// One s for every 64 columns of a row.
    Block64,
    /// Not ternary.
    Real,
}

impl ScaleSpan {
    /// Form of a matrix by the scales of its codes.
    pub fn of_scales(scales: &[f32]) -> Self {
        if scales.len() == 1 { Self::Tensor } else { Self::Row }
    }

    /// Form of a matrix by its values. Stops at the first block that is not ternary.
    pub fn of(tensor: &HostTensor) -> Self {
        let mut values = vec![0.0; tensor.cols];
        let (mut form, mut of_tensor) = (Self::Tensor, None);
        for row in 0..tensor.rows {
            if tensor.ty.decode_row(&tensor.bytes, tensor.rows, row, &mut values).is_err() {
                return Self::Real;
            }
            let of_row = match magnitude(&values) {
                Ok(of_row) => of_row,
                Err(()) => {
                    let blocks = |n: usize| values.chunks(n).all(|block| magnitude(block).is_ok());
                    let of_blocks = match () {
                        () if blocks(256) => Self::Block256,
                        () if blocks(64) => Self::Block64,
                        () => return Self::Real,
                    };
                    form = form.max(of_blocks);
                    continue;
                }
            };
            if of_tensor.is_some() && of_row.is_some() && of_tensor != of_row {
                form = form.max(Self::Row);
            }
            of_tensor = of_tensor.or(of_row);
        }
        form
    }
}

/// The common magnitude of all nonzero weights; an error if there are several.
fn magnitude(values: &[f32]) -> Result<Option<f32>, ()> {
    let mut found = None;
    for value in values.iter().map(|value| value.abs()).filter(|value| *value != 0.0) {
        match found {
            None if value.is_finite() => found = Some(value),
            Some(other) if other == value => {}
            _ => return Err(()),
        }
    }
    Ok(found)
}

/// A ternary matrix to be packed.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// GGUF name.
    pub name: String,
    /// Part whose weights share a scale.
    pub form: ScaleSpan,
    /// Columns.
    pub cols: usize,
}

/// Returns the type of each matrix by the rule, and the reason: I2_S if each has one scale and a multiple of
/// 128 columns, or else TQ2_0 (blocks of 256 columns), Q2_0 (64) or F16. I2_S is used for all matrices or
/// none: such files use microsoft/BitNet's number for it, with which other numbers refer to other types.
pub fn packing(matrices: &[Matrix]) -> Vec<(&'static dyn QuantType, String)> {
    let misfit =
        matrices.iter().find(|matrix| matrix.form != ScaleSpan::Tensor || !matrix.cols.is_multiple_of(128));
    let Some(misfit) = misfit else {
        let why = "each matrix has one scale and a multiple of 128 columns";
        return matrices.iter().map(|_| (&types::I2S as &'static dyn QuantType, why.to_owned())).collect();
    };
    let name = misfit.name.escape_debug();
    let not_i2_s = match misfit.form {
        ScaleSpan::Tensor => format!("rows of {name} have {} columns, not a multiple of 128", misfit.cols),
        ScaleSpan::Row => format!("each row of {name} has its own scale"),
        _ => format!("each row of {name} has several scales"),
    };
    let one = |matrix: &Matrix| -> (&'static dyn QuantType, String) {
        let cols = matrix.cols;
        let holds = |finest: ScaleSpan, block: usize| matrix.form <= finest && cols.is_multiple_of(block);
        if holds(ScaleSpan::Block256, 256) {
            return (&types::Tq2_0, format!("i2_s has one scale per tensor, and {not_i2_s}"));
        }
        let not_tq2_0 = match matrix.form <= ScaleSpan::Block256 {
            true => format!("{cols} columns are not a multiple of 256"),
            false => "scales change within blocks of 256".to_owned(),
        };
        if holds(ScaleSpan::Block64, 64) {
            return (&types::Q2_0, format!("{not_i2_s}, and {not_tq2_0}"));
        }
        (&types::F16, format!("{not_i2_s}, {not_tq2_0}, and not all blocks of 64 have one scale"))
    };
    matrices.iter().map(one).collect()
}

#[cfg(test)]
mod tests;
