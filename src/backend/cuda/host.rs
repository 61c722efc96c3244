//! Layers whose weights do not fit into GPU memory, in steps of few rows: the CPU multiplies by them directly
//! in the model file, which takes less time than copying them to the GPU.
//!
//! Every stage with a streamed matrix can run on either. Caches and attention stay on the GPU: the products
//! for queries, keys and values are copied to it, and `heads` continues from there. All other stages run
//! entirely on the CPU, in an ordinary CPU backend, and exchange their results there. Values are copied
//! between the two only if the next stage runs on the other one.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ggml_types::HostTensor;

use super::alloc::Allocator;
use super::attn_in;
use super::driver::{Address, Driver};
use super::lower::macs;
use super::stream::{Layout, Stream};
use super::weight::device_bytes;
use crate::rates::{HostRates, NoTokens, Rates};
use crate::{Backend, BackendError, Exec, MinBatch, WeightId};
use sterna_host::clock::Instant;
use sterna_program::{Buf, Limits, Logits, Part, Program, RowsOf, Stage, Weight};

/// A CPU backend that several programs share.
#[derive(Clone)]
pub struct Processor(Arc<Mutex<Box<dyn Backend>>>);

impl Processor {
    pub fn new(backend: Box<dyn Backend>) -> Self {
        Self(Arc::new(Mutex::new(backend)))
    }

    fn lock(&self) -> MutexGuard<'_, Box<dyn Backend>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uploads a weight, which keeps sharing the caller's bytes if the backend supports that.
    pub fn upload(&self, tensor: &HostTensor) -> Result<WeightId, BackendError> {
        self.lock().upload(tensor)
    }
}

/// The part of a program that the CPU can compute.
pub struct Stages {
    /// As a program of its own, without caches.
    part: Part,
    /// Per stage of the whole program: the stages that compute it, or `None` if it runs on the GPU.
    of: Vec<Option<OfStage>>,
}

struct OfStage {
    /// Stages of the part.
    stages: Range<usize>,
    /// Buffers of the part for the bare products of queries, keys and values.
    products: Option<[Buf; 3]>,
}

impl Stages {
    /// The stages with streamed matrices, in steps of up to `rows` rows; `None` if there are none.
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
            // `Layout::is_computable` ensures that the stage has them.
            let (Some(norm), Some(wk), Some(wv)) = (&s.norm, &s.wk, &s.wv) else {
                of.push(None);
                continue;
            };
            // A norm and a product per row: the same as `Logits` if all rows request logits.
            let layers = [("q", &s.wq), ("k", wk), ("v", wv)];
            let to = layers.map(|(name, linear)| {
                let cols = p.weight_decl(linear.w).rows;
                let is_it = |b: &&Buf| whole.buf_decl(**b).name == name && whole.buf_decl(**b).cols == cols;
                let known = products.iter().find(is_it).copied();
                let logits = known.unwrap_or_else(|| whole.buf(name, RowsOf::Outputs, cols));
                products.extend(known.is_none().then_some(logits));
                let (norm, w) = (norm.clone(), linear.clone());
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
        let own = |buf: Buf| part.buf(buf).expect("a buffer that its stages use");
        let of_stage = |(first, products): (usize, Option<[Buf; 3]>)| OfStage {
            stages: first..first + if products.is_some() { 3 } else { 1 },
            products: products.map(|products| products.map(own)),
        };
        let of = of.into_iter().map(|found| found.map(of_stage)).collect();
        Some(Self { part, of })
    }

    /// The weights of the whole program that they read.
    pub fn weights(&self) -> &[Weight] {
        &self.part.weights
    }

    /// Bytes in the file of the matrices that they read, in steps of up to `rows` rows.
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

    /// Allocates the GPU buffer that holds keys and values between their products and the rest of the stage.
    pub fn keys<A: Allocator + ?Sized>(
        on: &mut A,
        p: &Program,
        layout: &Layout,
        rows: usize,
    ) -> Result<Address, BackendError> {
        let streamed = layout.streamed(p);
        let kv_cols = |(_, stage): &(String, Stage)| match stage {
            Stage::AttnIn(s) if stage.linears().1.any(|w| streamed[w.w.0 as usize]) => attn_in::kv_cols(p, s),
            _ => 0,
        };
        let floats = 2 * rows * p.stages.iter().map(kv_cols).max().unwrap_or(0);
        on.buffer("keys and values from the CPU", 4 * floats as u64)
    }
}

/// Location of the newest values of a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Newest {
    Card,
    Host,
    Both,
}

/// A piece of a step that runs partly on the CPU.
pub enum Piece {
    /// A stage on the CPU.
    Host(usize),
    /// Stages on the GPU. If a stage on the CPU is given, the work after its products runs first.
    Card(Option<usize>, Range<usize>),
}

/// The part of a compiled program that the CPU computes.
pub struct Host {
    processor: Processor,
    exec: Exec,
    stages: Stages,
    rows: NoTokens,
    most_rows: usize,
    /// Steps of fewer rows are computed on the CPU.
    min_batch: usize,
    /// One per buffer of the whole program.
    places: Vec<Newest>,
    /// Staging buffer for copies between the two.
    floats: Vec<f32>,
    /// Address of the keys, with the values after them.
    keys: Address,
    /// The measurement that `min_batch` is based on, if any.
    why: String,
}

/// The GPU memory that a step uses.
#[derive(Clone, Copy)]
pub struct OnCard<'a> {
    pub p: &'a Program,
    /// One per buffer.
    pub bufs: &'a [Address],
}

impl Host {
    /// Compiles the stages. `weights` are the ones that they read.
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

    /// Chooses the number of rows from which weights are copied to the GPU. The streamed weights must be in
    /// place.
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
                    Some(share) => (share, "read the experts of a row"),
                    None => (1.0, "copy them"),
                };
                let (one, rates) = self.measure(driver, layout, stream, share)?;
                let card = driver.rates();
                let ops = card.map(|card| card.ops(&macs(p)));
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
                    " (measured: {copied:.1} ms to {done}, {computed:.1} ms per row to compute with them)"
                );
                (n, why)
            }
        };
        Ok(())
    }

    /// Seconds that the CPU needs for one row of everything it computes, and the rates derived from this and
    /// from trial copies. A row reads `share` of the matrices.
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
        // The first stages, until they have enough bytes.
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

    /// GPU memory that may be read at any time.
    fn wait_at(&self, stream: &Stream) -> Address {
        if self.keys == 0 { stream.first_slot().unwrap_or(0) } else { self.keys }
    }

    /// The number of rows from which weights are copied, and the measurement for it.
    pub fn chosen(&self) -> (usize, &str) {
        (self.min_batch, &self.why)
    }

    /// True if a step of `rows` rows is computed here.
    pub fn takes(&self, rows: usize) -> bool {
        rows < self.min_batch && rows <= self.most_rows
    }

    /// Maximum rows of such a step.
    pub fn most_taken(&self) -> usize {
        self.most_rows.min(self.min_batch.saturating_sub(1))
    }

    /// True if a stage can run here.
    pub fn has(&self, stage: usize) -> bool {
        self.stages.of[stage].is_some()
    }

    pub fn keys_and_values(&self, kv_cols: usize) -> [Address; 2] {
        [self.keys, self.keys + 4 * (self.most_rows * kv_cols) as u64]
    }

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

    /// Number of times that a step passes from the GPU to the CPU and back.
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
        let of = self.stages.of[stage].as_ref().expect("a stage that runs on the CPU");
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

    /// Copies to the GPU what the stages that run there next read.
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
            let own = self.stages.part.buf(buf).expect("a buffer that a CPU stage uses");
            let floats = &mut self.floats[..n * card.p.buf_decl(buf).cols];
            driver.read(card.bufs[at], bytemuck::cast_slice_mut(floats))?;
            self.processor.lock().write(self.exec, own, 0, floats)?;
            self.places[at] = Newest::Both;
        }
        Ok(())
    }

    /// The reverse of `bring_down`.
    fn bring_up(
        &mut self,
        driver: &mut dyn Driver,
        card: OnCard<'_>,
        buf: Buf,
        n: usize,
    ) -> Result<(), BackendError> {
        let at = buf.0 as usize;
        if self.places[at] == Newest::Host {
            let own = self.stages.part.buf(buf).expect("a buffer that a CPU stage has written");
            let floats = &mut self.floats[..n.min(self.most_rows) * card.p.buf_decl(buf).cols];
            self.processor.lock().read(self.exec, own, 0, floats)?;
            driver.write(card.bufs[at], bytemuck::cast_slice(floats))?;
            self.places[at] = Newest::Both;
        }
        Ok(())
    }

    /// Copies all rows of a buffer to the GPU if needed, for the caller to read.
    pub fn show(&mut self, driver: &mut dyn Driver, card: OnCard<'_>, buf: Buf) -> Result<(), BackendError> {
        self.bring_up(driver, card, buf, self.most_rows)
    }

    /// Records that the caller has written a buffer on the GPU.
    pub fn overwritten(&mut self, buf: Buf) {
        self.places[buf.0 as usize] = Newest::Card;
    }
}
