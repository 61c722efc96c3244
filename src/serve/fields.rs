//! The fields of a request. `null` counts as absent, unknown fields are ignored, and an error contains the
//! field, the expected value, and the actual one. [`request!`] declares fields: each row defines both how a
//! field is read and how `/openapi.json` describes it, so that the two always agree.

use std::marker::PhantomData;

use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::error::ApiError;

/// A kind of values; `kinds.rs` contains them.
pub trait Kind {
    /// The value that is read.
    type Value<'v>;

    /// Reads a value at `path` of a request.
    ///
    /// # Errors
    /// 400 with the expected and the actual value.
    fn read<'v>(&self, path: String, value: &'v Value) -> Result<Self::Value<'v>, ApiError>;

    /// Schema of the values.
    fn schema(&self, schemas: &mut SchemaGenerator) -> Value;
}

/// A kind of object in requests, declared with [`request!`].
pub trait Request: 'static {
    /// Name of its schema.
    const NAME: &'static str;

    /// Describes all of its fields.
    fn describe(to: &mut Description<'_>);

    /// True if it has a field called `name`.
    fn has(name: &str) -> bool;
}

/// Marker of a request that includes all fields of `Part`.
pub trait Includes<Part> {}

/// An object of a request.
pub struct Fields<'v, R> {
    pub(crate) any: AnyFields<'v>,
    request: PhantomData<fn() -> R>,
}

/// [`Fields`] of any kind of object: what is here is compiled once for all of them.
#[derive(Clone, Default)]
pub struct AnyFields<'v> {
    /// Path of the object in the request, with a trailing dot; empty for the request itself.
    path: String,
    /// `None` has no fields.
    map: Option<&'v Map<String, Value>>,
}

impl<'v> AnyFields<'v> {
    fn inside(name: String, value: &'v Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { path: name + ".", map: Some(map) }),
            other => Err(ApiError::field(name, "an object", other)),
        }
    }

    /// The path of a field in messages.
    pub fn path(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// The first of several fields that is present and not null, with its path.
    fn present(&self, names: &[&str]) -> Option<(String, &'v Value)> {
        names.iter().find_map(|name| {
            let value = self.map?.get(*name).filter(|value| !value.is_null())?;
            Some((self.path(name), value))
        })
    }

    /// Reads a field under the first of its names that is present and not null.
    pub(crate) fn read<K: Kind>(&self, names: &[&str], kind: &K) -> Result<Option<K::Value<'v>>, ApiError> {
        self.present(names).map(|(path, value)| kind.read(path, value)).transpose()
    }
}

impl<R> Default for Fields<'_, R> {
    fn default() -> Self {
        Self { any: AnyFields::default(), request: PhantomData }
    }
}

impl<'v, R> Fields<'v, R> {
    /// The whole request.
    pub fn of(map: &'v Map<String, Value>) -> Self {
        Self { any: AnyFields { path: String::new(), map: Some(map) }, request: PhantomData }
    }

    /// `value`, which is the field `name` of the request.
    ///
    /// # Errors
    /// 400 if it is not an object.
    pub fn inside(name: impl Into<String>, value: &'v Value) -> Result<Self, ApiError> {
        Ok(Self { any: AnyFields::inside(name.into(), value)?, request: PhantomData })
    }

    /// The path of a field in messages.
    pub fn path(&self, name: &str) -> String {
        self.any.path(name)
    }

    /// True if the field `name` is present and null.
    pub fn is_null(&self, name: &str) -> bool {
        self.any.map.is_some_and(|map| map.get(name).is_some_and(Value::is_null))
    }

    /// The object itself.
    pub fn value(&self) -> Value {
        Value::Object(self.any.map.cloned().unwrap_or_default())
    }

    /// A view of the fields that `Part` declares.
    pub fn part<Part>(&self) -> Fields<'v, Part>
    where
        R: Includes<Part>,
    {
        Fields { any: self.any.clone(), request: PhantomData }
    }
}

impl<'v, R: Request> Fields<'v, R> {
    /// The first of several fields that is present and not null, unparsed. A field that is not declared
    /// counts as absent.
    pub fn given(&self, names: &[&str]) -> Option<&'v Value> {
        let declared: Vec<&str> = names.iter().copied().filter(|name| R::has(name)).collect();
        self.any.present(&declared).map(|(_, value)| value)
    }
}

/// The schema of a kind of object.
pub struct Description<'g> {
    schemas: &'g mut SchemaGenerator,
    schema: Map<String, Value>,
    parts: Vec<Value>,
    properties: Map<String, Value>,
    required: Vec<&'static str>,
}

impl Description<'_> {
    /// Sets the description.
    pub fn about(&mut self, about: &str) {
        self.schema.insert("description".into(), about.trim().into());
    }

    /// Adds all fields of another kind.
    pub fn part<Part: Request>(&mut self) {
        self.parts.push(reference::<Part>(self.schemas));
    }

    /// Sets the allowed values of `type`.
    pub fn of_type(&mut self, of: Value) {
        self.properties.insert("type".into(), of);
    }

    /// Sets the kinds that it may be one of.
    pub fn one_of(&mut self, kinds: &[fn(&mut SchemaGenerator) -> Value]) {
        let kinds: Vec<Value> = kinds.iter().map(|of| of(self.schemas)).collect();
        self.schema.insert("anyOf".into(), kinds.into());
    }

    /// Adds a field with its names, its description, and restrictions of its kind's schema.
    pub fn field(
        &mut self,
        names: &[&'static str],
        about: &str,
        kind: &impl Kind,
        narrowed: Value,
        required: bool,
    ) {
        let schema = kind.schema(self.schemas);
        self.property(names, about, schema, narrowed, required);
    }

    fn property(
        &mut self,
        names: &[&'static str],
        about: &str,
        mut schema: Value,
        narrowed: Value,
        required: bool,
    ) {
        if let (Value::Object(schema), Value::Object(narrowed)) = (&mut schema, narrowed) {
            schema.extend(narrowed);
        }
        if required {
            self.required.push(names[0]);
        } else {
            schema = or_null(schema);
        }
        if !about.is_empty() {
            schema["description"] = about.trim().into();
        }
        self.properties.extend(names.iter().map(|name| ((*name).to_owned(), schema.clone())));
    }
}

impl From<Description<'_>> for Schema {
    fn from(description: Description<'_>) -> Self {
        let Description { mut schema, parts, properties, required, .. } = description;
        if !parts.is_empty() {
            schema.insert("allOf".into(), parts.into());
        }
        if !required.is_empty() {
            schema.insert("required".into(), required.into());
        }
        if !properties.is_empty() {
            schema.insert("properties".into(), properties.into());
        }
        schema.into()
    }
}

/// A reference to the schema of a kind of object.
pub fn reference<R: Request>(schemas: &mut SchemaGenerator) -> Value {
    reference_to(R::NAME, R::describe, schemas)
}

/// [`reference`] without generics: that of schemars compiles about 800 lines of LLVM for each type. It would
/// number types of the same name, which requests and answers must not have.
fn reference_to(name: &str, describe: fn(&mut Description<'_>), schemas: &mut SchemaGenerator) -> Value {
    if !schemas.definitions().contains_key(name) {
        // An object may contain others of its kind.
        schemas.definitions_mut().insert(name.to_owned(), Value::Null);
        let schema = described(describe, schemas).to_value();
        schemas.definitions_mut().insert(name.to_owned(), schema);
    }
    json!({ "$ref": format!("#{}/{name}", schemas.settings().definitions_path) })
}

fn described(describe: fn(&mut Description<'_>), schemas: &mut SchemaGenerator) -> Schema {
    let mut description = Description {
        schemas,
        schema: Map::from_iter([("type".to_owned(), json!("object"))]),
        parts: Vec::new(),
        properties: Map::new(),
        required: Vec::new(),
    };
    describe(&mut description);
    description.into()
}

/// The schema, extended to allow null.
fn or_null(mut schema: Value) -> Value {
    if schema.get("$ref").is_some() {
        return json!({ "anyOf": [schema, { "type": "null" }] });
    }
    if let Some(only) = schema.as_object_mut().and_then(|schema| schema.remove("const")) {
        schema["enum"] = json!([only]);
    }
    match &mut schema["type"] {
        of @ Value::String(_) => *of = json!([of.take(), "null"]),
        Value::Array(kinds) => kinds.push("null".into()),
        _ => drop(schema.as_object_mut().and_then(|schema| schema.remove("type"))),
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.push(Value::Null);
    }
    if let Some(Value::Array(kinds)) = schema.get_mut("anyOf") {
        kinds.push(json!({ "type": "null" }));
    }
    schema
}

/// A name as clients write it, without Rust's `r#` prefix.
pub fn plain(name: &'static str) -> &'static str {
    name.strip_prefix("r#").unwrap_or(name)
}

/// True if `name` is one of `names` as clients write them.
pub fn is_one(name: &str, names: &[&'static str]) -> bool {
    names.iter().any(|known| plain(known) == name)
}

/// The error for a required field that is missing.
pub fn missing(want: &'static str) -> impl Fn(String) -> ApiError {
    move |path| ApiError::missing(&path, want)
}

/// Declares kinds of objects in requests. A `struct` has rows, each of which becomes a method of [`Fields`]
/// and a property of the schema:
///
/// ```text
/// ..Part,                                   all fields of another kind
/// name | alias: Int(0, 20),                 read as this kind, under the first name that is present
/// name: Text as { "maxLength": 64 },        adds this to the schema
/// name: Text or missing("a text"),          required: the error if it is missing
/// ```
///
/// An `enum` is an object of one of several kinds, selected by their `type`, which each kind declares after
/// `of`. `enum X = NAMES` has fields that are only looked up by name. The caller must import the kinds it
/// names, and `Text` for the first form of `enum`, `Any` for the second.
macro_rules! request {
    ($(#[doc = $about:literal])* $vis:vis struct $request:ident $(of $tag:tt)? {
        $(..$part:ty,)*
        $($(#[doc = $doc:literal])* $field:ident $(| $alias:ident)*:
            $kind:ident $(<$of:ty>)? $(($($arg:expr),*))? $(as $narrowed:tt)? $(or $absent:expr)?,)*
    }) => {
        $(#[doc = $about])*
        $vis enum $request {}

        impl $crate::fields::Request for $request {
            const NAME: &'static str = stringify!($request);

            fn describe(to: &mut $crate::fields::Description<'_>) {
                to.about(concat!($($about),*));
                $(to.of_type(serde_json::json!($tag));)?
                $(to.part::<$part>();)*
                $(to.field(
                    &[$crate::fields::plain(stringify!($field)) $(, stringify!($alias))*],
                    concat!($($doc),*),
                    &<$kind $(<$of>)?>::new($($($arg),*)?),
                    request!(@narrowed $($narrowed)?),
                    request!(@is_there $($absent)?),
                );)*
            }

            fn has(name: &str) -> bool {
                let own: &[&'static str] = &[$(stringify!($field) $(, stringify!($alias))*),*];
                $crate::fields::is_one(name, own) $(|| <$part>::has(name))*
            }
        }

        $(impl $crate::fields::Includes<$part> for $request {})*

        impl<'v> $crate::fields::Fields<'v, $request> {
            $(request!(@method [$($doc)*] $field [$($alias)*] [$kind $(<$of>)?]
                [$($($arg),*)?] $($absent)?);)*
        }
    };
    ($(#[doc = $about:literal])* $vis:vis enum $request:ident { $($of:ident,)* }) => {
        $(#[doc = $about])*
        $vis enum $request {}

        impl $crate::fields::Request for $request {
            const NAME: &'static str = stringify!($request);

            fn describe(to: &mut $crate::fields::Description<'_>) {
                to.about(concat!($($about),*));
                to.one_of(&[$($crate::fields::reference::<$of>),*]);
            }

            fn has(name: &str) -> bool {
                name == "type" $(|| $of::has(name))*
            }
        }

        $(impl $crate::fields::Includes<$of> for $request {})*

        impl<'v> $crate::fields::Fields<'v, $request> {
            request!(@method [] r#type [] [Text] []);
        }
    };
    ($(#[doc = $about:literal])* $vis:vis enum $request:ident = $names:expr;) => {
        $(#[doc = $about])*
        $vis enum $request {}

        impl $crate::fields::Request for $request {
            const NAME: &'static str = stringify!($request);

            fn describe(to: &mut $crate::fields::Description<'_>) {
                to.about(concat!($($about),*));
                for name in $names.iter().copied() {
                    to.field(&[name], "", &Any, serde_json::Value::Null, false);
                }
            }

            fn has(name: &str) -> bool {
                $names.contains(&name)
            }
        }
    };
    (@narrowed) => { serde_json::Value::Null };
    (@narrowed $narrowed:tt) => { serde_json::json!($narrowed) };
    (@is_there) => { false };
    (@is_there $absent:expr) => { true };
    (@method [$($doc:literal)*] $field:ident [$($alias:ident)*] [$kind:ty] [$($arg:expr),*]) => {
        $(#[doc = $doc])*
        pub(crate) fn $field(
            &self,
        ) -> Result<Option<<$kind as $crate::fields::Kind>::Value<'v>>, $crate::error::ApiError> {
            let names = [$crate::fields::plain(stringify!($field)) $(, stringify!($alias))*];
            self.any.read(&names, &<$kind>::new($($arg),*))
        }
    };
    (@method [$($doc:literal)*] $field:ident [$($alias:ident)*] [$kind:ty] [$($arg:expr),*] $absent:expr) => {
        $(#[doc = $doc])*
        pub(crate) fn $field(
            &self,
        ) -> Result<<$kind as $crate::fields::Kind>::Value<'v>, $crate::error::ApiError> {
            let names = [$crate::fields::plain(stringify!($field)) $(, stringify!($alias))*];
            let value = self.any.read(&names, &<$kind>::new($($arg),*))?;
            value.ok_or_else(|| ($absent)(self.path(names[0])))
        }
    };
}
pub(crate) use request;

#[cfg(test)]
mod tests {
    use schemars::generate::SchemaSettings;

    use super::*;
    use crate::kinds::{Any, Bool, Float, Int, List, Object, Only, Text, Texts, Word};

    const SPARE: &[&str] = &["spare", "other"];

    request! {
        /// An object with a field
        /// of each kind.
        struct Sample {
            ..Part,
            ..Spare,
            count | n_count: Int(1, 4),
            share: Float(0.001, 1.0),
            /// Stop texts.
            stop: Texts(2, 8),
            word: Word<u8>(&[("one", 1), ("two", 2)]),
            lora: Only(|| json!([[]])),
            object: Object<Part> as { "required": ["flag"] },
            list: List<Either>(1) or missing("a list"),
            short: Text as { "maxLength": 1 },
        }
    }

    request! {
        /// A part.
        struct Part {
            flag: Bool,
        }
    }

    request! {
        /// One of two kinds.
        enum Either { Part, Tagged, }
    }

    request! {
        /// An object with a type.
        struct Tagged of { "const": "tagged" } {
            text: Text or missing("a text"),
        }
    }

    request! {
        /// Extra fields.
        enum Spare = SPARE;
    }

    fn fields(value: &Value) -> Fields<'_, Sample> {
        Fields::of(value.as_object().unwrap())
    }

    /// Checks an error's field and message.
    fn wrong<T: std::fmt::Debug>(read: Result<T, ApiError>, param: &str, message: &str) {
        let err = read.unwrap_err();
        assert_eq!((err.param.as_deref(), err.message.as_str()), (Some(param), message));
    }

    #[test]
    fn null_is_absent_and_wrong_values_are_named() {
        let empty = json!({ "count": null, "n_count": null });
        assert_eq!(fields(&empty).count(), Ok(None));
        wrong(fields(&empty).list().map(|_| ()), "list", "`list` is missing: want a list");
        let value = json!({
            "count": null, "n_count": 3.0, "share": 0.5, "stop": ["a", ""], "word": "two", "lora": [],
            "object": { "flag": true }, "list": [{ "text": "a" }], "spare": null, "other": 1, "not": 2,
        });
        let sample = fields(&value);
        assert_eq!(sample.count(), Ok(Some(3)));
        assert_eq!(sample.share(), Ok(Some(0.5)));
        assert_eq!(sample.stop(), Ok(Some(vec!["a".to_owned()])));
        assert_eq!(sample.word(), Ok(Some(2)));
        assert_eq!(sample.lora(), Ok(Some(())));
        assert_eq!(sample.object().unwrap().unwrap().flag(), Ok(Some(true)));
        assert_eq!(sample.given(&["spare", "other"]), Some(&json!(1)));
        assert_eq!(sample.given(&["not"]), None);
        let entry = sample.list().unwrap().iter().next().unwrap().unwrap();
        assert_eq!((entry.r#type(), entry.part::<Tagged>().text()), (Ok(None), Ok("a")));
        assert_eq!(sample.part::<Part>().flag(), Ok(None));

        let value = json!({
            "count": 0, "n_count": 1, "share": 1e300, "stop": [1], "word": "three", "lora": 1,
            "object": { "flag": 0 }, "list": [{ "type": "tagged" }], "short": 1,
        });
        let sample = fields(&value);
        wrong(sample.count(), "count", "`count`: want a whole number from 1 to 4, got 0");
        wrong(sample.share(), "share", "`share`: want a number from 0.001 to 1, got 1e+300");
        let want = "`stop`: want a text or a list of up to 2 texts of up to 8 bytes, got [1]";
        wrong(sample.stop(), "stop", want);
        wrong(sample.word(), "word", "`word`: want one of one, two, got \"three\"");
        wrong(sample.lora(), "lora", "`lora` is not supported yet");
        let inner = sample.object().unwrap().unwrap();
        wrong(inner.flag(), "object.flag", "`object.flag`: want true or false, got 0");
        let entry = sample.list().unwrap().iter().next().unwrap().unwrap();
        assert_eq!(entry.r#type(), Ok(Some("tagged")));
        let text = entry.part::<Tagged>().text();
        wrong(text, "list[0].text", "`list[0].text` is missing: want a text");
        wrong(sample.short(), "short", "`short`: want a text, got 1");
    }

    #[test]
    fn rows_are_what_the_schema_has() {
        let mut schemas = SchemaSettings::draft2020_12().into_generator();
        let sample = described(Sample::describe, &mut schemas).to_value();
        let null_or = |of: &str| json!([of, "null"]);
        let count = json!({ "type": null_or("integer"), "minimum": 1, "maximum": 4 });
        let text = json!({ "type": "string", "maxLength": 2 });
        let part = json!({ "$ref": "#/$defs/Part" });
        let list = json!({ "type": "array", "maxItems": 1, "items": { "$ref": "#/$defs/Either" } });
        let wanted = json!({
            "type": "object",
            "description": "An object with a field of each kind.",
            "allOf": [part, { "$ref": "#/$defs/Spare" }],
            "required": ["list"],
            "properties": {
                "count": count,
                "n_count": count,
                "share": { "type": null_or("number"), "minimum": 0.001, "maximum": 1 },
                "stop": {
                    "anyOf": [text, { "type": "array", "items": text, "maxItems": 2 }, { "type": "null" }],
                    "description": "Stop texts.",
                },
                "word": { "enum": ["one", "two", null] },
                "lora": { "enum": [[], null], "description": "Not supported." },
                "object": { "anyOf": [
                    { "$ref": "#/$defs/Part", "required": ["flag"] }, { "type": "null" }] },
                "list": list,
                "short": { "type": null_or("string"), "maxLength": 1 },
            },
        });
        assert_eq!(sample, wanted);
        let definitions = schemas.take_definitions(true);
        assert_eq!(definitions["Spare"]["properties"], json!({ "spare": {}, "other": {} }));
        assert_eq!(definitions["Tagged"]["properties"]["type"], json!({ "const": "tagged" }));
        let either = json!([part, { "$ref": "#/$defs/Tagged" }]);
        assert_eq!(definitions["Either"]["anyOf"], either);
        // The described fields are exactly those that can be looked up by name.
        let names = ["properties", "allOf"].map(|key| sample[key].clone());
        let [Value::Object(own), _] = names else { panic!("{sample}") };
        let parts = ["flag", "spare", "other"];
        assert!(own.keys().map(String::as_str).chain(parts).all(Sample::has) && !Sample::has("text"));
    }
}
