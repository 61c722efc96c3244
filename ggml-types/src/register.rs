//! Types of a program of its own: registered when it runs, beside those of the registry.

use std::sync::{PoisonError, RwLock};

use crate::types::REGISTRY;
use crate::{Dialect, QuantType, known};

/// The one piece of state of this crate. It only grows, and only while a program starts.
static OWN: RwLock<Vec<&'static dyn QuantType>> = RwLock::new(Vec::new());

/// Why a type cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// Another type has the name.
    #[error("there is a type {0} already")]
    Name(String),
    /// A name that no command line or file name could have.
    #[error("want a name of a to z, 0 to 9 and _, found {0:?}")]
    Spelling(String),
    /// Another type has the id.
    #[error("type {name}: id {id} of {dialect:?} is {of}")]
    Id {
        /// Name of the type.
        name: String,
        /// Whose numbering.
        dialect: Dialect,
        /// The number.
        id: u32,
        /// Whose it is.
        of: String,
    },
    /// A block, or rows that lie together, of nothing; or a row that has no size.
    #[error("type {name}: {detail}")]
    Shape {
        /// Name of the type.
        name: String,
        /// Expected and found.
        detail: String,
    },
}

/// Makes a type known to this process: files that carry one of its ids can be read, and the CPU runs it row
/// by row as it decodes itself. Other backends refuse it by name, because they have no kernels for it.
///
/// A program does so once, before it opens files.
///
/// # Errors
/// [`RegisterError`], by what is wrong.
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
        // Of an id that has a name here no type need be here.
        if let Some(of) = theirs.or_else(|| known::name(dialect, id)) {
            return Err(RegisterError::Id { name, dialect, id, of: of.to_owned() });
        }
    }
    own.push(ty);
    Ok(())
}

/// A type that somebody has registered.
pub(crate) fn find(is: impl Fn(&dyn QuantType) -> bool) -> Option<&'static dyn QuantType> {
    OWN.read().unwrap_or_else(PoisonError::into_inner).iter().copied().find(|ty| is(*ty))
}
