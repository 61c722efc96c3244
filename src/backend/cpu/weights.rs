//! The weights of a program, in memory or in their file.

use std::sync::Arc;

use super::linear::CpuWeight;
use super::norm::RowNorm;
use super::stream::FileWeight;
use sterna_program::{Norm, Weight};

/// An uploaded weight.
#[derive(Clone)]
pub enum StoredWeight {
    Memory(CpuWeight),
    File(Arc<FileWeight>),
}

impl StoredWeight {
    pub fn file(&self) -> Option<&Arc<FileWeight>> {
        if let Self::File(weight) = self { Some(weight) } else { None }
    }

    /// The weight's type and shape; the bytes are valid only if it is in memory.
    pub fn shape(&self) -> &CpuWeight {
        match self {
            Self::Memory(weight) => weight,
            Self::File(weight) => &weight.shape,
        }
    }
}

/// The weights of a program, in the order of its declarations.
#[derive(Clone, Copy)]
pub struct Weights<'a>(pub &'a [StoredWeight]);

impl<'a> Weights<'a> {
    pub fn get(self, w: Weight) -> &'a StoredWeight {
        &self.0[w.0 as usize]
    }

    /// A weight that is a vector, as f32.
    pub fn vector(self, w: Weight) -> &'a [f32] {
        // Vectors are always in memory.
        let w = self.get(w).shape();
        &bytemuck::cast_slice(&w.bytes)[..w.cols]
    }

    pub fn norm(self, norm: &Norm) -> RowNorm<'a> {
        let Norm { kind, weight, bias, eps } = *norm;
        RowNorm { kind, weight: self.vector(weight), bias: bias.map(|bias| self.vector(bias)), eps }
    }
}
