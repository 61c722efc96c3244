//! The LoRA adapters of an engine: any sequence may use any of them, with scales of its own.

use std::fmt::Write;
use std::sync::Arc;

use super::adapter::Adapter;
use super::error::Error;
use super::handle::Engine;
use sterna_program::AdapterScale;

impl Engine {
    /// The adapters that were loaded; an adapter's id is its index.
    pub fn adapters(&self) -> &[Adapter] {
        &self.shared.adapters
    }

    /// The adapters of sequences that do not choose theirs.
    pub fn default_adapters(&self) -> Arc<[AdapterScale]> {
        let scales = self.adapters().iter().map(|adapter| adapter.scale);
        let all = (0..).zip(scales).map(|(adapter, scale)| AdapterScale { adapter, scale });
        all.filter(|of| of.scale != 0.0).collect()
    }

    /// Checks a choice of adapters, and returns it without those of scale 0, sorted: equal choices are equal
    /// lists.
    ///
    /// # Errors
    /// [`Error::Option`] for an adapter that was not loaded or is given twice, and a scale that is not
    /// finite.
    pub fn chosen_adapters(&self, chosen: &[AdapterScale]) -> Result<Arc<[AdapterScale]>, Error> {
        let n = self.adapters().len();
        let wrong = |want: String, got: String| Error::Option { option: "Request::adapters", want, got };
        let mut all = chosen.to_vec();
        all.sort_unstable_by_key(|of| of.adapter);
        for (i, of) in all.iter().enumerate() {
            if of.adapter as usize >= n {
                let want =
                    if n == 0 { "no adapter: none is loaded".to_owned() } else { format!("0 to {}", n - 1) };
                return Err(wrong(want, format!("adapter {}", of.adapter)));
            }
            if !of.scale.is_finite() {
                return Err(wrong("a finite scale".to_owned(), of.scale.to_string()));
            }
            if all[..i].iter().any(|other| other.adapter == of.adapter) {
                return Err(wrong("each adapter once".to_owned(), format!("adapter {} twice", of.adapter)));
            }
        }
        Ok(all.into_iter().filter(|of| of.scale != 0.0).collect())
    }

    /// Text that identifies adapters by their contents, with their scales: keys and values that were computed
    /// with one text are not those of another. Empty for no adapters.
    pub(super) fn adapters_text(&self, adapters: &[AdapterScale]) -> String {
        let mut text = String::new();
        for AdapterScale { adapter, scale } in adapters {
            let sum = self.adapters()[*adapter as usize].sum;
            write!(text, "{sum:08x} x {scale} ").expect("a string grows");
        }
        text
    }

    /// The salt of the pages of a batch's prefix cache that were computed with adapters, for requests with
    /// `salt`.
    pub fn salt_with(&self, adapters: &[AdapterScale], salt: &Arc<str>) -> Arc<str> {
        match self.adapters_text(adapters) {
            text if text.is_empty() => Arc::clone(salt),
            text => format!("{MARK}{text}{MARK}{salt}").into(),
        }
    }
}

/// Surrounds the text of adapters in a salt. Other salts do not begin with it.
const MARK: char = '\u{1}';

/// The text of the adapters in a salt of [`Engine::salt_with`].
pub(super) fn adapters_of(salt: &str) -> &str {
    salt.strip_prefix(MARK).and_then(|rest| rest.split_once(MARK)).map_or("", |(text, _)| text)
}
