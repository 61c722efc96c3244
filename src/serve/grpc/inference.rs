//! `vllm.Inference`: generates text, whole or streamed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use vllm_proto::{GenerateRequest, GenerateResponse, inference_server};

use super::incoming::{Call, Caller};
use super::kv_transfer::Transfer;
use super::request::ParsedRequest;
use super::stream::{Messages, merged};
use super::{model, status, who};
use sterna_serve::companion::{ApiError, App, Client, Handle, JobError, Life, Phase, api_error};

/// Maximum messages waiting for the client to read them.
const MESSAGES: usize = 64;

/// Error at the end of an answer that the engine aborted.
const GONE: &str = "the engine has stopped";

/// The `vllm.Inference` service.
pub struct Inference {
    /// The server.
    pub app: Arc<App>,
    /// Running requests, to be aborted by name.
    pub running: Arc<Running>,
    /// Transfer of KV pages, if enabled.
    pub transfer: Option<Arc<Transfer>>,
}

/// Running requests by client, and by the name that the client gave them.
#[derive(Debug, Default)]
pub struct Running(Mutex<HashMap<Named, Vec<Arc<Notify>>>>);

/// A client and its name for a request.
type Named = (Arc<str>, String);

impl Running {
    fn add(self: &Arc<Self>, client: &Client, name: String, call: Option<Call>) -> Entry {
        let named = (Arc::clone(&client.0), name);
        let ends: Arc<Notify> = Arc::default();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(named.clone()).or_default().push(Arc::clone(&ends));
        drop(all);
        Entry { running: Arc::clone(self), named, ends, _call: call }
    }

    /// Aborts the requests that `client` called `name`.
    pub fn abort(&self, client: &Client, name: String) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(Arc::clone(&client.0), name)).into_iter().flatten().for_each(|ends| ends.notify_one());
    }
}

/// A registered request; dropping it removes the request.
struct Entry {
    running: Arc<Running>,
    named: Named,
    ends: Arc<Notify>,
    _call: Option<Call>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut all = self.running.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = all.get_mut(&self.named) {
            same.retain(|ends| !Arc::ptr_eq(ends, &self.ends));
            if same.is_empty() {
                all.remove(&self.named);
            }
        }
    }
}

type Pieces = ReceiverStream<Result<GenerateResponse, Status>>;

impl Inference {
    async fn begin(&self, request: Request<GenerateRequest>) -> Result<Pieces, Status> {
        // A request that cannot be answered is not read.
        self.app.check().map_err(|err| status(&err))?;
        let client = who(&self.app, &request)?;
        let model = model(&self.app).await?;
        let caller = request.extensions().get::<Arc<Caller>>().cloned();
        let sender = match &caller {
            Some(caller) if client.0.is_empty() => Arc::clone(&caller.peer.0),
            _ => Arc::clone(&client.0),
        };
        let request = request.into_inner();
        let entry = self.running.add(&client, request.request_id.clone(), caller.map(Caller::call));
        let (app, of, transfer) = (Arc::clone(&self.app), Arc::clone(&model), self.transfer.clone());
        let place = self.app.place(&model, &sender).map_err(|err| status(&err))?;
        let read = move || ParsedRequest::of(&app, &of.served, &client, &sender, transfer, request);
        // Tokenising and compiling grammars may take long.
        let parsed = tokio::select! {
            parsed = self.app.lanes.run(read) => parsed,
            () = place.displaced() => Err(ApiError::displaced()),
        };
        let parsed = parsed.map_err(|err| status(&err))?;
        let mut job = parsed.job.clone();
        if let Some((transfer, source)) = &parsed.fetch {
            // The last token is always computed locally.
            let most = model.saved_size.most(job.prompts[0].len() - 1);
            job.transferred = transfer.fetch(source, most).await;
        }
        let handle = self.app.begin_in(&model, job, place).map_err(|err| status(&err))?;
        let (sender, receiver) = mpsc::channel(MESSAGES);
        let messages = Messages::new(parsed, model);
        let (life, patience) = (Arc::clone(&self.app.life), self.app.options.write_time);
        tokio::spawn(pump(messages, handle, entry, sender, life, patience));
        Ok(ReceiverStream::new(receiver))
    }
}

/// Sends the updates of a job, until the job ends or its client disconnects.
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
            // An engine that hangs sends no more updates.
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
            let message = "`num_sequences`: want 1 for Generate; GenerateStream supports more";
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
