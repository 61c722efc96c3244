//! KV caches on the device: which codecs have kernels, how pages lie, and what kernels are told of them.
//!
//! Keys and values have a buffer each: `[pages, n_kv_heads, page_words]`. A page of elements has keys as `[words, PAGE]` and
//! values as `[PAGE, words]`; a page of codes has them so too, and the scales behind them. Windowed codecs have exact pages
//! of f16 behind those, `[exact_pages, n_kv_heads, exact_words]`, and behind these, among keys, the mean of each one's keys,
//! `[exact_pages, n_kv_heads, head_dim]`.

use ggml_types::KvSide;
use ggml_types::turboquant::{Codebook, Rotation};

use crate::backend::KvPage;
use crate::program::{KvDecl, Limits, PAGE};

/// Elements of a chunk of codes: as many words as a code has bits.
const CHUNK: usize = 32;

/// Most elements of a head.
pub const MAX_HEAD_DIM: usize = 256;

/// A codec with kernels.
pub struct Codec {
    pub name: &'static str,
    pub form: Form,
    /// How a word of elements, or of codes, is made and read.
    pub shader: &'static str,
    /// How a block becomes codes, where there are blocks.
    pub encode: &'static str,
}

/// How a codec keeps vectors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// So many elements a word.
    Elements(usize),
    /// Lloyd-Max codes of so many bits and a scale, in pages that have left the window.
    Lloyd(usize),
    /// Whole numbers of so many bits, a scale every 32 of them.
    Blocks(usize),
}

/// Every codec with kernels.
pub const CODECS: &[Codec] = &[
    Codec::new("f16", Form::Elements(2), include_str!("shaders/kv/f16.wgsl"), ""),
    Codec::new("f32", Form::Elements(1), include_str!("shaders/kv/f32.wgsl"), ""),
    Codec::new("turboquant", Form::Lloyd(3), include_str!("shaders/kv/turboquant.wgsl"), ""),
    Codec::new("turboquant-4", Form::Lloyd(4), include_str!("shaders/kv/turboquant_4.wgsl"), ""),
    Codec::new("q8_0", Form::Blocks(8), include_str!("shaders/kv/q8_0.wgsl"), Q8_0),
    Codec::new("q4_0", Form::Blocks(4), include_str!("shaders/kv/q4_0.wgsl"), Q4_0),
];

const Q8_0: &str = include_str!("shaders/kv/q8_0_encode.wgsl");
const Q4_0: &str = include_str!("shaders/kv/q4_0_encode.wgsl");

impl Codec {
    const fn new(name: &'static str, form: Form, shader: &'static str, encode: &'static str) -> Self {
        Self { name, form, shader, encode }
    }

    fn of(kv: &KvDecl) -> Option<&'static Self> {
        CODECS.iter().find(|codec| codec.name == kv.k.name())
    }
}

impl Form {
    /// Whether vectors are rotated before they are kept.
    pub fn rotates(self) -> bool {
        !matches!(self, Self::Elements(_))
    }

    fn bits(self) -> usize {
        match self {
            Self::Elements(_) => 0,
            Self::Lloyd(bits) | Self::Blocks(bits) => bits,
        }
    }
}

/// What a cache lacks, in words.
pub fn obstacle(kv: &KvDecl) -> Option<String> {
    let (k, v) = (kv.k.name(), kv.v.name());
    if k != v {
        return Some(format!("attend with keys of {k} and values of {v}"));
    }
    let Some(codec) = Codec::of(kv) else { return Some(format!("attend__{k}")) };
    if codec.form.rotates() && !kv.head_dim.is_multiple_of(CHUNK) {
        return Some(format!("attend over {k} with heads of {}", kv.head_dim));
    }
    (kv.head_dim > MAX_HEAD_DIM).then(|| format!("attend with heads of {}", kv.head_dim))
}

/// The codec of a cache that has no [`obstacle`].
pub fn codec(kv: &KvDecl) -> &'static Codec {
    Codec::of(kv).expect("the plan was made")
}

/// Words of one side of a cache.
#[derive(Clone, Copy)]
struct Layout {
    /// Of a vector of elements, in exact pages where there are such.
    words: usize,
    /// Of a vector of codes.
    code_words: usize,
    /// Of a page of one head.
    page_words: usize,
    /// Of an exact page of one head.
    exact_words: usize,
}

impl Layout {
    fn of(kv: &KvDecl) -> Self {
        // Of f32 for codecs without kernels, which no plan passes.
        let form = Codec::of(kv).map_or(Form::Elements(1), |codec| codec.form);
        let of_word = if let Form::Elements(of_word) = form { of_word } else { 2 };
        let (words, code_words) = (kv.head_dim.div_ceil(of_word), form.bits() * kv.head_dim / CHUNK);
        let scales = match form {
            Form::Elements(_) => 0,
            Form::Lloyd(_) => PAGE / 2,
            // Two blocks' scales a word.
            Form::Blocks(_) => PAGE * kv.head_dim.div_ceil(2 * CHUNK),
        };
        let page_words = if form.rotates() { PAGE * code_words + scales } else { PAGE * words };
        let exact_words = if matches!(form, Form::Lloyd(_)) { PAGE * words } else { 0 };
        Self { words, code_words, page_words, exact_words }
    }
}

/// Bytes of one side of a cache.
pub fn bytes(kv: &KvDecl, side: KvSide, limits: &Limits) -> u64 {
    let layout = Layout::of(kv);
    let mean = if side == KvSide::Keys && layout.exact_words > 0 { kv.head_dim } else { 0 };
    let pages = (layout.page_words as u64).saturating_mul(limits.pages as u64);
    let exact = ((layout.exact_words + mean) as u64).saturating_mul(limits.exact_pages as u64);
    pages.saturating_add(exact).saturating_mul(4 * kv.n_kv_heads as u64)
}

/// Where a page of one side of a cache lies, and its bytes: one stretch, or an exact page and the mean of its keys, or nothing.
pub fn stretches(kv: &KvDecl, side: KvSide, limits: &Limits, page: KvPage) -> Vec<(u64, usize)> {
    let layout = Layout::of(kv);
    let nth = |from: usize, words: usize, i: u32| {
        let words = kv.n_kv_heads * words;
        (4 * (from * kv.n_kv_heads + i as usize * words) as u64, 4 * words)
    };
    let exact_at = limits.pages * layout.page_words;
    let mut stretches = match page {
        KvPage::Kept(i) => vec![nth(0, layout.page_words, i)],
        KvPage::Exact(i) if side == KvSide::Keys => {
            let means_at = exact_at + limits.exact_pages * layout.exact_words;
            vec![nth(exact_at, layout.exact_words, i), nth(means_at, kv.head_dim, i)]
        }
        KvPage::Exact(i) => vec![nth(exact_at, layout.exact_words, i)],
    };
    if matches!(page, KvPage::Exact(_)) && layout.exact_words == 0 {
        stretches.clear();
    }
    stretches
}

/// What kernels are told of a cache: `Cache` of `shaders/lib/cache.wgsl`.
pub fn params(kv: &KvDecl, limits: &Limits) -> Vec<u32> {
    let layout = Layout::of(kv);
    let exact_at = limits.pages * kv.n_kv_heads * layout.page_words;
    let means_at = exact_at + limits.exact_pages * kv.n_kv_heads * layout.exact_words;
    let mut params: Vec<u32> = [
        kv.n_kv_heads,
        kv.head_dim,
        layout.words,
        layout.page_words,
        layout.code_words,
        PAGE * layout.code_words,
        exact_at,
        layout.exact_words,
        means_at,
        kv.window.sink_pages.min(limits.pages),
        kv.window.newest_pages.min(limits.pages),
    ]
    .map(|word| word as u32)
    .to_vec();
    params.push(((1.0 / (kv.head_dim as f64).sqrt()) as f32).to_bits());
    let form = codec(kv).form;
    let mut signs = [0; MAX_HEAD_DIM / 32];
    if form.rotates() {
        let rotation = Rotation::new(kv.head_dim).expect("the program was checked");
        for (i, sign) in rotation.signs().iter().enumerate() {
            signs[i / 32] |= u32::from(*sign < 0.0) << (i % 32);
        }
    }
    let (mut borders, mut values) = ([0.0_f32; 8], [0.0_f32; 16]);
    if let Form::Lloyd(bits) = form {
        let book = Codebook::new(kv.head_dim, bits as u32);
        // From 0 on.
        let upper = &book.thresholds()[book.thresholds().len() / 2..];
        borders.iter_mut().zip(upper).for_each(|(to, x)| *to = *x as f32);
        values.iter_mut().zip(book.centroids()).for_each(|(to, x)| *to = *x as f32);
    }
    params.extend(signs);
    params.extend(borders.iter().chain(&values).map(|x| x.to_bits()));
    params
}
