//! Kinds of field values: each defines how a value is parsed, and the matching schema.

use std::marker::PhantomData;

use schemars::SchemaGenerator;
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::fields::{Fields, Kind, Request, reference};

/// Maximum of numbers that clients keep in 32 bits.
pub const MAX_INT: i64 = i32::MAX as i64;

/// True or false.
pub struct Bool;

impl Bool {
    /// True or false.
    pub const fn new() -> Self {
        Self
    }
}

impl Kind for Bool {
    type Value<'v> = bool;

    fn read(&self, path: String, value: &Value) -> Result<bool, ApiError> {
        value.as_bool().ok_or_else(|| ApiError::field(path, "true or false", value))
    }

    fn schema(&self, _: &mut SchemaGenerator) -> Value {
        json!({ "type": "boolean" })
    }
}

/// A text.
pub struct Text;

impl Text {
    /// Any text.
    pub const fn new() -> Self {
        Self
    }
}

impl Kind for Text {
    type Value<'v> = &'v str;

    fn read<'v>(&self, path: String, value: &'v Value) -> Result<&'v str, ApiError> {
        value.as_str().ok_or_else(|| ApiError::field(path, "a text", value))
    }

    fn schema(&self, _: &mut SchemaGenerator) -> Value {
        json!({ "type": "string" })
    }
}

/// One of several words, each of which means a `T`.
pub struct Word<T: 'static>(&'static [(&'static str, T)]);

impl<T> Word<T> {
    /// A value that is one of these words.
    pub const fn new(words: &'static [(&'static str, T)]) -> Self {
        Self(words)
    }

    /// The words as text, for messages.
    pub fn want(&self) -> String {
        let words: Vec<&str> = self.0.iter().map(|(word, _)| *word).collect();
        format!("one of {}", words.join(", "))
    }
}

impl<T: Copy> Kind for Word<T> {
    type Value<'v> = T;

    fn read(&self, path: String, value: &Value) -> Result<T, ApiError> {
        let text = Text.read(path.clone(), value)?;
        let known = self.0.iter().find(|(word, _)| *word == text);
        known.map(|(_, meant)| *meant).ok_or_else(|| ApiError::field(path, &self.want(), value))
    }

    fn schema(&self, _: &mut SchemaGenerator) -> Value {
        json!({ "enum": self.0.iter().map(|(word, _)| *word).collect::<Vec<_>>() })
    }
}

/// A number within a range.
pub struct Float(f32, f32);

impl Float {
    /// Numbers from `least` to `most`.
    pub const fn new(least: f32, most: f32) -> Self {
        Self(least, most)
    }
}

impl Kind for Float {
    type Value<'v> = f32;

    fn read(&self, path: String, value: &Value) -> Result<f32, ApiError> {
        let Self(least, most) = *self;
        let number = value.as_f64().map(|number| number as f32).filter(|x| (least..=most).contains(x));
        number.ok_or_else(|| ApiError::field(path, &format!("a number from {least} to {most}"), value))
    }

    fn schema(&self, _: &mut SchemaGenerator) -> Value {
        // The shortest decimal, 0.001 for instance, rather than that of the nearest f64.
        let bound = |bound: f32| bound.to_string().parse::<serde_json::Number>().ok();
        json!({ "type": "number", "minimum": bound(self.0), "maximum": bound(self.1) })
    }
}

/// A whole number within a range; `2.0` is accepted.
pub struct Int(i64, i64);

impl Int {
    /// Numbers from `least` to `most`.
    pub const fn new(least: i64, most: i64) -> Self {
        Self(least, most)
    }
}

impl Kind for Int {
    type Value<'v> = i64;

    fn read(&self, path: String, value: &Value) -> Result<i64, ApiError> {
        let Self(least, most) = *self;
        let want = || format!("a whole number from {least} to {most}");
        let number = int(value).filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| ApiError::field(path, &want(), value))
    }

    fn schema(&self, _: &mut SchemaGenerator) -> Value {
        let mut schema = json!({ "type": "integer" });
        if self.0 > i64::MIN {
            schema["minimum"] = self.0.into();
        }
        if self.1 < i64::MAX {
            schema["maximum"] = self.1.into();
        }
        schema
    }
}

/// A whole number whose maximum depends on the model.
pub struct UpTo(i64);

impl UpTo {
    /// Numbers from `least` up.
    pub const fn new(least: i64) -> Self {
        Self(least)
    }
}

/// A whole number whose maximum is not known yet.
pub struct Unread<'v> {
    path: String,
    value: &'v Value,
    least: i64,
}

impl Unread<'_> {
    /// Returns the number.
    ///
    /// # Errors
    /// 400 that names the field, if it is not a whole number or exceeds `most`.
    pub fn up_to(self, most: usize) -> Result<i64, ApiError> {
        Int(self.least, i64::try_from(most).unwrap_or(i64::MAX)).read(self.path, self.value)
    }
}

impl Kind for UpTo {
    type Value<'v> = Unread<'v>;

    fn read<'v>(&self, path: String, value: &'v Value) -> Result<Unread<'v>, ApiError> {
        Ok(Unread { path, value, least: self.0 })
    }

    fn schema(&self, _: &mut SchemaGenerator) -> Value {
        json!({ "type": "integer", "minimum": self.0 })
    }
}

/// A text or a list of texts, limited in number and size. Empty texts are dropped.
pub struct Texts(usize, usize);

impl Texts {
    /// At most `most` texts of at most `max_bytes` each.
    pub const fn new(most: usize, max_bytes: usize) -> Self {
        Self(most, max_bytes)
    }
}

impl Kind for Texts {
    type Value<'v> = Vec<String>;

    fn read(&self, path: String, value: &Value) -> Result<Vec<String>, ApiError> {
        let Self(most, max_bytes) = *self;
        let list = match value {
            Value::Array(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        let texts: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
        match texts.filter(|texts| texts.len() <= most && texts.iter().all(|text| text.len() <= max_bytes)) {
            Some(texts) => Ok(texts.into_iter().filter(|text| !text.is_empty()).map(str::to_owned).collect()),
            None => {
                let want = format!("a text or a list of up to {most} texts of up to {max_bytes} bytes");
                Err(ApiError::field(path, &want, value))
            }
        }
    }

    fn schema(&self, _: &mut SchemaGenerator) -> Value {
        // The schema counts characters, which have up to 4 bytes.
        let text = json!({ "type": "string", "maxLength": self.1 / 4 });
        json!({ "anyOf": [text, { "type": "array", "items": text, "maxItems": self.0 }] })
    }
}

/// A list of anything; `as` adds the schema of its entries.
pub struct Array(usize);

impl Array {
    /// At most `most` entries.
    pub const fn new(most: usize) -> Self {
        Self(most)
    }
}

impl Kind for Array {
    type Value<'v> = &'v [Value];

    fn read<'v>(&self, path: String, value: &'v Value) -> Result<&'v [Value], ApiError> {
        match value {
            Value::Array(list) if list.len() <= self.0 => Ok(list),
            other => Err(ApiError::field(path, &format!("a list of at most {} entries", self.0), other)),
        }
    }

    fn schema(&self, _: &mut SchemaGenerator) -> Value {
        match self.0 {
            usize::MAX => json!({ "type": "array" }),
            most => json!({ "type": "array", "maxItems": most }),
        }
    }
}

/// A list of objects.
pub struct List<R>(Array, PhantomData<fn() -> R>);

impl<R> List<R> {
    /// At most `most` entries.
    pub const fn new(most: usize) -> Self {
        Self(Array::new(most), PhantomData)
    }
}

/// Entries of a list of objects.
pub struct Entries<'v, R> {
    path: String,
    list: &'v [Value],
    request: PhantomData<fn() -> R>,
}

impl<R> Default for Entries<'_, R> {
    fn default() -> Self {
        Self::of(String::new(), &[])
    }
}

impl<'v, R> Entries<'v, R> {
    /// Entries of a list at `path`.
    pub fn of(path: String, list: &'v [Value]) -> Self {
        Self { path, list, request: PhantomData }
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Iterates over the entries; an entry that is not an object is an error.
    pub fn iter(&self) -> impl Iterator<Item = Result<Fields<'v, R>, ApiError>> {
        let entries = self.list.iter().enumerate();
        entries.map(|(at, value)| Fields::inside(format!("{}[{at}]", self.path), value))
    }
}

impl<R: Request> Kind for List<R> {
    type Value<'v> = Entries<'v, R>;

    fn read<'v>(&self, path: String, value: &'v Value) -> Result<Entries<'v, R>, ApiError> {
        let list = self.0.read(path.clone(), value)?;
        Ok(Entries::of(path, list))
    }

    fn schema(&self, schemas: &mut SchemaGenerator) -> Value {
        let mut schema = self.0.schema(schemas);
        schema["items"] = reference::<R>(schemas);
        schema
    }
}

/// An object.
pub struct Object<R>(PhantomData<fn() -> R>);

impl<R> Object<R> {
    /// An object of kind `R`.
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<R: Request> Kind for Object<R> {
    type Value<'v> = Fields<'v, R>;

    fn read<'v>(&self, path: String, value: &'v Value) -> Result<Fields<'v, R>, ApiError> {
        Fields::inside(path, value)
    }

    fn schema(&self, schemas: &mut SchemaGenerator) -> Value {
        reference::<R>(schemas)
    }
}

/// An object with any fields.
pub struct Dict;

impl Dict {
    /// Any object.
    pub const fn new() -> Self {
        Self
    }
}

impl Kind for Dict {
    type Value<'v> = &'v Map<String, Value>;

    fn read<'v>(&self, path: String, value: &'v Value) -> Result<&'v Map<String, Value>, ApiError> {
        value.as_object().ok_or_else(|| ApiError::field(path, "an object", value))
    }

    fn schema(&self, _: &mut SchemaGenerator) -> Value {
        json!({ "type": "object" })
    }
}

/// A text or a list of objects, parsed by the caller.
pub struct TextOr<R>(usize, PhantomData<fn() -> R>);

impl<R> TextOr<R> {
    /// A list must have at least `least` entries.
    pub const fn new(least: usize) -> Self {
        Self(least, PhantomData)
    }
}

impl<R: Request> Kind for TextOr<R> {
    type Value<'v> = &'v Value;

    fn read<'v>(&self, _: String, value: &'v Value) -> Result<&'v Value, ApiError> {
        Ok(value)
    }

    fn schema(&self, schemas: &mut SchemaGenerator) -> Value {
        let mut list = json!({ "type": "array", "items": reference::<R>(schemas) });
        if self.0 > 0 {
            list["minItems"] = self.0.into();
        }
        json!({ "anyOf": [{ "type": "string" }, list] })
    }
}

/// A value parsed by the caller; `as` adds its schema.
pub struct Any;

impl Any {
    /// Any value.
    pub const fn new() -> Self {
        Self
    }
}

impl Kind for Any {
    type Value<'v> = &'v Value;

    fn read<'v>(&self, _: String, value: &'v Value) -> Result<&'v Value, ApiError> {
        Ok(value)
    }

    fn schema(&self, _: &mut SchemaGenerator) -> Value {
        json!({})
    }
}

/// A field of other servers that is not supported here. Only values that turn the feature off are accepted.
pub struct Only(fn() -> Value);

impl Only {
    /// The accepted values. One with a decimal point also matches other spellings of that number.
    pub const fn new(values: fn() -> Value) -> Self {
        Self(values)
    }
}

impl Kind for Only {
    type Value<'v> = ();

    fn read(&self, path: String, value: &Value) -> Result<(), ApiError> {
        let values = (self.0)();
        let is = |own: &Value| own == value || own.is_f64() && own.as_f64() == value.as_f64();
        match values.as_array().is_some_and(|values| values.iter().any(is)) {
            true => Ok(()),
            false => Err(ApiError::unsupported(path)),
        }
    }

    fn schema(&self, _: &mut SchemaGenerator) -> Value {
        json!({ "enum": (self.0)(), "description": "Not supported." })
    }
}

/// A whole number in any spelling.
pub fn int(value: &Value) -> Option<i64> {
    let whole = |number: f64| {
        // Larger floats may not be exact, or may not fit.
        (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
    };
    value.as_i64().or_else(|| value.as_f64().and_then(whole))
}
