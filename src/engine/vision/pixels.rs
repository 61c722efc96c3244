//! From a picture to the inputs of the tower, and from its rows to those of the merger.

use std::borrow::Cow;

use super::picture::{ImageError, Picture};
use super::resize::{resize, weights};
use sterna_model::vision::{Affine, Filter, Merge, Positions, Sizing, TileRule, Tiles, Vision};
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

/// Puts a row after each row of tokens but the last.
pub fn with_row_ends(rows: Vec<f32>, columns: usize, row_end: &[f32]) -> Vec<f32> {
    let lines: Vec<&[f32]> = rows.chunks_exact(columns * row_end.len()).collect();
    lines.join(row_end)
}

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
        Sizing::Longest { step, longest } => {
            let sides = [width, height].map(f64::from);
            let by = (sides[0].max(sides[1]) / f64::from(longest)).max(1.0);
            Ok(sides.map(|side| ((side / by).floor().max(1.0) as u32).div_ceil(step) * step))
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

/// The tiles of a picture and the picture as a whole. Sizes are width and height.
struct Layout {
    /// Rows and columns of tiles; 0 if the picture is not cut.
    grid: [usize; 2],
    /// Sizes that the picture is resized to, one after the other, before it is cut.
    steps: Vec<[u32; 2]>,
    /// Size of the whole picture.
    whole: [u32; 2],
    /// True if that is made from the picture after these steps.
    whole_of_last: bool,
}

impl Layout {
    fn of(vision: &Vision, from: [u32; 2]) -> Result<Self, ImageError> {
        let whole = size(vision.sizing, from)?;
        let not_cut = Self { grid: [0, 0], steps: Vec::new(), whole, whole_of_last: false };
        let Some(Tiles { side, rule, .. }) = vision.tiles else { return Ok(not_cut) };
        match rule {
            TileRule::Longest(longest) => {
                let first = with_longest(from, longest);
                let second = covering(first, side);
                let grid = [second[1] / side, second[0] / side].map(|n| n as usize);
                Ok(match grid == [1, 1] {
                    true => Self { steps: vec![first], whole: second, whole_of_last: true, ..not_cut },
                    false => Self { grid, steps: vec![first, second], whole_of_last: true, ..not_cut },
                })
            }
            TileRule::Nearest { tiles, max_pixels, step } => {
                let step = f64::from(step);
                let [width, height] = from.map(|x| (f64::from(x) / step).round_ties_even() * step);
                if width * height <= max_pixels {
                    return Ok(not_cut);
                }
                let grid = nearest(from, tiles, side);
                let steps = vec![[grid[1] * side, grid[0] * side]];
                Ok(Self { grid: grid.map(|n| n as usize), steps, ..not_cut })
            }
        }
    }
}

/// The size with this longest side. The other one is even, as in transformers.
fn with_longest([width, height]: [u32; 2], longest: u32) -> [u32; 2] {
    let ratio = f64::from(width) / f64::from(height);
    let even = |x: f64| (x as u32).next_multiple_of(2).max(1);
    match width >= height {
        true => [longest, even(f64::from(longest) / ratio)],
        false => [even(f64::from(longest) * ratio), longest],
    }
}

/// The least multiples of `side` that cover a size, after its longer side is one.
fn covering([width, height]: [u32; 2], side: u32) -> [u32; 2] {
    let ratio = f64::from(width) / f64::from(height);
    match width >= height {
        true => {
            let width = width.next_multiple_of(side);
            [width, ((f64::from(width) / ratio) as u32).max(1).next_multiple_of(side)]
        }
        false => {
            let height = height.next_multiple_of(side);
            [((f64::from(height) * ratio) as u32).max(1).next_multiple_of(side), height]
        }
    }
}

/// Rows and columns of the grid of tiles whose proportions are nearest to those of a picture. Of two as near,
/// the one with more tiles counts if the picture has more than half of its pixels.
fn nearest([width, height]: [u32; 2], (fewest, most): (u32, u32), side: u32) -> [u32; 2] {
    let ratio = f64::from(width) / f64::from(height);
    let area = f64::from(width) * f64::from(height);
    let of = |n: u32| (1..=n).filter(move |cols| n.is_multiple_of(*cols)).map(move |cols| [n / cols, cols]);
    let (mut best, mut least) = ([1, 1], f64::INFINITY);
    for [rows, cols] in (fewest..=most).flat_map(of) {
        let distance = (ratio - f64::from(cols) / f64::from(rows)).abs();
        let is_filled = area > 0.5 * f64::from(side) * f64::from(side) * f64::from(rows * cols);
        if distance < least || distance == least && is_filled {
            (best, least) = ([rows, cols], distance);
        }
    }
    best
}

/// A picture as the tower reads it.
#[derive(Clone, Debug)]
pub struct Cut {
    /// Rows and columns of tiles; 0 if the picture is not cut.
    pub grid: [usize; 2],
    /// The tiles row by row, and the whole picture.
    pub pixels: Vec<Pixels>,
}

/// Resizes a picture, cuts it, and normalises the parts.
///
/// # Errors
/// [`ImageError::Ratio`], [`ImageError::Positions`].
pub fn cut(vision: &Vision, picture: &Picture) -> Result<Cut, ImageError> {
    let mut size = [picture.width(), picture.height()];
    let Layout { grid, steps, whole, whole_of_last } = Layout::of(vision, size)?;
    let resized = |rgb: &[u8], from: [u32; 2], to: [u32; 2]| {
        resize(rgb, from.map(|x| x as usize), to.map(|x| x as usize), vision.filter)
    };
    let mut rgb = Cow::Borrowed(picture.rgb());
    for step in steps {
        rgb = Cow::Owned(resized(&rgb, size, step));
        size = step;
    }
    let mut parts = Vec::with_capacity(grid[0] * grid[1] + 1);
    if let Some(tiles) = vision.tiles {
        let (side, width) = (tiles.side as usize, size[0] as usize);
        for at in 0..grid[0] * grid[1] {
            let (top, left) = (at / grid[1] * side, at % grid[1] * side);
            let lines = (top..top + side).map(|y| &rgb[3 * (y * width + left)..][..3 * side]);
            parts.push(normalised(vision, &lines.collect::<Vec<_>>().concat(), [tiles.side; 2])?);
        }
    }
    let whole_rgb = match whole_of_last {
        true => resized(&rgb, size, whole),
        false => resized(picture.rgb(), [picture.width(), picture.height()], whole),
    };
    parts.push(normalised(vision, &whole_rgb, whole)?);
    Ok(Cut { grid, pixels: parts })
}

/// Rows and columns of tiles, and the sizes of each and of the whole picture, as [`cut`] makes them.
///
/// # Errors
/// As [`cut`].
pub fn sizes(vision: &Vision, picture: &Picture) -> Result<([usize; 2], Vec<[u32; 2]>), ImageError> {
    let Layout { grid, whole, .. } = Layout::of(vision, [picture.width(), picture.height()])?;
    let side = vision.tiles.map_or(0, |tiles| tiles.side);
    let mut sizes = vec![[side; 2]; grid[0] * grid[1]];
    sizes.push(whole);
    Ok((grid, sizes))
}

/// Normalises the pixels of a picture.
fn normalised(vision: &Vision, rgb: &[u8], size: [u32; 2]) -> Result<Pixels, ImageError> {
    let [width, height] = size.map(|x| x as usize);
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

/// A window: its patches as the tower lists them, and their indices among all patches.
pub struct Window {
    /// Its own grid of patches.
    pub grid: ImageSpan,
    /// Index of each of its patches.
    pub patches: Vec<usize>,
}

/// The windows of `side` patches of a grid of blocks, row by row.
pub fn windows(grid: &ImageSpan, side: usize) -> Vec<Window> {
    let block = grid.block as usize;
    let [rows, cols] = grid.grid.map(|n| n as usize / block);
    let (side, of_block) = (side / block, block * block);
    let mut windows = Vec::new();
    for top in (0..rows).step_by(side) {
        for left in (0..cols).step_by(side) {
            let (bottom, right) = ((top + side).min(rows), (left + side).min(cols));
            let blocks = (top..bottom).flat_map(|row| (left..right).map(move |col| row * cols + col));
            let patches = blocks.flat_map(|at| at * of_block..(at + 1) * of_block).collect();
            let sides = [bottom - top, right - left].map(|n| (n * block) as u32);
            windows.push(Window { grid: ImageSpan { start: 0, grid: sides, block: grid.block }, patches });
        }
    }
    windows
}

/// The positions of the patches, `[n, dim]`.
pub fn positions(positions: &Positions, grid: &ImageSpan) -> Vec<f32> {
    match positions {
        Positions::Square { table, side } => interpolated(table, *side, grid),
        Positions::Resized { table, side } => resized(table, *side, grid),
        Positions::None { dim } => vec![0.0; grid.len() as usize * dim],
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

/// The positions of a square of patches, `[side * side, dim]`, resized to those of a grid.
fn resized(table: &[f32], side: usize, grid: &ImageSpan) -> Vec<f32> {
    let dim = table.len() / (side * side);
    let [rows, cols] = grid.grid.map(|n| weights(side, n as usize, Filter::Bilinear));
    let mut out = vec![0.0; grid.len() as usize * dim];
    for (i, out) in (0..grid.len()).zip(out.chunks_exact_mut(dim)) {
        let [row, col] = grid.cell(i).map(|at| at as usize);
        let ((top, down), (left, along)) = (&rows[row], &cols[col]);
        for (y, down) in (*top..).zip(down) {
            for (x, along) in (*left..).zip(along) {
                let by = (down * along) as f32;
                let from = &table[(y * side + x) * dim..][..dim];
                out.iter_mut().zip(from).for_each(|(out, x)| *out += by * x);
            }
        }
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

    /// `get_resize_output_image_size` of transformers' Pixtral processor, for 1540 and patches of 28.
    #[test]
    fn the_longest_side_is_that_of_transformers() {
        let sizing = Sizing::Longest { step: 28, longest: 1540 };
        for (from, want) in [
            ([640, 480], [644, 504]),
            ([1920, 1080], [1540, 868]),
            ([100, 3000], [56, 1540]),
            ([10, 10], [28, 28]),
            ([1541, 700], [1540, 700]),
            ([4000, 3000], [1540, 1176]),
        ] {
            assert_eq!(size(sizing, from), Ok(want), "{from:?}");
        }
    }

    /// The rules of transformers' processors of Idefics 3 and LFM2-VL, computed by hand.
    #[test]
    fn tiles_are_those_of_transformers() {
        for (from, want) in [
            ([640, 480], [[2048, 1536], [2048, 1536]]),
            ([500, 301], [[2048, 1232], [2048, 1536]]),
            ([300, 1000], [[614, 2048], [1024, 2048]]),
        ] {
            let first = with_longest(from, 2048);
            assert_eq!([first, covering(first, 512)], want, "{from:?}");
        }
        for (from, want) in
            [([1920, 1080], [2, 4]), ([1000, 1000], [2, 2]), ([3000, 3000], [3, 3]), ([900, 3000], [3, 1])]
        {
            assert_eq!(nearest(from, (2, 10), 512), want, "{from:?}");
        }
    }
}
