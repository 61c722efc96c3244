//! A backend that sleeps, fails or panics as a test wants.

use std::ops::Range;

use ggml_types::HostTensor;
use sterna::backend::{Backend, BackendError, Exec, KvPage, Plan, WeightId};
use sterna::program::{Buf, Program, Sampling, Step};

type Hook = dyn Fn(&'static str) -> Result<(), BackendError> + Send + Sync;

/// Forwards every call. Before `run`, `read` and `picked`, a hook gets the name of the call.
pub struct HookedBackend {
    inner: Box<dyn Backend>,
    before: Box<Hook>,
}

impl HookedBackend {
    /// An error of `before` is returned in place of the call.
    pub fn new(
        inner: Box<dyn Backend>,
        before: impl Fn(&'static str) -> Result<(), BackendError> + Send + Sync + 'static,
    ) -> Self {
        Self { inner, before: Box::new(before) }
    }
}

impl Backend for HookedBackend {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn device(&self) -> String {
        self.inner.device()
    }

    fn plan(&self, p: &Program) -> Result<Plan, BackendError> {
        self.inner.plan(p)
    }

    fn upload(&mut self, w: &HostTensor) -> Result<WeightId, BackendError> {
        self.inner.upload(w)
    }

    fn compile(&mut self, p: &Program, weights: &[WeightId]) -> Result<Exec, BackendError> {
        self.inner.compile(p, weights)
    }

    fn run(&mut self, e: Exec, step: &Step<'_>) -> Result<(), BackendError> {
        (self.before)("run")?;
        self.inner.run(e, step)
    }

    fn read(&mut self, e: Exec, b: Buf, first_row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        (self.before)("read")?;
        self.inner.read(e, b, first_row, out)
    }

    fn write(&mut self, e: Exec, b: Buf, first_row: usize, values: &[f32]) -> Result<(), BackendError> {
        self.inner.write(e, b, first_row, values)
    }

    fn tokens(&mut self, e: Exec, first_row: usize, out: &mut [u32]) -> Result<(), BackendError> {
        self.inner.tokens(e, first_row, out)
    }

    fn runs_ahead(&self, e: Exec, how: &Sampling) -> bool {
        self.inner.runs_ahead(e, how)
    }

    fn picked(&mut self, e: Exec, seq: u32, back: usize) -> Result<u32, BackendError> {
        (self.before)("picked")?;
        self.inner.picked(e, seq, back)
    }

    fn clamped(&mut self, e: Exec) -> Result<Option<u64>, BackendError> {
        self.inner.clamped(e)
    }

    fn page_bytes(&self, e: Exec, page: KvPage) -> usize {
        self.inner.page_bytes(e, page)
    }

    fn read_page(&mut self, e: Exec, page: KvPage, out: &mut [u8]) -> Result<(), BackendError> {
        self.inner.read_page(e, page, out)
    }

    fn write_page(&mut self, e: Exec, page: KvPage, bytes: &[u8]) -> Result<(), BackendError> {
        self.inner.write_page(e, page, bytes)
    }

    fn run_stages(&mut self, e: Exec, range: Range<usize>, step: &Step<'_>) -> Result<(), BackendError> {
        self.inner.run_stages(e, range, step)
    }
}
