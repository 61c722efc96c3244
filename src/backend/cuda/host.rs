//! Layers whose weights a card has no room for, in steps of few rows: the processor multiplies by them where
//! they lie in the file, which takes less time than copying them to the card.
//!
//! Every stage with a streamed matrix can run either way. Caches and attention stay on the card: products of
//! queries, keys and values go up to it, and `heads` does what follows them. The other stages are whole on
//! the processor, a backend like any other, and hand each other what they compute there. Values pass between
//! the two where the next stage is at the other, and only then.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ggml_types::HostTensor;

use super::alloc::Allocator;
use super::driver::{Address, Driver};
use super::linear;
use super::stream::{Layout, MinBatch, Stream};
use super::weight::device_bytes;
use crate::rates::{HostRates, NoTokens, Rates};
use crate::{Backend, BackendError, Exec, WeightId};
use sterna_host::clock::Instant;
use sterna_program::{Buf, Limits, Logits, Part, Program, RowsOf, Stage, Weight};

/// A backend on the processor, which several programs share.
#[derive(Clone)]
pub struct Processor(Arc<Mutex<Box<dyn Backend>>>);

impl Processor {
    pub fn new(backend: Box<dyn Backend>) -> Self {
        Self(Arc::new(Mutex::new(backend)))
    }

    fn lock(&self) -> MutexGuard<'_, Box<dyn Backend>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a weight, which keeps sharing the caller's bytes where the backend does.
    pub fn upload(&self, tensor: &HostTensor) -> Result<WeightId, BackendError> {
        self.lock().upload(tensor)
    }
}

/// The part of a program that the CPU can compute.
pub struct Stages {
    /// As a program of its own, without caches.
    part: Part,
    /// Of each stage of the whole, what computes it; nothing for those of the card.
    of: Vec<Option<OfStage>>,
}

struct OfStage {
    /// Stages of the part.
    stages: Range<usize>,
    /// Buffers of the part for queries, keys and values before anything follows the products.
    products: Option<[Buf; 3]>,
}

impl Stages {
    /// The stages with streamed matrices, in steps of up to so many rows; nothing if there are none.
    pub fn new(p: &Program, layout: &Layout, rows: usize) -> Option<Self> {
        let streamed = layout.streamed(p);
        let limits = Limits { rows, outputs: rows, seqs: 1, pages: 1, ..p.limits };
        let mut whole = Program::new(p.name.clone(), limits);
        (whole.weights, whole.bufs) = (p.weights.clone(), p.bufs.clone());
        whole.bases = p.bases.clone();
        let mut of = Vec::with_capacity(p.stages.len());
        let mut products: Vec<Buf> = Vec::new();
        for (label, stage) in &p.stages {
            let mut linears = stage.linears().1;
            if rows == 0 || !linears.any(|linear| streamed[linear.w.0 as usize]) {
                of.push(None);
                continue;
            }
            let first = whole.stages.len();
            let Stage::AttnIn(s) = stage else {
                whole.push(label.clone(), stage.clone());
                of.push(Some((first, None)));
                continue;
            };
            // A norm and a product for every row: what `Logits` is, where all rows ask.
            let layers = [("q", &s.wq), ("k", &s.wk), ("v", &s.wv)];
            let to = layers.map(|(name, linear)| {
                let cols = p.weight_decl(linear.w).rows;
                let is_it = |b: &&Buf| whole.buf_decl(**b).name == name && whole.buf_decl(**b).cols == cols;
                let known = products.iter().find(is_it).copied();
                let logits = known.unwrap_or_else(|| whole.buf(name, RowsOf::Outputs, cols));
                products.extend(known.is_none().then_some(logits));
                let (norm, w) = (s.norm.clone(), linear.clone());
                whole.push(format!("{label}.{name}"), Logits { x: s.x, norm, w, soft_cap: None, logits });
                logits
            });
            of.push(Some((first, Some(to))));
        }
        let n = whole.stages.len();
        if n == 0 {
            return None;
        }
        let part = whole.part(0..n);
        let own = |buf: Buf| part.buf(buf).expect("a buffer that its stages name");
        let of_stage = |(first, products): (usize, Option<[Buf; 3]>)| OfStage {
            stages: first..first + if products.is_some() { 3 } else { 1 },
            products: products.map(|products| products.map(own)),
        };
        let of = of.into_iter().map(|found| found.map(of_stage)).collect();
        Some(Self { part, of })
    }

    /// The weights of the whole that they read.
    pub fn weights(&self) -> &[Weight] {
        &self.part.weights
    }

    /// Bytes of matrices in their file that they read, in steps of up to so many rows.
    pub fn file_bytes(p: &Program, layout: &Layout, rows: usize) -> u64 {
        let streamed = layout.streamed(p);
        let of_stage = |(_, stage): &(String, Stage)| {
            let is_here = stage.linears().1.any(|linear| streamed[linear.w.0 as usize]);
            let decls = stage.linears().1.map(|linear| p.weight_decl(linear.w));
            let bytes = decls.map(|decl| decl.ty.byte_len(decl.rows, decl.cols).unwrap_or(usize::MAX) as u64);
            if rows > 0 && is_here { bytes.fold(0, u64::saturating_add) } else { 0 }
        };
        p.stages.iter().map(of_stage).fold(0, u64::saturating_add)
    }

    /// Allocates what keys and values wait in on the card for what follows their products.
    pub fn keys<A: Allocator + ?Sized>(
        on: &mut A,
        p: &Program,
        layout: &Layout,
        rows: usize,
    ) -> Result<Address, BackendError> {
        let streamed = layout.streamed(p);
        let kv_cols = |(_, stage): &(String, Stage)| match stage {
            Stage::AttnIn(s) if [&s.wq, &s.wk, &s.wv].iter().any(|w| streamed[w.w.0 as usize]) => {
                p.weight_decl(s.wk.w).rows
            }
            _ => 0,
        };
        let floats = 2 * rows * p.stages.iter().map(kv_cols).max().unwrap_or(0);
        on.buffer("keys and values of the processor's", 4 * floats as u64)
    }
}

/// Where the newest values of a buffer are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Newest {
    Card,
    Host,
    Both,
}

/// A piece of a step in which the processor takes part.
pub enum Piece {
    /// A stage of the processor's.
    Host(usize),
    /// Stages of the card, behind what follows the products of a stage before them, if that is one.
    Card(Option<usize>, Range<usize>),
}

/// The part of a compiled program that the CPU computes.
pub struct Host {
    processor: Processor,
    exec: Exec,
    stages: Stages,
    rows: NoTokens,
    most_rows: usize,
    /// Steps of fewer rows are computed here.
    min_batch: usize,
    /// One a buffer of the whole.
    places: Vec<Newest>,
    /// Buffers between the two.
    floats: Vec<f32>,
    /// Where keys wait, and behind them values.
    keys: Address,
    /// Why, where that was measured.
    why: String,
}

/// The memory of the card that a step uses.
#[derive(Clone, Copy)]
pub struct OnCard<'a> {
    pub p: &'a Program,
    /// One a buffer.
    pub bufs: &'a [Address],
}

impl Host {
    /// Compiles the stages. `weights` are those that they read.
    pub fn new(
        driver: &mut dyn Driver,
        p: &Program,
        (layout, stages): (&Layout, Stages),
        processor: Processor,
        weights: &[WeightId],
    ) -> Result<Self, BackendError> {
        let exec = processor.lock().compile(&stages.part.program, weights)?;
        let most_rows = stages.part.program.limits.rows;
        let most_cols = stages.part.program.bufs.iter().map(|buf| buf.cols).max().unwrap_or(0);
        Ok(Self {
            processor,
            exec,
            rows: NoTokens::new(most_rows),
            most_rows,
            min_batch: 1,
            places: vec![Newest::Card; p.bufs.len()],
            floats: vec![0.0; most_rows * most_cols],
            keys: Stages::keys(driver, p, layout, most_rows)?,
            stages,
            why: String::new(),
        })
    }

    /// Decides from how many rows on weights are copied, which are there.
    pub fn choose(
        &mut self,
        driver: &mut dyn Driver,
        p: &Program,
        layout: &Layout,
        stream: &mut Stream,
        min_batch: MinBatch,
    ) -> Result<(), BackendError> {
        (self.min_batch, self.why) = match min_batch {
            MinBatch::Rows(n) => (n, String::new()),
            MinBatch::Never => (usize::MAX, String::new()),
            MinBatch::Auto => {
                let (share, done) = match layout.chosen_share(p) {
                    Some(share) => (share, "read those that a row chooses"),
                    None => (1.0, "copy them"),
                };
                let (one, rates) = self.measure(driver, layout, stream, share)?;
                let card = driver.rates();
                let ops = card.map(|card| card.ops(&linear::macs(p)));
                let rates = Rates {
                    card_memory: card.map_or(f64::INFINITY, |card| card.memory_bytes as f64),
                    card_ops: ops.unwrap_or(f64::INFINITY),
                    ..rates
                };
                let waits = self.waits(p);
                let m = layout.matrices(p, waits);
                let n = rates.break_even(&m, self.most_rows).unwrap_or(self.most_rows + 1);
                let copied = 1e3 * share * layout.host_bytes() as f64 / rates.link;
                let computed = 1e3 * (one + waits as f64 * rates.wait);
                let why = format!(
                    " (measured: {copied:.1} ms to {done}, {computed:.1} ms to compute with them a row)"
                );
                (n, why)
            }
        };
        Ok(())
    }

    /// What the processor takes for a row of all that it computes, and the rates that come of this and of
    /// copies that are made. A row reads a share of the matrices.
    fn measure(
        &self,
        driver: &mut dyn Driver,
        layout: &Layout,
        stream: &mut Stream,
        share: f64,
    ) -> Result<(f64, Rates), BackendError> {
        const BYTES: u64 = 64 << 20;
        let link = stream.link_rate(driver)?;
        let mut least = f64::INFINITY;
        for _ in 0..4 {
            let (start, mut word) = (Instant::now(), [0; 4]);
            driver.read(self.wait_at(stream), &mut word)?;
            least = least.min(start.elapsed().as_secs_f64());
        }
        // The first stages, as many as have enough bytes.
        let program = &self.stages.part.program;
        let of_stage = |(_, stage): &(String, Stage)| {
            let matrices = stage.linears().1.map(|linear| program.weight_decl(linear.w));
            let each = matrices.map(|decl| (device_bytes(decl), (decl.rows * decl.cols) as u64));
            each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        };
        let sums: Vec<(u64, u64)> = program.stages.iter().map(of_stage).collect();
        let (mut n, mut bytes, mut weights) = (0, 0, 0);
        while n < sums.len() && share * (bytes as f64) < BYTES as f64 {
            (bytes, weights, n) = (bytes + sums[n].0, weights + sums[n].1, n + 1);
        }
        let many = HostRates::ROWS.min(self.most_rows);
        let mut backend = self.processor.lock();
        let mut seconds = |rows| self.rows.seconds(&mut **backend, self.exec, 0..n, rows);
        let (one, of_many) = (seconds(1)?, seconds(many)?);
        let (read, multiplied) = (share * bytes as f64, share * weights as f64);
        let host = HostRates::of(read, multiplied, one, (many, of_many));
        let all = layout.host_bytes() as f64 / bytes.max(1) as f64;
        let (card_memory, card_ops) = (f64::INFINITY, f64::INFINITY);
        let (host_memory, host_ops) = (host.memory_bytes, host.ops);
        Ok((one * all, Rates { link, card_memory, host_memory, card_ops, host_ops, wait: least }))
    }

    /// Memory of the card that may be read at any time.
    fn wait_at(&self, stream: &Stream) -> Address {
        if self.keys == 0 { stream.first_slot().unwrap_or(0) } else { self.keys }
    }

    /// From how many rows on weights are copied, and what was measured.
    pub fn chosen(&self) -> (usize, &str) {
        (self.min_batch, &self.why)
    }

    /// Whether a step of so many rows is computed here.
    pub fn takes(&self, rows: usize) -> bool {
        rows < self.min_batch && rows <= self.most_rows
    }

    /// The most rows of such a step.
    pub fn most_taken(&self) -> usize {
        self.most_rows.min(self.min_batch.saturating_sub(1))
    }

    /// Whether a stage can run here.
    pub fn has(&self, stage: usize) -> bool {
        self.stages.of[stage].is_some()
    }

    /// Where keys and values wait.
    pub fn keys_and_values(&self, kv_cols: usize) -> [Address; 2] {
        [self.keys, self.keys + 4 * (self.most_rows * kv_cols) as u64]
    }

    /// The pieces of a step, in order.
    pub fn pieces(&self, p: &Program) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        for i in 0..p.stages.len() {
            match (&self.stages.of[i], pieces.last_mut()) {
                (Some(of), _) => {
                    pieces.push(Piece::Host(i));
                    if of.products.is_some() {
                        pieces.push(Piece::Card(Some(i), i + 1..i + 1));
                    }
                }
                (None, Some(Piece::Card(_, stages))) => stages.end = i + 1,
                (None, _) => pieces.push(Piece::Card(None, i..i + 1)),
            }
        }
        pieces
    }

    /// How often a step passes from the card to the processor and back.
    fn waits(&self, p: &Program) -> usize {
        self.pieces(p).iter().filter(|piece| matches!(piece, Piece::Card(..))).count()
    }

    /// Runs a stage for the first `n` rows.
    pub fn run(
        &mut self,
        driver: &mut dyn Driver,
        card: OnCard<'_>,
        stage: usize,
        n: usize,
    ) -> Result<(), BackendError> {
        let (reads, writes) = card.p.stages[stage].1.bufs();
        for buf in reads {
            self.bring_down(driver, card, buf, n)?;
        }
        let of = self.stages.of[stage].as_ref().expect("a stage that runs here");
        let mut backend = self.processor.lock();
        backend.run_stages(self.exec, of.stages.clone(), &self.rows.step(n))?;
        let Some(products) = of.products else {
            writes.into_iter().for_each(|buf| self.places[buf.0 as usize] = Newest::Host);
            return Ok(());
        };
        let cols = products.map(|buf| self.stages.part.program.buf_decl(buf).cols);
        let [keys, values] = self.keys_and_values(cols[1]);
        let q = writes[0].0 as usize;
        for ((buf, cols), to) in products.into_iter().zip(cols).zip([card.bufs[q], keys, values]) {
            let floats = &mut self.floats[..n * cols];
            backend.read(self.exec, buf, 0, floats)?;
            driver.write(to, bytemuck::cast_slice(floats))?;
        }
        self.places[q] = Newest::Card;
        Ok(())
    }

    /// Brings up what some stages read that run on the card next.
    pub fn before_card(
        &mut self,
        driver: &mut dyn Driver,
        card: OnCard<'_>,
        stages: Range<usize>,
        n: usize,
    ) -> Result<(), BackendError> {
        for (_, stage) in &card.p.stages[stages] {
            let (reads, writes) = stage.bufs();
            for buf in reads {
                self.bring_up(driver, card, buf, n)?;
            }
            writes.into_iter().for_each(|buf| self.places[buf.0 as usize] = Newest::Card);
        }
        Ok(())
    }

    fn bring_down(
        &mut self,
        driver: &mut dyn Driver,
        card: OnCard<'_>,
        buf: Buf,
        n: usize,
    ) -> Result<(), BackendError> {
        let at = buf.0 as usize;
        if self.places[at] == Newest::Card {
            let own = self.stages.part.buf(buf).expect("a buffer that a stage here names");
            let floats = &mut self.floats[..n * card.p.buf_decl(buf).cols];
            driver.read(card.bufs[at], bytemuck::cast_slice_mut(floats))?;
            self.processor.lock().write(self.exec, own, 0, floats)?;
            self.places[at] = Newest::Both;
        }
        Ok(())
    }

    /// The reverse.
    fn bring_up(
        &mut self,
        driver: &mut dyn Driver,
        card: OnCard<'_>,
        buf: Buf,
        n: usize,
    ) -> Result<(), BackendError> {
        let at = buf.0 as usize;
        if self.places[at] == Newest::Host {
            let own = self.stages.part.buf(buf).expect("a buffer that a stage here has written");
            let floats = &mut self.floats[..n.min(self.most_rows) * card.p.buf_decl(buf).cols];
            self.processor.lock().read(self.exec, own, 0, floats)?;
            driver.write(card.bufs[at], bytemuck::cast_slice(floats))?;
            self.places[at] = Newest::Both;
        }
        Ok(())
    }

    /// All rows of a buffer are on the card, for others to read.
    pub fn show(&mut self, driver: &mut dyn Driver, card: OnCard<'_>, buf: Buf) -> Result<(), BackendError> {
        self.bring_up(driver, card, buf, self.most_rows)
    }

    /// Others write a buffer on the card.
    pub fn overwritten(&mut self, buf: Buf) {
        self.places[buf.0 as usize] = Newest::Card;
    }
}
