//! Synthetic programs, run on every backend.

pub mod model;
pub mod window;

use std::ops::Range;

use ggml_types::{HostTensor, QuantType, by_name};
use sterna::backend::cpu::{Cpu, simd};
use sterna::backend::{Backend, BackendError, Exec, NAMES, open};
use sterna::program::{
    ActQuant, Buf, Expert, Limits, Linear, Norm, NormKind, PAGE, PageTable, Program, Row, RowsOf, Sampling,
    Step, Weight,
};

use crate::oracle::Oracle;

/// Every backend of this build on this machine: the CPU with each instruction set and 1, 2 or 3 threads in
/// rotation; the CUDA kernels as a CPU build with shuffled threads; each variant of the wgpu kernels.
pub fn backends() -> Vec<Box<dyn Backend>> {
    let threads = [3, 1, 2].into_iter().cycle();
    let mut backends: Vec<_> =
        simd::all().into_iter().zip(threads).map(|(kernels, threads)| cpu(kernels, threads)).collect();
    backends.extend(simt(1));
    backends.extend(wgpus());
    backends
}

fn cpu(kernels: &'static simd::Kernels, threads: usize) -> Box<dyn Backend> {
    Box::new(Cpu::with_kernels(threads, kernels).expect("threads"))
}

/// Like [`backends`], with one variant of the wgpu kernels: it alternates with `i`, so that over a table of
/// cases every kernel runs in both variants in half the time.
pub fn backends_alternating(i: usize) -> Vec<Box<dyn Backend>> {
    let mut backends = backends();
    let first = backends.iter().position(|backend| backend.name() == "wgpu");
    if let Some(first) = first.filter(|first| first + 1 < backends.len()) {
        backends.remove(first + i % 2);
    }
    backends
}

/// One backend of each kind, for slow cases.
pub fn few_backends() -> Vec<Box<dyn Backend>> {
    let mut backends = cpus(&[2]);
    backends.extend(simt(1));
    backends.extend(wgpus());
    backends
}

/// The CPU with each instruction set and each of the given numbers of threads.
pub fn cpus(threads: &[usize]) -> Vec<Box<dyn Backend>> {
    simd::all().into_iter().flat_map(|kernels| threads.iter().map(|n| cpu(kernels, *n))).collect()
}

/// The CUDA kernels as a CPU build, if this build has them. The seed determines the order in which threads
/// run. In a process that uses the stand-in driver (`tests/backends/stand_in/mod.rs`), its card is used
/// instead.
#[cfg(feature = "simt")]
pub fn simt(seed: u64) -> Option<Box<dyn Backend>> {
    use sterna::backend::cuda::{Cuda, driver::real::Card, driver::simt::Simt};
    let has_card = std::env::var_os("STAND_IN_CUDA").is_some();
    let card = || Cuda::on(Box::new(Card::open(0).expect("the stand-in's card")));
    Some(Box::new(if has_card { card() } else { Cuda::on(Box::new(Simt::new(2, seed))) }))
}

/// Likewise, with the kernels that stream octets for a few rows, with the geometry of a card. The seed also
/// chooses how they copy: seeds 2 and 3 of 4 with bulk copies.
#[cfg(feature = "simt")]
pub fn simt_in_octets(seed: u64, card: &str) -> Box<dyn Backend> {
    use sterna::backend::Octets;
    use sterna::backend::cuda::driver::cards::Spec;
    use sterna::backend::cuda::{Cuda, driver::simt::Simt};
    let card = Spec::find(card).expect("a card of the table");
    let cuda = Cuda::on(Box::new(Simt::of_card(2, seed, card)));
    Box::new(cuda.with_octets(Octets::On).expect("a card with enough shared memory"))
}

/// Likewise with the geometry of each card in the table except the small one, which [`simt`] uses, and of one
/// with 64 KiB of shared memory per block.
#[cfg(feature = "simt")]
pub fn simt_of_cards() -> Vec<Box<dyn Backend>> {
    use sterna::backend::cuda::driver::cards::{CARDS, SMALL, Spec};
    use sterna::backend::cuda::{Cuda, driver::simt::Simt};
    let cards = CARDS.iter().filter(|card| **card != SMALL).chain(Spec::find("tesla t4"));
    cards.map(|card| Box::new(Cuda::on(Box::new(Simt::of_card(2, 1, card)))) as Box<dyn Backend>).collect()
}

/// The CUDA kernels as a CPU build; not in this build.
#[cfg(not(feature = "simt"))]
pub fn simt(_: u64) -> Option<Box<dyn Backend>> {
    None
}

/// None in this build.
#[cfg(not(feature = "simt"))]
pub fn simt_of_cards() -> Vec<Box<dyn Backend>> {
    Vec::new()
}

/// wgpu on the first adapter of this machine, software or not, with each variant of the kernels: as the
/// device prefers; and with threads that synchronise in workgroup memory, float products, and weights split
/// into parts of few rows. Prints a line if there is no adapter.
#[cfg(feature = "wgpu")]
pub fn wgpus() -> Vec<Box<dyn Backend>> {
    use std::sync::{Arc, OnceLock};

    use sterna::backend::wgpu::Wgpu;
    use sterna::backend::wgpu::device::{Gpu, Options};

    // Opened once, so that every kernel is compiled once.
    static GPUS: OnceLock<Vec<Arc<Gpu>>> = OnceLock::new();
    let open = || {
        let other = Options {
            subgroups: Some(false),
            packed: Some(false),
            max_part_bytes: Some(66 << 10),
            ..Options::default()
        };
        let open = |options: &Options| match Gpu::open(options) {
            Ok(gpu) => Some(Arc::new(gpu)),
            Err(err) => {
                crate::print_note(format_args!("wgpu: not run: no adapter ({err})"));
                None
            }
        };
        [Options::default(), other].iter().map_while(open).collect()
    };
    let wgpu = |gpu: &Arc<Gpu>| -> Box<dyn Backend> { Box::new(Wgpu::on(Arc::clone(gpu))) };
    GPUS.get_or_init(open).iter().map(wgpu).collect()
}

/// None in this build.
#[cfg(not(feature = "wgpu"))]
pub fn wgpus() -> Vec<Box<dyn Backend>> {
    Vec::new()
}

/// A backend by its name, on the device shared by all cases of a program, so that its kernels are compiled
/// once. `None` if this build does not have it, or for wgpu without an adapter, which prints a line.
pub fn backend(name: &str, threads: usize) -> Option<Box<dyn Backend>> {
    match name {
        "wgpu" => wgpus().into_iter().next(),
        name if NAMES.contains(&name) => Some(open(name, threads).unwrap_or_else(|err| panic!("{err}"))),
        _ => None,
    }
}

/// Kernels that backends lack, one per line. The line is removed when the kernel is added; see
/// `tests/backends/conformance.rs`.
pub const MISSING: &str = include_str!("../../missing.txt");

pub fn ty(name: &str) -> &'static dyn QuantType {
    by_name(name).unwrap_or_else(|| panic!("no type {name}"))
}

/// Deterministic pseudo-random numbers.
#[derive(Clone)]
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 20
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Roughly normal, about 1 wide, with occasional outliers, like activations.
    pub fn value(&mut self) -> f32 {
        let sum: i64 = (0..4).map(|_| (self.next() % 2001) as i64 - 1000).sum();
        let outlier = if self.next().is_multiple_of(50) { 12.0 } else { 1.0 };
        outlier * sum as f32 / 1150.0
    }

    pub fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }
}

/// A tensor of a type without an encoder: random bytes as codes, with scales of about a 50th of the inverse
/// square root of the row length.
pub fn random_points(ty: &dyn QuantType, rows: usize, cols: usize, mut byte: impl FnMut() -> u8) -> Vec<u8> {
    let block_bytes = ty.row_bytes(ty.block_elems()).expect("a block");
    let mut bytes: Vec<u8> =
        (0..ty.byte_len(rows, cols).expect("a shape of the type")).map(|_| byte()).collect();
    for block in bytes.chunks_exact_mut(block_bytes) {
        // An f16 between 2^-11 and 2^-9 of either sign, from the remaining random bits.
        let scale = u16::from_le_bytes([block[0], block[1]]) & 0x87ff | 0x1000;
        match ty.name() {
            // The scale is in the top bits of the last four words.
            "iq1_m" => {
                for (i, high) in block[48..].iter_mut().skip(1).step_by(2).enumerate() {
                    *high = *high & 15 | ((scale >> (4 * i) & 15) << 4) as u8;
                }
            }
            _ => block[..2].copy_from_slice(&scale.to_le_bytes()),
        }
    }
    bytes
}

pub struct Case {
    pub p: Program,
    pub weights: Vec<HostTensor>,
    pub numbers: Numbers,
}

impl Case {
    pub fn new(name: &str, limits: Limits) -> Self {
        let numbers = Numbers::new(name.bytes().fold(7, |sum, b| sum * 31 % 1_000_003 + u64::from(b)));
        Self { p: Program::new(name, limits), weights: Vec::new(), numbers }
    }

    /// A random weight of magnitude about `1 / sqrt(cols)`. A large one repeats a prime number of rows, so
    /// that no two tiles of a kernel look alike.
    pub fn weight(&mut self, ty: &'static dyn QuantType, rows: usize, cols: usize) -> Weight {
        const PERIOD: usize = 61;
        if rows * cols > 4 << 20 && rows > PERIOD && ty.rows_together() == 1 {
            self.weight(ty, PERIOD, cols);
            self.p.weights.pop();
            let few = self.weights.pop().expect("the weight of few rows");
            let row_bytes = ty.row_bytes(cols).expect("a shape of the type");
            let (body, after) = few.bytes.split_at(PERIOD * row_bytes);
            let body = body.iter().copied().cycle().take(rows * row_bytes);
            let bytes: Vec<u8> = body.chain(after.iter().copied()).collect();
            assert_eq!(bytes.len(), ty.byte_len(rows, cols).expect("a shape of the type"));
            self.weights.push(HostTensor { rows, bytes: bytes.into(), ..few.clone() });
            return self.p.weight(few.name, ty, rows, cols);
        }
        let size = 1.0 / (cols as f32).sqrt();
        let value = |numbers: &mut Numbers| match ty.ternary().is_some() {
            true => size * (numbers.below(3) as f32 - 1.0),
            false => size * numbers.value(),
        };
        let values: Vec<f32> = (0..rows * cols).map(|_| value(&mut self.numbers)).collect();
        self.weight_of(ty, rows, cols, &values)
    }

    pub fn weight_of(
        &mut self,
        ty: &'static dyn QuantType,
        rows: usize,
        cols: usize,
        values: &[f32],
    ) -> Weight {
        let name = format!("w{}", self.weights.len());
        let bytes = match ty.encodes() {
            true => ty.encode(values, rows, cols).expect("a shape of the type"),
            false => random_points(ty, rows, cols, || self.numbers.below(256) as u8),
        };
        let bytes = bytes.into();
        self.weights.push(HostTensor { name: name.clone(), ty, rows, cols, bytes });
        self.p.weight(name, ty, rows, cols)
    }

    /// A vector of values around `centre`.
    pub fn vector(&mut self, len: usize, centre: f32) -> Weight {
        let values: Vec<f32> = (0..len).map(|_| centre + 0.1 * self.numbers.value()).collect();
        self.weight_of(ty("f32"), 1, len, &values)
    }

    pub fn norm(&mut self, kind: NormKind, len: usize) -> Norm {
        let weight = self.vector(len, 1.0);
        let bias = (kind == NormKind::Layer).then(|| self.vector(len, 0.0));
        Norm { kind, weight, bias, eps: 1e-5 }
    }

    pub fn linear(&mut self, ty: &'static dyn QuantType, rows: usize, cols: usize, act: ActQuant) -> Linear {
        Linear { act, ..Linear::of(self.weight(ty, rows, cols)) }
    }

    /// A linear layer with a bias and a scale.
    pub fn linear_with_bias(
        &mut self,
        ty: &'static dyn QuantType,
        rows: usize,
        cols: usize,
        act: ActQuant,
    ) -> Linear {
        let w = self.weight(ty, rows, cols);
        Linear { bias: Some(self.vector(rows, 0.0)), act, scale: 0.75, ..Linear::of(w) }
    }

    /// Experts with biases; the types are those of gates, ups and downs.
    pub fn experts(
        &mut self,
        types: [&str; 3],
        [n_experts, dim, ffn_dim]: [usize; 3],
        act: ActQuant,
    ) -> Vec<Expert> {
        let [gate, up, down] = types.map(ty);
        let expert = |_| Expert {
            gate: Some(self.linear_with_bias(gate, ffn_dim, dim, act)),
            up: self.linear_with_bias(up, ffn_dim, dim, act),
            down: self.linear_with_bias(down, dim, ffn_dim, act),
        };
        (0..n_experts).map(expert).collect()
    }

    pub fn buf(&mut self, name: &'static str, cols: usize) -> Buf {
        self.p.buf(name, RowsOf::Step, cols)
    }

    /// Runs the steps on the oracle and on every backend, and compares the buffers in `read`.
    pub fn check(&self, backends: Vec<Box<dyn Backend>>, pages: &PageTable, steps: &[StepCase]) {
        self.compare(backends, steps.iter().map(|step| (pages, step)));
    }

    /// Likewise, with a page table per step.
    pub fn check_each(&self, backends: Vec<Box<dyn Backend>>, steps: &[(PageTable, StepCase)]) {
        self.compare(backends, steps.iter().map(|(pages, step)| (pages, step)));
    }

    fn compare<'a>(
        &self,
        backends: Vec<Box<dyn Backend>>,
        steps: impl Iterator<Item = (&'a PageTable, &'a StepCase)> + Clone,
    ) {
        let mut oracle = Oracle::new(&self.p, &self.weights);
        let mut want = Vec::new();
        for (pages, step) in steps.clone() {
            for (buf, values) in &step.inputs {
                oracle.write(*buf, 0, values);
            }
            oracle.run(step.stages.clone(), &step.step(pages, &[]));
            want.push(
                step.read
                    .iter()
                    .map(|b| oracle.read(*b, step.n_rows(&self.p, *b)).to_vec())
                    .collect::<Vec<_>>(),
            );
        }
        for mut backend in backends {
            let what = format!("{} on {}", self.p.name, backend.device());
            if !self.has_kernels(&*backend) {
                continue;
            }
            let mut running = self.on(&mut *backend);
            for ((pages, step), want) in steps.clone().zip(&want) {
                running.run_step(step, pages, &[]);
                for (b, want) in step.read.iter().zip(want) {
                    let decl = self.p.buf_decl(*b);
                    let got = running.read(*b, self.p.max_rows(decl.rows));
                    for (i, (got, want)) in got.iter().zip(want).enumerate() {
                        let (row, col) = (i / decl.cols, i % decl.cols);
                        assert!(
                            want.is(*got),
                            "{what}, {}: {}[{row}, {col}] = {got}, want {want:?}",
                            step.describe(),
                            decl.name
                        );
                    }
                    let tail = &got[want.len()..];
                    assert!(
                        tail.iter().all(|x| x.is_nan()),
                        "{what}: wrote rows of {} beyond those of the step",
                        decl.name
                    );
                }
            }
        }
    }

    /// True if a backend has the kernels that the case needs; any that it may lack must be listed in
    /// `tests/missing.txt`.
    pub fn has_kernels(&self, backend: &dyn Backend) -> bool {
        let missing = match backend.plan(&self.p) {
            Err(BackendError::Missing { missing, .. }) => missing,
            plan => {
                plan.unwrap_or_else(|err| panic!("{} plans {}: {err}", backend.name(), self.p.name));
                return true;
            }
        };
        for what in missing {
            let listed = MISSING.lines().any(|line| line == format!("{}: {what}", backend.name()));
            assert!(
                listed,
                "{} has no kernel for {what}, which tests/missing.txt does not list",
                backend.name()
            );
        }
        false
    }

    pub fn on<'a>(&'a self, backend: &'a mut dyn Backend) -> Running<'a> {
        let ids: Vec<_> = self.weights.iter().map(|w| backend.upload(w).expect("an upload")).collect();
        let exec = backend.compile(&self.p, &ids).expect("a program that compiles");
        Running { p: &self.p, backend, exec }
    }
}

/// Some stages of a program over one step.
pub struct StepCase {
    pub rows: Vec<Row>,
    pub stages: Range<usize>,
    /// Written before the run; all other buffer contents are poisoned.
    pub inputs: Vec<(Buf, Vec<f32>)>,
    /// Buffers to compare afterwards.
    pub read: Vec<Buf>,
}

impl StepCase {
    pub fn step<'a>(&'a self, pages: &'a PageTable, sampling: &'a [Option<Sampling>]) -> Step<'a> {
        Step { rows: &self.rows, pages, sampling, changes: &[] }
    }

    /// Describes its rows, for messages.
    fn describe(&self) -> String {
        let (first, last) = (self.rows.first(), self.rows.last());
        let [first, last] = [first, last].map(|row| row.map_or(0, |row| row.pos));
        format!("{} rows, positions {first} to {last}", self.rows.len())
    }

    fn n_rows(&self, p: &Program, b: Buf) -> usize {
        match p.buf_decl(b).rows {
            RowsOf::Step => self.rows.len(),
            RowsOf::Outputs => self.rows.iter().filter(|row| row.logits).count(),
        }
    }
}

/// A case compiled for one backend.
pub struct Running<'a> {
    pub p: &'a Program,
    pub backend: &'a mut dyn Backend,
    pub exec: Exec,
}

impl Running<'_> {
    /// Poisons all buffers, writes the inputs, and runs the stages.
    pub fn run_step(&mut self, step: &StepCase, pages: &PageTable, sampling: &[Option<Sampling>]) {
        for (i, buf) in self.p.bufs.iter().enumerate() {
            let poison = vec![f32::NAN; self.p.max_rows(buf.rows) * buf.cols];
            self.write(Buf(i as u32), &poison);
        }
        for (buf, values) in &step.inputs {
            self.write(*buf, values);
        }
        self.run(step.stages.clone(), &step.step(pages, sampling));
    }

    pub fn run(&mut self, stages: Range<usize>, step: &Step<'_>) {
        self.backend.run_stages(self.exec, stages, step).expect("a run");
    }

    pub fn write(&mut self, b: Buf, values: &[f32]) {
        self.backend.write(self.exec, b, 0, values).expect("a write");
    }

    pub fn read(&mut self, b: Buf, rows: usize) -> Vec<f32> {
        let mut values = vec![0.0; rows * self.p.buf_decl(b).cols];
        self.backend.read(self.exec, b, 0, &mut values).expect("a read");
        values
    }

    pub fn clamped(&mut self) -> Option<u64> {
        self.backend.clamped(self.exec).expect("a count")
    }
}

/// Rows of one sequence, without logits.
pub fn rows(seq: u32, positions: Range<u32>) -> Vec<Row> {
    positions.map(|pos| Row { token: 0, pos, seq, logits: false }).collect()
}

/// `n_seqs` sequences of `n_pages` pages each, assigned backwards and round robin, so that no sequence's
/// pages are ordered or adjacent.
pub fn shuffled_pages(n_seqs: usize, n_pages: usize) -> PageTable {
    let mut pages = PageTable::new(n_seqs, n_pages);
    for (i, page) in (0..(n_seqs * n_pages) as u32).rev().enumerate() {
        pages.seq_mut((i % n_seqs) as u32).push(page);
    }
    pages
}

/// Limits for steps of `rows` rows over a table of [`shuffled_pages`].
pub fn limits(rows: usize, n_seqs: usize, n_pages: usize) -> Limits {
    Limits {
        rows,
        outputs: rows,
        seqs: n_seqs,
        pages: n_seqs * n_pages,
        exact_pages: 0,
        sliding_pages: 0,
        states: 0,
    }
}

/// Likewise for windowed codecs: every page of a table of [`windowed_pages`] is also exact.
pub fn windowed_limits(rows: usize, n_seqs: usize, n_pages: usize) -> Limits {
    Limits { exact_pages: n_seqs * n_pages, ..limits(rows, n_seqs, n_pages) }
}

/// [`shuffled_pages`], each with an exact page of a different number.
pub fn windowed_pages(n_seqs: usize, n_pages: usize) -> PageTable {
    let mut pages = shuffled_pages(n_seqs, n_pages);
    for seq in 0..n_seqs as u32 {
        let exact = pages.seq(seq).iter().map(|page| Some((page + 1) % (n_seqs * n_pages) as u32));
        *pages.exact_mut(seq) = exact.collect::<Vec<_>>();
    }
    pages
}

pub fn pages_for(n: usize) -> usize {
    n.div_ceil(PAGE)
}
