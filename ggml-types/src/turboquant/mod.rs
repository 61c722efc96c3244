//! TurboQuant's mathematics (Zandieh et al., arXiv:2504.19874): how a key or value vector becomes a few bits
//! an element. Plain code; every faster path is compared with it.
//!
//! A vector is rotated ([`Rotation`]), so that whatever direction it had, its coordinates look like those of
//! a random point on a sphere. Their distribution is known, so the best scalar quantiser for them is too
//! ([`Codebook`]). [`Lloyd`] keeps one code a coordinate and one scale; [`Prod`] keeps fewer bits a code and,
//! for what is left over, one sign a coordinate of a second projection ([`Qjl`]).
//!
//! `Lloyd` and `Prod` work on rotated vectors: who stores them rotates once, and rotates queries instead of
//! turning keys back.

mod codebook;
mod lloyd;
mod planes;
mod prod;
mod qjl;
mod rotate;

pub use codebook::Codebook;
pub use lloyd::{Lloyd, ScaleRule};
pub use planes::Planes;
pub use prod::Prod;
pub use qjl::{Projection, Qjl};
pub use rotate::{Rotation, hadamard, sign_bits};

use half::f16;

/// Longest vector that [`Prod`] and the codecs of a cache take: models have heads of up to 256 elements.
pub const MAX_DIM: usize = 512;

/// `x` as the f16 that is kept, and whether that took a repair: a scale beyond f16's range becomes its
/// largest number, and one that is no number becomes 0, so that one bad vector cannot make others unreadable.
fn scale_bits(x: f64) -> (f16, bool) {
    let kept = f16::from_f64(x);
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
