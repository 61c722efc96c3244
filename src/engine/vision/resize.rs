//! Resizing with Pillow's rule, to the bit: two passes, each rounded to 8 bits. A filter is widened by the
//! factor by which a side shrinks.

use sterna_model::vision::Filter;

/// Fraction bits of the weights.
const BITS: u32 = 22;

/// The source pixels of one target pixel, and their weights, which sum to about `1 << BITS`.
struct Window {
    first: usize,
    weights: Vec<i64>,
}

/// The first source of each of `to` targets, and the weights of it and those after it, which sum to 1.
pub fn weights(from: usize, to: usize, filter: Filter) -> Vec<(usize, Vec<f64>)> {
    let scale = from as f64 / to as f64;
    let widened = scale.max(1.0);
    let radius = support(filter) * widened;
    let of = |i: usize| {
        let centre = (i as f64 + 0.5) * scale;
        let first = (centre - radius + 0.5).max(0.0) as usize;
        let end = ((centre + radius + 0.5) as usize).min(from);
        let weight = |at: usize| value(filter, (at as f64 - centre + 0.5) / widened);
        let weights: Vec<f64> = (first..end).map(weight).collect();
        let total: f64 = weights.iter().sum();
        (first, weights.into_iter().map(|weight| weight / total).collect())
    };
    (0..to).map(of).collect()
}

/// Resizes `rgb`, `[height, width, 3]`, to `to`, width and height, both at least 1.
pub fn resize(rgb: &[u8], [width, height]: [usize; 2], to: [usize; 2], filter: Filter) -> Vec<u8> {
    // Found by comparison with Pillow 13: if the height shrinks by more than twice what the width does.
    let is_vertical_first = height > to[1] && 2 * to[0] + height > 2 * width + to[1];
    if is_vertical_first {
        return wide(&tall(rgb, width, height, to[1], filter), width, to[0], filter);
    }
    tall(&wide(rgb, width, to[0], filter), to[0], height, to[1], filter)
}

/// The horizontal pass, to another width.
fn wide(rgb: &[u8], width: usize, to: usize, filter: Filter) -> Vec<u8> {
    if to == width {
        return rgb.to_vec();
    }
    let windows = windows(width, to, filter);
    rgb.chunks_exact(3 * width).flat_map(|row| across(row, &windows)).collect()
}

/// The vertical pass, to another height.
fn tall(rgb: &[u8], width: usize, height: usize, to: usize, filter: Filter) -> Vec<u8> {
    if to == height {
        return rgb.to_vec();
    }
    let row_len = 3 * width;
    let mut sums = vec![0; row_len];
    let mut out = Vec::with_capacity(row_len * to);
    for window in &windows(height, to, filter) {
        sums.fill(0);
        let source = rgb[window.first * row_len..].chunks_exact(row_len);
        for (row, weight) in source.zip(&window.weights) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += weight * i64::from(*x));
        }
        out.extend(sums.iter().map(|sum| rounded(*sum)));
    }
    out
}

fn across(row: &[u8], windows: &[Window]) -> Vec<u8> {
    let mut out = Vec::with_capacity(3 * windows.len());
    for Window { first, weights } in windows {
        let mut sums = [0; 3];
        for (pixel, weight) in row[3 * first..].chunks_exact(3).zip(weights) {
            sums.iter_mut().zip(pixel).for_each(|(sum, x)| *sum += weight * i64::from(*x));
        }
        out.extend(sums.map(rounded));
    }
    out
}

fn rounded(sum: i64) -> u8 {
    ((sum + (1 << (BITS - 1))) >> BITS).clamp(0, 255) as u8
}

fn windows(from: usize, to: usize, filter: Filter) -> Vec<Window> {
    let fixed = |weight: f64| (weight * f64::from(1 << BITS)).round() as i64;
    let window = |(first, weights): (usize, Vec<f64>)| Window {
        first,
        weights: weights.into_iter().map(fixed).collect(),
    };
    weights(from, to, filter).into_iter().map(window).collect()
}

/// Source pixels on each side of the centre, when nothing shrinks.
fn support(filter: Filter) -> f64 {
    match filter {
        Filter::Bilinear => 1.0,
        Filter::Bicubic => 2.0,
        Filter::Lanczos => 3.0,
    }
}

fn value(filter: Filter, x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    match filter {
        Filter::Bilinear => (1.0 - x).max(0.0),
        Filter::Bicubic if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        Filter::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
        Filter::Bicubic => 0.0,
        Filter::Lanczos if x < 3.0 => sinc(x) * sinc(x / 3.0),
        Filter::Lanczos => 0.0,
    }
}

fn sinc(x: f64) -> f64 {
    let angle = std::f64::consts::PI * x;
    if x == 0.0 { 1.0 } else { angle.sin() / angle }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture of one colour keeps it, whatever the size, and the same size changes nothing.
    #[test]
    fn one_colour_stays_and_the_same_size_is_a_copy() {
        let rgb: Vec<u8> = [7, 200, 255].repeat(5 * 3);
        for filter in [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos] {
            for to in [[1, 1], [2, 9], [5, 7], [40, 2]] {
                assert_eq!(resize(&rgb, [5, 3], to, filter), [7, 200, 255].repeat(to[0] * to[1]), "{to:?}");
            }
        }
        let ramp: Vec<u8> = (0..5 * 3 * 3).collect();
        assert_eq!(resize(&ramp, [5, 3], [5, 3], Filter::Bicubic), ramp);
    }
}
