//! The paged KV cache of one layer.
//!
//! All pages of one KV head lie together, and a page keeps its 64 positions the way attention multiplies
//! them: keys as `[head_dim, 64]`, values as `[64, head_dim]`. Codecs whose vectors are more than a list of
//! elements keep vector after vector, and take that form when a page is read.

use std::ops::Range;

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use ggml_types::{KvCodec, QuantError};
use half::f16;
use half::slice::HalfFloatSliceExt;

use super::pool::Pool;
use super::simd::real::{Matrices, RealKernels};
use crate::program::{KvDecl, PAGE, PageTable, Row};

/// One layer's keys and values.
pub struct KvCache {
    n_kv_heads: usize,
    head_dim: usize,
    pages: usize,
    keys: Plane,
    values: Plane,
}

/// The keys or the values: `[n_kv_heads, pages, page_bytes]`.
struct Plane {
    form: Form,
    page_bytes: usize,
    /// As words, so that elements of any codec are aligned.
    words: Vec<u64>,
}

/// How a page keeps vectors.
#[derive(Clone, Copy)]
enum Form {
    Elements(&'static Elements),
    Vectors { codec: &'static dyn KvCodec, vec_bytes: usize },
}

/// A codec that is a plain list of elements.
struct Elements {
    name: &'static str,
    bytes: usize,
    /// Writes one vector as row `pos` of a page of `[PAGE, x.len()]`.
    put_row: fn(page: &mut [u8], pos: usize, x: &[f32]),
    /// Writes one vector as column `pos` of a page of `[x.len(), PAGE]`.
    put_column: fn(page: &mut [u8], pos: usize, x: &[f32]),
    /// Elements as they are.
    rows: fn(bytes: &[u8]) -> Rows<'_>,
}

/// Neighbouring rows of keys or values.
#[derive(Clone, Copy)]
pub enum Rows<'a> {
    /// As f32.
    F32(&'a [f32]),
    /// As f16.
    F16(&'a [f16]),
}

impl Rows<'_> {
    /// `c = a b`, or `c += a b`, where `b` are the elements from `first` on.
    pub fn multiply(self, k: &RealKernels, shape: &Matrices, a: &[f32], first: usize, c: &mut [f32]) {
        match self {
            Rows::F32(b) => (k.gemm)(shape, a, &b[first..], c),
            Rows::F16(b) => (k.gemm_f16)(shape, a, &b[first..], c),
        }
    }
}

static ELEMENTS: &[Elements] = &[
    Elements {
        name: "f16",
        bytes: 2,
        put_row: |page, pos, x| {
            cast_slice_mut::<u8, f16>(page)[pos * x.len()..][..x.len()].convert_from_f32_slice(x);
        },
        put_column: |page, pos, x| put_column(cast_slice_mut::<u8, f16>(page), pos, x, f16::from_f32),
        rows: |bytes| Rows::F16(cast_slice(bytes)),
    },
    Elements {
        name: "f32",
        bytes: 4,
        put_row: |page, pos, x| cast_slice_mut(page)[pos * x.len()..][..x.len()].copy_from_slice(x),
        put_column: |page, pos, x| put_column(cast_slice_mut::<u8, f32>(page), pos, x, |x| x),
        rows: |bytes| Rows::F32(cast_slice(bytes)),
    },
];

fn put_column<T: Pod>(page: &mut [T], pos: usize, x: &[f32], from_f32: fn(f32) -> T) {
    for (column, x) in page.chunks_exact_mut(PAGE).zip(x) {
        column[pos] = from_f32(*x);
    }
}

/// Up to how many queries f16 rows are multiplied as they are; for more of them it pays to widen the rows first.
const FEW_QUERIES: usize = 8;

/// Elements that are widened before they are multiplied: a quarter of a first cache of 32 KiB. A page as a whole
/// would be written to the second cache and come back from there.
const PART: usize = 2048;

impl Elements {
    /// Hands on rows of `cols` elements: which, and what they hold.
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

/// What of a cache is read.
#[derive(Clone, Copy)]
pub struct Place {
    /// The KV head.
    pub head: usize,
    /// The page's number in the cache.
    pub page: usize,
    /// Positions of the page, from its first.
    pub n: usize,
    /// Queries that it is multiplied with.
    pub n_queries: usize,
}

impl KvCache {
    /// An empty cache; the system provides its memory when it is first written.
    pub fn new(decl: &KvDecl, pages: usize) -> Self {
        let plane = |codec| {
            let (form, page_bytes) = form_of(codec, decl.head_dim).expect("the program was checked");
            let words = vec![0; decl.n_kv_heads * pages * page_bytes / 8];
            Plane { form, page_bytes, words }
        };
        let KvDecl { n_kv_heads, head_dim, k, v } = *decl;
        Self { n_kv_heads, head_dim, pages, keys: plane(k), values: plane(v) }
    }

    /// Bytes of a cache.
    ///
    /// # Errors
    /// Where a codec cannot hold such a head.
    pub fn bytes(decl: &KvDecl, pages: usize) -> Result<u64, QuantError> {
        let page_bytes = form_of(decl.k, decl.head_dim)?.1 as u64 + form_of(decl.v, decl.head_dim)?.1 as u64;
        Ok(page_bytes.saturating_mul(decl.n_kv_heads as u64).saturating_mul(pages as u64))
    }

    /// Writes the keys and values of a step's rows, each `[rows, n_kv_heads * head_dim]`.
    pub fn put(&mut self, pool: &Pool, rows: &[Row], pages: &PageTable, k: &[f32], v: &[f32]) {
        let (head_dim, cols) = (self.head_dim, self.n_kv_heads * self.head_dim);
        let n_pages = self.pages;
        for (plane, x, keys) in [(&mut self.keys, k, true), (&mut self.values, v, false)] {
            let (form, page_bytes) = (plane.form, plane.page_bytes);
            let head_bytes = n_pages * page_bytes;
            let put_head = |head: usize, bytes: &mut [u8]| {
                for (row, x) in rows.iter().zip(x.chunks_exact(cols)) {
                    let page = page_of(pages, row.seq, row.pos as usize / PAGE);
                    let page = &mut bytes[page * page_bytes..][..page_bytes];
                    let x = &x[head * head_dim..][..head_dim];
                    form.put(page, row.pos as usize % PAGE, x, keys);
                }
            };
            let bytes = cast_slice_mut(&mut plane.words);
            if rows.len() == 1 {
                bytes
                    .chunks_exact_mut(head_bytes)
                    .enumerate()
                    .for_each(|(head, bytes)| put_head(head, bytes));
            } else {
                pool.chunks_mut(bytes, head_bytes, put_head);
            }
        }
    }

    /// Reads the keys of the first `place.n` positions of a page as rows of `[head_dim, PAGE]`, some rows after the
    /// other: `each` gets which, and what they hold; columns from `n` on are anything. `tile` is `[head_dim * PAGE]`
    /// and `vector` is `[head_dim]`, to work in.
    pub fn keys(
        &self,
        k: &RealKernels,
        Place { head, page, n, n_queries }: Place,
        (tile, vector): (&mut [f32], &mut [f32]),
        mut each: impl FnMut(Range<usize>, Rows<'_>),
    ) {
        let bytes = self.keys.page(self.pages, head, page);
        match self.keys.form {
            Form::Elements(elements) => elements.each_rows(k, bytes, PAGE, n_queries, tile, each),
            Form::Vectors { codec, vec_bytes } => {
                for (pos, bytes) in bytes.chunks_exact(vec_bytes).take(n).enumerate() {
                    codec.decode(bytes, vector);
                    put_column(tile, pos, vector, |x| x);
                }
                each(0..self.head_dim, Rows::F32(tile));
            }
        }
    }

    /// Reads the values of the first `place.n` positions of a page as rows of `[n, head_dim]`, as
    /// [`keys`](Self::keys) does.
    pub fn values(
        &self,
        k: &RealKernels,
        Place { head, page, n, n_queries }: Place,
        tile: &mut [f32],
        mut each: impl FnMut(Range<usize>, Rows<'_>),
    ) {
        let bytes = self.values.page(self.pages, head, page);
        let tile = &mut tile[..n * self.head_dim];
        match self.values.form {
            Form::Elements(elements) => {
                let bytes = &bytes[..tile.len() * elements.bytes];
                elements.each_rows(k, bytes, self.head_dim, n_queries, tile, each);
            }
            Form::Vectors { codec, vec_bytes } => {
                let vectors = tile.chunks_exact_mut(self.head_dim);
                bytes.chunks_exact(vec_bytes).zip(vectors).for_each(|(bytes, out)| codec.decode(bytes, out));
                each(0..n, Rows::F32(tile));
            }
        }
    }

    /// KV heads.
    pub fn n_kv_heads(&self) -> usize {
        self.n_kv_heads
    }

    /// Length of one vector.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }
}

impl Plane {
    fn page(&self, n_pages: usize, head: usize, page: usize) -> &[u8] {
        &cast_slice(&self.words)[(head * n_pages + page) * self.page_bytes..][..self.page_bytes]
    }
}

impl Form {
    fn put(self, page: &mut [u8], pos: usize, x: &[f32], keys: bool) {
        match self {
            Form::Elements(elements) if keys => (elements.put_column)(page, pos, x),
            Form::Elements(elements) => (elements.put_row)(page, pos, x),
            Form::Vectors { codec, vec_bytes } => codec.encode(x, &mut page[pos * vec_bytes..][..vec_bytes]),
        }
    }
}

/// The form of a codec, and the bytes of one page of one head.
fn form_of(codec: &'static dyn KvCodec, head_dim: usize) -> Result<(Form, usize), QuantError> {
    let vec_bytes = codec.vec_bytes(head_dim)?;
    let elements = ELEMENTS.iter().find(|e| e.name == codec.name() && e.bytes * head_dim == vec_bytes);
    let form = elements.map_or(Form::Vectors { codec, vec_bytes }, Form::Elements);
    Ok((form, PAGE * vec_bytes))
}

/// The page that holds page `i` of a sequence.
pub fn page_of(pages: &PageTable, seq: u32, i: usize) -> usize {
    pages.seq(seq)[i] as usize
}
