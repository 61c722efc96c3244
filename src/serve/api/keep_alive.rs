//! Ollama's `keep_alive`: a model may be unloaded after an answer.

use std::sync::Arc;

use serde_json::Value;

use super::Received;
use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Fields, request};
use crate::instance::Instance;
use crate::kinds::Any;

request! {
    /// The time that a model stays loaded.
    pub(super) struct KeepAlive {
        /// 0 unloads the model after the answer, if it can be loaded again. Other times are ignored.
        keep_alive: Any as { "type": ["string", "number"] },
    }
}

/// Unloads a model when it is dropped.
pub(super) struct Unload {
    app: Arc<App>,
    at: usize,
    model: Arc<Instance>,
}

impl Unload {
    /// `None` if the model of a request stays loaded.
    pub(super) fn asked(read: &Received, fields: &Fields<'_, KeepAlive>) -> Result<Option<Self>, ApiError> {
        let unloads = fields.keep_alive()?.is_some_and(is_zero) && read.app.models.by_name;
        Ok(unloads.then(|| Self { app: Arc::clone(&read.app), at: read.at, model: Arc::clone(&read.model) }))
    }
}

impl Drop for Unload {
    fn drop(&mut self) {
        // It may have been unloaded and loaded again meanwhile.
        self.app.models.unload(self.at, Some(&self.model));
    }
}

/// True for a duration of zero: 0, or a text such as `0s` or `0h0m`.
fn is_zero(time: &Value) -> bool {
    match time {
        Value::String(text) => text.contains('0') && !text.contains(|c: char| ('1'..='9').contains(&c)),
        number => number.as_f64() == Some(0.0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn zero_has_many_spellings() {
        for zero in [json!(0), json!(0.0), json!(-0.0), json!("0"), json!("0s"), json!("0h0m0.0s")] {
            assert!(is_zero(&zero), "{zero}");
        }
        for other in [json!(-1), json!(0.5), json!("10m"), json!("-1"), json!(""), json!("m"), json!(false)] {
            assert!(!is_zero(&other), "{other}");
        }
    }
}
