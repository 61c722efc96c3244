//! Incoming requests: tells if one has arrived completely, and handles bodies that are refused.
//!
//! A client that is still sending when its connection is closed gets an error from its system, and never
//! reads the answer. So the rest of a refused body is read and dropped, within limits.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::HttpBody;
use bytes::Bytes;
use hyper::Request;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::header::EXPECT;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::places::{Doing, Place};

/// Maximum bytes dropped of a refused body.
const DROPPED_BYTES: usize = 256 << 20;
/// Maximum time for dropping them.
const DROPPED_TIME: Duration = Duration::from_secs(30);
/// Maximum idle time meanwhile.
const DROPPED_SILENCE: Duration = Duration::from_secs(2);

/// Flag shared by a connection and its newest request.
#[derive(Clone, Debug, Default)]
pub struct Flag(Arc<AtomicBool>);

impl Flag {
    /// Its value.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it.
    pub fn set(&self, flag: bool) {
        self.0.store(flag, Ordering::Relaxed);
    }
}

/// The body of a request. If it is dropped early, a task reads the rest.
#[derive(Debug)]
pub struct Arriving {
    /// `None` after its end.
    body: Option<Incoming>,
    whole: Flag,
    place: Arc<Place>,
    /// True if the client sends the body without waiting for `100 Continue`.
    comes: bool,
}

impl Arriving {
    /// A request whose body sets `whole` at its end, on the connection with `place`.
    pub fn request(request: Request<Incoming>, whole: &Flag, place: &Arc<Place>) -> Request<Self> {
        let comes = !request.headers().contains_key(EXPECT);
        let is_whole = request.body().is_end_stream();
        whole.set(is_whole);
        place.now(if is_whole { Doing::Answer } else { Doing::Body });
        let (whole, place) = (whole.clone(), Arc::clone(place));
        request.map(|body| Self { body: (!is_whole).then_some(body), whole, place, comes })
    }
}

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.comes = true;
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(&mut *body).poll_frame(context));
        let has_failed = matches!(frame, Some(Err(_)));
        if has_failed || frame.is_none() || body.is_end_stream() {
            self.body = None;
            self.whole.set(!has_failed);
            self.place.now(Doing::Answer);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|_| self.comes)
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(timeout(DROPPED_TIME, read_on(body)));
        }
    }
}

/// Reads and drops the rest. The connection is closed if this ends before the body does.
async fn read_on(mut body: Incoming) {
    let mut left = DROPPED_BYTES;
    let mut next = async || {
        let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        timeout(DROPPED_SILENCE, frame).await.ok().flatten()
    };
    while let Some(Ok(frame)) = next().await {
        match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
            Some(less) => left = less,
            None => return,
        }
    }
}
