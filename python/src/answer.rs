//! Streamed answers.

use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use sterna::serve::{self, Canceller, Piece};

use super::engine::of_this_process;
use super::exit::{stay_out, without_lock};
use super::mail::{Call, Mail};

/// Interval in which a waiting thread checks for signals.
pub const SIGNALS: Duration = Duration::from_millis(50);

/// A streamed answer: first its head, then pieces of its body.
#[pyclass(frozen)]
pub struct Answer {
    /// `None` only during drop.
    inner: Mutex<Option<serve::Answer>>,
    canceller: Canceller,
    process: u32,
}

impl Answer {
    pub fn new(inner: serve::Answer) -> Self {
        Self { canceller: inner.canceller(), inner: Mutex::new(Some(inner)), process: process::id() }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.process != process::id() {
            // Its threads are not in this process, so locks that they held are never released.
            std::mem::forget(self.inner.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// Bytes, the status and headers of the head, or `None`.
fn piece(py: Python<'_>, next: Option<Piece>) -> PyResult<Bound<'_, PyAny>> {
    Ok(match next {
        None => py.None().into_bound(py),
        Some(Piece::Body(bytes)) => PyBytes::new(py, &bytes).into_any(),
        Some(Piece::Head { status, headers }) => {
            let headers = headers.iter().map(|(name, value)| {
                (PyBytes::new(py, name.as_str().as_bytes()), PyBytes::new(py, value.as_bytes()))
            });
            PyTuple::new(
                py,
                [status.into_pyobject(py)?.into_any(), headers.collect::<Vec<_>>().into_pyobject(py)?],
            )?
            .into_any()
        }
    })
}

#[pymethods]
impl Answer {
    /// Waits for the next piece: first the status and headers, then bytes; `None` after the last.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        of_this_process(self.process)?;
        stay_out(py);
        // A piece that has arrived is taken without giving the interpreter's lock away.
        let arrived = self.inner.try_lock().ok().map(|mut inner| next_within(&mut inner, Duration::ZERO));
        if let Some(Poll::Ready(next)) = arrived {
            return piece(py, next);
        }
        let wait = || next_within(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner), SIGNALS);
        loop {
            if let Poll::Ready(next) = without_lock(py, wait) {
                return piece(py, next);
            }
            py.check_signals()?;
        }
    }

    /// Returns the next piece if it is available. Otherwise returns `False`, and later puts `number` into
    /// `mail`, when it may be.
    fn poll<'py>(&self, py: Python<'py>, mail: &Bound<'_, Mail>, number: u64) -> PyResult<Bound<'py, PyAny>> {
        of_this_process(self.process)?;
        let waker = Waker::from(Arc::new(Call { post: Arc::clone(&mail.get().0), number }));
        let poll = |inner: &mut Option<serve::Answer>| match inner {
            Some(inner) => inner.poll(&mut Context::from_waker(&waker)),
            None => Poll::Ready(None),
        };
        let tried = self.inner.try_lock().ok().map(|mut inner| poll(&mut inner));
        let polled = tried.unwrap_or_else(|| {
            without_lock(py, || poll(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner)))
        });
        match polled {
            Poll::Ready(next) => piece(py, next),
            Poll::Pending => Ok(false.into_pyobject(py)?.to_owned().into_any()),
        }
    }

    /// Cancels the request. In a forked child it does nothing.
    fn cancel(&self) {
        if self.process == process::id() {
            self.canceller.cancel();
        }
    }
}

fn next_within(inner: &mut Option<serve::Answer>, time: Duration) -> Poll<Option<Piece>> {
    inner.as_mut().map_or(Poll::Ready(None), |inner| inner.next_within(time))
}
