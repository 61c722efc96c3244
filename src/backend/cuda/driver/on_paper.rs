//! A GPU that this machine does not have: programs are planned for it by the same code as for a real one.

use super::cards::Spec;
use super::{Address, Driver, Kernel, Launch, Limits, Mailboxes, Piece, Recording};
use crate::cuda::kernels;
use crate::{BackendError, CardRates, Overhead};

/// Bytes that a context takes per multiprocessor. 107 MiB on an RTX 4060 Ti (34 of them) and 555 MiB on an
/// RTX PRO 6000 (188) were reported in llama.cpp #23604.
const CONTEXT_BYTES: u64 = 3 << 20;

/// A GPU for planning only; nothing runs on it. It has every kernel of this version, even if this build could
/// not compile it.
pub struct OnPaper {
    card: &'static Spec,
    memory_bytes: u64,
    kernels: Vec<String>,
}

impl OnPaper {
    /// A GPU with `memory_bytes` of memory, all of it free.
    pub fn new(card: &'static Spec, memory_bytes: u64) -> Self {
        Self { card, memory_bytes, kernels: kernels::all().map(|name| name.to_string()).collect() }
    }
}

fn refuse<T>(call: &'static str) -> Result<T, BackendError> {
    let detail = "this GPU is only planned for, and is not in this machine".to_owned();
    Err(BackendError::Device { backend: "cuda", call, detail })
}

impl Driver for OnPaper {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn device(&self) -> String {
        let Spec { name, compute: (major, minor), .. } = self.card;
        format!("{name}, {} MiB, compute capability {major}.{minor}, on paper", self.memory_bytes >> 20)
    }

    fn limits(&self) -> Limits {
        self.card.limits()
    }

    fn free_bytes(&self) -> Option<u64> {
        Some(self.memory_bytes)
    }

    fn rates(&self) -> Option<CardRates> {
        Some(self.card.rates)
    }

    fn overhead(&self) -> Vec<Overhead> {
        let n = self.card.multiprocessors;
        vec![Overhead {
            name: format!("CUDA context ({n} multiprocessors)"),
            bytes: u64::from(n) * CONTEXT_BYTES,
            source: "3 MiB each, by llama.cpp #23604",
        }]
    }

    fn alloc(&mut self, _: u64) -> Result<Address, BackendError> {
        refuse("alloc")
    }

    fn upload_constant(&mut self, _: &str, _: &[u8]) -> Result<(), BackendError> {
        refuse("upload_constant")
    }

    fn write(&mut self, _: Address, _: &[u8]) -> Result<(), BackendError> {
        refuse("write")
    }

    fn read(&mut self, _: Address, _: &mut [u8]) -> Result<(), BackendError> {
        refuse("read")
    }

    fn connect(&mut self, _: &mut dyn Driver) -> Result<(), BackendError> {
        refuse("connect")
    }

    fn receive(&mut self, _: &mut dyn Driver, _: &[Piece]) -> Result<(), BackendError> {
        refuse("receive")
    }

    fn mailboxes(&mut self, _: usize) -> Result<Mailboxes, BackendError> {
        refuse("mailboxes")
    }

    fn mark(&mut self, _: Mailboxes, _: usize) -> Result<(), BackendError> {
        refuse("mark")
    }

    fn collect(&mut self, _: Mailboxes, _: usize) -> Result<u32, BackendError> {
        refuse("collect")
    }

    fn kernel(&self, name: &str) -> Option<Kernel> {
        self.kernels.iter().position(|kernel| kernel == name).map(|at| Kernel(at as u32))
    }

    fn launch(&mut self, _: &Launch) -> Result<(), BackendError> {
        refuse("launch")
    }

    fn record(&mut self, _: Vec<Launch>) -> Result<Recording, BackendError> {
        refuse("record")
    }

    fn time(&mut self, _: &[Vec<Launch>]) -> Result<Vec<u64>, BackendError> {
        refuse("time")
    }

    fn replay(&mut self, _: Recording) -> Result<(), BackendError> {
        refuse("replay")
    }
}
