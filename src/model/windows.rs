//! The layers with a sliding window, from a file's metadata.

use super::ModelError;
use sterna_gguf::{Metadata, Value};

/// The windows of a model's layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Positions, including the row's own.
    size: u32,
    pattern: Pattern,
}

/// The layers with a sliding window.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    /// Layers `n - 1`, `2 n - 1`, .. have no window. Not stored as a list: a file may claim any number of
    /// layers.
    AllButEvery(usize),
    /// Layers `0`, `n`, .. have no window.
    AllButFirst(usize),
    /// One entry per layer: true for a sliding window.
    Listed(Vec<bool>),
}

impl Windows {
    /// Reads `attention.sliding_window` and its pattern under the name of `architecture`. A pattern is a
    /// boolean per layer, or a number `n`: layers `n - 1`, `2 n - 1` and so on have no window. Without a
    /// pattern, `n` is `period`.
    ///
    /// # Errors
    /// [`ModelError`] for a window that is missing or 0, and for a pattern that does not match the layers.
    pub fn read(
        metadata: &Metadata,
        architecture: &str,
        n_layers: usize,
        period: usize,
    ) -> Result<Self, ModelError> {
        let key = |name: &str| format!("{architecture}.attention.{name}");
        let wrong =
            |name: &str, want: String, got: String| ModelError::Metadata { key: key(name), want, got };
        let size = match super::hyper::number(metadata, &key("sliding_window"), n_layers)? {
            Some(size) => u32::try_from(size).unwrap_or(u32::MAX),
            None => metadata.require_u32(&key("sliding_window"))?,
        };
        if size == 0 {
            return Err(wrong("sliding_window", "at least 1 position".into(), "0".into()));
        }
        const PATTERN: &str = "sliding_window_pattern";
        let pattern = match metadata.get(&key(PATTERN)) {
            None => Pattern::AllButEvery(period),
            Some(Value::Array(array)) => {
                let truth = |value: Value| match value {
                    Value::Bool(slides) => Some(slides),
                    value => value.as_int().map(|int| int != 0),
                };
                let slides: Option<Vec<bool>> = array.values().map(truth).collect();
                let slides = slides.filter(|slides| slides.len() >= n_layers).ok_or_else(|| {
                    let got = format!("{} of {}", array.len(), array.elem_type().name());
                    wrong(PATTERN, format!("a boolean for each of {n_layers} layers"), got)
                })?;
                Pattern::Listed(slides)
            }
            Some(_) => match metadata.require_usize(&key(PATTERN))? {
                0 => return Err(wrong(PATTERN, "at least 1 layer".into(), "0".into())),
                n => Pattern::AllButEvery(n),
            },
        };
        Ok(Self { size, pattern })
    }

    /// A window of `size` positions in all layers except every `period`-th.
    pub fn all_but_every(period: usize, size: u32) -> Self {
        Self { size, pattern: Pattern::AllButEvery(period) }
    }

    /// The same, but if the layers without a window have a fixed distance, each begins a period instead of
    /// ending it.
    #[must_use]
    pub fn global_first(self) -> Self {
        let pattern = match self.pattern {
            Pattern::AllButEvery(n) => Pattern::AllButFirst(n),
            other => other,
        };
        Self { pattern, ..self }
    }

    /// The window of a layer, if it has one.
    pub fn of(&self, layer: usize) -> Option<u32> {
        let slides = match &self.pattern {
            Pattern::AllButEvery(n) => layer % n != n - 1,
            Pattern::AllButFirst(n) => !layer.is_multiple_of(*n),
            Pattern::Listed(slides) => slides[layer],
        };
        slides.then_some(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sterna_gguf::{Array, ValueType};

    fn read(entries: Vec<(&str, Value)>) -> Result<Windows, String> {
        let mut metadata = Metadata::default();
        for (key, value) in entries {
            metadata.set(format!("gemma3.attention.{key}"), value);
        }
        Windows::read(&metadata, "gemma3", 7, 6).map_err(|err| err.to_string())
    }

    fn global(windows: &Windows) -> Vec<usize> {
        (0..7).filter(|layer| windows.of(*layer).is_none()).collect()
    }

    #[test]
    fn a_pattern_is_a_number_or_a_list_and_has_a_default() {
        let of = |pattern: Option<Value>| {
            let pattern = pattern.map(|pattern| ("sliding_window_pattern", pattern));
            let entries = [("sliding_window", Value::from(512u32))].into_iter().chain(pattern);
            read(entries.collect())
        };
        let by_default = of(None).unwrap();
        assert_eq!((by_default.of(0), global(&by_default)), (Some(512), vec![5]));
        assert_eq!(global(&by_default.global_first()), [0, 6]);
        assert_eq!(global(&of(Some(Value::from(2u32))).unwrap()), [1, 3, 5]);
        assert_eq!(global(&of(Some(Value::from(1u32))).unwrap()), [0, 1, 2, 3, 4, 5, 6]);
        let list = |n: usize| {
            let values: Vec<Value> = (0..n).map(|i| Value::Bool(i != 3)).collect();
            Value::Array(Array::from_values(ValueType::Bool, &values))
        };
        assert_eq!(global(&of(Some(list(7))).unwrap()), [3]);
        assert_eq!(global(&of(Some(list(7))).unwrap().global_first()), [3]);
        let said = of(Some(list(6))).unwrap_err();
        assert!(said.contains("sliding_window_pattern: want a boolean for each of 7 layers"), "{said}");
        let said = of(Some(Value::from(0u32))).unwrap_err();
        assert!(said.contains("sliding_window_pattern: want at least 1 layer"), "{said}");
    }

    #[test]
    fn a_window_of_nothing_is_refused() {
        let said = read(vec![("sliding_window", Value::from(0u32))]).unwrap_err();
        assert!(said.contains("gemma3.attention.sliding_window: want at least 1 position"), "{said}");
        assert!(read(vec![]).unwrap_err().contains("gemma3.attention.sliding_window"));
    }
}
