//! Plain code: the reference for every kernel. It shares no arithmetic with the vector kernels.

use ggml_types::{QuantType, types};
use half::{bf16, f16};

use super::{
    F32Rows, I8Rows, Kernels, MAX_ACT, Product, RowQuant, Scratch, Tile, interleaved, padded,
    quantise::quantise_blocks,
    real,
    weights::{N_TYPES, TypeKernels, rows},
};

pub(super) static KERNELS: Kernels =
    Kernels { name: "scalar", quantise, types: &TYPES, quantise_blocks, real: &real::PLAIN };

macro_rules! table {
    ($($ty:ident
        [$($plain_int8:ident = $int8:expr)?]
        [$($codes:ty)?]
        [$($plain_float:ident($of:expr) = $float:expr)?];
    )*) => {
        static TYPES: [TypeKernels; N_TYPES] = [$(TypeKernels {
            $(int8: Some($plain_int8),)?
            $(float: Some(|product, acts, scratch, tile| $plain_float(product, acts, scratch, tile, $of)),)?
            ..TypeKernels::NONE
        }),*];
    };
}
rows!(table);

fn quantise(x: &[f32], q: &mut [i8]) -> RowQuant {
    q.fill(0);
    if !x.iter().all(|x| x.abs() <= MAX_ACT) {
        return RowQuant { scale: 0.0, sum: 0 };
    }
    let absmax = x.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    let scale = 127.0 / absmax.max(1e-5);
    let mut sum = 0;
    for (k, x) in x.iter().enumerate() {
        let value = (x * scale).round_ties_even().clamp(-128.0, 127.0) as i8;
        q[interleaved(k)] = value;
        sum += i32::from(value);
    }
    RowQuant { scale, sum }
}

fn i2_s(product: &Product<'_>, acts: I8Rows<'_>, scratch: &mut Scratch, tile: &mut Tile<'_, f32>) {
    for col in 0..tile.cols().len() {
        let weights = product.row(col);
        let codes =
            unpack(scratch, product.cols, |k| weights[k / 128 * 32 + k % 32] >> (6 - 2 * (k / 32 % 4)));
        for row in tile.rows() {
            let quant = acts.quant[row];
            let value = (dot(codes, acts.row(row)) - quant.sum) as f32 / quant.scale * product.tensor_scale;
            product.finish(&mut tile.row_mut(row)[col], col, value);
        }
    }
}

fn tq2_0(product: &Product<'_>, acts: I8Rows<'_>, scratch: &mut Scratch, tile: &mut Tile<'_, f32>) {
    let code = |block: &[u8], k: usize| block[k / 128 * 32 + k % 32] >> (2 * (k / 32 % 4));
    scaled::<66>(product, acts, scratch, tile, code);
}

fn tq1_0(product: &Product<'_>, acts: I8Rows<'_>, scratch: &mut Scratch, tile: &mut Tile<'_, f32>) {
    let code = |block: &[u8], k: usize| {
        let (byte, trit) = match k {
            0..160 => (k % 32, k / 32),
            160..240 => (32 + k % 16, (k - 160) / 16),
            _ => (48 + k % 4, (k - 240) / 4),
        };
        let fraction = u32::from(block[byte]) * 3_u32.pow(trit as u32) % 256;
        (fraction * 3 / 256) as u8
    };
    scaled::<54>(product, acts, scratch, tile, code);
}

fn iq2_bn(product: &Product<'_>, acts: I8Rows<'_>, scratch: &mut Scratch, tile: &mut Tile<'_, f32>) {
    let scale = |col: usize| f32_at(product.row(col), 0);
    let code = |col: usize, k: usize| product.row(col)[4 + k / 64 * 16 + k % 16] >> (k % 64 / 16 * 2);
    of_rows(product, acts, scratch, tile, scale, code);
}

fn iq2_bn_r4(product: &Product<'_>, acts: I8Rows<'_>, scratch: &mut Scratch, tile: &mut Tile<'_, f32>) {
    let four = |col: usize| &product.weights[col / 4 * 4 * product.row_bytes..];
    let scale = |col: usize| f32_at(four(col), col % 4);
    let code = |col: usize, k: usize| {
        let sixteen = 16 + k / 16 * 16;
        four(col)[sixteen + col % 4 * 4 + k % 4] >> (k % 16 / 4 * 2)
    };
    of_rows(product, acts, scratch, tile, scale, code);
}

fn iq1_bn(product: &Product<'_>, acts: I8Rows<'_>, scratch: &mut Scratch, tile: &mut Tile<'_, f32>) {
    let scale = |col: usize| f16_le(product.row(col));
    let code = |col: usize, k: usize| {
        let (sixteen, at) = (k % 64 / 16, k % 16);
        let (byte, digit) = if at == 15 { (12, sixteen) } else { (3 * sixteen + at / 5, at % 5) };
        let byte = product.row(col)[2 + k / 64 * 13 + byte];
        (u32::from(byte) * 3_u32.pow(4 - digit as u32) % 256 * 3 / 256) as u8
    };
    of_rows(product, acts, scratch, tile, scale, code);
}

/// Multiplies rows with one scale each, `scale(col)`; the low bits of `code(col, k)` are element `k`'s code.
fn of_rows(
    product: &Product<'_>,
    acts: I8Rows<'_>,
    scratch: &mut Scratch,
    tile: &mut Tile<'_, f32>,
    scale: impl Fn(usize) -> f32,
    code: impl Fn(usize, usize) -> u8,
) {
    for col in 0..tile.cols().len() {
        let codes = unpack(scratch, product.cols, |k| code(col, k));
        for row in tile.rows() {
            let quant = acts.quant[row];
            let value = (dot(codes, acts.row(row)) - quant.sum) as f32 / quant.scale * scale(col);
            product.finish(&mut tile.row_mut(row)[col], col, value);
        }
    }
}

/// Multiplies blocks of 256 weights and an f16 scale; the low bits of `code(block, k)` are a weight's code.
fn scaled<const BYTES: usize>(
    product: &Product<'_>,
    acts: I8Rows<'_>,
    scratch: &mut Scratch,
    tile: &mut Tile<'_, f32>,
    code: impl Fn(&[u8], usize) -> u8,
) {
    for col in 0..tile.cols().len() {
        let weights = product.row(col);
        let codes = unpack(scratch, product.cols, |k| code(&weights[k / 256 * BYTES..], k % 256));
        for row in tile.rows() {
            let mut value = 0.0;
            let units = codes.chunks_exact(256).zip(acts.row(row).chunks_exact(256));
            for ((codes, q), block) in units.zip(weights.chunks_exact(BYTES)) {
                let sum = dot(codes, q) - q.iter().map(|q| i32::from(*q)).sum::<i32>();
                value += f16_le(&block[BYTES - 2..]) * sum as f32;
            }
            product.finish(&mut tile.row_mut(row)[col], col, value / acts.quant[row].scale);
        }
    }
}

/// The codes of a weight row in the order of the activations; the low bits of `code(k)` are a code.
fn unpack(scratch: &mut Scratch, cols: usize, code: impl Fn(usize) -> u8) -> &[u8] {
    let codes = &mut scratch.codes[..padded(cols)];
    codes.fill(0);
    (0..cols).for_each(|k| codes[interleaved(k)] = code(k) & 3);
    codes
}

fn dot(codes: &[u8], q: &[i8]) -> i32 {
    codes.iter().zip(q).map(|(code, q)| i32::from(*code) * i32::from(*q)).sum()
}

/// Multiplies rows of floats, where `weight(row, k)` is element `k` of a weight row.
fn float(
    product: &Product<'_>,
    acts: F32Rows<'_>,
    scratch: &mut Scratch,
    tile: &mut Tile<'_, f32>,
    weight: impl Fn(&[u8], usize) -> f32,
) {
    rows(product, acts, scratch, tile, |bytes, weights| {
        weights.iter_mut().enumerate().for_each(|(k, w)| *w = weight(bytes, k));
    });
}

/// Multiplies rows that are decoded by the type itself.
fn decoded(
    product: &Product<'_>,
    acts: F32Rows<'_>,
    scratch: &mut Scratch,
    tile: &mut Tile<'_, f32>,
    ty: &dyn QuantType,
) {
    rows(product, acts, scratch, tile, |bytes, weights| {
        ty.decode_row(bytes, 1, 0, weights).expect("a row of the type");
    });
}

/// Multiplies rows that `decode(row, weights)` decodes.
fn rows(
    product: &Product<'_>,
    acts: F32Rows<'_>,
    scratch: &mut Scratch,
    tile: &mut Tile<'_, f32>,
    decode: impl Fn(&[u8], &mut [f32]),
) {
    for col in 0..tile.cols().len() {
        let weights = &mut scratch.floats[..product.cols];
        decode(product.row(col), weights);
        for row in tile.rows() {
            let value = acts.row(row).iter().zip(&*weights).map(|(x, w)| x * w).sum();
            product.finish(&mut tile.row_mut(row)[col], col, value);
        }
    }
}

fn f32_at(row: &[u8], k: usize) -> f32 {
    f32::from_le_bytes([row[4 * k], row[4 * k + 1], row[4 * k + 2], row[4 * k + 3]])
}

fn f16_at(row: &[u8], k: usize) -> f32 {
    f16_le(&row[2 * k..])
}

fn bf16_at(row: &[u8], k: usize) -> f32 {
    bf16::from_le_bytes([row[2 * k], row[2 * k + 1]]).to_f32()
}

fn q8_0_at(row: &[u8], k: usize) -> f32 {
    let block = &row[k / 32 * 34..];
    f16_le(block) * f32::from(block[2 + k % 32] as i8)
}

fn q6_k_at(row: &[u8], k: usize) -> f32 {
    let (block, k) = (&row[k / 256 * 210..][..210], k % 256);
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let (half, i) = (k / 128, k % 128);
    let low = low[half * 64 + i % 64] >> (i / 64 * 4) & 15;
    let high = high[half * 32 + i % 32] >> (i / 32 * 2) & 3;
    let scale = f16_le(&block[208..]) * f32::from(scales[k / 16] as i8);
    scale * (f32::from(low | high << 4) - 32.0)
}

fn f16_le(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}
