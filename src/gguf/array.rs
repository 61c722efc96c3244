//! Arrays in metadata: checked once, then decoded as they are read.

use bytes::Bytes;

use super::value::{Value, ValueType, encode_str};
use super::{GgufError, cursor::Cursor};

/// How deep arrays may lie in one another. Real files have no nesting at all.
const MAX_DEPTH: usize = 8;

/// Elements of one type, kept as the file has them. A vocabulary of 128 thousand strings costs
/// nothing until it is read; the bytes are shared with the mapped file.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    elem_type: ValueType,
    len: usize,
    /// The elements, one after the other, already checked: walking them cannot leave the slice.
    bytes: Bytes,
}

impl Array {
    /// An array of strings.
    pub fn from_strs<'a>(items: impl IntoIterator<Item = &'a str>) -> Self {
        let (mut len, mut out) = (0, Vec::new());
        for item in items {
            encode_str(item, &mut out);
            len += 1;
        }
        Self { elem_type: ValueType::Str, len, bytes: out.into() }
    }

    /// An array of i32.
    pub fn from_i32s(items: impl IntoIterator<Item = i32>) -> Self {
        let bytes: Vec<u8> = items.into_iter().flat_map(i32::to_le_bytes).collect();
        Self { elem_type: ValueType::I32, len: bytes.len() / 4, bytes: bytes.into() }
    }

    /// An array of f32.
    pub fn from_f32s(items: impl IntoIterator<Item = f32>) -> Self {
        let bytes: Vec<u8> = items.into_iter().flat_map(f32::to_le_bytes).collect();
        Self { elem_type: ValueType::F32, len: bytes.len() / 4, bytes: bytes.into() }
    }

    /// An array of values, all of type `elem_type`.
    ///
    /// # Panics
    /// Where a value has another type.
    pub fn from_values<'a>(elem_type: ValueType, items: impl IntoIterator<Item = &'a Value>) -> Self {
        let (mut len, mut out) = (0, Vec::new());
        for item in items {
            assert_eq!(item.value_type(), elem_type, "an array holds one type");
            item.encode(&mut out);
            len += 1;
        }
        Self { elem_type, len, bytes: out.into() }
    }

    /// Type of the elements.
    pub fn elem_type(&self) -> ValueType {
        self.elem_type
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements one by one, whatever their type.
    pub fn values(&self) -> impl ExactSizeIterator<Item = Value> {
        let (file, mut pos) = (&self.bytes, 0);
        (0..self.len).map(move |_| {
            let rest = file.slice(pos..);
            let mut cursor = Cursor::new(&rest);
            let value = Value::read(&mut cursor, self.elem_type, 0).expect("checked when it was made");
            pos += cursor.pos();
            value
        })
    }

    /// The elements of an array of strings; `None` for any other.
    pub fn strs(&self) -> Option<impl ExactSizeIterator<Item = &str>> {
        let mut cursor = Cursor::new(&self.bytes);
        (self.elem_type == ValueType::Str)
            .then(|| (0..self.len).map(move |_| cursor.str("array").expect("checked when it was made")))
    }

    /// The elements of an array of arrays; `None` for any other.
    pub fn arrays(&self) -> Option<impl ExactSizeIterator<Item = Array>> {
        (self.elem_type == ValueType::Array).then(|| {
            self.values().map(|value| match value {
                Value::Array(array) => array,
                _ => unreachable!("elements of an array of arrays are arrays"),
            })
        })
    }

    /// The elements of an array of integers of any width, where each fits an i32.
    pub fn i32s(&self) -> Option<impl ExactSizeIterator<Item = i32>> {
        self.ints(|value| i32::try_from(value).ok())
    }

    /// The elements of an array of integers of any width, where each fits a u32.
    pub fn u32s(&self) -> Option<impl ExactSizeIterator<Item = u32>> {
        self.ints(|value| u32::try_from(value).ok())
    }

    /// The elements of an array of floats of either width, as f32.
    pub fn f32s(&self) -> Option<impl ExactSizeIterator<Item = f32>> {
        matches!(self.elem_type, ValueType::F32 | ValueType::F64)
            .then(|| self.values().map(|value| value.as_f32().expect("a float")))
    }

    fn ints<T>(&self, fit: impl Fn(i128) -> Option<T>) -> Option<impl ExactSizeIterator<Item = T>> {
        self.values()
            .all(|value| value.as_int().and_then(&fit).is_some())
            .then(|| self.values().map(move |value| value.as_int().and_then(&fit).expect("just checked")))
    }

    pub(super) fn read(cursor: &mut Cursor<'_>, depth: usize) -> Result<Self, GgufError> {
        const WHAT: &str = "metadata array";
        let offset = cursor.pos();
        let malformed = |detail| GgufError::Malformed { what: WHAT, offset, detail };
        if depth == MAX_DEPTH {
            return Err(malformed(format!("arrays nested more than {MAX_DEPTH} deep")));
        }
        let elem_type = ValueType::read(cursor, WHAT)?;
        let count = cursor.u64(WHAT)?;
        // A string takes 8 bytes at least and an array 12, so this bounds every walk by the file's size.
        let least = elem_type.size_bytes().unwrap_or(if elem_type == ValueType::Array { 12 } else { 8 });
        let want = count.saturating_mul(least as u64);
        let (start, left) = (cursor.pos(), cursor.left() as u64);
        if want > left {
            return Err(GgufError::Truncated { what: WHAT, offset: start, want, got: left });
        }
        match elem_type {
            ValueType::Str => {
                for _ in 0..count {
                    cursor.str("string in an array")?;
                }
            }
            ValueType::Array => {
                for _ in 0..count {
                    Self::read(cursor, depth + 1)?;
                }
            }
            ValueType::Bool => {
                let bytes = cursor.take(want, WHAT)?;
                if let Some(at) = bytes.iter().position(|byte| *byte > 1) {
                    return Err(malformed(format!("want bools (0 or 1), element {at} is {}", bytes[at])));
                }
            }
            _ => {
                cursor.take(want, WHAT)?;
            }
        }
        Ok(Self { elem_type, len: count as usize, bytes: cursor.since(start) })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend((self.elem_type as u32).to_le_bytes());
        out.extend((self.len as u64).to_le_bytes());
        out.extend(&self.bytes);
    }
}
