//! From a picture to the inputs of the tower, and from its rows to those of the merger.

use super::picture::{ImageError, Picture};
use super::resize::resize;
use sterna_model::vision::{Affine, Merge, Positions, Sizing, Vision};
use sterna_program::ImageSpan;

/// A picture of the tower's size, with normalised channels.
#[derive(Clone, Debug)]
pub struct Pixels {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// `[3, height, width]`, red first.
    pub values: Vec<f32>,
}

/// Largest ratio of a picture's sides.
const MOST_RATIO: u32 = 200;

/// The size that a picture is stretched to, width and height.
///
/// # Errors
/// [`ImageError::Ratio`].
pub fn size(sizing: Sizing, [width, height]: [u32; 2]) -> Result<[u32; 2], ImageError> {
    if width.max(height) / width.min(height).max(1) > MOST_RATIO {
        return Err(ImageError::Ratio { width, height, most: MOST_RATIO });
    }
    match sizing {
        Sizing::Square(side) => Ok([side, side]),
        Sizing::Multiples { step, min_pixels, max_pixels } => {
            let sides = [width, height].map(f64::from);
            let (step, area) = (f64::from(step), sides[0] * sides[1]);
            let times =
                |by: f64, round: fn(f64) -> f64| sides.map(|x| (round(x * by / step) * step).max(step));
            let near = times(1.0, f64::round_ties_even);
            let (least, most) = (min_pixels as f64, max_pixels as f64);
            let size = match near[0] * near[1] {
                n if n > most => times(1.0 / (area / most).sqrt(), f64::floor),
                n if n < least => times((least / area).sqrt(), f64::ceil),
                _ => near,
            };
            Ok(size.map(|x| x as u32))
        }
        Sizing::Budget { step, tokens } => {
            let (sides, step) = ([width, height].map(f64::from), f64::from(step));
            let by = (tokens as f64 * step * step / (sides[0] * sides[1])).sqrt();
            let squares = sides.map(|x| (x * by / step).floor().max(1.0));
            // A side of less than one square leaves the other one too long.
            Ok([0, 1].map(|at| (squares[at].min((tokens as f64 / squares[1 - at]).floor()) * step) as u32))
        }
    }
}

/// Resizes and normalises a picture.
///
/// # Errors
/// [`ImageError::Ratio`].
pub fn pixels(vision: &Vision, picture: &Picture) -> Result<Pixels, ImageError> {
    let [width, height] = size(vision.sizing, [picture.width(), picture.height()])?.map(|x| x as usize);
    let from = [picture.width() as usize, picture.height() as usize];
    let rgb = resize(picture.rgb(), from, [width, height], vision.filter);
    let channel = |c: usize| {
        let (mean, std) = (vision.mean[c], vision.std[c]);
        rgb.iter().skip(c).step_by(3).map(move |x| (f32::from(*x) / 255.0 - mean) / std)
    };
    if let Positions::Axes { n, .. } = vision.positions
        && width.max(height) / vision.patch > n
    {
        let (rows, room) = (width.max(height) / vision.patch, n);
        return Err(ImageError::Positions { patches: rows, room });
    }
    Ok(Pixels { width, height, values: (0..3).flat_map(channel).collect() })
}

/// The patches of a picture as the tower lists them.
pub fn grid(vision: &Vision, pixels: &Pixels) -> ImageSpan {
    let [rows, cols] = [pixels.height, pixels.width].map(|side| (side / vision.patch) as u32);
    ImageSpan { start: 0, grid: [rows, cols], block: vision.merge.listed() as u32 }
}

/// The patches, `[n, 3 * patch * patch]`: channel by channel, row by row.
pub fn patches(vision: &Vision, pixels: &Pixels, grid: &ImageSpan) -> Vec<f32> {
    let (side, Pixels { width, height, values }) = (vision.patch, pixels);
    let mut out = Vec::with_capacity(values.len());
    for i in 0..grid.len() {
        let [row, col] = grid.cell(i).map(|at| at as usize * side);
        for c in 0..3 {
            for y in row..row + side {
                let pixels = values[(c * height + y) * width + col..][..side].iter();
                out.extend(pixels.map(|x| if vision.is_centred { 2.0 * x - 1.0 } else { *x }));
            }
        }
    }
    out
}

/// The positions of the patches, `[n, dim]`.
pub fn positions(positions: &Positions, grid: &ImageSpan) -> Vec<f32> {
    match positions {
        Positions::Square { table, side } => interpolated(table, *side, grid),
        Positions::Axes { columns, rows, n } => {
            let dim = rows.len() / n;
            let cells = (0..grid.len()).map(|i| grid.cell(i).map(|at| at as usize * dim));
            let sum = |[row, col]: [usize; 2]| {
                columns[col..][..dim].iter().zip(&rows[row..][..dim]).map(|(column, row)| column + row)
            };
            cells.flat_map(sum).collect()
        }
    }
}

/// The positions of a square of patches, `[side * side, dim]`, interpolated to those of a grid.
fn interpolated(table: &[f32], side: usize, grid: &ImageSpan) -> Vec<f32> {
    let dim = table.len() / (side * side);
    let row_of = |y: usize, x: usize| &table[(y * side + x) * dim..][..dim];
    // Coordinate in the table, as the cell before it and the fraction after that.
    let place = |at: u32, n: u32| {
        let place = if n > 1 { f64::from(at) * (side as f64 - 1.0) / f64::from(n - 1) } else { 0.0 };
        let before = place as usize;
        (before, (before + 1).min(side - 1), (place - place.floor()) as f32)
    };
    let mut out = Vec::with_capacity(grid.len() as usize * dim);
    for i in 0..grid.len() {
        let [row, col] = grid.cell(i);
        let (top, bottom, down) = place(row, grid.grid[0]);
        let (left, right, along) = place(col, grid.grid[1]);
        let corners = [row_of(top, left), row_of(top, right), row_of(bottom, left), row_of(bottom, right)];
        let weights =
            [(1.0 - down) * (1.0 - along), (1.0 - down) * along, down * (1.0 - along), down * along];
        out.extend((0..dim).map(|at| corners.iter().zip(weights).map(|(row, by)| row[at] * by).sum::<f32>()));
    }
    out
}

/// Applies a factor and an offset per column.
pub fn apply(Affine { factor, offset }: &Affine, rows: &mut [f32]) {
    for row in rows.chunks_exact_mut(factor.len()) {
        row.iter_mut().zip(factor).zip(offset).for_each(|((x, factor), offset)| *x = *x * factor + offset);
    }
}

/// Merges the tower's rows, `[n, dim]`, into those of tokens.
pub fn merged(merge: Merge, grid: &ImageSpan, rows: Vec<f32>) -> Vec<f32> {
    match merge {
        // A block's patches follow one another.
        Merge::Join { .. } => rows,
        Merge::Mean { side } => {
            let dim = rows.len() / grid.len() as usize;
            let [_, cols] = grid.grid.map(|n| n as usize);
            let n_tokens = grid.len() as usize / (side * side);
            let mut out = vec![0.0; n_tokens * dim];
            let share = 1.0 / (side * side) as f32;
            for (i, row) in rows.chunks_exact(dim).enumerate() {
                let token = i / cols / side * (cols / side) + i % cols / side;
                out[token * dim..][..dim].iter_mut().zip(row).for_each(|(out, x)| *out += x * share);
            }
            out
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule of transformers (`smart_resize`), computed by hand: steps of 32, and 8 to 4,096 tokens.
    #[test]
    fn sizes_are_those_of_transformers() {
        let pixels = |tokens: u64| tokens * 32 * 32;
        let sizing = Sizing::Multiples { step: 32, min_pixels: pixels(8), max_pixels: pixels(4096) };
        for (from, want) in [
            ([640, 480], [640, 480]),
            ([1920, 1080], [1920, 1088]),
            ([48, 80], [96, 128]),
            ([10, 10], [96, 96]),
            ([8000, 6000], [2336, 1760]),
        ] {
            assert_eq!(size(sizing, from), Ok(want), "{from:?}");
        }
        assert!(matches!(size(sizing, [4000, 10]), Err(ImageError::Ratio { .. })));
    }
}
