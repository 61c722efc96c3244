//! The paged KV cache of one layer.
//!
//! All pages of one KV head are contiguous, and a page stores its 64 positions in the layout that attention
//! multiplies: keys as `[head_dim, 64]`, values as `[64, head_dim]`, either as elements or as codes
//! (`kv/codes.rs`). Other codecs, and heads too short for units of codes, store one vector after another,
//! which are brought into that layout when a page is read.
//!
//! Windowed codecs also have exact pages of f16, stored after the others. Positions are written to these, and
//! a page is encoded once its last position has been written, before any row reads the codes. The first pages
//! of a sequence are never encoded. An encoded page of keys begins with the mean of its keys ([`KeyMean`]),
//! which is subtracted from them before they are encoded.

mod codes;
mod layout;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use ggml_types::turboquant::{KeyBasis, KeyMean, Qjl, Rotation};
use ggml_types::{KvCodec, KvForm, KvSide, KvVectors, QuantError};
use half::f16;
use half::slice::HalfFloatSliceExt;

use self::codes::{CodePage, Codes};
use self::layout::Layout;
use super::alloc::PartAllocator;
use super::pool::Pool;
use crate::KvPage;
use sterna_cpu_kernels::Aligned;
use sterna_cpu_kernels::real::{Matrices, RealKernels};
use sterna_program::{KvDecl, KvWindow, Limits, PAGE, PageTable, Row};

/// One layer's keys and values.
pub struct KvCache {
    n_kv_heads: usize,
    head_dim: usize,
    window: KvWindow,
    keys: Plane,
    /// `None` if the keys are also the values.
    values: Option<Plane>,
}

/// Memory of the keys and of the values of a cache, in words of 8 bytes.
pub type Words = [Aligned<u64>; 2];

/// The keys or the values: `[n_kv_heads, head_bytes]`.
struct Plane {
    storage: KvStorage,
    words: Aligned<u64>,
}

/// Storage of the keys or of the values of a cache.
struct KvStorage {
    side: KvSide,
    head_dim: usize,
    window: KvWindow,
    form: VectorForm,
    /// Element type of exact pages, if the codec has them.
    exact: Option<&'static Elements>,
    /// Mean at the start of an encoded page, if there is one.
    mean: Option<KeyMean>,
    /// Number of vectors that were clamped.
    clamped: AtomicU64,
    /// Rotation that is applied to every vector before it is encoded.
    rotation: Option<Rotation>,
    /// Basis of the keys of each KV head, instead of a rotation: `[n_kv_heads]`.
    bases: Option<Arc<[KeyBasis]>>,
    layout: Layout,
}

/// Form of a page's vectors.
enum VectorForm {
    Elements(&'static Elements),
    Codes(Box<Codes>),
    Vectors { codec: Box<dyn KvVectors>, vec_bytes: usize },
}

/// A codec that stores plain elements.
struct Elements {
    bytes: usize,
    /// Writes one vector as row `pos` of a page of `[PAGE, x.len()]`.
    put_row: fn(page: &mut [u8], pos: usize, x: &[f32]),
    /// Writes one vector as column `pos` of a page of `[x.len(), PAGE]`.
    put_column: fn(page: &mut [u8], pos: usize, x: &[f32]),
    /// The stored elements as rows.
    rows: fn(bytes: &[u8]) -> Rows<'_>,
}

/// Adjacent rows of keys or values.
#[derive(Clone, Copy)]
pub enum Rows<'a> {
    /// As f32.
    F32(&'a [f32]),
    /// As f16.
    F16(&'a [f16]),
    /// A whole page, as codes.
    Codes(CodePage<'a>),
}

impl Rows<'_> {
    /// Residual of the keys' codes: projected queries are multiplied with it and the product is added.
    pub fn residual(self) -> Option<Self> {
        match self {
            Rows::Codes(page) => page.residual().map(Rows::Codes),
            Rows::F32(_) | Rows::F16(_) => None,
        }
    }

    /// Computes `c = a b`, or `c += a b`, where `b` are the contiguous rows from `first` on.
    pub fn multiply(self, k: &RealKernels, shape: &Matrices, a: &[f32], first: usize, c: &mut [f32]) {
        match self {
            Rows::F32(b) => (k.gemm)(shape, a, &b[first * shape.ldb..], c),
            Rows::F16(b) => (k.gemm_f16)(shape, a, &b[first * shape.ldb..], c),
            Rows::Codes(page) => page.multiply(k, shape, a, first, c),
        }
    }
}

static F16: Elements = Elements {
    bytes: 2,
    put_row: |page, pos, x| {
        cast_slice_mut::<u8, f16>(page)[pos * x.len()..][..x.len()].convert_from_f32_slice(x);
    },
    put_column: |page, pos, x| put_column(cast_slice_mut::<u8, f16>(page), pos, x, f16::from_f32),
    rows: |bytes| Rows::F16(cast_slice(bytes)),
};

static F32: Elements = Elements {
    bytes: 4,
    put_row: |page, pos, x| cast_slice_mut(page)[pos * x.len()..][..x.len()].copy_from_slice(x),
    put_column: |page, pos, x| put_column(cast_slice_mut::<u8, f32>(page), pos, x, |x| x),
    rows: |bytes| Rows::F32(cast_slice(bytes)),
};

/// Element type of exact pages.
static EXACT: &Elements = &F16;

fn put_column<T: Pod>(page: &mut [T], pos: usize, x: &[f32], from_f32: fn(f32) -> T) {
    for (column, x) in page.chunks_exact_mut(PAGE).zip(x) {
        column[pos] = from_f32(*x);
    }
}

/// Writes the first columns of a page of `[head_dim, PAGE]` as rows, `[columns, head_dim]`.
fn transpose<T: Pod>(page: &[T], head_dim: usize, rows: &mut [f32], to_f32: fn(T) -> f32) {
    /// Columns are gathered from that many cache lines at a time.
    const DIMS: usize = 16;
    for dims in (0..head_dim).step_by(DIMS) {
        for (pos, row) in rows.chunks_exact_mut(head_dim).enumerate() {
            for (dim, to) in (dims..).zip(&mut row[dims..head_dim.min(dims + DIMS)]) {
                *to = to_f32(page[dim * PAGE + pos]);
            }
        }
    }
}

/// Largest number of queries for which f16 rows are multiplied directly; with more queries it pays to widen
/// the rows first.
const FEW_QUERIES: usize = 8;

/// Elements that are widened before they are multiplied: a quarter of a 32 KiB L1 cache. A whole page would
/// be written to L2 and read back from there.
const PART: usize = 2048;

impl Elements {
    fn put(&self, page: &mut [u8], pos: usize, x: &[f32], side: KvSide) {
        match side {
            KvSide::Keys => (self.put_column)(page, pos, x),
            KvSide::Values => (self.put_row)(page, pos, x),
        }
    }

    /// Passes rows of `cols` elements to `each`, with their indices.
    fn each_rows(
        &self,
        k: &RealKernels,
        bytes: &[u8],
        cols: usize,
        n_queries: usize,
        tile: &mut [f32],
        mut each: impl FnMut(Range<usize>, Rows<'_>),
    ) {
        match (self.rows)(bytes) {
            Rows::F16(halves) if n_queries > FEW_QUERIES => {
                let n_rows = (PART / cols).max(1);
                for (i, halves) in halves.chunks(n_rows * cols).enumerate() {
                    let part = &mut tile[..halves.len()];
                    (k.widen)(halves, part);
                    each(i * n_rows..i * n_rows + part.len() / cols, Rows::F32(part));
                }
            }
            rows => each(0..bytes.len() / (cols * self.bytes), rows),
        }
    }
}

/// The part of a cache to read.
#[derive(Clone, Copy)]
pub struct KvSlice {
    /// The KV head.
    pub head: usize,
    /// Number of the page in the cache.
    pub page: usize,
    /// Number of the exact page that is read instead, if the codec is windowed.
    pub exact: Option<usize>,
    /// Number of positions to read, from the page's first.
    pub n: usize,
    /// Number of queries that it is multiplied with.
    pub n_queries: usize,
}

impl KvCache {
    /// Creates an empty cache; the system provides its memory when it is first written.
    pub fn new(decl: &KvDecl, limits: Limits, [keys, values]: Words) -> Self {
        // `Layout` handles the pages of a sliding window, `KvStorage` the bases.
        let KvDecl { n_kv_heads, head_dim, k, v, basis: _, window, sliding: _, values_are_keys } = *decl;
        let plane = |codec, side, words| {
            let storage = KvStorage::new(codec, side, decl, limits).expect("the program was checked");
            Plane { words, storage }
        };
        let keys = plane(k, KvSide::Keys, keys);
        let values = (!values_are_keys).then(|| plane(v, KvSide::Values, values));
        Self { n_kv_heads, head_dim, window, keys, values }
    }

    /// Allocates the words of a cache.
    ///
    /// # Errors
    /// If a codec does not support the head dimension.
    pub fn words(on: &mut impl PartAllocator, decl: &KvDecl, limits: Limits) -> Result<Words, QuantError> {
        let mut of_side = |codec, side| {
            let of_head = Layout::of(codec, side, decl, limits)?.bytes();
            Ok::<_, QuantError>(on.pages(decl, of_head.map(|bytes| bytes.saturating_mul(decl.n_kv_heads))))
        };
        let keys = of_side(decl.k, KvSide::Keys)?;
        let stored = !decl.values_are_keys;
        Ok([keys, if stored { of_side(decl.v, KvSide::Values)? } else { Aligned::default() }])
    }

    /// Writes the keys and values of a step's rows, each `[rows, n_kv_heads * head_dim]` and already rotated
    /// by [`key_rotation`](Self::key_rotation) or in their [bases](Self::key_bases), and by
    /// [`value_rotation`](Self::value_rotation). If the keys are also the values, `v` is ignored.
    pub fn put(
        &mut self,
        kernels: &RealKernels,
        pool: &Pool,
        rows: &[Row],
        pages: &PageTable,
        [k, v]: [&[f32]; 2],
    ) {
        let cols = self.n_kv_heads * self.head_dim;
        for (Plane { storage, words }, x) in self.planes_mut().zip([k, v]) {
            let put_head = |head: usize, bytes: &mut [u8]| {
                for (row, x) in rows.iter().zip(x.chunks_exact(cols)) {
                    storage.put(bytes, pages, row, &x[head * storage.head_dim..][..storage.head_dim]);
                }
                if storage.exact.is_some() {
                    let full = rows.iter().filter(|row| row.pos as usize % PAGE == PAGE - 1);
                    full.for_each(|row| storage.encode_page(kernels, bytes, pages, row));
                }
            };
            let (bytes, head_bytes) = (cast_slice_mut(words), storage.layout.head_bytes());
            let encodes =
                storage.exact.is_some() && rows.iter().any(|row| row.pos as usize % PAGE == PAGE - 1);
            if rows.len() == 1 && !encodes {
                bytes
                    .chunks_exact_mut(head_bytes)
                    .enumerate()
                    .for_each(|(head, bytes)| put_head(head, bytes));
            } else {
                pool.chunks_mut(bytes, head_bytes, put_head);
            }
        }
    }

    /// Reads the keys of the first `place.n` positions of a page, less their [mean](Self::key_mean), as rows
    /// of `[head_dim, PAGE]`, some rows at a time: `each` gets their indices and contents; columns from `n`
    /// on are unspecified. `tile`, `[head_dim * PAGE]`, and `vector`, `[head_dim]`, are workspaces.
    pub fn keys(
        &self,
        k: &RealKernels,
        place: KvSlice,
        (tile, vector): (&mut [f32], &mut [f32]),
        mut each: impl FnMut(Range<usize>, Rows<'_>),
    ) {
        let ((_, bytes), storage) = (self.keys.page(place), &self.keys.storage);
        match storage.form_at(place) {
            PageVectors::Elements(elements) => {
                elements.each_rows(k, bytes, PAGE, place.n_queries, tile, each)
            }
            PageVectors::Codes(codes) => {
                each(0..self.head_dim, Rows::Codes(codes.page(k, bytes, PAGE, tile)));
            }
            PageVectors::Vectors { codec, vec_bytes } => {
                for (pos, bytes) in bytes.chunks_exact(vec_bytes).take(place.n).enumerate() {
                    codec.decode(bytes, vector);
                    put_column(tile, pos, vector, |x| x);
                }
                each(0..self.head_dim, Rows::F32(tile));
            }
        }
    }

    /// Reads the values of the first `place.n` positions of a page as rows of `[n, head_dim]`, like
    /// [`keys`](Self::keys).
    pub fn values(
        &self,
        k: &RealKernels,
        place: KvSlice,
        tile: &mut [f32],
        mut each: impl FnMut(Range<usize>, Rows<'_>),
    ) {
        let tile = &mut tile[..place.n * self.head_dim];
        let Some(values) = &self.values else {
            match self.keys.storage.form_at(place) {
                PageVectors::Elements(elements) => match (elements.rows)(self.keys.page(place).1) {
                    Rows::F32(keys) => transpose(keys, self.head_dim, tile, |x| x),
                    Rows::F16(keys) => transpose(keys, self.head_dim, tile, f16::to_f32),
                    Rows::Codes(_) => unreachable!("elements are not codes"),
                },
                PageVectors::Codes(_) | PageVectors::Vectors { .. } => {
                    unreachable!("the program was checked")
                }
            }
            return each(0..place.n, Rows::F32(tile));
        };
        let (_, bytes) = values.page(place);
        match values.storage.form_at(place) {
            PageVectors::Elements(elements) => {
                let bytes = &bytes[..tile.len() * elements.bytes];
                elements.each_rows(k, bytes, self.head_dim, place.n_queries, tile, each);
            }
            PageVectors::Codes(codes) => each(0..place.n, Rows::Codes(codes.page(k, bytes, place.n, tile))),
            PageVectors::Vectors { codec, vec_bytes } => {
                let vectors = tile.chunks_exact_mut(self.head_dim);
                for (bytes, out) in bytes.chunks_exact(vec_bytes).zip(vectors) {
                    codec.decode(bytes, out);
                }
                each(0..place.n, Rows::F32(tile));
            }
        }
    }

    /// Writes the mean that was subtracted from the keys of a page, `[head_dim]`, to `out`; returns `false`
    /// if none was.
    pub fn key_mean(&self, place: KvSlice, out: &mut [f32]) -> bool {
        let (bytes, _) = self.keys.page(place);
        let mean = self.keys.storage.mean.filter(|_| !bytes.is_empty());
        mean.inspect(|mean| mean.decode(bytes, out)).is_some()
    }

    /// Bases of keys, and of the queries that are multiplied with them: `[n_kv_heads]`.
    pub fn key_bases(&self) -> Option<&[KeyBasis]> {
        self.keys.storage.bases.as_deref()
    }

    /// Rotation of keys, and of the queries that are multiplied with them; `None` if they have bases.
    pub fn key_rotation(&self) -> Option<&Rotation> {
        self.keys.storage.rotation.as_ref()
    }

    /// Projection of rotated queries for the product with the [residual](Rows::residual) of keys.
    pub fn key_projection(&self) -> Option<&Qjl> {
        match &self.keys.storage.form {
            VectorForm::Codes(codes) => codes.projection(),
            VectorForm::Elements(_) | VectorForm::Vectors { .. } => None,
        }
    }

    /// Rotation of values.
    pub fn value_rotation(&self) -> Option<&Rotation> {
        self.values.as_ref()?.storage.rotation.as_ref()
    }

    /// Number of keys and values that the codecs had to clamp.
    pub fn clamped(&self) -> u64 {
        self.planes().map(|plane| plane.storage.clamped.load(Ordering::Relaxed)).sum()
    }

    /// Bytes of a page.
    pub fn page_bytes(&self, page: KvPage) -> usize {
        let of_head = |plane: &Plane| plane.storage.layout.range(page).len();
        self.n_kv_heads * self.planes().map(of_head).sum::<usize>()
    }

    /// Copies a page of keys and then of values, head after head, and returns the rest of `out`.
    pub fn read_page<'o>(&self, page: KvPage, mut out: &'o mut [u8]) -> &'o mut [u8] {
        for (plane, head) in self.planes().flat_map(|p| (0..self.n_kv_heads).map(move |h| (p, h))) {
            let from = &plane.head(head)[plane.storage.layout.range(page)];
            let (to, rest) = out.split_at_mut(from.len());
            to.copy_from_slice(from);
            out = rest;
        }
        out
    }

    /// The reverse of [`read_page`](Self::read_page); returns the rest of `bytes`.
    pub fn write_page<'b>(&mut self, page: KvPage, mut bytes: &'b [u8]) -> &'b [u8] {
        for Plane { storage, words } in self.planes_mut() {
            for head in cast_slice_mut::<u64, u8>(words).chunks_exact_mut(storage.layout.head_bytes()) {
                let to = &mut head[storage.layout.range(page)];
                let (from, rest) = bytes.split_at(to.len());
                to.copy_from_slice(from);
                bytes = rest;
            }
        }
        bytes
    }

    /// Positions that are stored exactly, if a codec is windowed.
    pub fn window(&self) -> KvWindow {
        self.window
    }

    /// Number of the page that holds page `i` of a sequence.
    ///
    /// # Panics
    /// If the page has left the window.
    pub fn page_of(&self, pages: &PageTable, seq: u32, i: usize) -> usize {
        self.keys.storage.layout.number_of(pages, seq, i)
    }

    /// The keys, and the values if they are stored.
    fn planes(&self) -> impl Iterator<Item = &Plane> {
        [Some(&self.keys), self.values.as_ref()].into_iter().flatten()
    }

    fn planes_mut(&mut self) -> impl Iterator<Item = &mut Plane> {
        [Some(&mut self.keys), self.values.as_mut()].into_iter().flatten()
    }

    /// Number of KV heads.
    pub fn n_kv_heads(&self) -> usize {
        self.n_kv_heads
    }

    /// Elements of one vector.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }
}

impl Plane {
    /// One head's memory.
    fn head(&self, head: usize) -> &[u8] {
        let head_bytes = self.storage.layout.head_bytes();
        &cast_slice(&self.words)[head * head_bytes..][..head_bytes]
    }

    /// The mean, empty if there is none, and the vectors of a page.
    fn page(&self, place: KvSlice) -> (&[u8], &[u8]) {
        let KvStorage { layout, exact, .. } = &self.storage;
        let head = self.head(place.head);
        match place.exact.filter(|_| exact.is_some()) {
            Some(exact) => (&[], &head[layout.exact(exact)]),
            None => head[layout.page(place.page)].split_at(self.storage.mean_bytes()),
        }
    }
}

/// Form of the vectors of a page.
enum PageVectors<'a> {
    Elements(&'static Elements),
    Codes(&'a Codes),
    Vectors { codec: &'a dyn KvVectors, vec_bytes: usize },
}

impl KvStorage {
    fn new(
        codec: &'static dyn KvCodec,
        side: KvSide,
        decl: &KvDecl,
        limits: Limits,
    ) -> Result<Self, QuantError> {
        let (head_dim, window) = (decl.head_dim, decl.window);
        let vec_bytes = codec.vec_bytes(head_dim)?;
        let form = match codec.form() {
            KvForm::F16 => VectorForm::Elements(&F16),
            KvForm::F32 => VectorForm::Elements(&F32),
            KvForm::Q8_0
            | KvForm::Q4_0
            | KvForm::Bf16
            | KvForm::Q4_1
            | KvForm::Q5_0
            | KvForm::Q5_1
            | KvForm::Iq4Nl
            | KvForm::Lloyd3
            | KvForm::Lloyd4
            | KvForm::Lloyd2Signs
            | KvForm::Lloyd42
            | KvForm::Trellis42
            | KvForm::Trellis3
            | KvForm::Opaque => match Codes::new(codec.open(side, head_dim)?, side, head_dim, vec_bytes) {
                Ok(codes) => VectorForm::Codes(Box::new(codes)),
                Err(codec) => VectorForm::Vectors { codec, vec_bytes },
            },
        };
        let bases = decl.bases().filter(|_| side == KvSide::Keys);
        let rotates = codec.rotates() && bases.is_none();
        let rotation = rotates.then(|| Rotation::new(head_dim)).transpose()?;
        let exact = codec.windowed().then_some(EXACT);
        let mean = codec.key_mean(side, head_dim);
        let layout = Layout::of(codec, side, decl, limits)?;
        let clamped = AtomicU64::new(0);
        Ok(Self { side, head_dim, window, form, exact, mean, clamped, rotation, bases, layout })
    }

    /// Bytes of the mean at the start of an encoded page.
    fn mean_bytes(&self) -> usize {
        self.mean.map_or(0, KeyMean::bytes)
    }

    fn form_at(&self, place: KvSlice) -> PageVectors<'_> {
        match (&self.form, self.exact) {
            (_, Some(elements)) if place.exact.is_some() => PageVectors::Elements(elements),
            (VectorForm::Elements(elements), _) => PageVectors::Elements(elements),
            (VectorForm::Codes(codes), _) => PageVectors::Codes(codes),
            (VectorForm::Vectors { codec, vec_bytes }, _) => {
                PageVectors::Vectors { codec: &**codec, vec_bytes: *vec_bytes }
            }
        }
    }

    /// Writes one vector into one head's memory.
    fn put(&self, head: &mut [u8], pages: &PageTable, row: &Row, x: &[f32]) {
        let (i, pos) = (row.pos as usize / PAGE, row.pos as usize % PAGE);
        match (&self.form, self.exact) {
            (_, Some(exact)) => {
                let mut scratch = [0.0; codes::MAX_DIM];
                let within = within_f16(x, &mut scratch);
                self.count(usize::from(within.is_none()));
                let page = &mut head[self.layout.exact(exact_page(pages, row, i))];
                exact.put(page, pos, within.unwrap_or(&scratch[..x.len()]), self.side);
            }
            (VectorForm::Elements(elements), None) => {
                elements.put(&mut head[self.layout.page_of(pages, row.seq, i)], pos, x, self.side);
            }
            (form, None) => {
                let page = &mut head[self.layout.page_of(pages, row.seq, i)];
                self.count(usize::from(!form.encode(page, pos, x)));
            }
        }
    }

    /// Encodes the page whose last position `row` has filled, unless its codes are never read.
    fn encode_page(&self, k: &RealKernels, head: &mut [u8], pages: &PageTable, row: &Row) {
        let (i, head_dim) = (row.pos as usize / PAGE, self.head_dim);
        if i < self.window.sink_pages {
            return;
        }
        let (coded, exact) = head.split_at_mut(self.layout.pages * self.layout.page_bytes);
        let full = self.layout.exact(exact_page(pages, row, i)).start - coded.len();
        let halves = cast_slice::<u8, f16>(&exact[full..][..self.layout.exact_bytes]);
        let page = &mut coded[self.layout.page_of(pages, row.seq, i)];
        let (mean_bytes, codes) = page.split_at_mut(self.mean_bytes());
        let (mut mean, mut vectors) = ([0.0; codes::MAX_DIM], [0.0; codes::TOGETHER * codes::MAX_DIM]);
        let (mean, vectors) = (&mut mean[..head_dim], &mut vectors[..codes::TOGETHER * head_dim]);
        if let Some(of_keys) = self.mean {
            of_keys.encode(halves.chunks_exact(PAGE).map(|dim| dim.iter().copied()), mean_bytes);
            of_keys.decode(mean_bytes, mean);
        }
        for first in (0..PAGE).step_by(codes::TOGETHER) {
            match self.side {
                KvSide::Keys => {
                    for (pos, vector) in (first..).zip(vectors.chunks_exact_mut(head_dim)) {
                        for ((x, dim), mean) in vector.iter_mut().zip(halves.chunks_exact(PAGE)).zip(&*mean) {
                            *x = dim[pos].to_f32() - mean;
                        }
                    }
                }
                KvSide::Values => {
                    halves[first * head_dim..][..vectors.len()].convert_to_f32_slice(vectors);
                }
            }
            self.count(self.form.encode_all(k, codes, first, vectors, head_dim));
        }
    }

    /// Counts vectors that were clamped.
    fn count(&self, n: usize) {
        if n > 0 {
            self.clamped.fetch_add(n as u64, Ordering::Relaxed);
        }
    }
}

impl VectorForm {
    /// Encodes a vector as position `pos` of a page; returns `false` if something had to be clamped.
    fn encode(&self, page: &mut [u8], pos: usize, x: &[f32]) -> bool {
        match self {
            VectorForm::Elements(_) => unreachable!("elements are not encoded"),
            VectorForm::Codes(codes) => codes.put(page, pos, x),
            VectorForm::Vectors { codec, vec_bytes } => {
                codec.encode(x, &mut page[pos * vec_bytes..][..*vec_bytes])
            }
        }
    }

    /// Encodes vectors, `[n, head_dim]`, as the positions of a page from `pos` on; returns the number of
    /// those in which something had to be clamped.
    fn encode_all(&self, k: &RealKernels, page: &mut [u8], pos: usize, x: &[f32], head_dim: usize) -> usize {
        match self {
            VectorForm::Elements(_) => unreachable!("elements are not encoded"),
            VectorForm::Codes(codes) => codes.put_all(k, page, pos, x),
            VectorForm::Vectors { codec, vec_bytes } => {
                let n = x.len() / head_dim;
                codec.encode_all(n, x, &mut page[pos * vec_bytes..][..n * vec_bytes], k.search)
            }
        }
    }
}

/// Returns `x` if all of it is in the range of f16. Otherwise writes to `clamped`: 0 for values that are not
/// finite, and f16's largest finite value for those out of range.
fn within_f16<'a>(x: &'a [f32], clamped: &mut [f32]) -> Option<&'a [f32]> {
    let most = f16::MAX.to_f32();
    if x.iter().all(|x| x.abs() <= most) {
        return Some(x);
    }
    for (out, x) in clamped.iter_mut().zip(x) {
        *out = if x.is_finite() { x.clamp(-most, most) } else { 0.0 };
    }
    None
}

/// Number of the exact page that holds page `i` of a row's sequence.
fn exact_page(pages: &PageTable, row: &Row, i: usize) -> usize {
    pages.exact(row.seq)[i].expect("the step was checked") as usize
}
