//! Saves a session outside the process: its tokens and their part of the KV cache, so that a long prompt is
//! computed only once.
//!
//! The file begins with lines of text, up to an empty one: `sterna VERSION session`, and `name: value` for
//! each property that the restoring engine must share with the saving one. Then follow, little-endian: the
//! number of tokens (u64); the tokens (u32 each); one byte per page (1 if its exact page is saved, plus 2 for
//! the page of sliding-window layers, plus 4 for the recurrent state after it); per page the backend's bytes,
//! followed by those of the sliding-window page, the exact page and the state; and the CRC-32 of all that
//! (u32). A batch also saves the pages and states of earlier checkpoints; a session skips those that no
//! sequence keeps. Changes to the format, including a backend's pages, require a new version.

use std::io::{self, BufRead, Read, Write};

use crc32fast::Hasher;
use ggml_types::KvSide;

use super::error::{Error, STATE_TITLE as TITLE, StateError};
use super::handle::Engine;
use super::pages::{PageKind, PageKinds, PageRef, pages_for};
use super::runner::Runner;
use super::session::Session;
use super::vision::picture::ImageError;
use sterna_backend::KvPage;
use sterna_program::{KvDecl, Program};

/// Upper limit of the size of all lines.
const HEADER_BYTES: u64 = 4096;
/// Upper limit of that size with the number of tokens and the checksum.
pub(super) const HEAD_BYTES: usize = HEADER_BYTES as usize + 16;
/// Start of the line with the adapters of a session that uses some.
const ADAPTERS: &str = "adapters: ";
/// Bytes at either end of a tensor that distinguish models of the same shape.
const SAMPLE_BYTES: u64 = 256;

impl Session {
    /// Writes the session so that [`Engine::restore`] can create an equivalent one. Computes missing
    /// positions first. Use a buffered writer.
    ///
    /// # Errors
    /// [`StateError::Io`]; [`Error::Backend`].
    pub fn save(&mut self, out: &mut impl Write) -> Result<(), Error> {
        if self.has_images() {
            return Err(ImageError::Saved.into());
        }
        self.complete()?;
        let mut out = Summed::new(out);
        let tokens = self.tokens();
        let kinds = self.engine().runner()?.pages.kinds_of(self.slot(), tokens.len());
        let adapters = self.engine().adapters_text(self.adapters());
        out.write_all(&head(self.engine(), tokens, &kinds, &adapters)?).map_err(StateError::Io)?;
        let mut bytes = Vec::new();
        for i in 0..kinds.len() {
            for page in self.pages_at(i)? {
                read_page(&mut *self.engine().runner()?, page, &mut bytes)?;
                out.write_all(&bytes).map_err(StateError::Io)?;
            }
        }
        out.end()
    }

    /// The pages at index `i`, at most one per kind.
    fn pages_at(&self, i: usize) -> Result<impl Iterator<Item = KvPage>, Error> {
        Ok(self.engine().runner()?.pages.kv_pages(self.slot(), i).collect::<Vec<_>>().into_iter())
    }
}

impl Engine {
    /// Restores a session written by [`Session::save`], by this engine or by one with the same model, backend
    /// and KV cache; context and threads may differ. Bad input can do no harm except make the model generate
    /// nonsense: it is meant for one's own files.
    ///
    /// # Errors
    /// [`Error::State`]; [`Error::NoSession`]; [`Error::ContextFull`] if it is longer than a context here;
    /// [`Error::Token`] if a damaged file has a token that the vocabulary does not have; [`Error::Backend`].
    /// No slot is taken then.
    pub fn restore(&self, from: &mut impl BufRead) -> Result<Session, Error> {
        let mut from = Summed::new(from);
        let adapters = self.adapters_text(&self.default_adapters());
        let (tokens, kinds) = self.read_head(&mut from, &adapters)?;
        let session = self.session()?;
        let kept = self.runner()?.pages.kept_kinds(tokens.len(), &kinds);
        if !self.runner()?.pages.hold(session.slot(), tokens.len(), &kept) {
            return Err(no_such_pages());
        }
        let mut bytes = Vec::new();
        for (i, kinds) in kinds.iter().enumerate() {
            write_pages(&mut *self.runner()?, session.slot(), i, *kinds, &mut bytes, &mut from)?;
        }
        from.check()?;
        let cached = self.runner()?.pages.resume_position(session.slot(), tokens.len());
        Ok(session.of_pages(&tokens, cached))
    }

    /// Reads the tokens of a saved session, and the kinds of its pages. `adapters` is the text of those that
    /// the pages must have been computed with.
    pub(super) fn read_head<R: BufRead>(
        &self,
        from: &mut Summed<&mut R>,
        adapters: &str,
    ) -> Result<(Vec<u32>, Vec<PageKinds>), Error> {
        self.check_header(from, adapters)?;
        let n_tokens = u64::from_le_bytes(array(from)?);
        let (n_ctx, more) = (self.n_ctx(), usize::try_from(n_tokens).unwrap_or(usize::MAX));
        if more > n_ctx {
            return Err(Error::ContextFull { n_ctx, used: 0, more });
        }
        let mut tokens = Vec::with_capacity(more);
        for _ in 0..more {
            tokens.push(u32::from_le_bytes(array(from)?));
        }
        let n_vocab = self.hyper().n_vocab;
        if let Some(&token) = tokens.iter().find(|token| **token as usize >= n_vocab) {
            return Err(Error::Token { token, n_vocab });
        }
        let mut kinds = vec![0; pages_for(more)];
        fill(from, &mut kinds)?;
        if kinds.iter().any(|kinds| *kinds > 7) {
            return Err(StateError::Damaged("a page has an invalid kind").into());
        }
        let of = |byte| PageKinds { exact: byte & 1 != 0, sliding: byte & 2 != 0, state: byte & 4 != 0 };
        Ok((tokens, kinds.into_iter().map(of).collect()))
    }

    /// Reads the lines of text, and compares them with this engine's.
    fn check_header<R: BufRead>(&self, from: &mut Summed<&mut R>, adapters: &str) -> Result<(), Error> {
        let mut left = HEADER_BYTES;
        let mut line = || -> Result<String, Error> {
            let mut line = Vec::new();
            let n = from.inner.by_ref().take(left).read_until(b'\n', &mut line).map_err(StateError::Io)?;
            left -= n as u64;
            from.sum.update(&line);
            let line = String::from_utf8(line).map_err(|_| StateError::Unknown)?;
            Ok(line.strip_suffix('\n').ok_or(StateError::Unknown)?.to_owned())
        };
        let other = |what, saved: &str, here: &str| {
            Err(StateError::Other { what, saved: saved.to_owned(), here: here.to_owned() }.into())
        };
        let title = line()?;
        if title != TITLE {
            let version =
                |title: &str| Some(title.strip_prefix("sterna ")?.strip_suffix(" session")?.to_owned());
            return match version(&title) {
                Some(saved) => other("Sterna", &saved, env!("CARGO_PKG_VERSION")),
                None => Err(StateError::Unknown.into()),
            };
        }
        for (name, here) in self.form()? {
            let line = line()?;
            match line.strip_prefix(name).and_then(|rest| rest.strip_prefix(": ")) {
                Some(saved) if saved == here => {}
                // Files of earlier builds.
                Some(saved) if name == "model" && saved == self.fingerprint(true)? => {}
                Some(saved) => return other(name, saved, &here),
                None => return Err(StateError::Damaged("a line of its header is missing").into()),
            }
        }
        let none = |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
        let last = line()?;
        match last.strip_prefix(ADAPTERS) {
            Some(saved) if saved == adapters => match line()?.is_empty() {
                true => Ok(()),
                false => Err(StateError::Damaged("its header is too long").into()),
            },
            Some(saved) => other("adapters", saved, &none(adapters)),
            None if !last.is_empty() => Err(StateError::Damaged("its header is too long").into()),
            None if adapters.is_empty() => Ok(()),
            None => other("adapters", "none", adapters),
        }
    }

    /// Properties that two engines must share so that one can restore the sessions of the other.
    pub(super) fn form(&self) -> Result<Vec<(&'static str, String)>, Error> {
        let shared = &*self.shared;
        let mut form = vec![("model", self.fingerprint(false)?), ("backend", shared.backend_name.to_owned())];
        if let Some(kv) = shared.program.kvs.first() {
            // Earlier builds subtracted one mean from all keys of a sequence, and saved the bare name.
            let means = kv.k.key_mean(KvSide::Keys, kv.head_dim).map_or("", |_| " (means of pages)");
            let of_block = if self.has_mtp() { ", also of the MTP block" } else { "" };
            form.extend([
                ("keys as", format!("{}{means}{of_block}", kv.k.name())),
                ("values as", kv.v.name().to_owned()),
            ]);
            if let Some(sum) = bases_sum(&shared.program) {
                form.push(("bases of keys", sum));
            }
            if kv.is_windowed() {
                let (sinks, newest) = (kv.window.sink_pages, kv.window.newest_pages);
                form.push(("exact pages", format!("{sinks} first, {newest} newest")));
            }
        }
        if shared.program.attend_window().is_some() {
            let kept = shared.program.sliding().map_or("all".to_owned(), |n| format!("the last {n}"));
            form.push(("positions of sliding windows", kept));
        }
        Ok(form)
    }

    /// A checksum of the model's shape and a sample of each tensor; `with_states` includes the number of
    /// slots for recurrent states.
    fn fingerprint(&self, with_states: bool) -> Result<String, Error> {
        let shared = &*self.shared;
        let mut sum = Hasher::new();
        // Skips the first line and the cache lines, which depend on the options and not on the model.
        let text = shared.program.without_adapters().to_string();
        let of_options = |line: &str| line.starts_with("kv ") || (!with_states && line.starts_with("state "));
        let of_model = text.lines().skip(1).filter(|line| !of_options(line));
        of_model.for_each(|line| sum.update(line.as_bytes()));
        for info in shared.gguf.tensors() {
            let sample = info.n_bytes.min(SAMPLE_BYTES);
            sum.update(&shared.gguf.raw_piece(info, 0..sample)?);
            sum.update(&shared.gguf.raw_piece(info, info.n_bytes - sample..info.n_bytes)?);
        }
        Ok(format!("{:08x}", sum.finalize()))
    }
}

/// A checksum of the bases of all keys, if a cache has them.
fn bases_sum(program: &Program) -> Option<String> {
    let mut sum = Hasher::new();
    let bases: Vec<_> = program.kvs.iter().filter_map(KvDecl::bases).collect();
    for basis in bases.iter().flat_map(|bases| bases.iter()) {
        basis.exponents().iter().for_each(|exponent| sum.update(&exponent.to_le_bytes()));
        basis.elements().iter().for_each(|element| sum.update(&element.to_le_bytes()));
    }
    (!bases.is_empty()).then(|| format!("{:08x}", sum.finalize()))
}

/// The bytes before the pages: lines of text, tokens, and the page kinds per 64 positions.
pub(super) fn head(
    engine: &Engine,
    tokens: &[u32],
    kinds: &[PageKinds],
    adapters: &str,
) -> Result<Vec<u8>, Error> {
    let mut head = format!("{TITLE}\n");
    engine.form()?.iter().for_each(|(name, value)| head += &format!("{name}: {value}\n"));
    if !adapters.is_empty() {
        head += &format!("{ADAPTERS}{adapters}\n");
    }
    let mut head = (head + "\n").into_bytes();
    head.extend((tokens.len() as u64).to_le_bytes());
    head.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    let byte =
        |page: &PageKinds| u8::from(page.exact) | u8::from(page.sliding) << 1 | u8::from(page.state) << 2;
    head.extend(kinds.iter().map(byte));
    Ok(head)
}

/// Copies a page to `bytes`.
pub(super) fn read_page(runner: &mut Runner, page: KvPage, bytes: &mut Vec<u8>) -> Result<(), Error> {
    runner.read_page(page, bytes)
}

/// Reads a page from a file, with `bytes` as the buffer.
pub(super) fn write_page(
    runner: &mut Runner,
    page: KvPage,
    bytes: &mut Vec<u8>,
    from: &mut impl Read,
) -> Result<(), Error> {
    bytes.resize(runner.page_bytes(page), 0);
    fill(from, bytes)?;
    runner.write_page(page, bytes)
}

/// Reads the saved pages at index `i` of `slot` from a file. Those that the slot does not have are skipped.
pub(super) fn write_pages(
    runner: &mut Runner,
    slot: u32,
    i: usize,
    saved: PageKinds,
    bytes: &mut Vec<u8>,
    from: &mut impl Read,
) -> Result<(), Error> {
    let held = runner.pages.at(slot, i);
    for kind in PageKind::ALL.into_iter().filter(|kind| saved.has(*kind)) {
        match held.get(kind) {
            Some(page) => write_page(runner, page.into(), bytes, from)?,
            None => {
                bytes.resize(runner.page_bytes(PageRef { kind, id: 0 }.into()), 0);
                fill(from, bytes)?;
            }
        }
    }
    Ok(())
}

/// The error for an impossible set of pages.
pub(super) fn no_such_pages() -> Error {
    StateError::Damaged("no session has such pages").into()
}

/// Computes the checksum of all bytes read or written.
pub(super) struct Summed<T> {
    inner: T,
    sum: Hasher,
}

impl<T> Summed<T> {
    pub fn new(inner: T) -> Self {
        Self { inner, sum: Hasher::new() }
    }
}

impl<T: Write> Summed<T> {
    /// Writes the checksum at the end.
    pub fn end(mut self) -> Result<(), Error> {
        let sum = self.sum.finalize();
        Ok(self.inner.write_all(&sum.to_le_bytes()).map_err(StateError::Io)?)
    }
}

impl<T: Read> Summed<T> {
    /// Reads the checksum, and compares it.
    pub fn check(mut self) -> Result<(), Error> {
        match array(&mut self.inner)? == self.sum.finalize().to_le_bytes() {
            true => Ok(()),
            false => Err(StateError::Damaged("its checksum does not match").into()),
        }
    }
}

impl<T: Read> Read for Summed<T> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(out)?;
        self.sum.update(&out[..n]);
        Ok(n)
    }
}

impl<T: Write> Write for Summed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.sum.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn fill(from: &mut impl Read, out: &mut [u8]) -> Result<(), StateError> {
    from.read_exact(out).map_err(|err| match err.kind() {
        io::ErrorKind::UnexpectedEof => StateError::Damaged("it ends early"),
        _ => StateError::Io(err),
    })
}

fn array<const N: usize>(from: &mut impl Read) -> Result<[u8; N], StateError> {
    let mut bytes = [0; N];
    fill(from, &mut bytes)?;
    Ok(bytes)
}
