//! `vllm.Control`: information about the model and the server, the address of KV cache events, and aborting
//! requests. Its other calls (LoRA, sleep, weights, shutdown) are not supported.

use std::path::PathBuf;
use std::sync::Arc;

use tonic::{Request, Response, Status};
use vllm_proto as proto;
use vllm_proto::control_server;
use vllm_proto::{
    AbortRequest, AbortResponse, GetKvEventSourcesRequest, GetKvEventSourcesResponse, GetModelInfoRequest,
    GetServerInfoRequest, KvEventSource, ModelInfo, ParallelismInfo, ServerInfo,
};

use super::inference::Running;
use super::{model, who};
use sterna_serve::companion::{App, PageEvents};

/// Tokens of a page.
const PAGE: u32 = sterna_engine::PAGE as u32;

/// The `vllm.Control` service.
pub struct Control {
    /// The server.
    pub app: Arc<App>,
    /// Running requests, to be aborted by name.
    pub running: Arc<Running>,
    /// Folder with the Hugging Face files of the model.
    pub card: Option<PathBuf>,
}

/// The error for unsupported calls.
fn not_here<T>(call: &str) -> Result<Response<T>, Status> {
    Err(Status::unimplemented(format!("{call} is not supported by this server")))
}

#[tonic::async_trait]
impl control_server::Control for Control {
    async fn get_server_info(
        &self,
        request: Request<GetServerInfoRequest>,
    ) -> Result<Response<ServerInfo>, Status> {
        who(&self.app, &request)?;
        let model = model(&self.app).await?;
        let engine = &model.served.engine;
        let limits = engine.program().limits;
        let parallelism = ParallelismInfo {
            tensor_parallel_size: 1,
            pipeline_parallel_size: 1,
            data_parallel_size: 1,
            data_parallel_rank: 0,
            decode_context_parallel_size: 1,
            world_size: 1,
            data_parallel_size_local: 1,
        };
        Ok(Response::new(ServerInfo {
            engine_version: env!("CARGO_PKG_VERSION").into(),
            api_version: "vllm".into(),
            instance_id: format!("{}-{}", std::process::id(), self.app.started),
            parallelism: Some(parallelism),
            max_model_len: model.served.n_ctx() as u32,
            kv_block_size: PAGE,
            total_kv_blocks: model.status.snapshot().stats.pages as u64,
            max_running_requests: model.served.n_slots() as u64,
            max_batched_tokens: limits.rows as u64,
            proto_version: vllm_proto::VERSION.into(),
            effective_attention_block_size: Some(PAGE.into()),
            ..ServerInfo::default()
        }))
    }

    async fn get_model_info(
        &self,
        request: Request<GetModelInfoRequest>,
    ) -> Result<Response<ModelInfo>, Status> {
        who(&self.app, &request)?;
        let model = model(&self.app).await?;
        let name = model.served.name.clone();
        let card = self.card.as_ref().map(|card| card.to_string_lossy().into_owned());
        let model_id = card.unwrap_or_else(|| name.clone());
        Ok(Response::new(ModelInfo {
            model_id,
            served_model_name: name,
            supports_text_input: true,
            supports_token_ids_input: true,
            ..ModelInfo::default()
        }))
    }

    async fn abort(&self, request: Request<AbortRequest>) -> Result<Response<AbortResponse>, Status> {
        let client = who(&self.app, &request)?;
        request.into_inner().request_ids.into_iter().for_each(|name| self.running.abort(&client, name));
        Ok(Response::new(AbortResponse {}))
    }

    async fn get_kv_event_sources(
        &self,
        request: Request<GetKvEventSourcesRequest>,
    ) -> Result<Response<GetKvEventSourcesResponse>, Status> {
        who(&self.app, &request)?;
        let source = |events: &PageEvents| KvEventSource {
            transport: "zmq".into(),
            endpoint: events.endpoint.clone(),
            data_parallel_rank: Some(0),
            encoding: "msgpack".into(),
            ..KvEventSource::default()
        };
        let sources = self.app.page_events.get().map(source).into_iter().collect();
        Ok(Response::new(GetKvEventSourcesResponse { sources }))
    }

    async fn shutdown(
        &self,
        _: Request<proto::ShutdownRequest>,
    ) -> Result<Response<proto::ShutdownResponse>, Status> {
        not_here("Shutdown")
    }

    async fn load_lora(
        &self,
        _: Request<proto::LoadLoraRequest>,
    ) -> Result<Response<proto::LoadLoraResponse>, Status> {
        not_here("LoadLora")
    }

    async fn unload_lora(
        &self,
        _: Request<proto::UnloadLoraRequest>,
    ) -> Result<Response<proto::UnloadLoraResponse>, Status> {
        not_here("UnloadLora")
    }

    async fn list_loras(
        &self,
        _: Request<proto::ListLorasRequest>,
    ) -> Result<Response<proto::ListLorasResponse>, Status> {
        not_here("ListLoras")
    }

    async fn pause_generation(
        &self,
        _: Request<proto::PauseGenerationRequest>,
    ) -> Result<Response<proto::PauseGenerationResponse>, Status> {
        not_here("PauseGeneration")
    }

    async fn resume_generation(
        &self,
        _: Request<proto::ResumeGenerationRequest>,
    ) -> Result<Response<proto::ResumeGenerationResponse>, Status> {
        not_here("ResumeGeneration")
    }

    async fn is_paused(
        &self,
        _: Request<proto::IsPausedRequest>,
    ) -> Result<Response<proto::IsPausedResponse>, Status> {
        not_here("IsPaused")
    }

    async fn sleep(&self, _: Request<proto::SleepRequest>) -> Result<Response<proto::SleepResponse>, Status> {
        not_here("Sleep")
    }

    async fn wake_up(
        &self,
        _: Request<proto::WakeUpRequest>,
    ) -> Result<Response<proto::WakeUpResponse>, Status> {
        not_here("WakeUp")
    }

    async fn is_sleeping(
        &self,
        _: Request<proto::IsSleepingRequest>,
    ) -> Result<Response<proto::IsSleepingResponse>, Status> {
        not_here("IsSleeping")
    }

    async fn init_weight_transfer_engine(
        &self,
        _: Request<proto::InitWeightTransferEngineRequest>,
    ) -> Result<Response<proto::InitWeightTransferEngineResponse>, Status> {
        not_here("InitWeightTransferEngine")
    }

    async fn start_weight_update(
        &self,
        _: Request<proto::StartWeightUpdateRequest>,
    ) -> Result<Response<proto::StartWeightUpdateResponse>, Status> {
        not_here("StartWeightUpdate")
    }

    async fn start_draft_weight_update(
        &self,
        _: Request<proto::StartDraftWeightUpdateRequest>,
    ) -> Result<Response<proto::StartDraftWeightUpdateResponse>, Status> {
        not_here("StartDraftWeightUpdate")
    }

    async fn update_weights(
        &self,
        _: Request<proto::UpdateWeightsRequest>,
    ) -> Result<Response<proto::UpdateWeightsResponse>, Status> {
        not_here("UpdateWeights")
    }

    async fn finish_weight_update(
        &self,
        _: Request<proto::FinishWeightUpdateRequest>,
    ) -> Result<Response<proto::FinishWeightUpdateResponse>, Status> {
        not_here("FinishWeightUpdate")
    }

    async fn update_weight_version(
        &self,
        _: Request<proto::UpdateWeightVersionRequest>,
    ) -> Result<Response<proto::UpdateWeightVersionResponse>, Status> {
        not_here("UpdateWeightVersion")
    }

    async fn get_weight_version(
        &self,
        _: Request<proto::GetWeightVersionRequest>,
    ) -> Result<Response<proto::GetWeightVersionResponse>, Status> {
        not_here("GetWeightVersion")
    }
}
