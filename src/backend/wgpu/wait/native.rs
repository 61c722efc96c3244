//! Waits by blocking the thread.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use wgpu::{Buffer, Device, PollType, Queue, SubmissionIndex};

use super::PATIENCE;

/// Result of a wgpu future, which is ready at once on these backends.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("outside a browser, wgpu's futures are ready at once"),
    }
}

/// Waits for a submission, or for all queued work if it is `None`.
///
/// # Errors
/// wgpu's error for a device that was lost or hangs.
pub fn done(device: &Device, _: &Queue, submission_index: Option<SubmissionIndex>) -> Result<(), String> {
    let waited = device.poll(PollType::Wait { submission_index, timeout: Some(PATIENCE) });
    waited.map(drop).map_err(|err| err.to_string())
}

/// Maps the first bytes of a buffer for reading, after `wait` has returned for the work that writes them.
///
/// # Errors
/// The inner error if mapping fails; the outer one is returned by `wait`.
pub fn mapped<E>(
    buffer: &Buffer,
    bytes: u64,
    mut wait: impl FnMut() -> Result<(), E>,
) -> Result<Result<(), String>, E> {
    let (sender, answer) = mpsc::channel();
    // The receiver is gone if waiting failed.
    buffer.map_async(wgpu::MapMode::Read, 0..bytes, move |mapped| drop(sender.send(mapped)));
    let patience = Instant::now() + PATIENCE;
    loop {
        wait()?;
        // Another thread waiting for the same device may have received this answer and forwards it a little
        // later.
        match answer.recv_timeout(Duration::from_millis(1)) {
            Ok(mapped) => return Ok(mapped.map_err(|err| err.to_string())),
            Err(_) if Instant::now() < patience => {}
            Err(_) => return Ok(Err("the device did not respond".to_owned())),
        }
    }
}
