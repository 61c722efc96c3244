//! Waits with a thread.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use wgpu::{Buffer, Device, PollType, Queue, SubmissionIndex};

use super::PATIENCE;

/// The answer of a future of wgpu's, which on these backends is there at once.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("wgpu answers at once where there is no browser"),
    }
}

/// Waits for a submission; for everything that is queued where none is named.
///
/// # Errors
/// Error of a device that was lost or hangs, by wgpu.
pub fn done(device: &Device, _: &Queue, submission_index: Option<SubmissionIndex>) -> Result<(), String> {
    let waited = device.poll(PollType::Wait { submission_index, timeout: Some(PATIENCE) });
    waited.map(drop).map_err(|err| err.to_string())
}

/// Maps the first bytes of a buffer for reading, once `wait` says that what writes them has ended.
///
/// # Errors
/// The inner one where mapping fails; else what `wait` returns.
pub fn mapped<E>(
    buffer: &Buffer,
    bytes: u64,
    mut wait: impl FnMut() -> Result<(), E>,
) -> Result<Result<(), String>, E> {
    let (told, answer) = mpsc::channel();
    // The receiver is gone if waiting failed.
    buffer.map_async(wgpu::MapMode::Read, 0..bytes, move |mapped| drop(told.send(mapped)));
    let patience = Instant::now() + PATIENCE;
    loop {
        wait()?;
        // A thread that waits for the same device may have got this answer, and hands it over a little later.
        match answer.recv_timeout(Duration::from_millis(1)) {
            Ok(mapped) => return Ok(mapped.map_err(|err| err.to_string())),
            Err(_) if Instant::now() < patience => {}
            Err(_) => return Ok(Err("the device never answered".to_owned())),
        }
    }
}
