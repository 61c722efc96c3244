//! Statistics of a model's keys and queries, from which the bases of its KV heads follow
//! ([`KeyBasis`]): a fixed text that the model runs once, when it is loaded with a cache that needs them.
//!
//! It runs on the model's own backend, with the weights that are already there and keys and values in f16. So
//! two backends may find slightly different variances, and a basis that differs in a few places; both are as
//! good, because scores do not depend on the basis except for the errors of codes. What a cache contains does
//! depend on it, so saved sessions have its checksum. The same backend finds the same basis each time. A file
//! may also have the bases in its metadata (`sterna edit --key-bases`); then nothing is measured.

use ggml_types::kv;
use ggml_types::turboquant::{KeyBasis, KeyVariances, sign_bits};

use super::error::Error;
use super::handle::Engine;
use sterna_backend::{Backend, WeightId};
use sterna_gguf::{Array, Gguf, Metadata, Value, ValueType};
use sterna_model::ModelError;
use sterna_program::{KvDecl, LayerVectors, Limits, PAGE, PageTable, Program, Rope, Row, StateSlots, Step};
use sterna_tokenizer::{Special, Tokenizer, TokenizerOptions};

/// Prose, code, numbers and a few other languages, and more than [`POSITIONS`] tokens for most vocabularies.
const TEXT: &str = include_str!("key_stats.txt");

/// Positions of the text. The first page is not counted: caches keep it exactly, and the keys of the first
/// tokens are unlike any others.
const POSITIONS: usize = 4 * PAGE;

/// Seed of the tokens of models without a tokenizer.
const SEED: u64 = 0x5374_6572_6e61_0003;

/// Key of the exponents of all bases in a file: i8, `[KV heads of all layers, head_dim]`.
const EXPONENTS: &str = "sterna.kv.key_exponents";

/// Key of their groups: bool, of the same shape, true for elements of the first group.
const FIRST_GROUP: &str = "sterna.kv.key_first_group";

impl Engine {
    /// The bases of keys as metadata of a file, from which they are read instead of being measured; `None`
    /// if the keys of its cache have no bases.
    pub fn key_bases(&self) -> Option<[(&'static str, Value); 2]> {
        let bases: Option<Vec<_>> = self.program().kvs.iter().map(KvDecl::bases).collect();
        let bases = bases.filter(|bases| !bases.is_empty())?;
        let (mut exponents, mut first) = (Vec::new(), Vec::new());
        for basis in bases.iter().flat_map(|bases| bases.iter()) {
            exponents.extend(basis.exponents().iter().map(|exponent| Value::I8(*exponent)));
            first.extend(basis.first_group().into_iter().map(Value::Bool));
        }
        let array = |ty, values: &[Value]| Value::Array(Array::from_values(ty, values));
        Some([(EXPONENTS, array(ValueType::I8, &exponents)), (FIRST_GROUP, array(ValueType::Bool, &first))])
    }
}

/// Adds the bases in a file to a program whose keys need them; a file without bases changes nothing.
///
/// # Errors
/// [`ModelError::Metadata`] if they do not fit the model.
pub fn add_from_file(program: &mut Program, metadata: &Metadata) -> Result<(), ModelError> {
    let needs = |kv: &KvDecl| kv.k.form().has_basis();
    let values = [EXPONENTS, FIRST_GROUP].map(|key| metadata.get(key));
    if values == [None, None] || !program.kvs.iter().any(needs) {
        return Ok(());
    }
    let n: usize = program.kvs.iter().map(|kv| kv.n_kv_heads * kv.head_dim).sum();
    let wrong = |key: &str, what: &str, value: Option<&Value>| {
        let (want, got) = (format!("{n} {what}"), value.map_or("nothing".to_owned(), Value::describe));
        ModelError::Metadata { key: key.to_owned(), want, got }
    };
    let array = |value: Option<&Value>| match value {
        Some(Value::Array(array)) if array.len() == n => Some(array.values().collect::<Vec<_>>()),
        _ => None,
    };
    let i8s = |values: Vec<Value>| -> Option<Vec<i8>> {
        values.iter().map(|value| i8::try_from(value.as_int()?).ok()).collect()
    };
    let bools = |values: Vec<Value>| -> Option<Vec<bool>> {
        values.iter().map(|value| if let Value::Bool(is) = value { Some(*is) } else { None }).collect()
    };
    let exponents = array(values[0]).and_then(i8s);
    let exponents = exponents.ok_or_else(|| wrong(EXPONENTS, "i8", values[0]))?;
    let first = array(values[1]).and_then(bools).ok_or_else(|| wrong(FIRST_GROUP, "bools", values[1]))?;
    let mut at = 0;
    for kv in &mut program.kvs {
        let of_heads = at..at + kv.n_kv_heads * kv.head_dim;
        at = of_heads.end;
        if !needs(kv) {
            continue;
        }
        let heads = exponents[of_heads.clone()].chunks(kv.head_dim).zip(first[of_heads].chunks(kv.head_dim));
        let basis = |(exponents, first): (&[i8], &[bool])| KeyBasis::from_parts(exponents.to_vec(), first);
        let bases: Result<Vec<_>, _> = heads.map(basis).collect();
        kv.basis = Some(bases.map_err(|err| wrong(FIRST_GROUP, &err.to_string(), values[1]))?.into());
    }
    Ok(())
}

/// True if keys of the program need bases that it does not have.
pub fn are_missing(program: &Program) -> bool {
    program.kvs.iter().any(|kv| kv.k.form().has_basis() && kv.basis.is_none())
}

/// A program that runs the text on a backend with these weights, and the places of its vectors.
pub fn program(whole: &Program) -> (Program, Vec<LayerVectors>) {
    let mut program = whole.clone();
    program.limits = Limits {
        rows: PAGE,
        outputs: 1,
        seqs: 1,
        pages: n_positions(whole).div_ceil(PAGE),
        exact_pages: 0,
        sliding_pages: 0,
        states: usize::from(!whole.states.is_empty()),
    };
    for decl in &mut program.kvs {
        (decl.k, decl.v, decl.basis, decl.sliding) = (kv::F16, kv::F16, None, None);
    }
    let layers = program.read_out(false);
    (program, layers)
}

fn n_positions(program: &Program) -> usize {
    program.learned_positions().map_or(POSITIONS, |learned| learned.min(POSITIONS))
}

/// Measures the bases of a program's caches, and adds them to it.
///
/// # Errors
/// [`Error::Backend`].
pub fn add_bases(
    whole: &mut Program,
    gguf: &Gguf,
    tokenizer: TokenizerOptions,
    backend: &mut dyn Backend,
    weights: &[WeightId],
) -> Result<(), Error> {
    let (program, layers) = program(whole);
    let n = n_positions(whole);
    let n_vocab = program.weights[0].rows;
    let tokens = tokens(gguf, tokenizer, n_vocab, n);
    let exec = backend.compile(&program, weights)?;
    let mut table = PageTable::new(1, program.limits.pages);
    table.seq_mut(0).extend(0..program.limits.pages as u32);
    let mut sums: Vec<Sums> = layers.iter().map(|layer| Sums::of(&program, layer)).collect();
    for (page, tokens) in tokens.chunks(PAGE).enumerate() {
        let row =
            |(i, &token): (usize, &u32)| Row { token, pos: (page * PAGE + i) as u32, seq: 0, logits: false };
        let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
        if !program.states.is_empty() {
            table.set_state(0, Some(StateSlots { from: (page > 0).then_some(0), to: 0 }));
        }
        let step = Step { rows: &rows, pages: &table, sampling: &[], changes: &[] };
        let mut start = 0;
        for (layer, sums) in layers.iter().zip(&mut sums) {
            backend.run_stages(exec, start..layer.end, &step)?;
            start = layer.end;
            if page == 0 && n > PAGE {
                continue;
            }
            let [q, k] = [layer.q, layer.k].map(|buf| {
                let mut out = vec![0.0; rows.len() * program.buf_decl(buf).cols];
                backend.read(exec, buf, 0, &mut out).map(|()| out)
            });
            sums.add(&q?, &k?);
        }
    }
    for (layer, sums) in layers.iter().zip(&sums) {
        let decl = &mut whole.kvs[layer.kv.0 as usize];
        if decl.k.form().has_basis() && decl.basis.is_none() {
            let bases = sums.variances().map(|variances| KeyBasis::of(&variances));
            let bases: Result<Vec<_>, _> = bases.collect();
            decl.basis = Some(bases.expect("the program was checked").into());
        }
    }
    Ok(())
}

/// `n` tokens of the text, again from its start if it is too short; of a file without a usable tokenizer,
/// pseudo-random tokens.
fn tokens(gguf: &Gguf, options: TokenizerOptions, n_vocab: usize, n: usize) -> Vec<u32> {
    let of_text = Tokenizer::from_gguf(gguf, options).map(|tokenizer| {
        let tokens = tokenizer.encode(TEXT, Special::AsText, true);
        tokens.into_iter().filter(|token| (*token as usize) < n_vocab).collect::<Vec<_>>()
    });
    match of_text {
        Ok(tokens) if !tokens.is_empty() => tokens.into_iter().cycle().take(n).collect(),
        _ => sign_bits(SEED, 64 * n).into_iter().map(|word| (word % n_vocab as u64) as u32).collect(),
    }
}

/// Sums of squares of one layer.
struct Sums {
    pairs: Vec<[u16; 2]>,
    head_dim: usize,
    /// Query heads of a KV head.
    group: usize,
    /// Keys, `[n_kv_heads, head_dim]`, and how many there are.
    keys: (Vec<f64>, usize),
    /// Queries, `[n_kv_heads, head_dim]`, and how many there are of a KV head.
    queries: (Vec<f64>, usize),
}

impl Sums {
    fn of(program: &Program, layer: &LayerVectors) -> Self {
        let decl = program.kv_decl(layer.kv);
        let (head_dim, cols) = (decl.head_dim, decl.n_kv_heads * decl.head_dim);
        let rope = layer.rope.map(|rope| &program.ropes[rope.0 as usize]);
        let sums = || (vec![0.0; cols], 0);
        Self {
            pairs: Rope::pairs(rope, head_dim),
            head_dim,
            group: program.buf_decl(layer.q).cols / cols,
            keys: sums(),
            queries: sums(),
        }
    }

    /// Adds the queries and keys of the rows of a page. What is not finite counts as 0.
    fn add(&mut self, q: &[f32], k: &[f32]) {
        let Self { head_dim, group, keys: (keys, n_keys), queries: (queries, n_queries), .. } = self;
        let cols = keys.len();
        let rows = k.len() / cols;
        let finite = |x: f32| if x.is_finite() { f64::from(x) } else { 0.0 };
        for (col, sum) in keys.iter_mut().enumerate() {
            let of_col = || k.iter().skip(col).step_by(cols).map(|x| finite(*x));
            let mean = of_col().sum::<f64>() / rows as f64;
            *sum += of_col().map(|x| (x - mean).powi(2)).sum::<f64>();
        }
        *n_keys += rows;
        for row in q.chunks_exact(cols * *group) {
            for (heads, sums) in row.chunks_exact(*group * *head_dim).zip(queries.chunks_exact_mut(*head_dim))
            {
                for head in heads.chunks_exact(*head_dim) {
                    sums.iter_mut().zip(head).for_each(|(sum, q)| *sum += finite(*q).powi(2));
                }
            }
        }
        *n_queries += rows * *group;
    }

    /// Variances of each KV head.
    fn variances(&self) -> impl Iterator<Item = KeyVariances> {
        let of_pairs = |sums: &[f64], n: usize| -> Vec<f64> {
            let of_pair = |pair: &[u16; 2]| pair.map(|i| sums[usize::from(i)]).iter().sum::<f64>();
            self.pairs.iter().map(|pair| of_pair(pair) / (2 * n.max(1)) as f64).collect()
        };
        let heads = self.keys.0.chunks_exact(self.head_dim).zip(self.queries.0.chunks_exact(self.head_dim));
        heads.map(move |(keys, queries)| KeyVariances {
            pairs: self.pairs.clone(),
            keys: of_pairs(keys, self.keys.1),
            queries: of_pairs(queries, self.queries.1),
        })
    }
}
