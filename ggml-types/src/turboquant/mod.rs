//! TurboQuant's mathematics (Zandieh et al., arXiv:2504.19874): compression of a key or value vector to a few
//! bits per element. Plain code; every faster path is compared with it.
//!
//! A vector is rotated ([`Rotation`]), so that its coordinates look like those of a random point on a sphere,
//! whatever its direction was. Their distribution is known, and so is the best scalar quantiser for them
//! ([`Codebook`]). [`Lloyd`] stores one code per coordinate and one scale; [`Prod`] stores fewer bits per
//! code and, for the residual, one sign per coordinate of a second projection ([`Qjl`]).
//!
//! [`Split`] is ours and for keys: a [`KeyBasis`] divides their elements into two groups, each rotated and
//! encoded for itself, with more bits for the group that matters more. [`TrellisSplit`] and
//! [`TrellisVector`] are ours, too: their codes are those of a [`Trellis`], in which the value of a code
//! depends on the codes before it, and which are found by a search.
//!
//! `Lloyd` and `Prod` work on rotated vectors: the cache rotates a vector once when it is stored, and rotates
//! queries instead of rotating keys back. Keys are encoded a page at a time, less the page's [`KeyMean`].

mod basis;
mod codebook;
mod lloyd;
mod mean;
mod planes;
mod prod;
mod qjl;
mod rotate;
mod split;
mod trellis;
mod trellis_vectors;

pub use basis::{KeyBasis, KeyVariances};
pub use codebook::Codebook;
pub use lloyd::{Lloyd, ScaleRule};
pub use mean::KeyMean;
pub use planes::Planes;
pub use prod::Prod;
pub use qjl::{Projection, Qjl};
pub use rotate::{Rotation, hadamard, sign_bits};
pub use split::{LogScale, Split};
pub use trellis::{TRELLIS_2, TRELLIS_3, TRELLIS_4, Trellis};
pub use trellis_vectors::{PathSearch, SEARCHED, TrellisSplit, TrellisVector, plain_search};

use half::f16;

/// Longest vector that [`Prod`] and the cache codecs support: models have heads of up to 256 elements.
pub const MAX_DIM: usize = 512;

/// `x` as the stored f16, and whether it had to be changed: a scale beyond f16's range becomes its largest
/// number, and NaN becomes 0, so that one bad vector cannot make others unreadable.
fn scale_bits(x: f64) -> (f16, bool) {
    // By f32: a direct conversion rounds differently on some processors.
    let kept = f16::from_f32(x as f32);
    if x.is_nan() {
        (f16::ZERO, true)
    } else if kept.is_infinite() {
        (if x > 0.0 { f16::MAX } else { f16::MIN }, true)
    } else {
        (kept, false)
    }
}

fn dot(a: impl IntoIterator<Item = f64>, b: impl IntoIterator<Item = f64>) -> f64 {
    a.into_iter().zip(b).map(|(a, b)| a * b).sum()
}
