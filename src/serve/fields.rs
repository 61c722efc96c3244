//! The fields of a request, read with care: `null` is absent, unknown fields are left alone, and an error
//! names the field, what it may be, and what it was.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::ApiError;

/// An object of a request.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// Its path in the request, with a dot behind; empty for the request itself.
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    /// The whole request.
    ///
    /// # Errors
    /// If it is no object.
    pub fn of(value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { path: String::new(), map }),
            other => Err(ApiError::bad(format!("the request must be a JSON object, not {}", kind(&other)))),
        }
    }

    /// `value`, which is the field `name` of something.
    ///
    /// # Errors
    /// If it is no object.
    pub fn inside(name: impl Into<String>, value: &Value) -> Result<Self, ApiError> {
        let name = name.into();
        match value {
            Value::Object(map) => Ok(Self { path: name + ".", map: map.clone() }),
            other => Err(ApiError::field(name, "an object", other)),
        }
    }

    /// The path of a field, as messages name it.
    pub fn path(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// A field that is there and not null.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The first of several names of one field that is there.
    pub fn first<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        names.iter().copied().find(|name| self.get(name).is_some())
    }

    fn wrong(&self, name: &str, want: &str, got: &Value) -> ApiError {
        ApiError::field(self.path(name), want, got)
    }

    /// A field that is true or false.
    ///
    /// # Errors
    /// If it is something else.
    pub fn bool(&self, name: &str) -> Result<Option<bool>, ApiError> {
        let read = |value: &Value| value.as_bool().ok_or_else(|| self.wrong(name, "true or false", value));
        self.get(name).map(read).transpose()
    }

    /// A text.
    ///
    /// # Errors
    /// If it is something else.
    pub fn text(&self, name: &str) -> Result<Option<&str>, ApiError> {
        let read = |value| Value::as_str(value).ok_or_else(|| self.wrong(name, "a text", value));
        self.get(name).map(read).transpose()
    }

    /// A number of `range`.
    ///
    /// # Errors
    /// If it is something else.
    pub fn float(&self, name: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_f64().map(|number| number as f32);
        match number.filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let want = format!("a number from {} to {}", range.start(), range.end());
                Err(self.wrong(name, &want, value))
            }
        }
    }

    /// A whole number of `range`; `2.0` is one.
    ///
    /// # Errors
    /// If it is something else.
    pub fn int(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match int(value).filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let want = format!("a whole number from {} to {}", range.start(), range.end());
                Err(self.wrong(name, &want, value))
            }
        }
    }

    /// A count of at least `least` and at most `most`.
    ///
    /// # Errors
    /// If it is something else.
    pub fn count(&self, name: &str, least: usize, most: usize) -> Result<Option<usize>, ApiError> {
        let range = least as i64..=i64::try_from(most).unwrap_or(i64::MAX);
        Ok(self.int(name, range)?.map(|count| count as usize))
    }

    /// A text or a list of texts: at most `most` of at most `max_bytes`, none empty.
    ///
    /// # Errors
    /// If it is something else.
    pub fn texts(&self, name: &str, most: usize, max_bytes: usize) -> Result<Vec<String>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        let want = || format!("a text or a list of up to {most} texts of up to {max_bytes} bytes");
        let list = match value {
            Value::Array(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        let texts: Option<Vec<String>> = list.iter().map(|text| text.as_str().map(str::to_owned)).collect();
        let texts = texts.ok_or_else(|| self.wrong(name, &want(), value))?;
        if texts.len() > most || texts.iter().any(|text| text.len() > max_bytes) {
            return Err(self.wrong(name, &want(), value));
        }
        Ok(texts.into_iter().filter(|text| !text.is_empty()).collect())
    }

    /// A list.
    ///
    /// # Errors
    /// If it is something else, or has more than `most` entries.
    pub fn list(&self, name: &str, most: usize) -> Result<Option<&[Value]>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value {
            Value::Array(list) if list.len() <= most => Ok(Some(list)),
            other => Err(self.wrong(name, &format!("a list of at most {most} entries"), other)),
        }
    }

    /// An object.
    ///
    /// # Errors
    /// If it is something else.
    pub fn object(&self, name: &str) -> Result<Option<Self>, ApiError> {
        self.get(name).map(|value| Self::inside(self.path(name), value)).transpose()
    }
}

/// A whole number, however it is written.
pub fn int(value: &Value) -> Option<i64> {
    let whole = |number: f64| {
        // Beyond this a float has no ones, and may not fit.
        (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
    };
    value.as_i64().or_else(|| value.as_f64().and_then(whole))
}

/// Kind of a value, for messages.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_is_absent_and_wrong_values_are_named() {
        let fields = Fields::of(json!({
            "n": null, "k": 3.0, "big": 1e300, "neg": -1, "t": 0.5, "s": "x", "stop": ["a", ""],
            "o": {"b": 1},
        }))
        .unwrap();
        assert_eq!(fields.count("n", 1, 4), Ok(None));
        assert_eq!(fields.count("k", 1, 4), Ok(Some(3)));
        assert_eq!(fields.float("t", 0.0..=1.0), Ok(Some(0.5)));
        assert_eq!(fields.texts("stop", 4, 8), Ok(vec!["a".to_owned()]));
        assert_eq!(fields.texts("s", 4, 8), Ok(vec!["x".to_owned()]));
        for (name, want) in [("big", "1 to 4"), ("neg", "1 to 4"), ("t", "1 to 4"), ("s", "1 to 4")] {
            let err = fields.count(name, 1, 4).unwrap_err();
            assert_eq!(err.param.as_deref(), Some(name));
            assert!(err.message.contains(want) && err.message.contains(name), "{}", err.message);
        }
        let inner = fields.object("o").unwrap().unwrap();
        assert_eq!(inner.text("b").unwrap_err().param.as_deref(), Some("o.b"));
        assert!(Fields::of(json!([1])).unwrap_err().message.contains("a list"));
    }
}
