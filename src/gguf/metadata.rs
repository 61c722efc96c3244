//! The key-value part of a file.

use std::collections::HashMap;

use super::{Array, GgufError, Value};

/// Keys and values in file order. Keys are unique.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

/// A kind of GGUF file without a model. Older files have no `general.type`: they are recognised by their
/// architecture or by a key.
struct OtherFile {
    file_type: &'static str,
    architecture: &'static str,
    key: &'static str,
    found: &'static str,
    way_out: &'static str,
}

const OTHER_FILES: [OtherFile; 4] = [
    OtherFile {
        file_type: "adapter",
        architecture: "adapter",
        key: "adapter.type",
        found: "a LoRA adapter",
        way_out: "it is loaded together with the file of its model",
    },
    OtherFile {
        file_type: "imatrix",
        architecture: "imatrix",
        key: "imatrix.chunk_count",
        found: "an importance matrix",
        way_out: "`sterna quantize` reads it together with a model; use the file of the model",
    },
    OtherFile {
        file_type: "mmproj",
        architecture: "clip",
        key: "clip.projector_type",
        found: "the image or audio encoder of a model",
        way_out: "only text models are supported; use the file of the text model",
    },
    OtherFile {
        file_type: "controlvector",
        architecture: "controlvector",
        key: "controlvector.model_hint",
        found: "a control vector",
        way_out: "steering vectors are not supported; use the file of the model",
    },
];

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident, $require:ident -> $ty:ty, $want:literal, $get:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// `None` if the key is missing.
        ///
        /// # Errors
        /// [`GgufError::WrongType`] with the key, the expected type and the actual one.
        pub fn $name(&self, key: &str) -> Result<Option<$ty>, GgufError> {
            self.typed(key, $want, $get)
        }

        $(#[$doc])*
        ///
        /// # Errors
        /// [`GgufError::MissingKey`]; [`GgufError::WrongType`].
        pub fn $require(&self, key: &str) -> Result<$ty, GgufError> {
            self.$name(key)?.ok_or_else(|| GgufError::MissingKey { key: key.to_owned(), want: $want })
        }
    )*};
}

impl Metadata {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Appends a key, or replaces its value if it exists.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        let (key, value) = (key.into(), value.into());
        match self.index.get(&key) {
            Some(&at) => self.entries[at].1 = value,
            None => {
                self.index.insert(key.clone(), self.entries.len());
                self.entries.push((key, value));
            }
        }
    }

    /// Checks that these keys do not describe an adapter, an importance matrix or a projector.
    ///
    /// # Errors
    /// [`GgufError::NotAModel`], with a suggestion.
    pub fn check_is_model(&self) -> Result<(), GgufError> {
        let is = |key: &str, name: &str| self.str(key).is_ok_and(|found| found == Some(name));
        let found = OTHER_FILES.iter().find(|other| {
            is("general.type", other.file_type)
                || is("general.architecture", other.architecture)
                || self.get(other.key).is_some()
        });
        found.map_or(Ok(()), |&OtherFile { found, way_out, .. }| Err(GgufError::NotAModel { found, way_out }))
    }

    /// Removes a key; returns its value.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.index.remove(key)?;
        for place in self.index.values_mut().filter(|place| **place > at) {
            *place -= 1;
        }
        Some(self.entries.remove(at).1)
    }

    getters! {
        /// An integer of any width that fits a u32.
        u32, require_u32 -> u32, "u32", |value| value.as_int().and_then(|int| int.try_into().ok());
        /// An integer of any width that fits a u64.
        u64, require_u64 -> u64, "u64", |value| value.as_int().and_then(|int| int.try_into().ok());
        /// An integer of any width that fits an i64.
        i64, require_i64 -> i64, "i64", |value| value.as_int().and_then(|int| int.try_into().ok());
        /// An integer of any width that fits a usize: counts and dimensions.
        usize, require_usize -> usize, "unsigned integer",
            |value| value.as_int().and_then(|int| int.try_into().ok());
        /// A float of either width or an integer, as the nearest f32.
        f32, require_f32 -> f32, "f32", Value::as_f32;
        /// A boolean.
        bool, require_bool -> bool, "bool", |value| match value {
            Value::Bool(truth) => Some(*truth),
            _ => None,
        };
        /// A string.
        str, require_str -> &str, "string", |value| match value {
            Value::Str(text) => Some(text.as_str()),
            _ => None,
        };
        /// An array of any type.
        array, require_array -> &Array, "array", as_array;
        /// An array of strings; nothing is copied.
        strs, require_strs -> impl ExactSizeIterator<Item = &str>, "array of strings",
            |value| as_array(value)?.strs();
        /// An array of integers of any width, each of which fits an i32.
        i32s, require_i32s -> impl ExactSizeIterator<Item = i32>, "array of i32",
            |value| as_array(value)?.i32s();
        /// An array of integers of any width, each of which fits a u32.
        u32s, require_u32s -> impl ExactSizeIterator<Item = u32>, "array of u32",
            |value| as_array(value)?.u32s();
        /// An array of floats of either width.
        f32s, require_f32s -> impl ExactSizeIterator<Item = f32>, "array of f32",
            |value| as_array(value)?.f32s();
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        want: &'static str,
        get: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match get(value) {
            Some(found) => Ok(Some(found)),
            None => Err(GgufError::WrongType { key: key.to_owned(), want, found: value.describe() }),
        }
    }

    /// Appends a new key; returns `false` if it exists.
    pub(super) fn insert_new(&mut self, key: String, value: Value) -> bool {
        if self.index.contains_key(&key) {
            return false;
        }
        self.set(key, value);
        true
    }
}

fn as_array(value: &Value) -> Option<&Array> {
    match value {
        Value::Array(array) => Some(array),
        _ => None,
    }
}
