//! Name and block size of every type id that occurs in files, implemented here or not, so that a file can be
//! described even if it cannot be run.

use crate::{Dialect, ids};

/// Ids below this mean the same in both dialects.
pub(crate) const FIRST_CLASH: u32 = 36;

/// An id without an implementation.
pub(crate) struct Known {
    pub name: &'static str,
    /// `None` for an id of ik_llama.cpp, which means the same in files of either dialect.
    pub dialect: Option<Dialect>,
    pub id: u32,
    /// Elements and bytes of a block, if the type has blocks of one size.
    pub block: Option<(usize, usize)>,
}

const fn ggml(id: u32, name: &'static str, block_elems: usize, block_bytes: usize) -> Known {
    Known { name, dialect: Some(Dialect::Ggml), id, block: Some((block_elems, block_bytes)) }
}

const fn bitnet(id: u32, name: &'static str) -> Known {
    Known { name, dialect: Some(Dialect::BitNet), id, block: None }
}

const fn ik(id: u32, name: &'static str) -> Known {
    Known { name, dialect: None, id, block: None }
}

macro_rules! table {
    ($($constant:ident = $id:literal: $of:ident($($what:expr),*),)*) => {
        &[$($of($id, $($what),*),)*]
    };
}

/// Every id.
pub(crate) static KNOWN: &[Known] = ids::rows!(table);
