//! Limits on rendering a template.
//!
//! A 100-byte Jinja template can double a string forty times. Fuel counts instructions, not the bytes they
//! copy, so every value that an operation copies is charged here by its size: operands of operators
//! (`rewrite.rs` inserts the charge into the template), arguments of filters, methods and functions, and
//! output. Every live value has been charged, which bounds memory and time.

use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Bytes that one rendering may be charged: a hundred times a long conversation.
const BYTES: u64 = 64 << 20;
/// Bytes of plain text that one rendering may write.
const TEXT_BYTES: u64 = 256 << 20;
/// Cost of any value in addition to its text.
const VALUE_BYTES: u64 = 32;
/// Deepest nesting of lists and maps. Dropping a value uses stack per level.
const MAX_DEPTH: usize = 32;

/// Remaining allowance of one rendering.
pub struct Budget {
    left: AtomicU64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: AtomicU64::new(BYTES) }
    }
}

impl Budget {
    /// Number of instructions a template may execute if its longest run of plain text is `longest_text`
    /// bytes: an instruction may write that much without being charged.
    pub fn fuel(longest_text: usize) -> u64 {
        (TEXT_BYTES / (longest_text as u64).max(256)).max(1000)
    }

    /// Subtracts `bytes` from the budget.
    ///
    /// # Errors
    /// If less than that is left.
    pub fn spend(&self, bytes: u64) -> Result<(), Error> {
        let left = self.left.load(Ordering::Relaxed);
        // The first refusal empties the budget, so that a template cannot continue in small steps.
        self.left.store(left.saturating_sub(bytes), Ordering::Relaxed);
        if bytes <= left {
            return Ok(());
        }
        Err(Error::new(ErrorKind::OutOfFuel, "the template takes more memory or time than a template may"))
    }

    /// Charges the size of `value` and everything in it.
    ///
    /// # Errors
    /// If the budget is exceeded, or lists and maps are nested too deep.
    pub fn charge(&self, value: &Value) -> Result<(), Error> {
        self.charge_at(value, 0)
    }

    /// Charges an operation that may turn text into a list: one value per character.
    ///
    /// # Errors
    /// As [`charge`](Self::charge).
    pub fn charge_many(&self, value: &Value) -> Result<(), Error> {
        self.spend(value.as_str().map_or(0, |text| 32 * text.len() as u64))?;
        self.charge(value)
    }

    /// Charges `text.replace(from, to)`.
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

    /// Charges `separator.join(items)`.
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
