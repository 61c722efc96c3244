//! State shared by all calls: cards, handles, the current context, and sticky errors.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::CUresult;
use sterna::backend::cuda::driver::cards::Spec;
use sterna::backend::cuda::driver::simt::host::Host;

use crate::memory::Allocations;
use crate::module::{Function, Module};
use crate::settings::Settings;
use crate::stream::{Event, Graph, Stream};
use crate::timeline::Timeline;

pub type Result<T = ()> = std::result::Result<T, CUresult>;

/// The driver of this process.
pub struct Driver {
    pub settings: Settings,
    pub cards: Vec<Card>,
    pub modules: Table<Module>,
    pub functions: Table<Function>,
    pub streams: Table<Stream>,
    pub events: Table<Event>,
    pub graphs: Table<Graph>,
    pub execs: Table<Graph>,
    pub timeline: Option<Timeline>,
    initialised: bool,
    n_calls: HashMap<&'static str, u32>,
    /// True if the cards are lost.
    gone: bool,
    n_handles: usize,
}

/// A card, and its primary context.
pub struct Card {
    pub spec: Spec,
    /// Retain count of the context. At 0, `host` is empty.
    pub retained: u32,
    pub host: Option<Host>,
    pub memory: Allocations,
    /// Cards whose memory its context may access.
    pub peers: Vec<usize>,
    /// Fault of a kernel. Every later call returns it.
    pub fault: Option<CUresult>,
}

/// Objects of one kind by handle, each with its card.
pub struct Table<T>(HashMap<usize, (usize, T)>);

impl<T> Table<T> {
    /// Looks up an object that belongs to a card.
    pub fn get<H>(&mut self, handle: *mut H, card: usize) -> Result<&mut T> {
        let found = self.0.get_mut(&(handle as usize)).filter(|(of, _)| *of == card);
        found.map(|(_, object)| object).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Looks up an object of any card, and returns that card, too.
    pub fn find<H>(&mut self, handle: *mut H) -> Result<(usize, &mut T)> {
        let found = self.0.get_mut(&(handle as usize));
        found.map(|(card, object)| (*card, object)).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    pub fn remove<H>(&mut self, handle: *mut H, card: usize) -> Result<T> {
        self.get(handle, card)?;
        Ok(self.0.remove(&(handle as usize)).expect("found above").1)
    }

    pub fn all(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.values_mut().map(|(_, object)| object)
    }

    /// Drops the objects of a card and returns their number.
    fn drop_card(&mut self, card: usize) -> usize {
        let n = self.0.len();
        self.0.retain(|_, (of, _)| *of != card);
        n - self.0.len()
    }
}

thread_local! {
    /// Card whose context is current, counted from 1; 0 for none.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);

pub fn call(name: &'static str, run: impl FnOnce(&mut Driver) -> Result) -> CUresult {
    let mut driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = driver.get_or_insert_with(Driver::new);
    driver.count(name).and_then(|()| run(driver)).err().unwrap_or(CUresult::CUDA_SUCCESS)
}

/// Defines exported functions, each checked against the signature that cudarc uses.
macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = |$driver:ident| $body:block)*) => { $(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> cudarc::driver::sys::CUresult {
            const _: unsafe fn($($ty),*) -> cudarc::driver::sys::CUresult = cudarc::driver::sys::$name;
            // SAFETY: pointers come from the caller and satisfy the documentation of the call.
            #[allow(unused_unsafe)]
            $crate::driver::call(stringify!($name), |$driver| unsafe { $body })
        }
    )* };
}
pub(crate) use calls;

/// Writes a result to the caller's pointer.
///
/// # Safety
/// `to` is null or valid for writes.
pub unsafe fn put<T>(to: *mut T, value: T) -> Result {
    if to.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { to.write(value) };
    Ok(())
}

/// Prints details on stderr that an error code cannot express.
pub fn say(what: std::fmt::Arguments<'_>) {
    eprintln!("stand-in driver: {what}");
}

impl Driver {
    fn new() -> Self {
        let settings = Settings::read();
        let card = |spec: &Spec| Card {
            spec: *spec,
            retained: 0,
            host: None,
            memory: Allocations::default(),
            peers: Vec::new(),
            fault: None,
        };
        Self {
            cards: settings.cards.iter().map(card).collect(),
            timeline: Timeline::of(&settings),
            settings,
            modules: Table(HashMap::new()),
            functions: Table(HashMap::new()),
            streams: Table(HashMap::new()),
            events: Table(HashMap::new()),
            graphs: Table(HashMap::new()),
            execs: Table(HashMap::new()),
            initialised: false,
            n_calls: HashMap::new(),
            gone: false,
            n_handles: 0,
        }
    }

    fn count(&mut self, name: &'static str) -> Result {
        let n = self.n_calls.entry(name).or_default();
        *n += 1;
        self.gone |= self.settings.fail.get(name) == Some(n);
        if self.settings.refuse.get(name) == Some(n) {
            let memory = name.contains("Alloc");
            return Err(if memory {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY
            } else {
                CUresult::CUDA_ERROR_UNKNOWN
            });
        }
        match name {
            "cuGetErrorName" | "cuGetErrorString" | "cuInit" | "cuDriverGetVersion" => Ok(()),
            _ if self.gone => Err(CUresult::CUDA_ERROR_UNKNOWN),
            _ if !self.initialised => Err(CUresult::CUDA_ERROR_NOT_INITIALIZED),
            _ => Ok(()),
        }
    }

    pub fn initialise(&mut self) -> Result {
        self.initialised = true;
        if self.cards.is_empty() { Err(CUresult::CUDA_ERROR_NO_DEVICE) } else { Ok(()) }
    }

    pub fn device(&mut self, device: i32) -> Result<&mut Card> {
        let card = usize::try_from(device).ok().and_then(|at| self.cards.get_mut(at));
        card.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// Index of the card whose context is current.
    pub fn current(&mut self) -> Result<usize> {
        let card = CURRENT.get().checked_sub(1).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        match &self.cards[card] {
            Card { retained: 0, .. } => Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED),
            Card { fault: Some(fault), .. } => Err(*fault),
            Card { .. } => Ok(card),
        }
    }

    /// The same for a call that is forbidden while this thread captures a graph; it invalidates the capture.
    pub fn current_unless_recording(&mut self) -> Result<usize> {
        let card = self.current()?;
        let recordings = self.streams.all().filter_map(|stream| stream.capture.as_mut());
        let forbids = recordings.filter(|capture| capture.forbids_unsafe_calls());
        match forbids.map(|capture| capture.lost = true).count() {
            0 => Ok(card),
            _ => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        }
    }

    pub fn make_current(card: Option<usize>) {
        CURRENT.set(card.map_or(0, |card| card + 1));
    }

    /// Drops everything in a card's context, and reports leaks.
    pub fn destroy_context(&mut self, card: usize) {
        // Kernels are dropped with their modules.
        self.functions.drop_card(card);
        let left = [
            (self.modules.drop_card(card), "modules"),
            (self.streams.drop_card(card), "streams"),
            (self.events.drop_card(card), "events"),
            (self.graphs.drop_card(card), "graphs"),
            (self.execs.drop_card(card), "executable graphs"),
            (self.cards[card].memory.n_left(), "allocations"),
        ];
        for (n, what) in left.into_iter().filter(|(n, _)| *n > 0) {
            say(format_args!("leaked {n} {what}"));
        }
        self.cards[card].memory = Allocations::default();
        self.cards[card].peers.clear();
        self.cards[card].host = None;
    }

    /// Returns a new handle; handles are never reused.
    pub fn handle(&mut self) -> usize {
        self.n_handles += 1;
        0x1000 + 16 * self.n_handles
    }
}

/// Stores an object under a new handle, which is written to the caller's pointer.
///
/// # Safety
/// As for [`put`].
pub unsafe fn keep<T, H>(
    driver: &mut Driver,
    to: *mut *mut H,
    table: fn(&mut Driver) -> &mut Table<T>,
    card: usize,
    object: T,
) -> Result {
    let handle = driver.handle();
    // SAFETY: guaranteed by the caller.
    unsafe { put(to, handle as *mut H) }?;
    table(driver).0.insert(handle, (card, object));
    Ok(())
}
