//! The registry of weight types. A new type is one file here and its two lines below.

use crate::{Dialect, QuantType};

/// Every weight type.
pub static REGISTRY: &[&dyn QuantType] = &[];

/// The type that `dialect` numbers `id`.
pub fn by_id(dialect: Dialect, id: u32) -> Option<&'static dyn QuantType> {
    REGISTRY.iter().copied().find(|ty| ty.ids().contains(&(dialect, id)))
}

/// The type called `name`.
pub fn by_name(name: &str) -> Option<&'static dyn QuantType> {
    REGISTRY.iter().copied().find(|ty| ty.name() == name)
}
