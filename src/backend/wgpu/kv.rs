//! KV caches on the device: codecs with kernels, page layout, and cache parameters of kernels.
//!
//! Keys and values have a buffer each, and each its own codec: `[pages, n_kv_heads, page_words]`. A page of
//! elements stores keys as `[words, PAGE]` and values as `[PAGE, words]`. A page of codes does the same,
//! followed by the scales. For windowed codecs, exact pages of f16 follow, `[exact_pages, n_kv_heads,
//! exact_words]`, and in the keys the mean of each page of codes, `[pages, n_kv_heads, mean_words]`: the
//! bytes of [`KeyMean`](ggml_types::turboquant::KeyMean).

use ggml_types::turboquant::{
    Codebook, KeyBasis, KeyMean, LogScale, Projection, Qjl, Rotation, Trellis, TrellisSplit, TrellisVector,
};
use ggml_types::{KvCodec, KvForm, KvSide, kv as registry, kv_on};

use super::alloc::Allocator;
use super::text::wgsl;
use crate::device::step::PagesAt;
use crate::device::tables::{hadamard_factor, sign_words};
use crate::memory::{self, EXACT_PART};
use crate::{BackendError, KvPage, MemoryKind};
use sterna_program::{KvDecl, Limits, PAGE};

/// Elements of a chunk of codes, which takes as many words as a code has bits.
const CHUNK: usize = 32;

/// Largest supported head dimension of caches of codes.
pub const MAX_HEAD_DIM: usize = 256;

/// The same of caches of elements: a latent vector of 512 elements and 64 rotated ones.
pub const MAX_PLAIN_DIM: usize = 576;

pub const SIDES: [KvSide; 2] = [KvSide::Keys, KvSide::Values];

pub struct Codec {
    /// Selects the kernel.
    pub codec: KvForm,
    pub form: KernelForm,
    /// Its file in `shaders/kv`, which codecs of a family share.
    pub kernels: &'static str,
    /// Source of that file: the words of a page, and how vectors are encoded.
    pub shader: &'static str,
}

/// Form of a codec's vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelForm {
    /// Elements, this many per word.
    Elements(usize),
    /// Lloyd-Max codes of this many bits and a scale, in pages that have left the window.
    Lloyd(usize),
    /// Codes of two bits, the signs of their residual, and two scales, in pages that have left the window.
    /// Only for keys.
    Signs,
    /// Lloyd-Max codes of four bits for half of the elements and of two bits for the others, in the basis of
    /// the KV head, and two scales of 8 bits, in pages that have left the window. Only for keys.
    Split,
    /// As `Split`, with the codes of two trellises.
    TrellisSplit,
    /// Codes of a trellis, three bits each, and a scale, in pages that have left the window. Only for values.
    Trellis,
    /// Integers of this many bits, with a scale per 32 of them.
    Blocks(usize),
}

impl Codec {
    /// The codec of a form; `None` if it has no kernels.
    pub fn of(codec: KvForm) -> Option<Self> {
        const LLOYD: (&str, &str) = ("turboquant-mse", wgsl!("shaders/kv/turboquant-mse.wgsl"));
        const SPLIT: (&str, &str) = ("turboquant", wgsl!("shaders/kv/turboquant.wgsl"));
        const TRELLIS: (&str, &str) = ("turboquant-t", wgsl!("shaders/kv/turboquant-t.wgsl"));
        let (form, (kernels, shader)) = match codec {
            KvForm::F16 => (KernelForm::Elements(2), ("f16", wgsl!("shaders/kv/f16.wgsl"))),
            KvForm::F32 => (KernelForm::Elements(1), ("f32", wgsl!("shaders/kv/f32.wgsl"))),
            KvForm::Q8_0 => (KernelForm::Blocks(8), ("q8_0", wgsl!("shaders/kv/q8_0.wgsl"))),
            KvForm::Q4_0 => (KernelForm::Blocks(4), ("q4_0", wgsl!("shaders/kv/q4_0.wgsl"))),
            KvForm::Lloyd3 => (KernelForm::Lloyd(3), LLOYD),
            KvForm::Lloyd4 => (KernelForm::Lloyd(4), LLOYD),
            KvForm::Lloyd2Signs => (KernelForm::Signs, LLOYD),
            KvForm::Lloyd42 => (KernelForm::Split, SPLIT),
            KvForm::Trellis42 => (KernelForm::TrellisSplit, TRELLIS),
            KvForm::Trellis3 => (KernelForm::Trellis, TRELLIS),
            KvForm::Opaque => return None,
            KvForm::Bf16 | KvForm::Q4_1 | KvForm::Q5_0 | KvForm::Q5_1 | KvForm::Iq4Nl => return None,
        };
        Some(Self { codec, form, kernels, shader })
    }
}

/// Every codec once, with those that a name selects for values only.
fn registered() -> impl Iterator<Item = &'static dyn KvCodec> {
    let all = || registry::REGISTRY.iter().copied();
    let of_values = all().map(|codec| kv_on(KvSide::Values, codec));
    all().chain(of_values.filter(move |codec| all().all(|other| other.form() != codec.form())))
}

pub fn codecs() -> impl Iterator<Item = Codec> {
    registered().filter_map(|codec| Codec::of(codec.form()))
}

/// Name of the codec of a form.
pub fn name_of(form: KvForm) -> &'static str {
    registered().find(|codec| codec.form() == form).map_or("?", |codec| codec.name())
}

/// Largest supported head dimension of a form.
pub fn most_head_dim(form: KernelForm) -> usize {
    if form.rotates() { MAX_HEAD_DIM } else { MAX_PLAIN_DIM }
}

impl KernelForm {
    /// True if vectors are rotated before they are stored.
    pub fn rotates(self) -> bool {
        !matches!(self, Self::Elements(_))
    }

    /// True if new positions are stored exactly at first.
    pub fn is_windowed(self) -> bool {
        match self {
            Self::Lloyd(_) | Self::Signs | Self::Split | Self::TrellisSplit | Self::Trellis => true,
            Self::Elements(_) | Self::Blocks(_) => false,
        }
    }

    /// True if vectors are in the basis of their KV head, as two halves.
    pub fn has_basis(self) -> bool {
        matches!(self, Self::Split | Self::TrellisSplit)
    }

    /// The trellises of its groups, if its codes are those of trellises. They have the same number of states.
    pub fn trellises(self) -> &'static [&'static Trellis] {
        match self {
            Self::TrellisSplit => &TrellisSplit::TRELLISES,
            Self::Trellis => &[TrellisVector::TRELLIS],
            Self::Elements(_) | Self::Lloyd(_) | Self::Signs | Self::Split | Self::Blocks(_) => &[],
        }
    }

    /// True if it is only for keys.
    #[cfg(test)]
    pub fn is_for_keys(self) -> bool {
        matches!(self, Self::Signs | Self::Split | Self::TrellisSplit)
    }

    /// True if it is only for values.
    pub fn is_for_values(self) -> bool {
        self == Self::Trellis
    }

    /// Bits of an element, signs included: the mean.
    pub fn bits(self) -> usize {
        match self {
            Self::Elements(_) => 0,
            Self::Lloyd(bits) | Self::Blocks(bits) => bits,
            // Four and two bits for half of the elements each.
            Self::Signs | Self::Split | Self::TrellisSplit | Self::Trellis => 3,
        }
    }
}

fn declared(kv: &KvDecl, side: KvSide) -> &'static dyn KvCodec {
    match side {
        KvSide::Values if !kv.values_are_keys => kv.v,
        KvSide::Keys | KvSide::Values => kv.k,
    }
}

/// Missing kernels of a cache, as text.
pub fn unsupported(kv: &KvDecl) -> Option<String> {
    let (k, v) = (kv.k.name(), kv.v.name());
    let forms = SIDES.map(|side| Codec::of(declared(kv, side).form()).map(|codec| codec.form));
    if forms.contains(&None) {
        let known = registry::REGISTRY.iter().filter(|codec| Codec::of(codec.form()).is_some());
        let names: Vec<_> = known.map(|codec| codec.name()).collect();
        let what = match kv_on(KvSide::Values, kv.k).form() == kv.v.form() {
            true => format!("attend__{k}"),
            false => format!("attend with keys of {k} and values of {v}"),
        };
        return Some(format!("{what} (supported caches: {})", names.join(", ")));
    }
    let rotates = forms.into_iter().flatten().any(KernelForm::rotates);
    if rotates && !kv.head_dim.is_multiple_of(CHUNK) {
        return Some(format!("attend over {k} and {v} with heads of {}", kv.head_dim));
    }
    let most = if rotates { MAX_HEAD_DIM } else { MAX_PLAIN_DIM };
    let known = || format!("f16 and f32 have kernels for heads of up to {MAX_PLAIN_DIM}");
    (kv.head_dim > most)
        .then(|| format!("attend with heads of {} over a cache of {k} and {v} ({})", kv.head_dim, known()))
}

/// Codec of one side of a cache for which [`unsupported`] returns `None`.
pub fn codec(kv: &KvDecl, side: KvSide) -> Codec {
    Codec::of(declared(kv, side).form()).expect("the plan was made")
}

/// Sides of a cache, grouped by codec.
pub fn sides_alike(kv: &KvDecl) -> &'static [&'static [KvSide]] {
    if kv.k.form() == kv.v.form() { &[&SIDES] } else { &[&[KvSide::Keys], &[KvSide::Values]] }
}

/// Sizes in words of one side of a cache.
#[derive(Clone, Copy)]
struct Layout {
    /// Words of a vector of elements, in exact pages if there are any.
    words: usize,
    code_words: usize,
    /// Words of a page of one head.
    page_words: usize,
    /// Words of an exact page of one head.
    exact_words: usize,
    /// Words of the mean of a page of codes of one head.
    mean_words: usize,
}

impl Layout {
    fn of(kv: &KvDecl, side: KvSide) -> Self {
        if kv.values_are_keys && side == KvSide::Values {
            return Self { words: 0, code_words: 0, page_words: 0, exact_words: 0, mean_words: 0 };
        }
        // f32 for codecs without kernels, which fail the plan anyway.
        let form = Codec::of(declared(kv, side).form()).map_or(KernelForm::Elements(1), |codec| codec.form);
        let of_word = if let KernelForm::Elements(of_word) = form { of_word } else { 2 };
        let (words, code_words) = (kv.head_dim.div_ceil(of_word), form.bits() * kv.head_dim / CHUNK);
        let scales = match form {
            KernelForm::Elements(_) => 0,
            KernelForm::Lloyd(_) | KernelForm::Split | KernelForm::TrellisSplit | KernelForm::Trellis => {
                PAGE / 2
            }
            KernelForm::Signs => PAGE,
            // One word has the scales of two blocks.
            KernelForm::Blocks(_) => PAGE * kv.head_dim.div_ceil(2 * CHUNK),
        };
        let page_words = if form.rotates() { PAGE * code_words + scales } else { PAGE * words };
        let exact_words = if form.is_windowed() { PAGE * words } else { 0 };
        let mean_bytes = declared(kv, side).key_mean(side, kv.head_dim).map_or(0, KeyMean::bytes);
        Self { words, code_words, page_words, exact_words, mean_words: mean_bytes / 4 }
    }
}

/// Allocates both sides of a cache: pages, exact pages, and then the means of pages of keys. The side of
/// values is empty if keys are also the values.
pub fn alloc<A: Allocator>(on: &mut A, kv: &KvDecl, limits: &Limits) -> Result<[A::Buffer; 2], BackendError> {
    let (part, positions) = (memory::cache_part(kv), kv.pages(limits) * PAGE);
    let mut side = |side: KvSide, name: &str| {
        let layout = Layout::of(kv, side);
        let bytes = |words: usize, n: usize| {
            (words as u64).saturating_mul(n as u64).saturating_mul(4 * kv.n_kv_heads as u64)
        };
        let of_page = layout.page_words + layout.mean_words;
        let pages = (MemoryKind::Kv, part.as_str(), bytes(of_page, kv.pages(limits)));
        let exact = (MemoryKind::Kv, EXACT_PART, bytes(layout.exact_words, limits.exact_pages));
        on.storage(&format_args!("{name} of {positions} positions"), &[pages, exact])
    };
    Ok([side(KvSide::Keys, "keys")?, side(KvSide::Values, "values")?])
}

/// Byte offset and size of a page of one side of a cache: one range, a page of codes and the mean of its
/// keys, or nothing.
pub fn stretches(kv: &KvDecl, side: KvSide, limits: &Limits, page: KvPage) -> Vec<(u64, usize)> {
    let layout = Layout::of(kv, side);
    let nth = |from: usize, words: usize, i: u32| {
        let words = kv.n_kv_heads * words;
        (4 * (from * kv.n_kv_heads + i as usize * words) as u64, 4 * words)
    };
    let exact_at = kv.pages(limits) * layout.page_words;
    let means_at = exact_at + limits.exact_pages * layout.exact_words;
    let mut stretches = match page {
        KvPage::Quantised(_) if kv.sliding.is_some() => Vec::new(),
        KvPage::Sliding(_) if kv.sliding.is_none() => Vec::new(),
        KvPage::Quantised(i) | KvPage::Sliding(i) => {
            vec![nth(0, layout.page_words, i), nth(means_at, layout.mean_words, i)]
        }
        KvPage::Exact(i) => vec![nth(exact_at, layout.exact_words, i)],
        KvPage::State(_) => Vec::new(),
    };
    stretches.retain(|(_, bytes)| *bytes > 0);
    stretches
}

/// Kernel parameters of a cache: `Cache` in `shaders/lib/cache.wgsl`.
pub fn params(kv: &KvDecl, limits: &Limits) -> Vec<u32> {
    // `codec` handles the codecs, `PagesAt::of` the sliding window, `Layout` keys that are also the values,
    // and `unsupported` the rest.
    let KvDecl { n_kv_heads, head_dim, k: _, v: _, basis: _, window, sliding: _, values_are_keys: _ } = *kv;
    let pages = |pages: usize| pages.min(limits.pages) as u32;
    let forms = SIDES.map(|side| codec(kv, side).form);
    let rotation = || Rotation::new(head_dim).expect("the program was checked");
    let mut signs = [[0; MAX_HEAD_DIM / 32]; 2];
    if forms.into_iter().any(KernelForm::rotates) {
        signs[0] = sign_words(&rotation());
    }
    let mut sign_factor = 0.0;
    if forms.contains(&KernelForm::Signs) {
        let qjl = Qjl::srht(head_dim).expect("the program was checked");
        let Projection::Srht(projection) = qjl.projection() else {
            unreachable!("made of signs and Hadamard's matrix")
        };
        (signs[1], sign_factor) = (sign_words(projection), qjl.factor() as f32);
    }
    let shrink = hadamard_factor(head_dim);
    let [sinks, newest] = [window.sink_pages, window.newest_pages].map(pages);
    let head = [n_kv_heads as u32, head_dim as u32, sinks, newest];
    let tables = PagesAt::new(0, limits);
    let factors = [shrink.to_bits(), sign_factor.to_bits(), (tables.offset(kv) - tables.pages) as u32, 0];
    head.into_iter().chain(factors).chain(signs.into_iter().flatten()).collect()
}

/// Kernel parameters of one side of a cache: `Side` in `shaders/lib/cache.wgsl`.
pub fn side_params(kv: &KvDecl, side: KvSide, limits: &Limits) -> Vec<u32> {
    let layout = Layout::of(kv, side);
    let exact_at = kv.pages(limits) * kv.n_kv_heads * layout.page_words;
    let means_at = exact_at + limits.exact_pages * kv.n_kv_heads * layout.exact_words;
    let places = [
        layout.words,
        layout.page_words,
        layout.code_words,
        PAGE * layout.code_words,
        exact_at,
        layout.exact_words,
        means_at,
        layout.mean_words,
    ];
    let form = codec(kv, side).form;
    let bits = match form {
        KernelForm::Elements(_) | KernelForm::Blocks(_) | KernelForm::TrellisSplit | KernelForm::Trellis => {
            None
        }
        KernelForm::Lloyd(bits) => Some(bits),
        KernelForm::Signs => Some(2),
        KernelForm::Split => Some(4),
    };
    let (mut borders, mut numbers) = ([0.0_f32; 8], [0.0_f32; 16]);
    let (mut second, mut ones) = ([0.0_f32; 6], [0; 2]);
    let elems = rotated_elems(kv, side);
    // The thresholds from 0 on.
    let upper = |book: &Codebook| book.thresholds()[book.thresholds().len() / 2..].to_vec();
    if let Some(bits) = bits {
        let book = Codebook::new(elems, bits as u32);
        borders.iter_mut().zip(upper(&book)).for_each(|(to, x)| *to = x as f32);
        numbers.iter_mut().zip(book.centroids()).for_each(|(to, x)| *to = *x as f32);
    }
    if form == KernelForm::Split {
        let scales = [0, 1].map(|group| LogScale::of_group(elems, group));
        let book = Codebook::new(elems, 2);
        let unit = scales[0].decode(scales[0].one());
        let all = book.centroids().iter().map(|x| *x as f32).chain([upper(&book)[1] as f32, unit]);
        second.iter_mut().zip(all).for_each(|(to, x)| *to = x);
        ones = scales.map(|scale| u32::from(scale.one()));
    }
    if form == KernelForm::TrellisSplit {
        ones = [0, 1].map(|group| u32::from(TrellisSplit::scale(group).one()));
    }
    let book = borders.iter().chain(&numbers).chain(&second).map(|x| x.to_bits());
    places.map(|word| word as u32).into_iter().chain(book).chain(ones).collect()
}

/// Values of the windows of trellis codes on one side, int8, group after group: `#{side}_table` in
/// `shaders/kv/turboquant-t.wgsl`. Empty for other codes.
pub fn trellis_table(kv: &KvDecl, side: KvSide) -> Vec<u32> {
    let values = codec(kv, side).form.trellises().iter().flat_map(|trellis| trellis.values());
    let bytes: Vec<u8> = values.map(|value| value.cast_unsigned()).collect();
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// The thresholds between logarithmic scales in an octave, `2^((i + 1/2) / 30)`, as pairs of floats whose sum
/// has 48 bits.
pub fn scale_steps() -> Vec<u32> {
    let step = |i: u32| (f64::from(2 * i + 1) / f64::from(2 * LogScale::STEPS)).exp2();
    let pair = |x: f64| [x as f32, (x - f64::from(x as f32)) as f32].map(f32::to_bits);
    (0..LogScale::STEPS).flat_map(|i| pair(step(i))).collect()
}

/// Elements of the vectors that the codec of one side rotates: those of a head, or of half of it.
fn rotated_elems(kv: &KvDecl, side: KvSide) -> usize {
    if codec(kv, side).form.has_basis() { kv.head_dim / 2 } else { kv.head_dim }
}

/// Factor with which the rotation of one side preserves lengths.
pub fn shrink(kv: &KvDecl, side: KvSide) -> f32 {
    hadamard_factor(rotated_elems(kv, side))
}

/// Number of elements of [`bases`].
pub fn bases_elems(kv: &KvDecl) -> usize {
    if kv.k.form().has_basis() { 3 * kv.n_kv_heads * kv.head_dim } else { 0 }
}

/// Bases of the keys of a cache, as `shaders/attn_in.wgsl` reads them: `[n_kv_heads, 3, head_dim]`.
pub fn bases(kv: &KvDecl) -> Vec<f32> {
    let of_head = |basis: &KeyBasis| {
        let signs = || basis.half().signs().iter().cycle();
        let elements = basis.elements().iter().map(|element| f32::from(*element));
        let factors = [basis.key_factors(), basis.query_factors()];
        let signed = factors.into_iter().flat_map(|f| f.iter().zip(signs()).map(|(f, sign)| f * sign));
        elements.chain(signed).collect::<Vec<_>>()
    };
    kv.bases().iter().flat_map(|bases| bases.iter().flat_map(of_head)).collect()
}
