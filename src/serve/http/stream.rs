//! Streamed answers: updates of a job in the format of an endpoint family, as server-sent events or as lines
//! of JSON.
//!
//! Nothing is sent before the first update, so that a request which fails at once gets its error status. A
//! client that disconnects drops the job. A client that does not read pauses the sequence, and is
//! disconnected after a while.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::Frame;
use hyper::header::HeaderValue;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::error::ApiError;
use crate::http::json::text;
use crate::job::{Handle, JobError, Update};
use crate::options::ServeOptions;

/// Encoder of a job's updates in the format of an endpoint family.
pub trait Encoder: Send + 'static {
    /// A piece of the answer.
    type Piece: Send;
    /// Makes the pieces before the first update.
    fn begin(&mut self, pieces: &mut Vec<Self::Piece>);
    /// Makes the pieces of an update.
    fn update(&mut self, update: Update, pieces: &mut Vec<Self::Piece>);
    /// Makes the last pieces, after every choice has ended.
    fn end(&mut self, pieces: &mut Vec<Self::Piece>);
    /// Writes a piece.
    fn write(&mut self, piece: Self::Piece, out: &mut Out);
    /// Writes an error in the middle of an answer; nothing follows.
    fn fail(&mut self, error: &ApiError, out: &mut Out);
    /// Writes the terminator after the last piece.
    fn close(&self, _: &mut Out) {}
}

/// Folds the pieces of an answer into a whole answer.
///
/// # Errors
/// The failure of the job.
pub async fn fold<E: Encoder>(
    mut handle: Handle,
    encoder: &mut E,
    mut add: impl FnMut(E::Piece),
) -> Result<(), ApiError> {
    let mut pieces = Vec::new();
    encoder.begin(&mut pieces);
    while let Some(update) = handle.next().await {
        encoder.update(update.map_err(|err| api_error(&err))?, &mut pieces);
        pieces.drain(..).for_each(&mut add);
    }
    encoder.end(&mut pieces);
    pieces.into_iter().for_each(add);
    Ok(())
}

/// Framing of pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// `text/event-stream`.
    Events,
    /// `application/x-ndjson`.
    Lines,
}

/// Text to send.
#[derive(Debug, Default)]
pub struct Out(String);

impl Out {
    /// Writes an event without a name.
    pub fn data(&mut self, value: &impl Serialize) {
        self.0 += "data: ";
        self.0 += &text(value);
        self.0 += "\n\n";
    }

    /// Writes an event with a name.
    pub fn event(&mut self, name: &str, value: &impl Serialize) {
        self.0 += "event: ";
        self.0 += name;
        self.0.push('\n');
        self.data(value);
    }

    /// Writes a line.
    pub fn line(&mut self, value: &impl Serialize) {
        self.0 += &text(value);
        self.0.push('\n');
    }

    /// Writes the terminator that OpenAI's clients expect.
    pub fn done(&mut self) {
        self.0 += "data: [DONE]\n\n";
    }
}

/// Maximum pieces waiting for the connection.
const PIECES: usize = 4;
/// Pending updates are merged into one piece up to this size.
const PIECE_BYTES: usize = 16 << 10;

/// A streamed answer. It starts with the first update, or after `patience` without one.
///
/// # Errors
/// The failure of the job, if it failed before anything was sent.
pub async fn answer(
    options: &ServeOptions,
    handle: Handle,
    framing: Framing,
    patience: Duration,
    encoder: impl Encoder,
) -> Result<Response, ApiError> {
    let writer = Box::new(Writing { encoder, pieces: Vec::new() });
    answer_with(options, handle, framing, patience, writer).await
}

async fn answer_with(
    options: &ServeOptions,
    mut handle: Handle,
    framing: Framing,
    patience: Duration,
    writer: Box<dyn Writer>,
) -> Result<Response, ApiError> {
    if let Ok(Some(Err(err))) = tokio::time::timeout(patience, handle.ready()).await {
        return Err(api_error(err));
    }
    let (sender, receiver) = mpsc::channel(PIECES);
    let pump = Pump { sender, framing, ping: options.ping, write_time: options.write_time };
    tokio::spawn(pump.run(handle, writer));
    let mut response = Body::new(Pieces(receiver)).into_response();
    let headers = response.headers_mut();
    let kind = match framing {
        Framing::Events => "text/event-stream",
        Framing::Lines => "application/x-ndjson",
    };
    headers.insert("content-type", HeaderValue::from_static(kind));
    headers.insert("cache-control", HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// Converts a job's error to an API error.
pub fn api_error(err: &JobError) -> ApiError {
    match err {
        JobError::Refused(message) => ApiError::bad(message.clone()),
        JobError::Failed(message) => ApiError::ours(message.clone()),
        JobError::Displaced => ApiError::displaced(),
        JobError::Ending => ApiError::unavailable(err.to_string()),
    }
}

/// An [`Encoder`] that writes its pieces at once. The task that sends them is compiled once for all encoders.
trait Writer: Send {
    fn begin(&mut self, out: &mut Out);
    fn update(&mut self, update: Update, out: &mut Out);
    fn fail(&mut self, error: &ApiError, out: &mut Out);
    fn end(&mut self, out: &mut Out);
}

struct Writing<E: Encoder> {
    encoder: E,
    pieces: Vec<E::Piece>,
}

impl<E: Encoder> Writing<E> {
    fn write(&mut self, out: &mut Out) {
        self.pieces.drain(..).for_each(|piece| self.encoder.write(piece, out));
    }
}

impl<E: Encoder> Writer for Writing<E> {
    fn begin(&mut self, out: &mut Out) {
        self.encoder.begin(&mut self.pieces);
        self.write(out);
    }

    fn update(&mut self, update: Update, out: &mut Out) {
        self.encoder.update(update, &mut self.pieces);
        self.write(out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        self.encoder.fail(error, out);
    }

    fn end(&mut self, out: &mut Out) {
        self.encoder.end(&mut self.pieces);
        self.write(out);
        self.encoder.close(out);
    }
}

struct Pump {
    sender: mpsc::Sender<Bytes>,
    framing: Framing,
    ping: Duration,
    write_time: Duration,
}

impl Pump {
    async fn run(self, mut handle: Handle, mut writer: Box<dyn Writer>) {
        let mut out = Out::default();
        writer.begin(&mut out);
        loop {
            if !self.send(&mut out).await {
                return;
            }
            let next = tokio::select! {
                biased;
                () = self.sender.closed() => return,
                next = handle.next() => next,
                () = tokio::time::sleep(self.ping), if self.framing == Framing::Events => {
                    out.0 += ":\n\n";
                    continue;
                }
            };
            let mut next = Some(next);
            while let Some(update) = next {
                match update {
                    Some(Ok(update)) => writer.update(update, &mut out),
                    Some(Err(err)) => {
                        writer.fail(&api_error(&err), &mut out);
                        self.send(&mut out).await;
                        return;
                    }
                    None => {
                        writer.end(&mut out);
                        self.send(&mut out).await;
                        return;
                    }
                }
                next = match out.0.len() < PIECE_BYTES {
                    true => handle.try_next().map(Some),
                    false => None,
                };
            }
        }
    }

    /// Sends the text. `false` if the client has disconnected.
    async fn send(&self, out: &mut Out) -> bool {
        if out.0.is_empty() {
            return true;
        }
        let piece = Bytes::from(std::mem::take(&mut out.0));
        matches!(tokio::time::timeout(self.write_time, self.sender.send(piece)).await, Ok(Ok(())))
    }
}

/// A body written by a task.
struct Pieces(mpsc::Receiver<Bytes>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
