//! Times of stages: two timestamps around each, read after the run.

use std::ops::Range;

use wgpu::{Buffer, BufferUsages, CommandEncoder, ComputePassTimestampWrites, QuerySet, SubmissionIndex};

use super::alloc::Allocator;
use super::device::Gpu;
use crate::{BackendError, MemoryKind, StageTime};

const BYTES: u64 = 16;

/// Timestamps of one program's stages, and their accumulated times.
pub struct Profile {
    marks: QuerySet,
    resolved: Buffer,
    staging: Buffer,
    /// Nanoseconds per timestamp unit.
    tick: f64,
    /// One per stage.
    pub times: Vec<StageTime>,
}

/// Buffers to resolve the timestamps of `n` stages, and to read them back.
pub fn buffers<A: Allocator>(on: &mut A, n: usize) -> Result<[A::Buffer; 2], BackendError> {
    const PART: &str = "times of stages";
    let (bytes, usage) = (BYTES * n as u64, BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC);
    let resolved = on.buffer(usage, &PART, &[(MemoryKind::Buffers, PART, bytes)])?;
    Ok([resolved, on.mapped(PART, bytes)?])
}

impl Profile {
    /// Timestamps for `n` stages; `None` if the device was opened without profiling.
    pub fn new(gpu: &Gpu, n: usize) -> Result<Option<Self>, BackendError> {
        let Some(tick) = gpu.tick else { return Ok(None) };
        let [resolved, staging] = buffers(&mut { gpu }, n)?;
        Ok(Some(Self {
            marks: gpu.timestamps(2 * n as u32)?,
            resolved,
            staging,
            tick: f64::from(tick),
            times: vec![StageTime::default(); n],
        }))
    }

    /// Timestamps written by a pass over one stage.
    pub fn around(&self, stage: usize) -> ComputePassTimestampWrites<'_> {
        let first = 2 * stage as u32;
        ComputePassTimestampWrites {
            query_set: &self.marks,
            beginning_of_pass_write_index: Some(first),
            end_of_pass_write_index: Some(first + 1),
        }
    }

    /// Copies the timestamps of these stages to the host-visible buffer.
    pub fn resolve(&self, encoder: &mut CommandEncoder, stages: Range<usize>) {
        let bytes = BYTES * stages.len() as u64;
        let marks = 2 * stages.start as u32..2 * stages.end as u32;
        encoder.resolve_query_set(&self.marks, marks, &self.resolved, 0);
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.staging, 0, bytes);
    }

    /// Waits for the run of these stages, and adds their times.
    pub fn add(&mut self, gpu: &Gpu, run: SubmissionIndex, stages: Range<usize>) -> Result<(), BackendError> {
        let mut marks = vec![[0_u64; 2]; stages.len()];
        gpu.fetch(&self.staging, Some(run), bytemuck::cast_slice_mut(&mut marks))?;
        for (time, [begin, end]) in self.times[stages].iter_mut().zip(marks) {
            time.calls += 1;
            time.nanoseconds += (end.saturating_sub(begin) as f64 * self.tick) as u64;
        }
        Ok(())
    }
}
