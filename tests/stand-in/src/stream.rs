//! Calls for streams, events, captures and graphs; and the work of streams.

use std::collections::VecDeque;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Instant;

use cudarc::driver::sys::{
    CUevent, CUevent_flags, CUgraph, CUgraphExec, CUresult, CUstream, CUstream_flags, CUstreamCaptureMode,
};
use sterna::backend::cuda::driver::Address;
use sterna::backend::cuda::driver::simt::host::{Begun, Config};

use crate::driver::{Driver, Result, calls, keep, put, say};
use crate::module::Launch;
use crate::timeline::{Ns, Timeline, Times, What};

#[derive(Clone)]
pub enum Op {
    /// Copy between addresses, each with its card, if any.
    Copy {
        to: (Address, Option<usize>),
        from: (Address, Option<usize>),
        bytes: usize,
    },
    Fill {
        at: Address,
        value: u8,
        bytes: usize,
    },
    Record {
        event: usize,
    },
    /// Waits until `after` items of work of a stream are done, possibly of another card.
    Wait {
        card: usize,
        stream: usize,
        after: u64,
    },
    /// A kernel launch, and whether it may start before the preceding kernel has ended.
    Launch {
        launch: Arc<Launch>,
        early: bool,
        in_graph: bool,
    },
}

#[derive(Default)]
pub struct Stream {
    /// Each item has the host time at which it was queued.
    queue: VecDeque<(Ns, Op)>,
    /// Number of items queued, and number done.
    queued: u64,
    done: u64,
    pub times: Times,
    pub capture: Option<Capture>,
}

/// A graph capture in progress.
pub struct Capture {
    ops: Vec<Op>,
    mode: CUstreamCaptureMode,
    thread: ThreadId,
    /// True if a call has invalidated it.
    pub lost: bool,
}

#[derive(Default)]
pub struct Event {
    is_timed: bool,
    /// Stream that it was recorded in, and number of items up to and including the record.
    recorded: Option<(usize, u64)>,
    at: Option<Instant>,
}

/// A captured graph, or its executable form.
#[derive(Clone, Default)]
pub struct Graph(Vec<Op>);

impl Capture {
    /// True if this thread must not make potentially unsafe calls.
    pub fn forbids_unsafe_calls(&self) -> bool {
        match self.mode {
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL => true,
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL => self.is_of_this_thread(),
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED => false,
        }
    }

    fn is_of_this_thread(&self) -> bool {
        self.thread == std::thread::current().id()
    }
}

impl Driver {
    /// Queues work, or adds it to the stream's capture.
    pub fn queue(&mut self, card: usize, handle: CUstream, op: Op) -> Result {
        let stream = self.streams.get(handle, card)?;
        if let Some(capture) = &mut stream.capture {
            capture.ops.push(op);
            return if capture.lost { Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) } else { Ok(()) };
        }
        stream.queue.push_back((self.timeline.as_ref().map_or(0, Timeline::now), op));
        stream.queued += 1;
        if self.settings.prompt { self.work_off(card, handle) } else { Ok(()) }
    }

    /// Does all work that is queued in a stream.
    fn work_off(&mut self, card: usize, handle: CUstream) -> Result {
        let queued = self.streams.get(handle, card)?.queued;
        self.work(card, handle as usize, queued)
    }

    /// Works until `until` items of a stream are done; reports a kernel fault.
    fn work(&mut self, card: usize, stream: usize, until: u64) -> Result {
        let mut started = None;
        loop {
            let of = self.streams.get(stream as CUstream, card)?;
            if of.done >= until && started.is_none() {
                return Ok(());
            }
            let (issued, op) = of.queue.pop_front().expect("queued work");
            of.done += 1;
            let (n, next) = (of.done, of.queue.front().map(|(_, op)| op.clone()));
            if let Err(fault) = self.do_one(card, &op, next.as_ref(), &mut started) {
                // Finish the started kernel, which holds threads and is no longer needed.
                let _ = started.map(Begun::finish);
                self.cards[card].fault = Some(fault);
                return Err(fault);
            }
            self.pass(card, stream, (n, issued), &op)?;
        }
    }

    /// Advances the timeline of a stream by its `n`-th item of work.
    fn pass(&mut self, card: usize, stream: usize, (n, issued): (u64, Ns), op: &Op) -> Result {
        let Some(timeline) = &mut self.timeline else { return Ok(()) };
        let mut from = issued;
        let (what, bytes) = match op {
            Op::Wait { card, stream, after } => {
                if let Ok(other) = self.streams.get(*stream as CUstream, *card) {
                    from = from.max(other.times.at(*after));
                }
                (What::Nothing, 0)
            }
            Op::Copy { to: (_, Some(_)), from: (at, None), bytes } => {
                let pinned = self.cards[card].is_pinned(*at, *bytes as u64);
                (if pinned { What::Copy } else { What::Pageable }, *bytes)
            }
            Op::Launch { .. } => (What::Kernel, 0),
            Op::Copy { .. } | Op::Fill { .. } | Op::Record { .. } => (What::Nothing, 0),
        };
        let times = &mut self.streams.get(stream as CUstream, card)?.times;
        timeline.pass(stream, times, n, from, what, bytes);
        Ok(())
    }

    /// Records that the host waited for the first `n` items of a stream.
    fn waited(&mut self, card: usize, stream: usize, n: u64) {
        let at = self.streams.get(stream as CUstream, card).map_or(0, |of| of.times.at(n));
        self.timeline.iter_mut().for_each(|timeline| timeline.wait(at));
    }

    /// Does one item of work; `started` holds a kernel that has already started, and then the next one.
    fn do_one(&mut self, card: usize, op: &Op, next: Option<&Op>, started: &mut Option<Begun>) -> Result {
        match op {
            Op::Copy { to, from, bytes } => {
                for (at, of) in [to, from].into_iter().filter_map(|(at, of)| Some((at, (*of)?))) {
                    self.cards[of].check(*at, *bytes as u64).map_err(|_| {
                        say(format_args!(
                            "a copy of {bytes} bytes at {at:#x}, which were freed in the meantime"
                        ));
                        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
                    })?;
                }
                // SAFETY: checked above; host memory belongs to the caller, who waits before freeing it.
                unsafe { std::ptr::copy(from.0 as *const u8, to.0 as *mut u8, *bytes) };
            }
            Op::Fill { at, value, bytes } => {
                let there = self.cards[card].check(*at, *bytes as u64);
                there.map_err(|_| CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)?;
                // SAFETY: checked above.
                unsafe { (*at as *mut u8).write_bytes(*value, *bytes) };
            }
            Op::Record { event } => {
                if let Ok(event) = self.events.get(*event as CUevent, card) {
                    event.at = Some(Instant::now());
                }
            }
            // A destroyed stream has finished its work.
            Op::Wait { card, stream, after } => {
                if self.streams.get(*stream as CUstream, *card).is_ok() {
                    self.work(*card, *stream, *after)?;
                }
            }
            Op::Launch { launch, in_graph, .. } => {
                let current = match started.take() {
                    Some(current) => Some(current),
                    None => self.begin(card, launch, *in_graph, false)?,
                };
                if let Some(Op::Launch { launch, early: true, in_graph }) = next
                    && !self.settings.ordered
                {
                    *started = self.begin(card, launch, *in_graph, true)?;
                }
                current.map(Begun::finish).transpose().map_err(|what| fault(&what))?;
            }
        }
        Ok(())
    }

    /// Begins a launch; returns nothing for a kernel that is set to do nothing.
    fn begin(&mut self, card: usize, launch: &Launch, in_graph: bool, early: bool) -> Result<Option<Begun>> {
        let Launch { name, grid, threads, shared_bytes, params } = launch;
        let is_wrong = self
            .settings
            .wrong
            .as_ref()
            .is_some_and(|(wrong, graphs)| wrong == name && (in_graph || !graphs));
        if is_wrong {
            return Ok(None);
        }
        let config = Config {
            name,
            grid: *grid,
            threads: *threads,
            shared_bytes: *shared_bytes as usize,
            early,
            counted: false,
            seed: self.settings.seed,
        };
        let host = self.cards[card].host.as_ref().expect("a context");
        // SAFETY: the parameters are those of the caller's launch.
        unsafe { host.begin(&config, params) }.map(Some).map_err(|what| fault(&what))
    }
}

/// Error code of a kernel fault.
fn fault(what: &str) -> CUresult {
    say(format_args!("{what}"));
    if what.contains("not aligned") {
        CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
    } else if what.contains("allocation") {
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
    } else {
        CUresult::CUDA_ERROR_LAUNCH_FAILED
    }
}

calls! {
    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) = |driver| {
        let card = driver.current()?;
        // Streams that synchronise with the legacy stream are not supported.
        if flags != CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        keep(driver, stream, |driver| &mut driver.streams, card, Stream::default())
    }

    fn cuStreamDestroy_v2(stream: CUstream) = |driver| {
        let card = driver.current()?;
        driver.work_off(card, stream)?;
        driver.streams.remove(stream, card).map(drop)
    }

    fn cuStreamSynchronize(stream: CUstream) = |driver| {
        let card = driver.current_unless_recording()?;
        driver.work_off(card, stream)?;
        let done = driver.streams.get(stream, card)?.done;
        driver.waited(card, stream as usize, done);
        Ok(())
    }

    /// The only call that takes another card's event. A capture must not depend on work outside it, and
    /// captures of several streams are not supported here.
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, _flags: c_uint) = |driver| {
        let card = driver.current()?;
        let (of_card, recorded) = driver.events.find(event).map(|(card, event)| (card, event.recorded))?;
        if let Some(capture) = &mut driver.streams.get(stream, card)?.capture {
            capture.lost = true;
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        }
        match recorded {
            Some((of, after)) => driver.queue(card, stream, Op::Wait { card: of_card, stream: of, after }),
            None => Ok(()),
        }
    }

    fn cuEventCreate(event: *mut CUevent, flags: c_uint) = |driver| {
        let card = driver.current()?;
        let is_timed = flags & CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint == 0;
        keep(driver, event, |driver| &mut driver.events, card, Event { is_timed, ..Event::default() })
    }

    fn cuEventDestroy_v2(event: CUevent) = |driver| {
        let card = driver.current()?;
        driver.events.remove(event, card).map(drop)
    }

    fn cuEventRecord(event: CUevent, stream: CUstream) = |driver| {
        let card = driver.current()?;
        driver.events.get(event, card)?;
        let (handle, of) = (stream as usize, driver.streams.get(stream, card)?);
        if of.capture.is_none() {
            let after = of.queued + 1;
            let event = driver.events.get(event, card)?;
            (event.recorded, event.at) = (Some((handle, after)), None);
        }
        driver.queue(card, stream, Op::Record { event: event as usize })
    }

    fn cuEventSynchronize(event: CUevent) = |driver| {
        let card = driver.current_unless_recording()?;
        match driver.events.get(event, card)?.recorded {
            Some((stream, after)) => {
                driver.work(card, stream, after)?;
                driver.waited(card, stream, after);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Each query does some of the work, so that polling does not wait for ever.
    fn cuEventQuery(event: CUevent) = |driver| {
        let card = driver.current_unless_recording()?;
        let Some((stream, after)) = driver.events.get(event, card)?.recorded else { return Ok(()) };
        let done = driver.streams.get(stream as CUstream, card)?.done;
        if done >= after {
            return Ok(());
        }
        driver.work(card, stream, done + 1)?;
        Err(CUresult::CUDA_ERROR_NOT_READY)
    }

    fn cuEventElapsedTime_v2(ms: *mut f32, start: CUevent, end: CUevent) = |driver| {
        let card = driver.current()?;
        let mut at = |event| {
            let event = driver.events.get(event, card)?;
            match (event.is_timed, event.recorded, event.at) {
                (true, Some(_), Some(at)) => Ok(at),
                (true, Some(_), None) => Err(CUresult::CUDA_ERROR_NOT_READY),
                _ => Err(CUresult::CUDA_ERROR_INVALID_HANDLE),
            }
        };
        let (start, end) = (at(start)?, at(end)?);
        put(ms, end.saturating_duration_since(start).as_secs_f32() * 1e3)
    }

    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) = |driver| {
        let card = driver.current()?;
        let stream = driver.streams.get(stream, card)?;
        if stream.capture.is_some() {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        let thread = std::thread::current().id();
        stream.capture = Some(Capture { ops: Vec::new(), mode, thread, lost: false });
        Ok(())
    }

    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) = |driver| {
        let card = driver.current()?;
        let stream = driver.streams.get(stream, card)?;
        let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        match &stream.capture {
            None => return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE),
            Some(capture) if capture.mode != relaxed && !capture.is_of_this_thread() => {
                return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
            }
            Some(_) => {}
        }
        let capture = stream.capture.take().expect("checked above");
        if capture.lost {
            put(graph, std::ptr::null_mut())?;
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        keep(driver, graph, |driver| &mut driver.graphs, card, Graph(capture.ops))
    }

    fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, _flags: c_ulonglong) = |driver| {
        let card = driver.current()?;
        let Graph(mut ops) = driver.graphs.get(graph, card)?.clone();
        for (i, op) in ops.iter_mut().enumerate() {
            let Op::Launch { early, in_graph, .. } = op else { continue };
            // The first kernel has no predecessor in its graph, and waits for all queued work.
            *early &= i > 0;
            *in_graph = true;
        }
        keep(driver, exec, |driver| &mut driver.execs, card, Graph(ops))
    }

    fn cuGraphDestroy(graph: CUgraph) = |driver| {
        let card = driver.current()?;
        driver.graphs.remove(graph, card).map(drop)
    }

    fn cuGraphUpload(exec: CUgraphExec, stream: CUstream) = |driver| {
        let card = driver.current()?;
        driver.execs.get(exec, card)?;
        driver.streams.get(stream, card).map(drop)
    }

    fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) = |driver| {
        let card = driver.current()?;
        let Graph(ops) = driver.execs.get(exec, card)?.clone();
        let of = driver.streams.get(stream, card)?;
        if of.capture.is_some() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let now = driver.timeline.as_ref().map_or(0, Timeline::now);
        of.queued += ops.len() as u64;
        of.queue.extend(ops.into_iter().map(|op| (now, op)));
        if driver.settings.prompt { driver.work_off(card, stream) } else { Ok(()) }
    }

    fn cuGraphExecDestroy(exec: CUgraphExec) = |driver| {
        let card = driver.current()?;
        driver.execs.remove(exec, card).map(drop)
    }
}
