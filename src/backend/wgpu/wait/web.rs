//! Suspends the stack of the module (JSPI). Every export through which JavaScript reaches this code has
//! `#[wasm_bindgen(jspi)]`.
// wasm-bindgen marks its JSPI support as experimental with a deprecation.
#![allow(deprecated)]

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use futures_channel::oneshot;
use js_sys::futures::{future_to_promise, jspi_block_on_promise};
use js_sys::{Array, Function, Promise};
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;
use wgpu::{Buffer, Device, Queue, SubmissionIndex};

use super::PATIENCE;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_name = setTimeout)]
    fn set_timeout(then: &Function, milliseconds: u32) -> JsValue;
    #[wasm_bindgen(js_name = clearTimeout)]
    fn clear_timeout(timer: &JsValue);
}

/// Result of a wgpu future.
pub fn now<T: 'static>(future: impl Future<Output = T> + 'static) -> T {
    let (promise, answer) = promised(future);
    jspi_block_on_promise(&promise).expect("a promise that is never rejected");
    answer.take().expect("an answer of a future that has ended")
}

/// Waits for all queued work: a browser cannot wait for a single submission.
///
/// # Errors
/// If the device hangs.
pub fn done(_: &Device, queue: &Queue, _: Option<SubmissionIndex>) -> Result<(), String> {
    let (sender, answer) = oneshot::channel();
    queue.on_submitted_work_done(move || {
        // The receiver is dropped after a timeout.
        let _ = sender.send(());
    });
    in_time(answer)
}

/// Maps the first bytes of a buffer for reading, after the work that writes them.
///
/// # Errors
/// The inner error if mapping fails.
pub fn mapped<E>(
    buffer: &Buffer,
    bytes: u64,
    _: impl FnMut() -> Result<(), E>,
) -> Result<Result<(), String>, E> {
    let (sender, answer) = oneshot::channel();
    buffer.map_async(wgpu::MapMode::Read, 0..bytes, move |mapped| drop(sender.send(mapped)));
    Ok(in_time(answer).and_then(|mapped| mapped.map_err(|err| err.to_string())))
}

/// Value sent by a callback, or an error after a timeout.
fn in_time<T: 'static>(answer: oneshot::Receiver<T>) -> Result<T, String> {
    let (promise, answer) = promised(answer);
    let mut timer = JsValue::UNDEFINED;
    let timeout = Promise::new(&mut |resolve, _| {
        timer = set_timeout(&resolve, PATIENCE.as_millis() as u32);
    });
    let first = Promise::race(&Array::of2(&promise, &timeout));
    jspi_block_on_promise(&first).expect("promises that are never rejected");
    clear_timeout(&timer);
    match answer.take() {
        Some(Ok(answer)) => Ok(answer),
        // The callback was dropped.
        Some(Err(_)) => Err("the device was lost".to_owned()),
        None => Err("the device did not respond".to_owned()),
    }
}

/// A promise that settles when the future completes, and the cell that then holds the result.
fn promised<T: 'static>(future: impl Future<Output = T> + 'static) -> (Promise, Rc<Cell<Option<T>>>) {
    let answer = Rc::new(Cell::new(None));
    let result = Rc::clone(&answer);
    let promise = future_to_promise(async move {
        result.set(Some(future.await));
        Ok(JsValue::UNDEFINED)
    });
    (promise, answer)
}
