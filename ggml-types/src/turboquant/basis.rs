//! The basis of keys and queries in which a few elements carry most of a score: RoPE pairs, scaled so that
//! keys and queries have the same shape, in two groups by their part of the scores. This is not in the
//! paper.

use super::MAX_DIM;
use super::rotate::Rotation;
use crate::QuantError;

/// Variances of keys and queries, per pair of elements of one KV head.
///
/// Elements of a pair share one variance, because RoPE rotates pairs by the position: a basis that treats
/// them alike is the same at every position.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyVariances {
    /// The elements of each pair: `[head_dim / 2]`.
    pub pairs: Vec<[u16; 2]>,
    /// Mean square of the elements of keys, less the mean of their page: `[head_dim / 2]`.
    pub keys: Vec<f64>,
    /// Mean square of the elements of queries, of all heads that read the KV head: `[head_dim / 2]`.
    pub queries: Vec<f64>,
}

/// A basis of one KV head: `k' = H D f k` and `q' = H D q / f`, so that `k' . q' = k . q`.
///
/// `f` is a power of two per element, in steps of 1/8 in the exponent. Elements are divided into two groups
/// of `head_dim / 2`, each in ascending order: the group that contributes most to scores, then the other.
/// `H D` is the [`Rotation`] of `head_dim / 2` elements, applied to each group.
#[derive(Clone, Debug)]
pub struct KeyBasis {
    /// `f = 2^(exponent / 8)` of each element of a head: `[head_dim]`.
    exponents: Vec<i8>,
    /// The element at each place of the two groups: `[head_dim]`.
    elements: Vec<u16>,
    /// `f` and `1 / f` at each place: `[head_dim]`.
    factors: [Vec<f32>; 2],
    half: Rotation,
}

/// Steps of an exponent.
const STEPS: f64 = 8.0;

/// Part of the mean variance that is added to each, so that no factor depends on a few small numbers.
const FLOOR: f64 = 0.001;

impl KeyBasis {
    /// Shortest and longest supported head.
    pub const DIMS: std::ops::RangeInclusive<usize> = 32..=256;

    /// The basis for these variances.
    ///
    /// With `vk` and `vq` the variances, `FLOOR` of their means added: `f = (vq / vk)^(1/4)`, divided by the
    /// power of two that is nearest to the root mean square of the first group's scaled keys. The first group
    /// are the `head_dim / 4` pairs with the largest `vk vq`, the first of equal ones. Variances of only 0
    /// count as 1.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    ///
    /// # Panics
    /// If pairs do not contain each element once, or if a variance is negative or not finite.
    pub fn of(variances: &KeyVariances) -> Result<Self, QuantError> {
        let KeyVariances { pairs, keys, queries } = variances;
        let dim = 2 * pairs.len();
        Self::check("key basis", dim)?;
        let [vk, vq] = [keys, queries].map(|v| {
            assert!(v.len() == pairs.len() && v.iter().all(|v| v.is_finite() && *v >= 0.0), "{v:?}");
            let mean = v.iter().sum::<f64>() / v.len() as f64;
            let floored = |v: &f64| if mean > 0.0 { v + FLOOR * mean } else { 1.0 };
            v.iter().map(floored).collect::<Vec<_>>()
        });
        let mut order: Vec<usize> = (0..pairs.len()).collect();
        order.sort_by(|a, b| (vk[*b] * vq[*b]).total_cmp(&(vk[*a] * vq[*a])));
        let first = &order[..dim / 4];
        let factor = |pair: usize| (vq[pair] / vk[pair]).log2() / 4.0;
        let square: f64 = first.iter().map(|&pair| vk[pair] * (2.0 * factor(pair)).exp2()).sum();
        let level = (square / first.len() as f64).log2() / 2.0;

        let (mut exponents, mut is_first) = (vec![i8::MIN; dim], vec![false; dim]);
        for (i, pair) in pairs.iter().enumerate() {
            let exponent = (STEPS * (factor(i) - level.round())).round();
            for &element in pair {
                let place = &mut exponents[usize::from(element)];
                assert_eq!(*place, i8::MIN, "element {element} is in two pairs");
                *place = exponent.clamp(-127.0, 127.0) as i8;
            }
        }
        first.iter().flat_map(|&pair| pairs[pair]).for_each(|element| is_first[usize::from(element)] = true);
        Self::from_parts(exponents, &is_first)
    }

    /// The basis of a head without statistics: `f` is 1, and the first group is the first half.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn plain(dim: usize) -> Result<Self, QuantError> {
        Self::check("key basis", dim)?;
        Self::from_parts(vec![0; dim], &(0..dim).map(|i| i < dim / 2).collect::<Vec<_>>())
    }

    /// The basis with these exponents, in eighths, and this first group: `[head_dim]` each.
    ///
    /// # Errors
    /// As [`check`](Self::check); [`QuantError::Shape`] if the first group is not half of the elements.
    pub fn from_parts(exponents: Vec<i8>, is_first: &[bool]) -> Result<Self, QuantError> {
        const TY: &str = "key basis";
        let dim = exponents.len();
        Self::check(TY, dim)?;
        let of_group = |first: bool| (0..dim).filter(move |&i| is_first[i] == first).map(|i| i as u16);
        let n_first = of_group(true).count();
        if is_first.len() != dim || n_first != dim / 2 {
            let detail = format!("want {} of {dim} elements in the first group, found {n_first}", dim / 2);
            return Err(QuantError::Shape { ty: TY, detail });
        }
        let elements: Vec<u16> = of_group(true).chain(of_group(false)).collect();
        let power = |sign: f64| {
            let power =
                |&element: &u16| (sign * f64::from(exponents[usize::from(element)]) / STEPS).exp2() as f32;
            elements.iter().map(power).collect()
        };
        let factors = [power(1.0), power(-1.0)];
        Ok(Self { half: Rotation::new(dim / 2)?, factors, elements, exponents })
    }

    /// Checks that heads of this length have such a basis; `ty` is named in the message.
    ///
    /// # Errors
    /// [`QuantError::Shape`] unless `dim` is a power of two in [`DIMS`](Self::DIMS).
    pub fn check(ty: &'static str, dim: usize) -> Result<(), QuantError> {
        if dim.is_power_of_two() && Self::DIMS.contains(&dim) {
            return Ok(());
        }
        let (least, most) = (Self::DIMS.start(), Self::DIMS.end());
        let want = format!("a head dimension that is a power of two from {least} to {most}");
        Err(QuantError::Shape {
            ty,
            detail: format!("want {want}, found {dim}; f16 takes any head dimension"),
        })
    }

    /// Elements of a vector.
    pub fn dim(&self) -> usize {
        self.elements.len()
    }

    /// Eighths of the exponent of each element's factor: `[head_dim]`.
    pub fn exponents(&self) -> &[i8] {
        &self.exponents
    }

    /// True for the elements of the first group: `[head_dim]`.
    pub fn first_group(&self) -> Vec<bool> {
        let mut is_first = vec![false; self.dim()];
        let first = &self.elements[..self.dim() / 2];
        first.iter().for_each(|element| is_first[usize::from(*element)] = true);
        is_first
    }

    /// The element at each place, first group first: `[head_dim]`.
    pub fn elements(&self) -> &[u16] {
        &self.elements
    }

    /// Factors on keys, at each place: `[head_dim]`.
    pub fn key_factors(&self) -> &[f32] {
        &self.factors[0]
    }

    /// Factors on queries, at each place: `[head_dim]`.
    pub fn query_factors(&self) -> &[f32] {
        &self.factors[1]
    }

    /// The rotation of each group.
    pub fn half(&self) -> &Rotation {
        &self.half
    }

    /// Brings a key, `[head_dim]`, into this basis.
    ///
    /// # Panics
    /// If the length differs.
    pub fn apply_to_key(&self, x: &mut [f32]) {
        self.apply(x, &self.factors[0]);
    }

    /// Brings a query, `[head_dim]`, into this basis.
    ///
    /// # Panics
    /// If the length differs.
    pub fn apply_to_query(&self, x: &mut [f32]) {
        self.apply(x, &self.factors[1]);
    }

    /// Brings a key back from this basis.
    ///
    /// # Panics
    /// If the length differs.
    pub fn undo_key(&self, y: &mut [f32]) {
        let mut places = [0.0; MAX_DIM];
        let places = &mut places[..self.dim()];
        places.copy_from_slice(y);
        places.chunks_exact_mut(self.half.dim()).for_each(|group| self.half.undo(group));
        for ((place, element), factor) in places.iter().zip(&self.elements).zip(&self.factors[1]) {
            y[usize::from(*element)] = place * factor;
        }
    }

    fn apply(&self, x: &mut [f32], factors: &[f32]) {
        assert_eq!(x.len(), self.dim());
        let mut places = [0.0; MAX_DIM];
        let places = &mut places[..x.len()];
        for ((place, element), factor) in places.iter_mut().zip(&self.elements).zip(factors) {
            *place = x[usize::from(*element)] * factor;
        }
        places.chunks_exact_mut(self.half.dim()).for_each(|group| self.half.apply(group));
        x.copy_from_slice(places);
    }
}
