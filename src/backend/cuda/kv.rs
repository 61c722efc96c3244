//! KV caches on the device: plain elements, blocks of transformed vectors, or pages of codes with additional
//! exact pages.

use bytemuck::Zeroable;
use ggml_types::turboquant::{
    Codebook, KeyBasis, LogScale, Projection, Qjl, Rotation, Split, Trellis, TrellisSplit, TrellisVector,
};
use ggml_types::{KvCodec, KvForm, KvSide, kv, kv_on};
use half::f16;

use super::alloc::Allocator;
use super::driver::{Address, Driver};
use super::kernel_name::KernelName;
use super::params::{
    BLOCK_ELEMS, BLOCKS_HALVES, BLOCKS_Q4_0, BLOCKS_Q8_0, BlockKvParams, CODES_DIMS, CODES_MAX_DIM,
    CODES_MIN_DIM, CodedKvParams, CodesParams, GroupParams, KeyPlace, KvParams, LATENT_MAX_DIM, SignsParams,
    SplitParams, TRELLIS_ONE_FIRST, TRELLIS_ONE_SECOND, TRELLIS_SEAM, TrellisParams, TrellisTables,
};
use crate::device::tables::{hadamard_factor, sign_words};
use crate::memory::{self, EXACT_PART};
use crate::{BackendError, KvPage, MemoryKind};
use sterna_program::{KvDecl, Limits, PAGE};

/// Storage format of a codec's vectors.
#[derive(Clone, Copy)]
pub enum VectorForm {
    /// Plain elements of this many bytes.
    Elements(u32),
    /// Lloyd-Max codes of this many bits, in pages that have left the window.
    Codes(u32),
    /// In such pages, keys as 2-bit codes and the signs of the residual, values as codes of this many bits.
    Signs(u32),
    /// In such pages, keys in two groups of codes, values as codes of this many bits.
    Split(u32),
    /// In such pages, codes of trellises: keys in two groups, values as codes of 3 bits.
    Trellis,
    /// Blocks or halves, for keys and values: `BLOCKS_HALVES` and so on.
    Blocks([u32; 2]),
}

/// Kernel name for all codecs that can be combined in one cache (`cuda/kv/blocks.cu`).
const BLOCKS_NAME: &str = "blocks";

const MAX_HEAD_DIM: usize = 256;

/// The same for caches of f16.
const MAX_HALVES: usize = 512;

/// A cache as kernels see it.
#[derive(Clone, Copy)]
pub enum KvLayout {
    Elements(KvParams),
    Codes(CodedKvParams),
    Blocks(BlockKvParams),
}

/// Kernels of every codec: its own (`cuda/kv/NAME.cu`), and those shared by all blocks.
pub fn kernels() -> impl Iterator<Item = KernelName> {
    let of_codec = |codec: &&'static dyn KvCodec| {
        let stages: &[&'static str] = match codec.form() {
            KvForm::F16 | KvForm::F32 => &["attend"],
            KvForm::Lloyd3 | KvForm::Lloyd4 | KvForm::Lloyd2Signs | KvForm::Lloyd42 | KvForm::Trellis42 => {
                &["append", "attend"]
            }
            KvForm::Q8_0 | KvForm::Q4_0 | KvForm::Opaque => &[],
            KvForm::Bf16 | KvForm::Q4_1 | KvForm::Q5_0 | KvForm::Q5_1 | KvForm::Iq4Nl => &[],
            // Values have the name of their keys' codec.
            KvForm::Trellis3 => &[],
        };
        let codec = codec.name();
        stages.iter().map(move |stage| KernelName::of(stage, codec))
    };
    let blocks = ["append", "attend"].map(|stage| KernelName::of(stage, BLOCKS_NAME));
    kv::REGISTRY.iter().flat_map(of_codec).chain(blocks)
}

/// Attention kernels that also have a variant for tiles of rows.
pub fn tiled_kernels() -> impl Iterator<Item = KernelName> {
    let is_tiled = |codec: &&'static dyn KvCodec| {
        matches!(
            codec.form(),
            KvForm::F16 | KvForm::Lloyd3 | KvForm::Lloyd4 | KvForm::Lloyd42 | KvForm::Trellis42
        )
    };
    let codecs = kv::REGISTRY.iter().copied().filter(is_tiled).map(|codec| codec.name());
    codecs.chain([BLOCKS_NAME]).map(|codec| KernelName::of("attend", codec))
}

/// The kernel of a stage for a cache, of those that take every head length.
pub fn kernel(stage: &'static str, decl: &KvDecl) -> KernelName {
    let is_blocks = matches!(form(decl), Some(VectorForm::Blocks(_)));
    KernelName::of(stage, if is_blocks { BLOCKS_NAME } else { decl.k.name() })
}

/// Storage format of a cache, if there are kernels for its combination of keys and values.
pub fn form(decl: &KvDecl) -> Option<VectorForm> {
    let v = if decl.values_are_keys { decl.k } else { decl.v };
    match (decl.k.form(), v.form()) {
        (KvForm::F16, KvForm::F16) => Some(VectorForm::Elements(2)),
        (KvForm::F32, KvForm::F32) => Some(VectorForm::Elements(4)),
        (KvForm::Lloyd3, KvForm::Lloyd3) => Some(VectorForm::Codes(3)),
        (KvForm::Lloyd4, KvForm::Lloyd4) => Some(VectorForm::Codes(4)),
        (KvForm::Lloyd2Signs, KvForm::Lloyd3) => Some(VectorForm::Signs(3)),
        (KvForm::Lloyd42, KvForm::Lloyd3) => Some(VectorForm::Split(3)),
        (KvForm::Trellis42, KvForm::Trellis3) => Some(VectorForm::Trellis),
        (k, v) => Some(VectorForm::Blocks([blocks(k)?, blocks(v)?])),
    }
}

/// Number of a format in `append__blocks` and `attend__blocks`.
fn blocks(form: KvForm) -> Option<u32> {
    match form {
        KvForm::F16 => Some(BLOCKS_HALVES),
        KvForm::Q8_0 => Some(BLOCKS_Q8_0),
        KvForm::Q4_0 => Some(BLOCKS_Q4_0),
        KvForm::F32 | KvForm::Lloyd3 | KvForm::Lloyd4 | KvForm::Lloyd2Signs => None,
        KvForm::Lloyd42 | KvForm::Opaque => None,
        KvForm::Bf16 | KvForm::Q4_1 | KvForm::Q5_0 | KvForm::Q5_1 | KvForm::Iq4Nl => None,
        KvForm::Trellis42 | KvForm::Trellis3 => None,
    }
}

/// True if `append` writes keys and values, and attention reads them page by page.
pub fn is_appended(decl: &KvDecl) -> bool {
    form(decl).is_some_and(|form| !matches!(form, VectorForm::Elements(_)))
}

/// Checks that a cache has kernels; otherwise names what is missing, for a message.
pub fn check(decl: &KvDecl) -> Result<(), String> {
    if decl.values_are_keys {
        let head_dim = decl.head_dim;
        let fits = head_dim <= LATENT_MAX_DIM as usize && head_dim.is_multiple_of(4);
        let most = format!("multiples of 4 up to {LATENT_MAX_DIM} have kernels");
        return if fits { Ok(()) } else { Err(format!("latent attention with keys of {head_dim} ({most})")) };
    }
    let (k, v, head_dim) = (decl.k.name(), decl.v.name(), decl.head_dim);
    match form(decl) {
        None if kv_on(KvSide::Values, decl.k).form() == decl.v.form() => {
            let same = |codec: &&&'static dyn KvCodec| {
                form(&KvDecl { k: **codec, v: kv_on(KvSide::Values, **codec), ..decl.clone() }).is_some()
            };
            let there: Vec<_> = kv::REGISTRY.iter().filter(same).map(|codec| codec.name()).collect();
            Err(format!("{} (supported caches: {})", kernel("attend", decl), there.join(", ")))
        }
        None => {
            let mixed = kv::REGISTRY.iter().filter(|codec| blocks(codec.form()).is_some());
            let mixed: Vec<_> = mixed.map(|codec| codec.name()).collect();
            Err(format!("attend with keys of {k} and values of {v} (one cache can mix {})", mixed.join(", ")))
        }
        Some(form)
            if !matches!(form, VectorForm::Elements(_))
                && (!(CODES_MIN_DIM..=CODES_MAX_DIM).contains(&(head_dim as u32))
                    || !head_dim.is_power_of_two()) =>
        {
            Err(format!("attend over {k} and {v} with heads of {head_dim}"))
        }
        Some(VectorForm::Elements(2)) if head_dim <= MAX_HALVES => Ok(()),
        _ if head_dim > MAX_HEAD_DIM => Err(format!(
            "attend with heads of {head_dim} over a cache of {k} (f16 has kernels for heads of up to 512)"
        )),
        _ => Ok(()),
    }
}

/// Elements of a cached vector of plain elements, including zero padding.
pub fn stride(decl: &KvDecl) -> usize {
    decl.head_dim.next_multiple_of(8)
}

/// A number of pages of one sequence, clipped to the kernels' `u32`.
fn clipped(pages: usize) -> u32 {
    u32::try_from(pages).unwrap_or(u32::MAX)
}

/// Bytes of a page of one layer, excluding exact pages.
fn page_bytes(decl: &KvDecl) -> u64 {
    let of_codec = |codec: &dyn KvCodec, side| {
        codec.page_bytes(side, decl.head_dim, PAGE).expect("the program was checked")
    };
    let of_head = match form(decl).expect("the plan was made") {
        VectorForm::Elements(bytes) => {
            let sides = if decl.values_are_keys { 1 } else { 2 };
            PAGE * sides * stride(decl) * bytes as usize
        }
        VectorForm::Codes(_) | VectorForm::Signs(_) | VectorForm::Split(_) | VectorForm::Trellis => {
            of_codec(decl.k, KvSide::Keys) + of_codec(decl.v, KvSide::Values)
        }
        VectorForm::Blocks(forms) => {
            PAGE * forms.map(|form| block_vector_bytes(form, decl.head_dim)).iter().sum::<usize>()
        }
    };
    (decl.n_kv_heads * of_head) as u64
}

/// Bytes of an exact page of one layer: keys and values as halves, `cols` elements each per position.
fn exact_bytes(cols: usize) -> usize {
    2 * PAGE * cols * size_of::<f16>()
}

/// Bytes of a vector in blocks, including scales, or in halves.
fn block_vector_bytes(form: u32, head_dim: usize) -> usize {
    let scales = 2 * head_dim / BLOCK_ELEMS as usize;
    match form {
        BLOCKS_Q8_0 => head_dim + scales,
        BLOCKS_Q4_0 => head_dim / 2 + scales,
        _ => 2 * head_dim,
    }
}

/// Bytes of keys and values of a step's rows before they are transformed.
pub fn raw_bytes(decl: &KvDecl, rows: usize) -> u64 {
    if is_appended(decl) { (rows * 2 * decl.n_kv_heads * decl.head_dim * 4) as u64 } else { 0 }
}

/// Shared memory of a block of `append`, or of attention in its place, over a cache of codes
/// (`AppendRoom` in `cuda/stage/append.cuh`).
pub fn append_shared_bytes(decl: &KvDecl, threads: u32) -> usize {
    let (head_dim, warps) = (decl.head_dim, threads as usize / 32);
    let of_codes = match form(decl) {
        // Two groups of each vector, and each warp's costs and branches.
        Some(VectorForm::Trellis) => 2 * PAGE * 20 + warps * 4 * (2 * 32 + 4 * head_dim),
        // The codes of each warp's vector.
        _ => warps * head_dim,
    };
    // The row that writes each position; the mean, in f64 and in f32; and a page of halves.
    (4 * PAGE + (8 + 4 + 2 * PAGE) * head_dim + of_codes).next_multiple_of(16)
}

/// Static shared memory of attention over a cache.
pub fn table_bytes(decl: &KvDecl) -> u32 {
    if is_trellis(decl) { size_of::<TrellisTables>() as u32 } else { 0 }
}

fn is_trellis(decl: &KvDecl) -> bool {
    matches!(form(decl), Some(VectorForm::Trellis))
}

/// Allocates the tables of trellis codes if a cache has such codes; otherwise the address is 0.
pub fn alloc_trellis<A: Allocator + ?Sized>(on: &mut A, kvs: &[KvDecl]) -> Result<Address, BackendError> {
    let bytes = if kvs.iter().any(is_trellis) { size_of::<TrellisParams>() as u64 } else { 0 };
    on.buffer("tables of trellis codes", bytes)
}

/// Writes these tables, if there are any.
pub fn fill_trellis(driver: &mut dyn Driver, at: Address) -> Result<(), BackendError> {
    if at == 0 { Ok(()) } else { driver.write(at, bytemuck::bytes_of(&trellis_params())) }
}

/// Uploads the constants that the kernels of some caches read.
pub fn upload_constants(driver: &mut dyn Driver, kvs: &[KvDecl]) -> Result<(), BackendError> {
    let any = |is: fn(VectorForm) -> bool| kvs.iter().any(|decl| form(decl).is_some_and(is));
    let dims: [_; CODES_DIMS as usize] = std::array::from_fn(|i| (CODES_MIN_DIM as usize) << i);
    if any(|form| matches!(form, VectorForm::Signs(_))) {
        driver.upload_constant("signs_params", bytemuck::cast_slice(&dims.map(signs)))?;
    }
    if any(|form| matches!(form, VectorForm::Split(_))) {
        driver.upload_constant("split_params", bytemuck::cast_slice(&dims.map(split)))?;
    }
    Ok(())
}

impl KvLayout {
    /// Allocates a cache. At address `clamped`, kernels count the vectors that had to be clamped; `trellis`
    /// is that of [`alloc_trellis`].
    pub fn new<A: Allocator + ?Sized>(
        on: &mut A,
        decl: &KvDecl,
        limits: &Limits,
        clamped: Address,
        trellis: Address,
    ) -> Result<Self, BackendError> {
        let mut pages_of = |part: &str, n: usize, page_bytes: u64| {
            on.alloc_for(MemoryKind::Kv, part, page_bytes.saturating_mul(n as u64))
        };
        // `form` covers the codecs, `KvDecl::pages` the sliding window, `page_bytes` keys that are also the
        // values, and `check` the rest.
        let KvDecl { n_kv_heads, head_dim, k: _, v: _, basis: _, window, sliding: _, values_are_keys: _ } =
            *decl;
        let page_bytes = page_bytes(decl);
        let pages = pages_of(&memory::cache_part(decl), decl.pages(limits), page_bytes)?;
        let cols = n_kv_heads * head_dim;
        let exact = match decl.is_windowed() {
            true => pages_of(EXACT_PART, limits.exact_pages, exact_bytes(cols) as u64)?,
            false => 0,
        };
        let bases = match decl.k.form().has_basis() {
            true => on.buffer("bases of keys", (cols * size_of::<KeyPlace>()) as u64)?,
            false => 0,
        };
        let (n_kv_heads, head_dim) = (n_kv_heads as u32, head_dim as u32);
        Ok(match form(decl).expect("the plan was made") {
            VectorForm::Elements(elem_bytes) => {
                let stride = stride(decl) as u32;
                Self::Elements(KvParams { pages, page_bytes, n_kv_heads, head_dim, stride, elem_bytes })
            }
            VectorForm::Codes(_) | VectorForm::Signs(_) | VectorForm::Split(_) | VectorForm::Trellis => {
                Self::Codes(CodedKvParams {
                    codes: CodesParams::zeroed(),
                    pages,
                    exact,
                    clamped,
                    bases,
                    trellis,
                    page_bytes,
                    n_kv_heads,
                    head_dim,
                    sink_pages: clipped(window.sink_pages),
                    newest_pages: clipped(window.newest_pages),
                })
            }
            VectorForm::Blocks(forms) => {
                let (signs, shrink) = rotation(decl.head_dim);
                let of_blocks = BlockKvParams {
                    signs,
                    shrink,
                    n_kv_heads,
                    head_dim,
                    forms,
                    reserved: 0,
                    pages,
                    clamped,
                    page_bytes,
                };
                Self::Blocks(of_blocks)
            }
        })
    }

    /// Fills in the codebook, and writes the bases of keys. This takes milliseconds, and a plan does not need
    /// it.
    pub fn fill(&mut self, driver: &mut dyn Driver, decl: &KvDecl) -> Result<(), BackendError> {
        let Self::Codes(of_codes) = self else { return Ok(()) };
        of_codes.codes = match form(decl).expect("the plan was made") {
            VectorForm::Codes(bits) | VectorForm::Signs(bits) | VectorForm::Split(bits) => {
                codes(decl.head_dim, bits)
            }
            // Values are in steps, and need no codebook.
            VectorForm::Trellis => {
                let (signs, shrink) = rotation(decl.head_dim);
                CodesParams { signs, shrink, unit: 1.0 / Trellis::UNIT as f32, ..CodesParams::zeroed() }
            }
            VectorForm::Elements(_) | VectorForm::Blocks(_) => unreachable!("a cache of codes"),
        };
        if let Some(bases) = decl.bases() {
            let places: Vec<_> = bases.iter().flat_map(key_places).collect();
            driver.write(of_codes.bases, bytemuck::cast_slice(&places))?;
        }
        Ok(())
    }

    /// Address range of a page of keys and values, as start and bytes; `None` if the cache has no such page.
    /// `decl` is the one the cache was created with.
    pub fn stretch(&self, decl: &KvDecl, page: KvPage) -> Option<(Address, usize)> {
        let nth = |from: Address, bytes: usize, i: u32| (from + u64::from(i) * bytes as u64, bytes);
        match (page, *self) {
            (KvPage::Quantised(_), _) if decl.sliding.is_some() => None,
            (KvPage::Sliding(_), _) if decl.sliding.is_none() => None,
            (
                KvPage::Quantised(i) | KvPage::Sliding(i),
                Self::Elements(KvParams { pages, page_bytes, .. })
                | Self::Codes(CodedKvParams { pages, page_bytes, .. })
                | Self::Blocks(BlockKvParams { pages, page_bytes, .. }),
            ) => Some(nth(pages, page_bytes as usize, i)),
            (KvPage::Exact(i), Self::Codes(CodedKvParams { exact, n_kv_heads, head_dim, .. })) => {
                Some(nth(exact, exact_bytes((n_kv_heads * head_dim) as usize), i))
            }
            (KvPage::Exact(_), Self::Elements(_) | Self::Blocks(_)) | (KvPage::State(_), _) => None,
        }
    }

    /// Parameters of `attn_in`, and the address to which it writes keys and values for `append` instead, or
    /// 0.
    pub fn for_attn_in(&self, raw: Address) -> (KvParams, Address) {
        match *self {
            Self::Elements(kv) => (kv, 0),
            Self::Codes(CodedKvParams { n_kv_heads, head_dim, .. })
            | Self::Blocks(BlockKvParams { n_kv_heads, head_dim, .. }) => {
                let nowhere =
                    KvParams { pages: 0, page_bytes: 0, n_kv_heads, head_dim, stride: 0, elem_bytes: 0 };
                (nowhere, raw)
            }
        }
    }
}

/// Signs and factor of a rotation in the kernels' format.
fn rotation(head_dim: usize) -> ([u32; 8], f32) {
    let rotation = Rotation::new(head_dim).expect("the program was checked");
    (sign_words(&rotation), hadamard_factor(head_dim))
}

/// Rotation and codebook in the kernels' format.
fn codes(head_dim: usize, bits: u32) -> CodesParams {
    let (signs, shrink) = rotation(head_dim);
    let Book { unit, borders, magnitudes, table, halves } = book(head_dim, bits);
    CodesParams { signs, shrink, unit, borders, magnitudes, table, halves }
}

/// The projection of residuals, and the codebook that they are relative to, in the kernels' format.
fn signs(head_dim: usize) -> SignsParams {
    let qjl = Qjl::srht(head_dim).expect("a power of two");
    let Projection::Srht(rotation) = qjl.projection() else {
        unreachable!("SRHT is built from signs and a Hadamard matrix")
    };
    let Book { unit, borders, magnitudes, table, .. } = book(head_dim, 2);
    let two = |x: [f32; 8]| [x[0], x[1]];
    SignsParams {
        signs: sign_words(rotation),
        factor: qjl.factor() as f32,
        unit,
        borders: two(borders),
        magnitudes: two(magnitudes),
        table,
    }
}

/// The places of a head in the kernels' format: `[head_dim]`.
fn key_places(basis: &KeyBasis) -> Vec<KeyPlace> {
    let signs = basis.half().signs().iter().cycle();
    let factors = basis.key_factors().iter().zip(basis.query_factors()).zip(signs);
    let places = basis.elements().iter().zip(factors);
    let place = |(elem, ((of_key, of_query), sign)): (&u16, ((&f32, &f32), &f32))| KeyPlace {
        elem: u32::from(*elem),
        of_key: of_key * sign,
        of_query: of_query * sign,
    };
    places.map(place).collect()
}

/// The codebooks and scales of keys in two groups, in the kernels' format.
fn split(head_dim: usize) -> SplitParams {
    let split = Split::new(head_dim);
    let unit = (head_dim as f32 / 2.0).sqrt();
    let group = |group: usize| {
        let book = split.codebook(group);
        let half = book.centroids().len() / 2;
        let (upper, borders_of) = (&book.centroids()[half..], &book.thresholds()[half - 1..]);
        let (mut borders, mut magnitudes, mut all_bytes) = ([f32::INFINITY; 8], [0.0; 8], [0; 8]);
        magnitudes.iter_mut().zip(upper).for_each(|(to, x)| *to = *x as f32);
        borders.iter_mut().zip(borders_of).for_each(|(to, x)| *to = *x as f32);
        let (bytes, step) = table(upper);
        all_bytes.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte as u8);
        let one = f32::from(split.scale(group).one());
        let of_code_0 = step * f64::from(unit);
        GroupParams {
            borders,
            magnitudes,
            table: words(&all_bytes),
            half: half as u32,
            one,
            bias: (of_code_0.log2() - f64::from(one) / f64::from(LogScale::STEPS)) as f32,
        }
    };
    SplitParams { groups: [group(0), group(1)], shrink: hadamard_factor(head_dim / 2), unit }
}

/// The tables of trellis codes in the kernels' format.
fn trellis_params() -> TrellisParams {
    let ones = [0, 1].map(|group| u32::from(TrellisSplit::scale(group).one()));
    assert_eq!(ones, [TRELLIS_ONE_FIRST, TRELLIS_ONE_SECOND], "the scales in params.h");
    assert_eq!((Trellis::SEAM, Trellis::UNIT), (TRELLIS_SEAM as usize, 32), "the search in params.h");
    let [four, two] = TrellisSplit::TRELLISES;
    let bytes = |i: usize, trellis| {
        let [a, b] = pair(trellis, i).map(|value| u32::from(value.cast_unsigned()));
        a | b << 8
    };
    let of_bytes = |i: usize, trellis| bytes(2 * i, trellis) | bytes(2 * i + 1, trellis) << 16;
    let halves = |i: usize| {
        let half = |value: i8| f16::from_f32(f32::from(value) / Trellis::UNIT as f32).to_bits();
        let [a, b] = pair(TrellisVector::TRELLIS, i).map(|value| u32::from(half(value)));
        a | b << 16
    };
    TrellisParams {
        tables: TrellisTables {
            four: std::array::from_fn(|i| of_bytes(i, four)),
            two: std::array::from_fn(|i| of_bytes(i, two)),
            three: std::array::from_fn(halves),
        },
        shrink: std::array::from_fn(|i| hadamard_factor((CODES_MIN_DIM as usize / 2) << i)),
    }
}

/// The values of two neighbouring elements of a trellis, by the codes up to them, the oldest in the low bits.
fn pair(trellis: &Trellis, codes: usize) -> [i8; 2] {
    let (bits, n) = (trellis.bits(), trellis.window() / trellis.bits());
    let code = |i: u32| codes >> (bits * i) & ((1 << bits) - 1);
    let window = |first: u32| (first..first + n).fold(0, |window, i| window << bits | code(i));
    [0, 1].map(|first| trellis.values()[window(first)])
}

/// A codebook in the format of `cuda/params.h`.
struct Book {
    unit: f32,
    borders: [f32; 8],
    magnitudes: [f32; 8],
    table: [u32; 2],
    halves: [u32; 4],
}

fn book(head_dim: usize, bits: u32) -> Book {
    let book = Codebook::new(head_dim, bits);
    let half = book.centroids().len() / 2;
    let (upper, borders_of) = (&book.centroids()[half..], &book.thresholds()[half - 1..]);
    let (mut borders, mut magnitudes) = ([0.0; 8], [0.0; 8]);
    magnitudes.iter_mut().zip(upper).for_each(|(to, x)| *to = *x as f32);
    borders.iter_mut().zip(borders_of).for_each(|(to, x)| *to = *x as f32);
    let (bytes, unit) = table(upper);
    let halves: Vec<f16> = upper.iter().map(|x| f16::from_f64(*x)).collect();
    let part_of_halves =
        |part: usize| words(&of_codes(&halves, |half| -half).map(|half| half.to_le_bytes()[part]));
    let [low, high] = [0, 1].map(part_of_halves);
    Book {
        unit: unit as f32,
        borders,
        magnitudes,
        table: words(&of_codes(&bytes, |byte| -byte).map(|byte| byte as u8)),
        halves: [low[0], low[1], high[0], high[1]],
    }
}

/// Values of the codes, from magnitudes: all codes if there are at most 8, otherwise the upper 8.
fn of_codes<T: Copy + Default>(magnitudes: &[T], negative: impl Fn(T) -> T) -> [T; 8] {
    let mut all = [T::default(); 8];
    if 2 * magnitudes.len() <= all.len() {
        let lower = magnitudes.iter().rev().map(|x| negative(*x));
        all.iter_mut().zip(lower.chain(magnitudes.iter().copied())).for_each(|(to, x)| *to = x);
    } else {
        all.copy_from_slice(magnitudes);
    }
    all
}

fn words(bytes: &[u8; 8]) -> [u32; 2] {
    let word = |at| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    [word(0), word(4)]
}

/// Magnitudes as integers up to 127 in a common unit, which is chosen for the smallest maximum relative
/// error.
fn table(magnitudes: &[f64]) -> (Vec<i8>, f64) {
    let largest = *magnitudes.last().expect("a codebook has centroids");
    let error = |unit: f64| {
        magnitudes.iter().map(|m| ((m / unit).round() * unit / m - 1.0).abs()).fold(0.0, f64::max)
    };
    let units = (64_000..=127_000).map(|steps| largest / (f64::from(steps) / 1000.0));
    let unit = units.min_by(|a, b| error(*a).total_cmp(&error(*b))).expect("there are units");
    (magnitudes.iter().map(|m| (m / unit).round() as i8).collect(), unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four magnitudes have a unit in which each is within 0.4 % of an integer.
    #[test]
    fn bytes_of_three_bits_are_close_to_the_codebook() {
        let book = Codebook::new(128, 3);
        let (bytes, unit) = table(&book.centroids()[4..]);
        for (byte, centroid) in bytes.iter().zip(&book.centroids()[4..]) {
            let error = f64::from(*byte) * unit / centroid - 1.0;
            assert!(error.abs() < 0.004, "{byte} x {unit} for {centroid}");
        }
    }
}
