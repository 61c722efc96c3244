//! `vllm.Inference`: text behind a prompt, whole or as it comes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use vllm_proto::{GenerateRequest, GenerateResponse, inference_server};

use super::kv_transfer::Transfer;
use super::request::ParsedRequest;
use super::stream::{Messages, merged};
use super::{model, status, who};
use sterna_serve::companion::{ApiError, App, Handle, JobError, Life, Phase, api_error};

/// Messages that wait for a client that reads.
const MESSAGES: usize = 64;

/// Message at the end of an answer that the engine broke off.
const GONE: &str = "the engine has stopped";

/// The service.
pub struct Inference {
    /// The server.
    pub app: Arc<App>,
    /// Requests that can be told to end.
    pub running: Arc<Running>,
    /// Transfer of pages, if the server has it.
    pub transfer: Option<Arc<Transfer>>,
}

/// Requests by the names that their clients gave them.
#[derive(Debug, Default)]
pub struct Running(Mutex<HashMap<String, Vec<Arc<Notify>>>>);

impl Running {
    fn add(self: &Arc<Self>, name: String) -> Entry {
        let ends: Arc<Notify> = Arc::default();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(name.clone()).or_default().push(Arc::clone(&ends));
        drop(all);
        Entry { running: Arc::clone(self), name, ends }
    }

    /// Ends the requests of that name, if there are any.
    pub fn abort(&self, name: &str) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(name).into_iter().flatten().for_each(|ends| ends.notify_one());
    }
}

/// A request that runs, until this is dropped.
struct Entry {
    running: Arc<Running>,
    name: String,
    ends: Arc<Notify>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut all = self.running.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = all.get_mut(&self.name) {
            same.retain(|ends| !Arc::ptr_eq(ends, &self.ends));
            if same.is_empty() {
                all.remove(&self.name);
            }
        }
    }
}

type Pieces = ReceiverStream<Result<GenerateResponse, Status>>;

impl Inference {
    async fn begin(&self, request: Request<GenerateRequest>) -> Result<Pieces, Status> {
        // A request that cannot be answered need not be read.
        self.app.check().map_err(|err| status(&err))?;
        let client = who(&self.app, &request)?;
        let model = model(&self.app).await?;
        let request = request.into_inner();
        let entry = self.running.add(request.request_id.clone());
        let (app, of, transfer) = (Arc::clone(&self.app), Arc::clone(&model), self.transfer.clone());
        let read = move || ParsedRequest::of(&app, &of.served, &client, transfer, request);
        // Texts and grammars may take long.
        let parsed = tokio::task::spawn_blocking(read).await;
        let parsed = parsed.unwrap_or_else(|_| Err(ApiError::ours("the request could not be processed")));
        let parsed = parsed.map_err(|err| status(&err))?;
        let mut job = parsed.job.clone();
        if let Some((transfer, source)) = &parsed.fetch {
            // The last token is always computed here.
            let most = model.saved_size.most(job.prompts[0].len() - 1);
            job.handed = transfer.fetch(source, most).await;
        }
        let handle = self.app.begin(&model, job).map_err(|err| status(&err))?;
        let (sender, receiver) = mpsc::channel(MESSAGES);
        let messages = Messages::new(parsed, model);
        let (life, patience) = (Arc::clone(&self.app.life), self.app.options.write_time);
        tokio::spawn(pump(messages, handle, entry, sender, life, patience));
        Ok(ReceiverStream::new(receiver))
    }
}

/// Sends what a job does, until it or its client ends.
async fn pump(
    mut messages: Messages,
    mut handle: Handle,
    entry: Entry,
    sender: mpsc::Sender<Result<GenerateResponse, Status>>,
    life: Arc<Life>,
    patience: Duration,
) {
    loop {
        let update = tokio::select! {
            biased;
            () = sender.closed() => return,
            () = entry.ends.notified() => {
                drop(handle);
                for message in messages.aborted() {
                    let _ = tokio::time::timeout(patience, sender.send(Ok(message))).await;
                }
                return;
            }
            update = handle.next() => update,
            // An engine that hangs says nothing any more.
            () = life.until(|phase| phase == Phase::Failed) => Some(Err(JobError::Failed(GONE.into()))),
        };
        let message = match update {
            None => return,
            Some(Ok(update)) => match messages.take(update) {
                Some(message) => Ok(message),
                None => continue,
            },
            Some(Err(JobError::Failed(why))) => Err(Status::unavailable(why)),
            Some(Err(err)) => Err(status(&api_error(&err))),
        };
        let is_last = message.is_err();
        let sent = tokio::time::timeout(patience, sender.send(message)).await;
        if is_last || !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
}

#[tonic::async_trait]
impl inference_server::Inference for Inference {
    async fn generate(
        &self,
        request: Request<GenerateRequest>,
    ) -> Result<Response<GenerateResponse>, Status> {
        let n = request.get_ref().sampling.as_ref().map_or(0, |sampling| sampling.num_sequences);
        if n > 1 {
            let message = "`num_sequences`: want 1 where the answer is one message; GenerateStream has more";
            return Err(Status::invalid_argument(message));
        }
        let pieces: Result<Vec<GenerateResponse>, Status> = self.begin(request).await?.collect().await;
        Ok(Response::new(merged(pieces?)))
    }

    type GenerateStreamStream = Pieces;

    async fn generate_stream(
        &self,
        request: Request<GenerateRequest>,
    ) -> Result<Response<Self::GenerateStreamStream>, Status> {
        Ok(Response::new(self.begin(request).await?))
    }
}
