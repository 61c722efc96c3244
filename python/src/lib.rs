//! The module `sterna._sterna`: the engine's server without a listener, and the command line. Users import
//! the Python package around it, `python/sterna`.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sterna::serve::{InProcess, Refusal};

/// Interval in which a waiting thread checks for signals.
const SIGNALS: Duration = Duration::from_millis(50);

/// The native part of the package.
#[pymodule]
mod _sterna {
    #[pymodule_export]
    use super::{Answer, Engine, main, open};

    #[pymodule_export]
    #[allow(missing_docs)]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}

/// Runs the command line; returns its exit code.
#[pyfunction]
fn main(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| sterna::cli::main(args))
}

/// Loads the model selected by flags of `sterna serve`.
#[pyfunction]
fn open(py: Python<'_>, flags: Vec<OsString>) -> PyResult<Engine> {
    let (sender, loaded) = std::sync::mpsc::channel();
    // Python handles signals in this thread.
    std::thread::spawn(move || sender.send(sterna::cli::in_process(flags)));
    let loaded = Mutex::new(loaded);
    loop {
        let wait = || loaded.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SIGNALS);
        match py.detach(wait) {
            Ok(Ok(inner)) => return Ok(Engine(RwLock::new(Some(inner)))),
            Ok(Err(said)) => return Err(PyValueError::new_err(said)),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => py.check_signals().inspect_err(|_| {
                sterna::cli::interrupt();
            })?,
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                return Err(PyValueError::new_err("the thread that loads the model has panicked"));
            }
        }
    }
}

/// A loaded model.
#[pyclass(frozen)]
struct Engine(RwLock<Option<InProcess>>);

#[pymethods]
impl Engine {
    /// Sends a request to an endpoint, with a JSON object or without a body.
    #[pyo3(signature = (path, body=None))]
    fn request(&self, py: Python<'_>, path: &str, body: Option<String>) -> PyResult<Answer> {
        let ask = || {
            let inner = self.0.read().unwrap_or_else(PoisonError::into_inner);
            inner.as_ref().map(|inner| inner.request(path, body))
        };
        let answer = py.detach(ask).ok_or_else(|| PyValueError::new_err("the engine is closed"))?;
        Ok(Answer(Mutex::new(answer)))
    }

    /// Ends running requests, and frees the model.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.0.write().unwrap_or_else(PoisonError::into_inner).take()));
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        Python::attach(|py| self.close(py));
    }
}

/// A streamed answer.
#[pyclass(frozen)]
struct Answer(Mutex<sterna::serve::Answer>);

/// A piece for Python, or the status and body of an error.
type Piece<'py> = (u16, Bound<'py, PyBytes>);

impl Answer {
    fn lock(&self) -> MutexGuard<'_, sterna::serve::Answer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn piece(py: Python<'_>, next: Option<Result<impl AsRef<[u8]>, Refusal>>) -> Option<Piece<'_>> {
    next.map(|piece| match piece {
        Ok(bytes) => (200, PyBytes::new(py, bytes.as_ref())),
        Err(Refusal { status, body }) => (status, PyBytes::new(py, body.as_bytes())),
    })
}

#[pymethods]
impl Answer {
    /// Waits for the next piece: its status and its bytes; `None` after the last.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Option<Piece<'py>>> {
        loop {
            if let Poll::Ready(next) = py.detach(|| self.lock().next_within(SIGNALS)) {
                return Ok(piece(py, next));
            }
            py.check_signals()?;
        }
    }

    /// Returns the next piece if it is available. Otherwise returns `False`, and later calls `wake`, from any
    /// thread, when it may be.
    fn poll(&self, py: Python<'_>, wake: Py<PyAny>) -> PyResult<Py<PyAny>> {
        let waker = Waker::from(Arc::new(Call(wake)));
        let polled = py.detach(|| self.lock().poll(&mut Context::from_waker(&waker)));
        match polled {
            Poll::Ready(next) => Ok(piece(py, next).into_pyobject(py)?.unbind()),
            Poll::Pending => Ok(false.into_pyobject(py)?.to_owned().into_any().unbind()),
        }
    }

    /// Cancels the request.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.lock().cancel());
    }
}

/// Waker that calls a Python function.
struct Call(Py<PyAny>);

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        // Nothing waits if the interpreter is shutting down.
        Python::try_attach(|py| {
            if let Err(err) = self.0.call0(py) {
                err.write_unraisable(py, None);
            }
        });
    }
}
