//! Vision towers: reads an mmproj file as two programs, the tower over the patches of a picture and the
//! merger over the rows that the text model gets, and everything that the host has to know to run them: the
//! size of the picture, its normalisation, learned positions, and how patches are merged.
//!
//! A projector's file describes its two programs from top to bottom. It must never know a backend or a pixel.
//! Start at [`gemma3`].

mod gemma3;
mod gemma4v;
mod idefics3;
mod lfm2;
mod pixtral;
mod qwen25vl;
mod qwen2vl;
mod qwen3vl;
mod tower;

use super::ModelError;
use sterna_gguf::Gguf;
use tower::File;
pub use tower::{
    Affine, Deepstack, Filter, Half, Merge, Positions, Projector, RowNorm, Sizing, TileRule, Tiles,
    TokenLimits, Vision, Windows,
};

/// Every projector. A new one needs its file and two lines here.
pub static REGISTRY: &[&Projector] = &[
    &gemma3::PROJECTOR,
    &qwen3vl::PROJECTOR,
    &gemma4v::PROJECTOR,
    &pixtral::PROJECTOR,
    &qwen25vl::PROJECTOR,
    &qwen2vl::PROJECTOR,
    &idefics3::PROJECTOR,
    &lfm2::PROJECTOR,
];

impl Vision {
    /// Reads the tower and the projector of an mmproj file.
    ///
    /// # Errors
    /// [`ModelError`] for a file of another kind, an unknown projector, and for the first tensor or key that
    /// is missing or invalid.
    pub fn read(gguf: &Gguf, limits: TokenLimits) -> Result<Self, ModelError> {
        let file = File::of(gguf, limits)?;
        let known = || REGISTRY.iter().flat_map(|projector| projector.names).copied();
        match REGISTRY.iter().find(|projector| projector.names.contains(&file.projector.as_str())) {
            Some(projector) => (projector.read)(&file),
            None => Err(ModelError::Projector {
                name: file.projector,
                known: known().collect::<Vec<_>>().join(", "),
            }),
        }
    }
}
