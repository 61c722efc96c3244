//! Work on requests outside the HTTP threads: JSON of large bodies, templates, tokenising, grammars.
//!
//! Large bodies have their own lane, in which two are parsed and tokenised at a time, so that others do not
//! wait for them. Work that takes long leaves its lane to others, and runs next to them.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;

use super::error::ApiError;

/// Requests in the lane of small bodies at a time.
const SMALL: usize = 2;
/// Requests in the lane of large bodies at a time.
const LARGE: usize = 2;
/// Requests at a time that take long.
const SLOW: usize = 4;
/// Time in the lane of small bodies after which a request is one that takes long.
const SOON: Duration = Duration::from_millis(200);

/// Threads that the lanes need.
pub const THREADS: usize = SMALL + LARGE + SLOW;

/// The lanes of a server.
#[derive(Debug)]
pub struct Lanes {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    slow: Arc<Semaphore>,
}

impl Default for Lanes {
    fn default() -> Self {
        let of = |n| Arc::new(Semaphore::new(n));
        Self { small: of(SMALL), large: of(LARGE), slow: of(SLOW) }
    }
}

type Done = Result<Box<dyn Any + Send>, ApiError>;
/// With boxes, the code of tasks is compiled once.
type Work = Box<dyn FnOnce() -> Done + Send>;

impl Lanes {
    /// A permit for the lane of large bodies.
    pub async fn large(&self) -> OwnedSemaphorePermit {
        permit(&self.large).await
    }

    /// Runs `work`, which holds a permit of [`large`](Self::large).
    ///
    /// # Errors
    /// The errors of `work`; 500 if it panics.
    pub async fn run_large<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        unboxed(ended(tokio::task::spawn_blocking(boxed(work)).await))
    }

    /// Runs `work` in the lane of small bodies.
    ///
    /// # Errors
    /// The errors of `work`; 500 if it panics.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        unboxed(self.run_boxed(boxed(work)).await)
    }

    async fn run_boxed(&self, work: Work) -> Done {
        let (small, slow) = (permit(&self.small).await, Arc::clone(&self.slow));
        // A task, which goes on if the client disconnects.
        let task = tokio::spawn(async move {
            let mut done = tokio::task::spawn_blocking(work);
            if let Ok(done) = tokio::time::timeout(SOON, &mut done).await {
                return ended(done);
            }
            let _held = tokio::select! {
                done = &mut done => return ended(done),
                permit = permit(&slow) => permit,
            };
            drop(small);
            ended(done.await)
        });
        task.await.unwrap_or_else(|err| ended(Err(err)))
    }
}

async fn permit(of: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    Arc::clone(of).acquire_owned().await.expect("it is never closed")
}

fn boxed<T: Send + 'static>(work: impl FnOnce() -> Result<T, ApiError> + Send + 'static) -> Work {
    Box::new(move || Ok(Box::new(work()?)))
}

fn ended(done: Result<Done, JoinError>) -> Done {
    done.unwrap_or_else(|_| Err(ApiError::ours("the request could not be processed")))
}

fn unboxed<T: 'static>(done: Done) -> Result<T, ApiError> {
    Ok(*done?.downcast().expect("the result of `work`"))
}
