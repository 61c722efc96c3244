//! Limits on rendering a template.
//!
//! Jinja lets a 100-byte template double a string forty times. Fuel counts instructions, not what they
//! copy, so every value that goes into something that copies it is charged here, by its size: operands of
//! operators (`rewrite.rs` puts the charge into the template), arguments of filters, methods and functions,
//! and what is written out. Whatever is alive was charged, so memory is bounded; so is time.

use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Bytes that may be charged in one rendering: a hundred times a long conversation.
const BYTES: u64 = 64 << 20;
/// Bytes of plain text that may be written in one rendering.
const TEXT_BYTES: u64 = 256 << 20;
/// Cost of any value in addition to its text.
const VALUE_BYTES: u64 = 32;
/// Deepest nesting of lists and maps. Dropping a value takes stack for every level.
const MAX_DEPTH: usize = 32;

/// Rest of one rendering's allowance.
pub struct Budget {
    left: AtomicU64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: AtomicU64::new(BYTES) }
    }
}

impl Budget {
    /// Instructions that a template may execute where the longest stretch of plain text in it is
    /// `longest_text` bytes: an instruction may write that much without being charged.
    pub fn fuel(longest_text: usize) -> u64 {
        (TEXT_BYTES / (longest_text as u64).max(256)).max(1000)
    }

    /// Takes `bytes` off.
    ///
    /// # Errors
    /// Where so much is not left.
    pub fn spend(&self, bytes: u64) -> Result<(), Error> {
        let left = self.left.load(Ordering::Relaxed);
        // Nothing is left after the first refusal either: a template cannot go on in small steps.
        self.left.store(left.saturating_sub(bytes), Ordering::Relaxed);
        if bytes <= left {
            return Ok(());
        }
        Err(Error::new(ErrorKind::OutOfFuel, "the template takes more memory or time than a template may"))
    }

    /// Takes off the size of `value` and all that is in it.
    ///
    /// # Errors
    /// Where so much is not left, or lists and maps are nested too deep.
    pub fn charge(&self, value: &Value) -> Result<(), Error> {
        self.charge_at(value, 0)
    }

    /// For what may make a list of a text: one value a character.
    ///
    /// # Errors
    /// As [`charge`](Self::charge).
    pub fn charge_many(&self, value: &Value) -> Result<(), Error> {
        self.spend(value.as_str().map_or(0, |text| 32 * text.len() as u64))?;
        self.charge(value)
    }

    /// For `text.replace(from, to)`.
    ///
    /// # Errors
    /// As [`charge`](Self::charge).
    pub fn charge_replace(&self, args: &[Value]) -> Result<(), Error> {
        args.iter().try_for_each(|arg| self.charge(arg))?;
        let [text, from, to, ..] = args else { return Ok(()) };
        let len = |value: &Value| value.as_str().map_or(64, str::len) as u64;
        let n_found = match (text.as_str(), from.as_str()) {
            (Some(text), Some(from)) => text.matches(from).count() as u64,
            _ => len(text) + 1,
        };
        self.spend(n_found.saturating_mul(len(to)))
    }

    /// For `separator.join(items)`.
    ///
    /// # Errors
    /// As [`charge`](Self::charge).
    pub fn charge_join(&self, items: Option<&Value>, separator: Option<&Value>) -> Result<(), Error> {
        let Some(items) = items else { return Ok(()) };
        self.charge(items)?;
        let n_items = items.len().or_else(|| items.as_str().map(str::len)).unwrap_or(0) as u64;
        let separator_bytes = separator.and_then(Value::as_str).map_or(0, str::len) as u64;
        self.spend(n_items.saturating_mul(separator_bytes + 32))
    }

    fn charge_at(&self, value: &Value, depth: usize) -> Result<(), Error> {
        self.spend(VALUE_BYTES + value.as_str().map_or(0, |text| text.len() as u64))?;
        if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
            return Ok(());
        }
        if depth == MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "lists and maps are nested too deep"));
        }
        let is_map = value.kind() == ValueKind::Map;
        for item in value.try_iter()? {
            self.charge_at(&item, depth + 1)?;
            if is_map {
                self.charge_at(&value.get_item(&item)?, depth + 1)?;
            }
        }
        Ok(())
    }
}
