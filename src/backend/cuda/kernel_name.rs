//! Names of kernels.

use std::fmt;

/// Name of a kernel in `cuda/`: the stage, the type, and so on, separated by `__`. A part that a name does
/// not have is empty, false or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelName {
    pub stage: &'static str,
    /// Weight type or KV codec.
    pub ty: &'static str,
    /// True for products of floats, of a type that also has products of integers.
    pub floats: bool,
    /// Tells kernels of one stage and type apart.
    pub kind: &'static str,
    /// Elements per head, for a kernel of one head length.
    pub head_dim: usize,
}

impl KernelName {
    /// The only kernel of a stage.
    pub const fn single(stage: &'static str) -> Self {
        Self::of(stage, "")
    }

    /// The kernel of a stage for a type.
    pub const fn of(stage: &'static str, ty: &'static str) -> Self {
        Self { stage, ty, floats: false, kind: "", head_dim: 0 }
    }

    /// The kernel of this kind.
    pub const fn of_kind(self, kind: &'static str) -> Self {
        Self { kind, ..self }
    }

    /// The kernel for heads of this length.
    pub const fn of_heads(self, head_dim: usize) -> Self {
        Self { head_dim, ..self }
    }
}

impl fmt::Display for KernelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, ty, floats, kind, head_dim } = *self;
        f.write_str(stage)?;
        if !ty.is_empty() {
            write!(f, "__{}", ty.replace('-', "_"))?;
        }
        if floats {
            f.write_str("__floats")?;
        }
        match (kind, head_dim) {
            ("", 0) => Ok(()),
            (kind, 0) => write!(f, "__{kind}"),
            (kind, head_dim) => write!(f, "__{kind}{head_dim}"),
        }
    }
}
