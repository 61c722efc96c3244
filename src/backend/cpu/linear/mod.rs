//! Linear layers: `y = scale * (W q(x)) + bias` over the kernels of [`sterna_cpu_kernels`].
//!
//! [`Acts`] holds a layer's inputs, quantised as the program specifies. [`matmul`] multiplies them with one
//! or more weights in one parallel region, [`matmul_piece`] with some rows of a weight that is not in memory
//! as a whole, and [`matmul_floats`] multiplies weights with inputs of their own. `formats.rs` selects the
//! kernel for a weight type. Nothing here knows a stage. Start at [`matmul`].

mod acts;
mod formats;

use acts::Rows;
pub use acts::{Acts, WorkspaceSize};

use bytes::Bytes;
use ggml_types::{HostTensor, QuantType};

use super::pool::{Grid, Pool};
use formats::Multiply;
use sterna_cpu_kernels::{Format, Kernels, MANY_ROWS, Product, STRIP, Scratch};
use sterna_program::ActQuant;

/// A weight as the kernels read it, in the bytes of the file.
#[derive(Clone, Debug)]
pub struct CpuWeight {
    /// Type of the bytes.
    pub ty: &'static dyn QuantType,
    /// Number of outputs.
    pub rows: usize,
    /// Number of inputs, contiguous.
    pub cols: usize,
    /// Bytes of the whole tensor.
    pub bytes: Bytes,
    format: Format,
    row_bytes: usize,
    tensor_scale: f32,
}

impl CpuWeight {
    /// Wraps a tensor and shares its bytes.
    ///
    /// # Panics
    /// If there are fewer bytes than the type needs for this shape.
    pub fn new(tensor: &HostTensor) -> Self {
        let HostTensor { ty, rows, cols, .. } = *tensor;
        let row_bytes = ty.row_bytes(cols).expect("a shape that the type can hold");
        let need = ty.byte_len(rows, cols).expect("a shape that the type can hold");
        let bytes = tensor.bytes.clone();
        assert!(bytes.len() >= need, "{}: {need} bytes needed, {} there", tensor.name, bytes.len());
        let format = Format::of(ty);
        let tensor_scale = ty.tensor_scale(&bytes, rows, cols).expect("the tensor's bytes were counted");
        Self { ty, rows, cols, bytes, format, row_bytes, tensor_scale }
    }

    /// All rows as one piece.
    fn piece(&self) -> Piece<'_> {
        let Self { ty, rows, cols, ref bytes, format, row_bytes, tensor_scale } = *self;
        Piece { ty, rows, cols, bytes, format, row_bytes, tensor_scale }
    }

    /// A piece of `rows` rows of this weight, with their bytes in another place.
    ///
    /// # Panics
    /// If there are fewer bytes than the type needs for `rows` rows.
    pub fn piece_of<'a>(&self, rows: usize, bytes: &'a [u8]) -> Piece<'a> {
        let need = self.ty.byte_len(rows, self.cols).expect("a shape that the type can hold");
        assert!(bytes.len() >= need, "{need} bytes needed, {} there", bytes.len());
        let Self { ty, cols, format, row_bytes, tensor_scale, .. } = *self;
        Piece { ty, rows, cols, bytes, format, row_bytes, tensor_scale }
    }
}

/// Rows of a weight, followed by the data that its type stores after the rows.
#[derive(Clone, Copy)]
pub struct Piece<'a> {
    ty: &'static dyn QuantType,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
    format: Format,
    row_bytes: usize,
    tensor_scale: f32,
}

/// A piece of a weight, and the output columns that it computes.
struct Job<'a> {
    w: Piece<'a>,
    scale: f32,
    /// `[w.rows]`.
    bias: Option<&'a [f32]>,
    /// `[rows, w.rows]`.
    out: Grid<'a, f32>,
    add: bool,
}

/// One weight of a [`matmul`], and the destination of its product.
pub struct WeightProduct<'a> {
    /// The weight.
    pub w: &'a CpuWeight,
    /// Factor of the layer on the product.
    pub scale: f32,
    /// `[w.rows]`, added after the factor.
    pub bias: Option<&'a [f32]>,
    /// `[rows, w.rows]`.
    pub out: &'a mut [f32],
    /// True if the result is added to the values in `out`.
    pub add: bool,
}

/// Multiplies the loaded rows with the weight of each part, all in one parallel region.
///
/// Every element of `out` depends, to the bit, only on its weight row and its activation row, not on the
/// number of rows, threads or parts.
///
/// # Panics
/// If the shapes do not match.
pub fn matmul<const N: usize>(k: &Kernels, pool: &Pool, acts: &mut Acts, parts: [WeightProduct<'_>; N]) {
    let rows = acts.rows();
    let job = |WeightProduct { w, scale, bias, out, add }| {
        assert_eq!(out.len(), rows * w.rows, "outputs of {rows} rows of {}", w.rows);
        assert!(bias.is_none_or(|bias: &[f32]| bias.len() == w.rows), "a bias for {} outputs", w.rows);
        Job { w: w.piece(), scale, bias, out: Grid::new(out, w.rows), add }
    };
    run(k, pool, acts, parts.map(job));
}

/// As [`matmul`], with only the rows in `piece`, which start at row `first` of the weight: writes the same
/// bits to their columns of `part.out`, and nothing to the others. Does not read the bytes of `part.w`.
///
/// # Panics
/// If the shapes do not match.
pub fn matmul_piece(
    k: &Kernels,
    pool: &Pool,
    acts: &mut Acts,
    part: WeightProduct<'_>,
    first: usize,
    piece: Piece<'_>,
) {
    let WeightProduct { w, scale, bias, out, add } = part;
    let (rows, outputs) = (acts.rows(), first..first + piece.rows);
    assert_eq!(out.len(), rows * w.rows, "outputs of {rows} rows of {}", w.rows);
    let bias = bias.map(|bias| &bias[outputs.clone()]);
    run(k, pool, acts, [Job { w: piece, scale, bias, out: Grid::new(out, w.rows).columns(outputs), add }]);
}

fn run<const N: usize>(k: &Kernels, pool: &Pool, acts: &mut Acts, jobs: [Job<'_>; N]) {
    let (n_rows, kind) = (acts.rows(), acts.kind());
    let weights = jobs.each_ref().map(|job| job.w);
    let multiply = weights.map(|w| Multiply::of(w.format, k, kind));
    let of_floats = |multiply: &Multiply| matches!(multiply, Multiply::Float(_) | Multiply::Decoded);
    if kind != ActQuant::None && multiply.iter().any(of_floats) {
        acts.dequantise(pool);
    }
    let cols = acts.cols();
    let (rows, scratch) = acts.split();
    let mut multiply = multiply.into_iter();
    let mut tasks = jobs.map(|Job { w, scale, bias, out, add }| {
        assert_eq!(w.cols, cols, "inputs of the weight and of the layer");
        (Task { w, rows, scale, bias, add, multiply: multiply.next().expect("one for each job") }, out)
    });
    run_tasks(k, pool, scratch, n_rows, &mut tasks);
}

/// One of the products in [`matmul_floats`].
pub struct FloatProduct<'a> {
    /// The weight.
    pub w: &'a CpuWeight,
    /// Inputs, `[rows, w.cols]`.
    pub x: &'a [f32],
    /// `[rows, w.rows]`.
    pub out: &'a mut [f32],
}

/// Multiplies weights with f32 rows of their own, all in one parallel region; the same bits as [`matmul`]
/// with f32 inputs. `scratch` is that of an [`Acts`] whose size fits the weights.
///
/// # Panics
/// If the shapes do not match.
pub fn matmul_floats<'a>(
    k: &Kernels,
    pool: &Pool,
    scratch: &mut [Scratch],
    products: impl Iterator<Item = FloatProduct<'a>>,
) {
    let mut most = 0;
    let task = |FloatProduct { w, x, out }: FloatProduct<'a>| {
        let rows = x.len() / w.cols;
        most = rows.max(most);
        assert_eq!((x.len(), out.len()), (rows * w.cols, rows * w.rows), "inputs and outputs of {rows} rows");
        let (multiply, w) = (Multiply::of(w.format, k, ActQuant::None), w.piece());
        let task = Task { w, rows: Rows::of_floats(x, w.cols), scale: 1.0, bias: None, add: false, multiply };
        (task, Grid::new(out, w.rows))
    };
    let mut tasks: Vec<_> = products.map(task).collect();
    run_tasks(k, pool, scratch, most, &mut tasks);
}

/// The product that a tile is part of.
struct Task<'a> {
    w: Piece<'a>,
    rows: Rows<'a>,
    scale: f32,
    /// `[w.rows]`.
    bias: Option<&'a [f32]>,
    add: bool,
    multiply: Multiply,
}

/// Computes grids of outputs with up to `n_rows` rows, in one parallel region.
fn run_tasks(
    k: &Kernels,
    pool: &Pool,
    scratch: &mut [Scratch],
    n_rows: usize,
    tasks: &mut [(Task<'_>, Grid<'_, f32>)],
) {
    let outputs = tasks.iter().map(|(task, _)| task.w.rows).sum();
    let (height, width) = tile_shape(n_rows, outputs, pool.threads());
    pool.tiles_with(scratch, tasks, height, width, |task, mut tile, scratch| {
        let Task { w, rows, scale, bias, add, multiply } = task;
        let outputs = tile.cols();
        let product = Product {
            weights: &w.bytes[outputs.start * w.row_bytes..outputs.end * w.row_bytes],
            row_bytes: w.row_bytes,
            cols: w.cols,
            tensor_scale: w.tensor_scale,
            row_scales: None,
            factor: *scale,
            bias: bias.map(|bias| &bias[outputs.clone()]),
            add: *add,
        };
        match multiply {
            Multiply::Int8(kernel) => kernel(&product, rows.int8, scratch, &mut tile),
            Multiply::Blocks(kernel) => kernel(&product, rows.blocks, scratch, &mut tile),
            Multiply::Float(kernel) => kernel(&product, rows.floats, scratch, &mut tile),
            Multiply::Decoded => formats::decoded(k, w, &product, rows.floats, scratch, &mut tile),
        }
    });
}

/// Tasks per thread, enough to keep all threads busy although some tasks take longer.
const TASKS: usize = 8;

/// Rows and columns of the output tile of one task: all rows, so that a weight row is read once, and few
/// enough columns that every thread gets several tasks.
fn tile_shape(rows: usize, outputs: usize, threads: usize) -> (usize, usize) {
    if rows >= MANY_ROWS {
        // Several strips per task, because the first one waits for memory.
        return (rows, STRIP * (outputs / (STRIP * TASKS * threads)).clamp(1, 8));
    }
    let tasks = if threads == 1 { 1 } else { TASKS * threads };
    let width = outputs.div_ceil(tasks).next_multiple_of(16).clamp(16, 256);
    (rows.max(1), width)
}
