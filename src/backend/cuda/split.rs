//! One program over several GPUs: each GPU has some of the layers, and passes the residual stream to the next
//! one.
//!
//! A step is queued on all GPUs at once, and each waits for the one before it, so the host does not wait.
//! While one GPU runs the second half of a chunk of a prompt, the one before it runs the next chunk.

use std::ops::Range;

use ggml_types::{HostTensor, QuantType};

use super::backend::Cuda;
use super::driver::{Driver, Piece};
use super::exec::Compiled;
use super::profile::Profiling;
use super::sample;
use crate::{
    Backend, BackendError, DeviceMemory, Exec, KvPage, Octets, OtherKernels, Plan, StageTime, WeightId,
};
use sterna_program::{ActQuant, Buf, Part, Program, RowsOf, Sampling, Step};

/// Runs programs on several GPUs.
pub struct Split {
    cards: Vec<Cuda>,
    /// Each GPU's share of a model's bytes; they sum to 1.
    shares: Vec<f64>,
    weights: Vec<Weight>,
    execs: Vec<SplitExec>,
}

/// A weight, uploaded to a GPU when a part that reads it is compiled there.
struct Weight {
    tensor: HostTensor,
    /// One per GPU.
    on_cards: Vec<Option<WeightId>>,
}

struct SplitExec {
    program: Program,
    /// In the order of the stages.
    parts: Vec<OnCard>,
    /// The part that ran last.
    last: usize,
}

/// A part of a program on its GPU.
struct OnCard {
    card: usize,
    exec: usize,
    part: Part,
    /// Buffers of the part that an earlier part must pass to it.
    inputs: Vec<Buf>,
}

impl Split {
    /// A backend on several GPUs, which divide a model's bytes in these proportions; `None` is in proportion
    /// to their free memory.
    ///
    /// # Errors
    /// [`BackendError::Device`] if two GPUs cannot be connected.
    ///
    /// # Panics
    /// If there is no GPU, if there is not one proportion per GPU, or if all are 0.
    pub fn on(
        mut drivers: Vec<Box<dyn Driver>>,
        proportions: Option<Vec<f64>>,
    ) -> Result<Self, BackendError> {
        let free =
            || drivers.iter().map(|driver| driver.free_bytes().map_or(1.0, |bytes| bytes.max(1) as f64));
        let proportions = proportions.unwrap_or_else(|| free().collect());
        let sum: f64 = proportions.iter().sum();
        assert!(proportions.len() == drivers.len() && sum > 0.0, "one proportion per GPU, not all 0");
        for at in 1..drivers.len() {
            let (before, from) = drivers.split_at_mut(at);
            before.iter_mut().try_for_each(|driver| driver.connect(&mut *from[0]))?;
        }
        Ok(Self {
            cards: drivers.into_iter().map(Cuda::on).collect(),
            shares: proportions.iter().map(|share| share / sum).collect(),
            weights: Vec::new(),
            execs: Vec::new(),
        })
    }

    /// The same, with a choice of the kernels for a few rows.
    ///
    /// # Errors
    /// As [`Cuda::with_octets`].
    pub fn with_octets(mut self, octets: Octets) -> Result<Self, BackendError> {
        self.cards = self.cards.into_iter().map(|card| card.with_octets(octets)).collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// The same, with or without timing of stages.
    #[must_use]
    pub fn profiled(mut self, profiling: Option<Profiling>) -> Self {
        self.cards = self.cards.into_iter().map(|card| card.profiled(profiling)).collect();
        self
    }

    /// The parts of a program, each with its GPU.
    fn parts(&self, p: &Program) -> Vec<(usize, Part)> {
        let cuts = [&[0], p.layer_starts().as_slice(), &[p.stages.len()]].concat();
        let layers: Vec<Range<usize>> = cuts.windows(2).map(|cut| cut[0]..cut[1]).collect();
        let bytes = |stages: &Range<usize>| {
            let part = p.part(stages.clone()).program;
            part.weights_bytes() + part.kv_bytes()
        };
        let sizes: Vec<u64> = layers.iter().map(bytes).collect();
        let of_card = |(card, layer_range): (usize, Range<usize>)| {
            let (first, last) =
                (layers.get(layer_range.start)?, layers.get(layer_range.end.checked_sub(1)?)?);
            (!layer_range.is_empty()).then(|| (card, p.part(first.start..last.end)))
        };
        assign(&sizes, &self.shares).into_iter().enumerate().filter_map(of_card).collect()
    }

    /// A compiled part of a program, and the driver of its GPU.
    fn compiled(&mut self, e: Exec, part: usize) -> (&mut Compiled, &mut dyn Driver) {
        let OnCard { card, exec, .. } = self.execs[e.0 as usize].parts[part];
        let Cuda { driver, execs, .. } = &mut self.cards[card];
        (&mut execs[exec], &mut **driver)
    }

    fn last_part(&self, e: Exec) -> usize {
        self.execs[e.0 as usize].parts.len() - 1
    }

    /// Queues copies from one part's GPU to another's.
    fn hand_on(&mut self, e: Exec, from: usize, to: usize, pieces: &[Piece]) -> Result<(), BackendError> {
        let parts = &self.execs[e.0 as usize].parts;
        let [from, to] = [parts[from].card, parts[to].card];
        let cards = self.cards.get_disjoint_mut([from, to]).expect("parts are on different GPUs");
        let [from, to] = cards;
        to.driver.receive(&mut *from.driver, pieces)
    }

    /// Passes to a part the buffers that it reads before writing them, from the nearest earlier part that has
    /// them.
    fn hand_inputs(&mut self, e: Exec, to: usize, n_rows: usize) -> Result<(), BackendError> {
        for i in 0..self.execs[e.0 as usize].parts[to].inputs.len() {
            let SplitExec { program, parts, .. } = &self.execs[e.0 as usize];
            let input = parts[to].inputs[i];
            let buf = parts[to].part.bufs[input.0 as usize];
            let have = (0..to).rev().find_map(|from| Some((from, parts[from].part.buf(buf)?)));
            let (from, output) = have.expect("an earlier stage writes what a stage reads");
            let decl = program.buf_decl(buf);
            assert!(decl.rows == RowsOf::Step, "rows of logits stay on their GPU");
            let bytes = 4 * n_rows * decl.cols;
            let address = |split: &mut Self, part, buf| split.compiled(e, part).0.row_address(buf, 0);
            let piece = Piece { to: address(self, to, input), from: address(self, from, output), bytes };
            self.hand_on(e, from, to, &[piece])?;
        }
        Ok(())
    }

    /// Queues some stages of a step; a part of which all stages run is replayed as a recording.
    fn queue(&mut self, e: Exec, stages: Range<usize>, step: &Step<'_>) -> Result<(), BackendError> {
        let program = &self.execs[e.0 as usize].program;
        program.assert_fits(&program.stages[stages.clone()], step);
        if step.rows.is_empty() {
            return Ok(());
        }
        for at in 0..=self.last_part(e) {
            let whole = self.execs[e.0 as usize].parts[at].part.stages.clone();
            let (start, end) = (stages.start.max(whole.start), stages.end.min(whole.end));
            if start >= end {
                continue;
            }
            if start == whole.start {
                self.hand_inputs(e, at, step.rows.len())?;
            }
            let (compiled, driver) = self.compiled(e, at);
            match (start..end) == whole {
                true => compiled.run(driver, step)?,
                false => compiled.run_stages(driver, start - whole.start..end - whole.start, step)?,
            }
            self.execs[e.0 as usize].last = at;
        }
        self.return_picks(e, stages, step)
    }

    /// Copies the last GPU's picks to the first one, where the next step reads them, and records them on the
    /// others.
    fn return_picks(&mut self, e: Exec, stages: Range<usize>, step: &Step<'_>) -> Result<(), BackendError> {
        let last = self.last_part(e);
        if last == 0 || !self.execs[e.0 as usize].program.samples_in(stages) {
            return Ok(());
        }
        let mut any = false;
        for (_, seq, how) in step.kept_picks() {
            let on_device = self.compiled(e, last).0.picks_on_device(how);
            (0..last).for_each(|part| self.compiled(e, part).0.know_pick(seq, on_device));
            any |= on_device;
        }
        if !any {
            return Ok(());
        }
        let [(from, _), (to, bytes)] = [last, 0].map(|part| self.compiled(e, part).0.newest_picks());
        self.hand_on(e, last, 0, &[Piece { to, from, bytes }])
    }

    /// The part that has a buffer: the one that ran last, or the nearest to it.
    fn part_with(&self, e: Exec, buf: Buf) -> (usize, Buf) {
        let SplitExec { parts, last, .. } = &self.execs[e.0 as usize];
        let have = |at: usize| Some((at, parts[at].part.buf(buf)?));
        let before = (0..=*last).rev().find_map(have);
        before.or_else(|| (*last..parts.len()).find_map(have)).expect("a buffer that some stage uses")
    }

    /// Range of each part's bytes within a page of the whole program.
    fn page_parts(&self, e: Exec, page: KvPage) -> Vec<Range<usize>> {
        let mut start = 0;
        let of_part = |on: &OnCard| {
            let bytes = self.cards[on.card].execs[on.exec].page_bytes(page);
            start += bytes;
            start - bytes..start
        };
        self.execs[e.0 as usize].parts.iter().map(of_part).collect()
    }
}

/// The layers of each GPU: consecutive, as close to its share of all bytes as whole layers allow; at least
/// one if its share is not 0 and there are enough layers.
fn assign(sizes: &[u64], shares: &[f64]) -> Vec<Range<usize>> {
    let total = sizes.iter().sum::<u64>().max(1) as f64;
    let (mut ranges, mut next, mut share_end) = (Vec::new(), 0, 0.0);
    for (card, share) in shares.iter().enumerate() {
        let later = shares[card + 1..].iter().filter(|share| **share > 0.0).count();
        share_end += share;
        let start = next;
        let most = if later == 0 { sizes.len() } else { sizes.len().saturating_sub(later) };
        let middle = |at: usize| sizes[..at].iter().sum::<u64>() as f64 + sizes[at] as f64 / 2.0;
        while *share > 0.0
            && next < most.max(start + 1).min(sizes.len())
            && (next == start || later == 0 || middle(next) < share_end * total)
        {
            next += 1;
        }
        ranges.push(start..next);
    }
    ranges
}

impl Backend for Split {
    fn name(&self) -> &'static str {
        self.cards[0].name()
    }

    fn device(&self) -> String {
        let devices: Vec<_> = self.cards.iter().map(Backend::device).collect();
        format!("layers over {}", devices.join("; "))
    }

    fn default_act_quant(&self, weights: &dyn QuantType) -> ActQuant {
        self.cards[0].default_act_quant(weights)
    }

    fn self_test_key(&self) -> Option<String> {
        let each: Vec<_> = self.cards.iter().map(Backend::self_test_key).collect::<Option<_>>()?;
        Some(format!("layers over {}", each.join("; ")))
    }

    /// The sets of kernels that all GPUs have.
    fn other_kernels(&self, p: &Program) -> Vec<OtherKernels> {
        let mut each = self.cards.iter().map(|card| card.other_kernels(p));
        let first = each.next().unwrap_or_default();
        each.fold(first, |all, of_card| all.into_iter().filter(|one| of_card.contains(one)).collect())
    }

    fn use_other_kernels(&mut self, kernels: OtherKernels, yes: bool) {
        self.cards.iter_mut().for_each(|card| card.use_other_kernels(kernels, yes));
    }

    fn n_devices(&self) -> usize {
        self.cards.len()
    }

    /// If one GPU lacks memory, surplus memory of the others is not reported as free.
    fn plan(&self, p: &Program) -> Result<Plan, BackendError> {
        p.check()?;
        let mut sum =
            Plan { weights_bytes: 0, kv_bytes: 0, bufs_bytes: 0, host_bytes: 0, free_bytes: Some(0) };
        let (mut usable, mut fits) = (0_u64, true);
        for (card, part) in self.parts(p) {
            let plan = self.cards[card].plan(&part.program)?;
            let Plan { weights_bytes, kv_bytes, bufs_bytes, free_bytes, .. } = plan;
            sum.weights_bytes = sum.weights_bytes.saturating_add(weights_bytes);
            sum.kv_bytes = sum.kv_bytes.saturating_add(kv_bytes);
            sum.bufs_bytes = sum.bufs_bytes.saturating_add(bufs_bytes);
            sum.free_bytes = sum.free_bytes.zip(free_bytes).map(|(sum, free)| sum + free);
            let need = weights_bytes.saturating_add(kv_bytes).saturating_add(bufs_bytes);
            let free = free_bytes.unwrap_or(u64::MAX);
            fits &= need <= free;
            usable = usable.saturating_add(need.min(free));
        }
        sum.free_bytes = sum.free_bytes.map(|free| if fits { free } else { usable });
        Ok(sum)
    }

    fn memory(&self, p: &Program) -> Result<Vec<DeviceMemory>, BackendError> {
        p.check()?;
        let of_cards = self.parts(p).into_iter().map(|(card, part)| self.cards[card].memory(&part.program));
        Ok(of_cards.collect::<Result<Vec<_>, _>>()?.concat())
    }

    fn upload(&mut self, w: &HostTensor) -> Result<WeightId, BackendError> {
        self.weights.push(Weight { tensor: w.clone(), on_cards: vec![None; self.cards.len()] });
        Ok(WeightId(self.weights.len() as u32 - 1))
    }

    fn compile(&mut self, p: &Program, weights: &[WeightId]) -> Result<Exec, BackendError> {
        p.check()?;
        let mut parts = Vec::new();
        for (card, part) in self.parts(p) {
            let mut on_card = Vec::with_capacity(part.weights.len());
            for of_whole in &part.weights {
                let weight = &mut self.weights[weights[of_whole.0 as usize].0 as usize];
                let id = match weight.on_cards[card] {
                    Some(id) => id,
                    None => *weight.on_cards[card].insert(self.cards[card].upload(&weight.tensor)?),
                };
                on_card.push(id);
            }
            let Exec(exec) = self.cards[card].compile(&part.program, &on_card)?;
            let inputs = part.program.inputs();
            parts.push(OnCard { card, exec: exec as usize, part, inputs });
        }
        self.execs.push(SplitExec { program: p.clone(), parts, last: 0 });
        Ok(Exec(self.execs.len() as u32 - 1))
    }

    fn run(&mut self, e: Exec, step: &Step<'_>) -> Result<(), BackendError> {
        let all = 0..self.execs[e.0 as usize].program.stages.len();
        self.queue(e, all, step)
    }

    fn read(&mut self, e: Exec, b: Buf, first_row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        let (part, buf) = self.part_with(e, b);
        let (compiled, driver) = self.compiled(e, part);
        driver.read(compiled.row_address(buf, first_row), bytemuck::cast_slice_mut(out))
    }

    /// Written on every GPU that has the buffer, because any stage may read it next.
    fn write(&mut self, e: Exec, b: Buf, first_row: usize, values: &[f32]) -> Result<(), BackendError> {
        for part in 0..=self.last_part(e) {
            let Some(buf) = self.execs[e.0 as usize].parts[part].part.buf(b) else { continue };
            let (compiled, driver) = self.compiled(e, part);
            driver.write(compiled.row_address(buf, first_row), bytemuck::cast_slice(values))?;
        }
        Ok(())
    }

    fn tokens(&mut self, e: Exec, first_row: usize, out: &mut [u32]) -> Result<(), BackendError> {
        let (compiled, driver) = self.compiled(e, self.last_part(e));
        compiled.tokens(driver, first_row, out)
    }

    fn runs_ahead(&self, e: Exec, how: &Sampling) -> bool {
        let OnCard { card, exec, .. } = self.execs[e.0 as usize].parts[self.last_part(e)];
        self.cards[card].execs[exec].picks_on_device(how)
    }

    fn most_changes(&self) -> usize {
        sample::MAX_CHANGES
    }

    fn picked(&mut self, e: Exec, seq: u32, back: usize) -> Result<u32, BackendError> {
        let (compiled, driver) = self.compiled(e, self.last_part(e));
        compiled.picked(driver, seq, back)
    }

    fn stage_times(&self, e: Exec) -> Option<Vec<StageTime>> {
        let of_part = |on: &OnCard| self.cards[on.card].execs[on.exec].stage_times();
        let parts: Option<Vec<_>> = self.execs[e.0 as usize].parts.iter().map(of_part).collect();
        parts.map(|parts| parts.concat())
    }

    fn clamped(&mut self, e: Exec) -> Result<Option<u64>, BackendError> {
        let mut sum = 0;
        for part in 0..=self.last_part(e) {
            let (compiled, driver) = self.compiled(e, part);
            sum += compiled.clamped(driver)?;
        }
        Ok(Some(sum))
    }

    fn page_bytes(&self, e: Exec, page: KvPage) -> usize {
        self.page_parts(e, page).last().map_or(0, |last| last.end)
    }

    fn read_page(&mut self, e: Exec, page: KvPage, out: &mut [u8]) -> Result<(), BackendError> {
        for (part, at) in self.page_parts(e, page).into_iter().enumerate() {
            let (compiled, driver) = self.compiled(e, part);
            compiled.read_page(driver, page, &mut out[at])?;
        }
        Ok(())
    }

    fn write_page(&mut self, e: Exec, page: KvPage, bytes: &[u8]) -> Result<(), BackendError> {
        for (part, at) in self.page_parts(e, page).into_iter().enumerate() {
            let (compiled, driver) = self.compiled(e, part);
            compiled.write_page(driver, page, &bytes[at])?;
        }
        Ok(())
    }

    fn run_stages(&mut self, e: Exec, range: Range<usize>, step: &Step<'_>) -> Result<(), BackendError> {
        self.queue(e, range, step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_divided_by_bytes_and_no_card_is_left_out() {
        for (sizes, shares, want) in [
            (&[1, 1, 1, 1][..], &[0.5, 0.5][..], &[0..2, 2..4][..]),
            (&[1, 1, 1, 1], &[0.75, 0.25], &[0..3, 3..4]),
            // An output head is worth several layers.
            (&[1, 1, 1, 1, 4], &[0.5, 0.5], &[0..4, 4..5]),
            (&[9, 1, 1, 1], &[0.1, 0.9], &[0..1, 1..4]),
            (&[1, 1, 1], &[0.98, 0.01, 0.01], &[0..1, 1..2, 2..3]),
            (&[1, 1, 1], &[0.0, 1.0, 0.0], &[0..0, 0..3, 3..3]),
            (&[1], &[0.5, 0.5], &[0..1, 1..1]),
            (&[0, 0], &[0.5, 0.5], &[0..1, 1..2]),
        ] {
            assert_eq!(assign(sizes, shares), want, "{sizes:?} in {shares:?}");
        }
    }
}
