//! Metadata values. Arrays are checked once, and decoded when they are read.

use bytes::Bytes;

use super::{GgufError, cursor::Cursor};

/// Type of a metadata value; the discriminants are those of the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ValueType {
    /// 8-bit unsigned.
    U8 = 0,
    /// 8-bit signed.
    I8 = 1,
    /// 16-bit unsigned.
    U16 = 2,
    /// 16-bit signed.
    I16 = 3,
    /// 32-bit unsigned.
    U32 = 4,
    /// 32-bit signed.
    I32 = 5,
    /// 32-bit float.
    F32 = 6,
    /// One byte, 0 or 1.
    Bool = 7,
    /// Length, then UTF-8.
    Str = 8,
    /// Element type, length, elements.
    Array = 9,
    /// 64-bit unsigned.
    U64 = 10,
    /// 64-bit signed.
    I64 = 11,
    /// 64-bit float.
    F64 = 12,
}

impl ValueType {
    /// Every type; the index is the type's id.
    pub const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::Str,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type with this id in files.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(id as usize).copied()
    }

    /// Lower-case name, such as `u32`.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::Str => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Size of one value in bytes; `None` if it varies.
    pub fn size_bytes(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Str | Self::Array => None,
        }
    }

    pub(super) fn read(cursor: &mut Cursor<'_>, what: &'static str) -> Result<Self, GgufError> {
        let offset = cursor.pos();
        let id = cursor.u32(what)?;
        Self::from_id(id).ok_or_else(|| GgufError::Malformed {
            what,
            offset,
            detail: format!("want a value type from 0 to 12, found {id}"),
        })
    }
}

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// 8-bit unsigned.
    U8(u8),
    /// 8-bit signed.
    I8(i8),
    /// 16-bit unsigned.
    U16(u16),
    /// 16-bit signed.
    I16(i16),
    /// 32-bit unsigned.
    U32(u32),
    /// 32-bit signed.
    I32(i32),
    /// 32-bit float.
    F32(f32),
    /// Boolean.
    Bool(bool),
    /// String.
    Str(String),
    /// Elements of one type, still encoded.
    Array(Array),
    /// 64-bit unsigned.
    U64(u64),
    /// 64-bit signed.
    I64(i64),
    /// 64-bit float.
    F64(f64),
}

impl Value {
    /// Its type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::Str(_) => ValueType::Str,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Description for messages: `u32 17`, `string`, `array of 3 f32`.
    pub fn describe(&self) -> String {
        match self {
            Self::Str(_) => "string".into(),
            Self::Array(array) => format!("array of {} {}", array.len(), array.elem_type().name()),
            Self::Bool(value) => format!("bool {value}"),
            Self::F32(value) => format!("f32 {value}"),
            Self::F64(value) => format!("f64 {value}"),
            integer => format!("{} {}", integer.value_type().name(), integer.as_int().unwrap_or_default()),
        }
    }

    /// The value of an integer of any width.
    pub fn as_int(&self) -> Option<i128> {
        match *self {
            Self::U8(value) => Some(value.into()),
            Self::I8(value) => Some(value.into()),
            Self::U16(value) => Some(value.into()),
            Self::I16(value) => Some(value.into()),
            Self::U32(value) => Some(value.into()),
            Self::I32(value) => Some(value.into()),
            Self::U64(value) => Some(value.into()),
            Self::I64(value) => Some(value.into()),
            _ => None,
        }
    }

    /// The value of a float of either width, or of an integer, as the nearest f32.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Self::F32(value) => Some(value),
            Self::F64(value) => Some(value as f32),
            ref other => other.as_int().map(|value| value as f32),
        }
    }

    pub(super) fn read(cursor: &mut Cursor<'_>, ty: ValueType, depth: usize) -> Result<Self, GgufError> {
        const WHAT: &str = "metadata value";
        Ok(match ty {
            ValueType::U8 => Self::U8(u8::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::I8 => Self::I8(i8::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::U16 => Self::U16(u16::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::I16 => Self::I16(i16::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::U32 => Self::U32(u32::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::I32 => Self::I32(i32::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::F32 => Self::F32(f32::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::U64 => Self::U64(u64::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::I64 => Self::I64(i64::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::Bool => {
                let offset = cursor.pos();
                let [byte] = cursor.array(WHAT)?;
                if byte > 1 {
                    let detail = format!("want a bool (0 or 1), found {byte}");
                    return Err(GgufError::Malformed { what: WHAT, offset, detail });
                }
                Self::Bool(byte == 1)
            }
            ValueType::Str => Self::Str(cursor.str("metadata string")?.to_owned()),
            ValueType::Array => Self::Array(Array::read(cursor, depth)?),
        })
    }

    /// Appends the encoded value, without its type.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::U8(value) => out.extend(value.to_le_bytes()),
            Self::I8(value) => out.extend(value.to_le_bytes()),
            Self::U16(value) => out.extend(value.to_le_bytes()),
            Self::I16(value) => out.extend(value.to_le_bytes()),
            Self::U32(value) => out.extend(value.to_le_bytes()),
            Self::I32(value) => out.extend(value.to_le_bytes()),
            Self::F32(value) => out.extend(value.to_le_bytes()),
            Self::U64(value) => out.extend(value.to_le_bytes()),
            Self::I64(value) => out.extend(value.to_le_bytes()),
            Self::F64(value) => out.extend(value.to_le_bytes()),
            Self::Bool(value) => out.push(u8::from(*value)),
            Self::Str(text) => encode_str(text, out),
            Self::Array(array) => array.encode(out),
        }
    }
}

/// Appends an encoded string: its length in bytes as u64, then the bytes.
pub(super) fn encode_str(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

macro_rules! from_scalar {
    ($($from:ty => $variant:ident),*) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(value)
            }
        }
    )*};
}
from_scalar!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32, bool => Bool,
    String => Str, u64 => U64, i64 => I64, f64 => F64, Array => Array);

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Str(text.to_owned())
    }
}

/// Maximum nesting of arrays. Real files do not nest arrays at all.
const MAX_DEPTH: usize = 8;

/// Elements of one type, still encoded. A vocabulary of 128 thousand strings costs nothing until it is read;
/// the bytes are shared with the mapped file.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    elem_type: ValueType,
    len: usize,
    /// The encoded elements, already checked: decoding them stays within the slice.
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
    /// If a value has another type.
    pub fn from_values<'a>(elem_type: ValueType, items: impl IntoIterator<Item = &'a Value>) -> Self {
        let (mut len, mut out) = (0, Vec::new());
        for item in items {
            assert_eq!(item.value_type(), elem_type, "all elements of an array have the same type");
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

    /// True if it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements of any type, one by one.
    pub fn values(&self) -> impl ExactSizeIterator<Item = Value> {
        let (file, mut pos) = (&self.bytes, 0);
        (0..self.len).map(move |_| {
            let rest = file.slice(pos..);
            let mut cursor = Cursor::new(&rest);
            let value = Value::read(&mut cursor, self.elem_type, 0).expect("checked on creation");
            pos += cursor.pos();
            value
        })
    }

    /// The elements of an array of strings; `None` for any other.
    pub fn strs(&self) -> Option<impl ExactSizeIterator<Item = &str>> {
        let mut cursor = Cursor::new(&self.bytes);
        (self.elem_type == ValueType::Str)
            .then(|| (0..self.len).map(move |_| cursor.str("array").expect("checked on creation")))
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

    /// The elements of an array of integers of any width, if each fits an i32.
    pub fn i32s(&self) -> Option<impl ExactSizeIterator<Item = i32>> {
        self.ints(|value| i32::try_from(value).ok())
    }

    /// The elements of an array of integers of any width, if each fits a u32.
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
        // A string takes at least 8 bytes and an array 12, so the size of the file limits every loop.
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
