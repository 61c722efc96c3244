//! A loaded model.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Mutex, PoisonError, RwLock};

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sterna::gguf::Value;
use sterna::serve::{self, InProcess};
use sterna::{cli, engine};

use super::answer::{Answer, SIGNALS};
use super::exit::{stay_out, without_lock};

/// Number of elements above which an array of a file's metadata is left out: vocabularies.
const MAX_ELEMS: usize = 256;

/// Loads the model selected by flags of `sterna serve`. Calls `tick` at intervals meanwhile.
#[pyfunction]
pub fn open(py: Python<'_>, flags: Vec<OsString>, tick: &Bound<'_, PyAny>) -> PyResult<Engine> {
    let (sender, loaded) = std::sync::mpsc::channel();
    // Python handles signals in this thread.
    std::thread::spawn(move || sender.send(cli::in_process(flags)));
    let loaded = Mutex::new(loaded);
    loop {
        let wait = || loaded.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SIGNALS);
        match without_lock(py, wait) {
            Ok(Ok(inner)) => {
                return Ok(Engine { inner: RwLock::new(Some(inner)), process: process::id() });
            }
            Ok(Err(said)) => return Err(PyValueError::new_err(said)),
            Err(RecvTimeoutError::Timeout) => {
                py.check_signals().and_then(|()| tick.call0().map(drop)).inspect_err(|_| cli::interrupt())?
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyValueError::new_err("the thread that loads the model has panicked"));
            }
        }
    }
}

/// Returns an error in another process than the one that loaded a model.
///
/// # Errors
/// The threads of the model are not in this process.
pub fn of_this_process(process: u32) -> PyResult<()> {
    match process == process::id() {
        true => Ok(()),
        false => Err(PyRuntimeError::new_err(format!(
            "this engine belongs to process {process}: load one after the fork, or start processes with the \
             method `spawn`"
        ))),
    }
}

/// A loaded model.
#[pyclass(frozen, weakref)]
pub struct Engine {
    inner: RwLock<Option<InProcess>>,
    process: u32,
}

impl Engine {
    fn with<T>(&self, task: impl FnOnce(&InProcess) -> PyResult<T>) -> PyResult<T> {
        of_this_process(self.process)?;
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        task(inner.as_ref().ok_or_else(|| PyRuntimeError::new_err("the engine is closed"))?)
    }

    fn model(&self) -> PyResult<engine::Engine> {
        let stopped = || PyRuntimeError::new_err("the engine has stopped");
        self.with(|inner| inner.engine().ok_or_else(stopped))
    }
}

#[pymethods]
impl Engine {
    /// Sends an HTTP request.
    fn request(
        &self,
        py: Python<'_>,
        method: &str,
        path: &str,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
    ) -> PyResult<Answer> {
        stay_out(py);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        self.with(|inner| Ok(Answer::new(inner.request(method, path, &headers, body))))
    }

    /// Serves the model over HTTP at a port of 127.0.0.1; 0 picks a free one.
    fn listen(&self, port: u16) -> PyResult<Listening> {
        let listening = self.with(|inner| Ok(inner.listen(([127, 0, 0, 1], port).into())?))?;
        Ok(Listening {
            port: listening.address().port(),
            inner: Mutex::new(Some(listening)),
            process: self.process,
        })
    }

    /// Bytes of each token.
    fn token_bytes<'py>(&self, py: Python<'py>, tokens: Vec<u32>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let model = self.model()?;
        let tokenizer = model.tokenizer().map_err(|err| PyRuntimeError::new_err(err.to_string()))?;
        let n_vocab = tokenizer.n_vocab();
        if let Some(token) = tokens.iter().find(|token| **token as usize >= n_vocab) {
            return Err(PyValueError::new_err(format!("want tokens below {n_vocab}, got {token}")));
        }
        Ok(tokens.iter().map(|token| PyBytes::new(py, tokenizer.token_bytes(*token))).collect())
    }

    /// Ids of special tokens by name.
    fn special_tokens(&self) -> PyResult<HashMap<&'static str, Option<u32>>> {
        let model = self.model()?;
        let tokenizer = model.tokenizer().map_err(|err| PyRuntimeError::new_err(err.to_string()))?;
        Ok(HashMap::from([
            ("bos", tokenizer.bos()),
            ("eos", tokenizer.eos()),
            ("eot", tokenizer.eot()),
            ("cls", tokenizer.cls()),
            ("sep", tokenizer.sep()),
        ]))
    }

    /// Size of the vocabulary.
    fn n_vocab(&self) -> PyResult<usize> {
        Ok(self.model()?.hyper().n_vocab)
    }

    /// The device that the model runs on.
    fn device(&self) -> PyResult<String> {
        Ok(self.model()?.device().to_string())
    }

    /// Metadata of the model's file, without long arrays.
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
        let model = self.model()?;
        let mut all = Vec::new();
        for (key, value) in model.gguf().metadata().iter() {
            if let Some(value) = converted(py, value)? {
                all.push((key.to_owned(), value));
            }
        }
        Ok(all)
    }

    /// Saves the KV cache of a computed prompt to a file; returns its tokens.
    fn save_prompt(&self, py: Python<'_>, tokens: Vec<u32>, path: PathBuf) -> PyResult<usize> {
        stay_out(py);
        let save = || self.with(|inner| inner.save_prompt(tokens, &path).map_err(PyValueError::new_err));
        without_lock(py, save)
    }

    /// Restores the KV cache of a saved prompt; returns its tokens.
    fn restore_prompt(&self, py: Python<'_>, path: PathBuf) -> PyResult<usize> {
        stay_out(py);
        without_lock(py, || self.with(|inner| inner.restore_prompt(&path).map_err(PyValueError::new_err)))
    }

    /// Ends running requests, and frees the model. In a forked child it does nothing.
    fn close(&self, py: Python<'_>) {
        if self.process != process::id() {
            return;
        }
        let inner = self.inner.write().unwrap_or_else(PoisonError::into_inner).take();
        if inner.is_some() {
            without_lock(py, || drop(inner));
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.process != process::id() {
            // Its threads are not in this process, and cannot be waited for.
            return std::mem::forget(self.inner.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
        Python::attach(|py| self.close(py));
    }
}

/// A listener of a model.
#[pyclass(frozen)]
pub struct Listening {
    inner: Mutex<Option<serve::Listening>>,
    /// Its port.
    #[pyo3(get)]
    port: u16,
    process: u32,
}

#[pymethods]
impl Listening {
    /// Closes it. In a forked child it does nothing.
    fn close(&self) {
        if self.process == process::id() {
            drop(self.inner.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if self.process != process::id() {
            std::mem::forget(self.inner.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// A value of a file's metadata in Python; `None` for a long array.
fn converted<'py>(py: Python<'py>, value: &Value) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(Some(match value {
        Value::U8(x) => x.into_bound_py_any(py)?,
        Value::I8(x) => x.into_bound_py_any(py)?,
        Value::U16(x) => x.into_bound_py_any(py)?,
        Value::I16(x) => x.into_bound_py_any(py)?,
        Value::U32(x) => x.into_bound_py_any(py)?,
        Value::I32(x) => x.into_bound_py_any(py)?,
        Value::F32(x) => x.into_bound_py_any(py)?,
        Value::Bool(x) => x.into_bound_py_any(py)?,
        Value::Str(x) => x.into_bound_py_any(py)?,
        Value::U64(x) => x.into_bound_py_any(py)?,
        Value::I64(x) => x.into_bound_py_any(py)?,
        Value::F64(x) => x.into_bound_py_any(py)?,
        Value::Array(array) if array.len() > MAX_ELEMS => return Ok(None),
        Value::Array(array) => {
            let elems: Vec<_> = array.values().map(|elem| converted(py, &elem)).collect::<PyResult<_>>()?;
            elems.into_bound_py_any(py)?
        }
    }))
}
