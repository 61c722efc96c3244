//! Lookup of types by id and name: those of this crate, and those that a program registers at run time.

use std::collections::HashMap;
use std::sync::{LazyLock, PoisonError, RwLock};

use crate::known::{FIRST_CLASH, KNOWN, Known};
use crate::types::REGISTRY;
use crate::{Dialect, QuantType};

/// The types of this crate by id: opening a file looks one up for each of its tensors.
static BY_ID: LazyLock<HashMap<(Dialect, u32), &'static dyn QuantType>> =
    LazyLock::new(|| REGISTRY.iter().flat_map(|ty| ty.ids().iter().map(|id| (*id, *ty))).collect());

/// The only state of this crate. It only grows, and only while a program starts.
static OWN: RwLock<Vec<&'static dyn QuantType>> = RwLock::new(Vec::new());

/// Error of [`register`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// Another type has the name.
    #[error("a type {0} exists already")]
    Name(String),
    /// A name that is not valid on a command line or in a file name.
    #[error("want a name of a to z, 0 to 9 and _, found {0:?}")]
    Spelling(String),
    /// Another type has the id.
    #[error("type {name}: id {id} of {dialect:?} is {of}")]
    Id {
        /// Name of the type.
        name: String,
        /// Its numbering.
        dialect: Dialect,
        /// The number.
        id: u32,
        /// The type that has it.
        of: String,
    },
    /// A block, or a group of rows, of size 0; or a row without a size.
    #[error("type {name}: {detail}")]
    Shape {
        /// Name of the type.
        name: String,
        /// Expected and found.
        detail: String,
    },
}

/// Registers a type for this process: files that contain one of its ids can be read, and the CPU runs it row
/// by row through its own decoder. Other backends reject it by name, because they have no kernels for it.
///
/// Call this once, before files are opened.
///
/// # Errors
/// [`RegisterError`], depending on the problem.
pub fn register(ty: &'static dyn QuantType) -> Result<(), RegisterError> {
    let name = ty.name().to_owned();
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err(RegisterError::Spelling(name));
    }
    let (block, together) = (ty.block_elems(), ty.rows_together());
    if block == 0 || together == 0 {
        let detail = format!("want blocks and rows of at least 1, found {block} and {together}");
        return Err(RegisterError::Shape { name, detail });
    }
    if let Err(error) = ty.byte_len(together, block) {
        return Err(RegisterError::Shape { name, detail: format!("has no size of one block ({error})") });
    }
    let mut own = OWN.write().unwrap_or_else(PoisonError::into_inner);
    if REGISTRY.iter().chain(own.iter()).any(|known| known.name() == name) {
        return Err(RegisterError::Name(name));
    }
    for &(dialect, id) in ty.ids() {
        let theirs = own.iter().find(|own| own.ids().contains(&(dialect, id))).map(|own| own.name());
        // A named id is taken even if its type is not implemented here.
        if let Some(of) = theirs.or_else(|| known(dialect, id).map(|known| known.name)) {
            return Err(RegisterError::Id { name, dialect, id, of: of.to_owned() });
        }
    }
    own.push(ty);
    Ok(())
}

/// A type that the program has registered.
fn registered(is: impl Fn(&dyn QuantType) -> bool) -> Option<&'static dyn QuantType> {
    OWN.read().unwrap_or_else(PoisonError::into_inner).iter().copied().find(|ty| is(*ty))
}

/// The type with this id in `dialect`, from this crate or [registered](register) by the program.
pub fn by_id(dialect: Dialect, id: u32) -> Option<&'static dyn QuantType> {
    let own = || registered(|ty| ty.ids().contains(&(dialect, id)));
    BY_ID.get(&(dialect, id)).copied().or_else(own)
}

/// The type with this name, from this crate or registered by the program.
pub fn by_name(name: &str) -> Option<&'static dyn QuantType> {
    let is = |ty: &dyn QuantType| ty.name() == name;
    REGISTRY.iter().copied().find(|ty| is(*ty)).or_else(|| registered(is))
}

fn known(dialect: Dialect, id: u32) -> Option<&'static Known> {
    let same =
        |known: &&Known| known.id == id && (known.dialect.is_none_or(|of| of == dialect) || id < FIRST_CLASH);
    KNOWN.iter().find(same)
}

/// The name of a type id for display, also of types that are not implemented here.
pub fn id_name(dialect: Dialect, id: u32) -> Option<&'static str> {
    by_id(dialect, id).map(|ty| ty.name()).or_else(|| known(dialect, id).map(|known| known.name))
}

/// Bytes of a tensor of `rows` x `cols` by type id, also of types that are not implemented here.
///
/// `None` if the size does not follow from the id, or if no such tensor can exist.
pub fn byte_len_of(dialect: Dialect, id: u32, rows: usize, cols: usize) -> Option<usize> {
    if let Some(ty) = by_id(dialect, id) {
        return ty.byte_len(rows, cols).ok();
    }
    let (block_elems, block_bytes) = known(dialect, id)?.block?;
    let row_bytes =
        cols.is_multiple_of(block_elems).then_some(cols / block_elems)?.checked_mul(block_bytes)?;
    row_bytes.checked_mul(rows)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::ids;

    #[test]
    fn ids_are_those_of_the_projects_that_number_them() {
        let numbers: BTreeSet<_> =
            KNOWN.iter().map(|known| (known.dialect.map(|d| d as u32), known.id)).collect();
        assert_eq!(numbers.len(), KNOWN.len(), "an id is listed twice");
        assert_eq!((ids::GGML_TYPE_F32, ids::GGML_TYPE_F16, ids::GGML_TYPE_BF16), (0, 1, 30));
        assert_eq!((ids::GGML_TYPE_Q4_0, ids::GGML_TYPE_Q8_0, ids::GGML_TYPE_Q6_K), (2, 8, 14));
        assert_eq!((ids::GGML_TYPE_TQ1_0, ids::GGML_TYPE_TQ2_0, ids::BITNET_TYPE_I2_S), (34, 35, 36));
    }

    #[test]
    fn registered_types_are_as_they_are_known() {
        for ty in REGISTRY {
            for &(dialect, id) in ty.ids() {
                let known = known(dialect, id).expect("an id of the table");
                assert_eq!(known.name, ty.name());
                if let Some((block_elems, block_bytes)) = known.block {
                    assert_eq!(ty.block_elems(), block_elems, "{}", ty.name());
                    assert_eq!(ty.byte_len(3, 2 * block_elems), Ok(6 * block_bytes), "{}", ty.name());
                }
            }
        }
    }

    #[test]
    fn both_dialects_agree_below_the_clash() {
        for id in 0..FIRST_CLASH {
            assert_eq!(id_name(Dialect::Ggml, id), id_name(Dialect::BitNet, id));
        }
        assert_eq!(id_name(Dialect::Ggml, 42), Some("q2_0"));
        assert_eq!(id_name(Dialect::BitNet, 42), Some("tl2"));
        assert_eq!(id_name(Dialect::Ggml, 36), None);
    }
}
