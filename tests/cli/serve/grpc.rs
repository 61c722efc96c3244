//! vLLM's gRPC API and KV cache events, with generated clients.
#![cfg(feature = "grpc")]

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use serde_json::{Value, json};
use sterna::engine::{Adapter, EngineOptions, SamplerOptions};
use sterna::grpc::{Grpc, GrpcOptions, KvEvents};
use sterna::serve::{Companion, Loaded, ModelSource, ServeOptions, Server};
use support::tokio::runtime::Runtime;
use support::tonic::transport::Channel;
use support::tonic::{Code, Status};
use support::tonic_health::pb::HealthCheckRequest;
use support::tonic_health::pb::health_check_response::ServingStatus;
use support::tonic_health::pb::health_client::HealthClient;
use support::vllm_proto::candidate_tokens::Select;
use support::vllm_proto::control_client::ControlClient;
use support::vllm_proto::decoding_parameters::StructuredOutput;
use support::vllm_proto::finish_info::{FinishReason, StopReason};
use support::vllm_proto::generate_request::Prompt;
use support::vllm_proto::inference_client::InferenceClient;
use support::vllm_proto::{
    AbortRequest, CandidateTokens, DecodingParameters, FinishInfo, GenerateRequest, GenerateResponse,
    GetKvEventSourcesRequest, GetModelInfoRequest, GetServerInfoRequest, PromptInfo, RandomSampling,
    ResponseOptions, SleepRequest, StoppingCriteria, TokenIds,
};
use support::zeromq::{Socket, SocketRecv, SubSocket};
use support::{rmp_serde, tokio, tonic};

use super::client::{N_CTX, SLOTS, TestServer, engine_with};
use super::load::{Act, engine_that};

pub fn grpc() -> Box<dyn Companion> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Box::new(Grpc::new(GrpcOptions { address, card: None, kv_transfer: None }))
}

fn kv_events() -> Box<dyn Companion> {
    Box::new(KvEvents::new("tcp://127.0.0.1:0"))
}

/// A server with gRPC.
pub fn started() -> TestServer {
    TestServer::with_companions(super::client::engine(N_CTX), vec![grpc()], |_| ())
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

pub async fn channel(server: &TestServer) -> Channel {
    let address = server.grpc.expect("the server has gRPC");
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// A minimal request.
pub fn request(prompt: &[u32], n: u32) -> GenerateRequest {
    GenerateRequest {
        prompt: Some(Prompt::TokenIds(TokenIds { ids: prompt.to_vec() })),
        temperature: Some(0.0),
        stopping: Some(StoppingCriteria { max_new_tokens: n, ignore_eos: true, ..Default::default() }),
        ..Default::default()
    }
}

pub fn prompt(seed: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| (seed * 131 + i * i * 7 + i * 13) % 500).collect()
}

/// A streamed answer, joined.
#[derive(Debug, Default)]
pub struct Generated {
    pub text: String,
    pub tokens: Vec<u32>,
    logprobs: Vec<f32>,
    prompt: PromptInfo,
    pub finish: FinishInfo,
    pieces: Vec<GenerateResponse>,
}

pub async fn generate(channel: &Channel, request: GenerateRequest) -> Result<Generated, Status> {
    let mut stream = InferenceClient::new(channel.clone()).generate_stream(request).await?.into_inner();
    let mut said = Generated::default();
    while let Some(piece) = stream.message().await? {
        assert_eq!(piece.prompt_info.is_some(), said.pieces.is_empty(), "only in the first message");
        said.pieces.push(piece.clone());
        said.prompt = piece.prompt_info.unwrap_or(said.prompt);
        let outputs = piece.outputs.expect("every message has outputs");
        assert_eq!(outputs.num_tokens as usize, outputs.token_ids.len());
        said.text += &outputs.text;
        said.tokens.extend(outputs.token_ids);
        said.logprobs.extend(outputs.logprobs);
        said.finish = outputs.finish_info.unwrap_or(said.finish);
    }
    assert_eq!(said.finish.num_output_tokens as usize, said.tokens.len());
    Ok(said)
}

#[test]
fn grpc_answers_equal_http_answers() {
    let server = started();
    let schema = json!({ "type": "object", "properties": { "a": { "enum": [1, 2] } }, "required": ["a"] });
    let seeded = |seed: i64| Some(RandomSampling { seed: Some(seed), ..Default::default() });
    type Change = Box<dyn Fn(&mut GenerateRequest)>;
    let cases: Vec<(Value, Change)> = vec![
        (json!({}), Box::new(|_| ())),
        // Without a temperature and with an empty sampler the server's defaults are used.
        (
            json!({ "temperature": null, "seed": 7 }),
            Box::new(move |r| (r.temperature, r.sampling) = (None, seeded(7))),
        ),
        (
            json!({ "temperature": 1.5, "seed": 7, "top_k": 0, "top_p": 1.0, "min_p": 0.0 }),
            Box::new(|r| {
                r.temperature = Some(1.5);
                let (top_k, top_p, min_p) = (Some(0), Some(1.0), Some(0.0));
                r.sampling = Some(RandomSampling { num_sequences: 0, top_k, top_p, min_p, seed: Some(7) });
            }),
        ),
        (
            json!({ "temperature": 1.0, "seed": 9, "repetition_penalty": 1.4, "presence_penalty": 0.5,
                "frequency_penalty": 0.25, "logit_bias": { "17": 9.0 } }),
            Box::new(move |r| {
                (r.temperature, r.sampling) = (Some(1.0), seeded(9));
                r.decoding = Some(DecodingParameters {
                    repetition_penalty: 1.4,
                    presence_penalty: 0.5,
                    frequency_penalty: 0.25,
                    logit_bias: [(17, 9.0)].into(),
                    ..Default::default()
                });
            }),
        ),
        (
            json!({ "structured_outputs": { "json": schema } }),
            Box::new(move |r| {
                let json = StructuredOutput::Json(schema.to_string());
                r.decoding = Some(DecodingParameters { structured_output: Some(json), ..Default::default() });
            }),
        ),
        (
            json!({ "ignore_eos": false, "stop_token_ids": [3, 4, 5], "min_tokens": 4 }),
            Box::new(|r| {
                let stopping = r.stopping.as_mut().unwrap();
                (stopping.ignore_eos, stopping.min_new_tokens) = (false, 4);
                stopping.stop_token_ids = vec![3, 4, 5];
            }),
        ),
    ];
    runtime().block_on(async {
        let channel = channel(&server).await;
        for (at, (more, change)) in cases.iter().enumerate() {
            for seed in 0..4 {
                let prompt = prompt(seed, 5 + 40 * seed);
                let mut body = json!({ "prompt": prompt, "max_tokens": 24, "ignore_eos": true,
                    "temperature": 0.0 });
                more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
                let answer = server.post("/v1/completions", &body).ok();
                let mut asked = request(&prompt, 24);
                change(&mut asked);
                let said = generate(&channel, asked).await.unwrap();
                assert_eq!(answer["choices"][0]["text"], said.text.as_str(), "case {at}, prompt {seed}");
                assert_eq!(answer["usage"]["completion_tokens"], said.tokens.len(), "case {at}");
                assert_eq!(answer["usage"]["prompt_tokens"], said.prompt.num_prompt_tokens);
                let reason = match answer["choices"][0]["finish_reason"].as_str() {
                    Some("stop") => FinishReason::Stop,
                    _ => FinishReason::Length,
                };
                assert_eq!(said.finish.finish_reason(), reason, "case {at}");
            }
        }
        // In one message, and with a text prompt.
        let mut whole = request(&prompt(1, 45), 24);
        let streamed = generate(&channel, whole.clone()).await.unwrap();
        let one = InferenceClient::new(channel.clone()).generate(whole.clone()).await.unwrap().into_inner();
        let outputs = one.outputs.unwrap();
        assert_eq!((outputs.text, outputs.token_ids), (streamed.text, streamed.tokens));
        assert_eq!(one.prompt_info.unwrap().num_prompt_tokens, 45);
        whole.prompt = Some(Prompt::Text("You may".into()));
        let http = json!({ "prompt": "You may", "max_tokens": 24, "ignore_eos": true, "temperature": 0.0 });
        let answer = server.post("/v1/completions", &http).ok();
        assert_eq!(answer["choices"][0]["text"], generate(&channel, whole).await.unwrap().text.as_str());
        let http = json!({ "prompt": prompt(2, 9), "max_tokens": 8, "n": 2, "seed": 5, "ignore_eos": true });
        let answer = server.post("/v1/completions", &http).ok();
        let mut two = request(&prompt(2, 9), 8);
        (two.temperature, two.sampling) = (None, seeded(5));
        two.sampling.as_mut().unwrap().num_sequences = 2;
        let mut texts = vec![String::new(); 2];
        let mut stream = InferenceClient::new(channel).generate_stream(two).await.unwrap().into_inner();
        while let Some(piece) = stream.message().await.unwrap() {
            let outputs = piece.outputs.unwrap();
            texts[outputs.index as usize] += &outputs.text;
        }
        for (at, text) in texts.iter().enumerate() {
            assert_eq!(answer["choices"][at]["text"], text.as_str(), "choice {at}");
        }
    });
}

#[test]
fn grpc_has_stop_strings_and_logprobs() {
    let server = started();
    runtime().block_on(async {
        let channel = channel(&server).await;
        let plain = generate(&channel, request(&prompt(1, 30), 40)).await.unwrap();
        // Each message has the text of its own tokens.
        let tokenizer = server.engine().tokenizer().unwrap();
        for piece in &plain.pieces[..plain.pieces.len() - 1] {
            let outputs = piece.outputs.as_ref().unwrap();
            let bytes = tokenizer.decode(&outputs.token_ids, false);
            assert_eq!(String::from_utf8_lossy(&bytes), outputs.text);
        }
        // A stop string that begins within a token and ends within another.
        let chars: Vec<char> = plain.text.chars().collect();
        for at in [4, 9, 14] {
            let stop: String = chars[at..at + 4].iter().collect();
            let mut asked = request(&prompt(1, 30), 40);
            asked.stopping.as_mut().unwrap().stop_strings = vec!["never said".into(), stop.clone()];
            let stopped = generate(&channel, asked.clone()).await.unwrap();
            let want = &plain.text[..plain.text.find(&stop).unwrap()];
            assert_eq!(stopped.text, want);
            assert_eq!(stopped.finish.finish_reason(), FinishReason::Stop);
            assert_eq!(stopped.finish.stop_reason, Some(StopReason::StopString(stop.clone())));
            asked.stopping.as_mut().unwrap().include_stop_strings = true;
            assert_eq!(generate(&channel, asked).await.unwrap().text, want.to_owned() + &stop);
        }
        // A stop string that spells a control token, and a model that generates only that token.
        let bos = tokenizer.bos().unwrap();
        let stop = String::from_utf8_lossy(tokenizer.token_bytes(bos)).into_owned();
        let mut asked = request(&prompt(1, 30), 12);
        asked.stopping.as_mut().unwrap().stop_strings = vec!["never said".into(), stop.clone()];
        asked.decoding.get_or_insert_default().logit_bias = [(bos, 1e6)].into();
        let stopped = generate(&channel, asked).await.unwrap();
        assert_eq!((stopped.text.as_str(), stopped.finish.num_output_tokens), ("", 1));
        assert_eq!(stopped.finish.stop_reason, Some(StopReason::StopString(stop)));
        let mut asked = request(&prompt(1, 30), 12);
        asked.response = Some(ResponseOptions {
            prompt_token_ids: true,
            prompt_logprobs: true,
            output_logprobs: true,
            output_candidates: Some(CandidateTokens { select: Some(Select::TopN(3)) }),
            ..Default::default()
        });
        let scored = generate(&channel, asked).await.unwrap();
        let http = json!({ "prompt": prompt(1, 30), "max_tokens": 12, "ignore_eos": true, "temperature": 0.0,
            "logprobs": 3, "echo": true });
        let answer = server.post("/v1/completions", &http).ok();
        let of_http = answer["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
        let near = |a: f32, b: &Value| (f64::from(a) - b.as_f64().unwrap()).abs() < 1e-5;
        assert_eq!(scored.logprobs.len(), 12);
        assert!(scored.logprobs.iter().zip(&of_http[30..]).all(|(own, http)| near(*own, http)));
        assert_eq!((&scored.prompt.token_ids, scored.prompt.logprobs.len()), (&prompt(1, 30), 30));
        assert!(scored.prompt.logprobs.iter().zip(of_http).skip(1).all(|(own, http)| near(*own, http)));
        for piece in &scored.pieces {
            let outputs = piece.outputs.as_ref().unwrap();
            assert!(outputs.ranks.iter().all(|rank| *rank == 1), "the most likely token is picked");
            for (id, candidates) in outputs.token_ids.iter().zip(&outputs.candidate_tokens) {
                assert_eq!((candidates.tokens.len(), candidates.tokens[0].id), (3, *id));
            }
        }
    });
}

/// An adapter is chosen by its name, as over HTTP.
#[test]
fn grpc_requests_choose_adapters() {
    let adapter = Adapter::new("sql.gguf", support::lora::of_bitnet(-6.0)).expect("a valid adapter");
    let adapters = vec![adapter.with_scale(0.0).with_alias("sql")];
    let engine = engine_with(|options| EngineOptions { adapters, ..options });
    let server = TestServer::with_companions(engine, vec![grpc()], |_| ());
    let prompt = prompt(5, 40);
    let over_http = ["tiny", "sql"].map(|model| {
        let body = json!({
            "model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true
        });
        server.post("/v1/completions", &body).ok()["choices"][0]["text"].as_str().expect("a text").to_owned()
    });
    assert_ne!(over_http[0], over_http[1]);
    runtime().block_on(async {
        let channel = channel(&server).await;
        for (name, text) in ["", "sql"].into_iter().zip(&over_http) {
            let asked = GenerateRequest { lora_name: name.into(), ..request(&prompt, 12) };
            assert_eq!(generate(&channel, asked).await.expect("an answer").text, *text, "{name}");
        }
    });
}

#[test]
fn grpc_refuses_invalid_requests_by_field() {
    let server = started();
    let changed = |change: fn(&mut GenerateRequest)| {
        let mut asked = request(&[1, 2, 3], 4);
        change(&mut asked);
        asked
    };
    let decoding =
        |decoding: DecodingParameters| GenerateRequest { decoding: Some(decoding), ..request(&[1, 2, 3], 4) };
    let cases = [
        (request(&prompt(1, N_CTX as u32), 4), "context_length_exceeded"),
        (request(&[], 4), "prompt"),
        (request(&[1, 1 << 20], 4), "token_ids"),
        (changed(|r| r.temperature = Some(f32::NAN)), "temperature"),
        (changed(|r| r.lora_name = "one".into()), "lora_name"),
        (changed(|r| r.truncate_prompt_tokens = 2), "truncate_prompt_tokens"),
        (changed(|r| r.sampling = Some(RandomSampling { num_sequences: 99, ..Default::default() })), "`n`"),
        (
            decoding(DecodingParameters { allowed_token_ids: vec![1], ..Default::default() }),
            "allowed_token_ids",
        ),
        (
            decoding(DecodingParameters {
                structured_output: Some(StructuredOutput::Json("{".into())),
                ..Default::default()
            }),
            "json",
        ),
        (
            decoding(DecodingParameters {
                structured_output: Some(StructuredOutput::Json(r##"{"$ref": "#/$defs/a"}"##.into())),
                ..Default::default()
            }),
            "there is nothing at `#/$defs/a`",
        ),
    ];
    runtime().block_on(async {
        let channel = channel(&server).await;
        for (asked, name) in cases {
            let err = generate(&channel, asked).await.unwrap_err();
            assert_eq!(err.code(), Code::InvalidArgument, "{name}: {err}");
            assert!(err.message().contains(name), "{name}: {err}");
        }
        let mut control = ControlClient::new(channel.clone());
        let err = control.sleep(SleepRequest::default()).await.unwrap_err();
        assert_eq!(err.code(), Code::Unimplemented);
        assert!(generate(&channel, request(&[1, 2], 2)).await.is_ok());
    });
    server.still_answers();
}

#[test]
fn grpc_reports_server_and_model() {
    let server = TestServer::with_companions(super::client::engine(N_CTX), vec![grpc(), kv_events()], |_| ());
    let name = runtime().block_on(async {
        let mut control = ControlClient::new(channel(&server).await);
        let info = control.get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner();
        assert_eq!((info.api_version.as_str(), info.max_model_len as usize), ("vllm", N_CTX));
        assert_eq!((info.kv_block_size, info.total_kv_blocks), (64, (SLOTS * N_CTX / 64) as u64));
        assert_eq!((info.max_running_requests, info.max_batched_tokens), (SLOTS as u64, 64));
        assert_eq!(info.parallelism.unwrap().world_size, 1);
        let model = control.get_model_info(GetModelInfoRequest {}).await.unwrap().into_inner();
        let list = server.get("/v1/models").ok();
        assert_eq!(list["data"][0]["id"], model.served_model_name.as_str());
        assert!(model.supports_token_ids_input && model.reasoning_parser.is_empty());
        let sources = control.get_kv_event_sources(GetKvEventSourcesRequest {}).await.unwrap().into_inner();
        assert_eq!(sources.sources.len(), 1);
        assert_eq!(Some(&sources.sources[0].endpoint), server.kv_events.as_ref());
        assert_eq!(sources.sources[0].data_parallel_rank, Some(0));
        model.served_model_name
    });
    let metrics = server.get("/metrics").text;
    let pages = SLOTS * N_CTX / 64;
    let config = format!("{{model_name=\"{name}\",block_size=\"64\",num_gpu_blocks=\"{pages}\"}} 1");
    assert!(metrics.contains(&format!("vllm:cache_config_info{config}")), "{metrics}");
}

#[test]
fn grpc_needs_the_api_key() {
    let server = TestServer::start_without_waiting(vec![grpc()], |all| {
        all.keys = vec!["secret".into()];
    });
    runtime().block_on(async {
        let channel = channel(&server).await;
        // Health needs no key.
        serving(&channel).await;
        let err = generate(&channel, request(&[1, 2, 3], 4)).await.unwrap_err();
        assert_eq!(err.code(), Code::Unauthenticated);
        let mut keyed = tonic::Request::new(request(&[1, 2, 3], 4));
        keyed.metadata_mut().insert("authorization", "Bearer secret".parse().unwrap());
        assert!(InferenceClient::new(channel).generate(keyed).await.is_ok());
    });
}

/// Waits until the services report that they are serving.
async fn serving(channel: &Channel) {
    let mut health = HealthClient::new(channel.clone());
    for service in ["vllm.Control", "vllm.Inference"] {
        let asked = HealthCheckRequest { service: service.into() };
        while health.check(asked.clone()).await.unwrap().into_inner().status() != ServingStatus::Serving {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[test]
fn grpc_health_follows_the_loading_of_the_model() {
    let (go, waits) = std::sync::mpsc::channel::<()>();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let model = ModelSource::once("tiny", move || {
        waits.recv().unwrap();
        Ok(Loaded {
            engine: super::client::engine(N_CTX),
            sampler: SamplerOptions::default(),
            speculation: None,
        })
    });
    let server = Server::start(listener, ServeOptions::default(), vec![grpc()], model);
    let server = server.unwrap();
    let address = server.endpoints().next().unwrap().address.clone();
    runtime().block_on(async {
        let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        let mut health = HealthClient::new(channel.clone());
        let asked = HealthCheckRequest { service: "vllm.Inference".into() };
        let status = health.check(asked).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::NotServing);
        let err = generate(&channel, request(&[1], 1)).await.unwrap_err();
        assert_eq!(err.code(), Code::Unavailable);
        go.send(()).unwrap();
        serving(&channel).await;
        assert!(generate(&channel, request(&[1], 1)).await.is_ok());
    });
    server.stopper().stop();
    server.wait().unwrap();
}

#[test]
fn dropped_and_aborted_grpc_requests_free_their_pages() {
    let slow = engine_that(|_| Act::Sleep(Duration::from_millis(20)));
    let server = TestServer::with_companions(slow, vec![grpc()], |all| {
        all.cache_prompt = false;
    });
    // Long before the end of the text.
    let mut before = 0.0;
    let mut is_free = || {
        server.until("its pages are free", |server| {
            server.metric("llamacpp:requests_processing") == 0.0
                && server.metric("vllm:kv_cache_usage_perc") == 0.0
        });
        let generated = server.metric("llamacpp:tokens_predicted_total");
        assert!(generated - before < 150.0, "{} of 200 tokens", generated - before);
        before = generated;
    };
    runtime().block_on(async {
        let channel = channel(&server).await;
        let mut client = InferenceClient::new(channel.clone());
        let mut stream = client.generate_stream(request(&[1, 2, 3], 200)).await.unwrap().into_inner();
        stream.message().await.unwrap().unwrap();
        assert_eq!(server.metric("llamacpp:requests_processing"), 1.0);
        drop(stream);
        is_free();
        let mut named = request(&[1, 2, 3], 200);
        named.request_id = "one".into();
        let mut stream = client.generate_stream(named).await.unwrap().into_inner();
        stream.message().await.unwrap().unwrap();
        let mut control = ControlClient::new(channel.clone());
        let abort = |name: &str| AbortRequest { request_ids: vec![name.to_owned()] };
        for name in ["none", "one", "one"] {
            control.abort(abort(name)).await.unwrap();
        }
        let mut last = None;
        while let Some(piece) = stream.message().await.unwrap() {
            last = piece.outputs.unwrap().finish_info;
        }
        assert_eq!(last.unwrap().finish_reason(), FinishReason::Aborted);
        is_free();
    });
    server.still_answers();
}

#[test]
fn abort_ends_only_requests_of_the_same_key() {
    let slow = engine_that(|_| Act::Sleep(Duration::from_millis(5)));
    let server = TestServer::with_companions(slow, vec![grpc()], |all| {
        all.keys = vec!["one".into(), "other".into()];
    });
    fn with_key<T>(key: &str, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        request
    }
    runtime().block_on(async {
        let channel = channel(&server).await;
        let mut client = InferenceClient::new(channel.clone());
        let mut control = ControlClient::new(channel.clone());
        for (key, reason) in [("other", FinishReason::Length), ("one", FinishReason::Aborted)] {
            let mut named = request(&[1, 2, 3], 40);
            named.request_id = "same".into();
            let stream = client.generate_stream(with_key("one", named)).await;
            let mut stream = stream.unwrap().into_inner();
            stream.message().await.unwrap().unwrap();
            let abort = AbortRequest { request_ids: vec!["same".into()] };
            control.abort(with_key(key, abort)).await.unwrap();
            let mut last = None;
            while let Some(piece) = stream.message().await.unwrap() {
                last = piece.outputs.unwrap().finish_info;
            }
            assert_eq!(last.unwrap().finish_reason(), reason, "{key}");
        }
    });
}

#[test]
fn idle_grpc_connections_give_up_their_places() {
    let slow = engine_that(|_| Act::Sleep(Duration::from_millis(10)));
    let server = TestServer::with_companions(slow, vec![grpc()], |options| options.max_connections = 2);
    runtime().block_on(async {
        let channel_of_long = channel(&server).await;
        let long = request(&prompt(1, 40), 100);
        let long = tokio::spawn(async move { generate(&channel_of_long, long).await });
        server.until("it runs", |server| server.metric("llamacpp:requests_processing") > 0.0);
        let mut idle = Vec::new();
        for _ in 0..4 {
            idle.push(tokio::net::TcpStream::connect(server.grpc.unwrap()).await.unwrap());
        }
        generate(&channel(&server).await, request(&prompt(2, 40), 3)).await.unwrap();
        // The connection with a running request has kept its place.
        assert_eq!(long.await.unwrap().unwrap().tokens.len(), 100);
    });
}

#[test]
fn concurrent_grpc_streams_equal_single_ones() {
    let server = started();
    let asked = |at: u32| {
        let mut asked = request(&prompt(at % 9, 10 + at * 7 % 130), 6 + at % 9);
        asked.temperature = Some(if at.is_multiple_of(2) { 0.0 } else { 1.0 });
        asked.sampling = Some(RandomSampling { seed: Some(at.into()), ..Default::default() });
        asked
    };
    runtime().block_on(async {
        let channel = channel(&server).await;
        let all = (0..64).map(|at| {
            let channel = channel.clone();
            tokio::spawn(async move { generate(&channel, asked(at)).await.unwrap() })
        });
        let all: Vec<_> = all.collect();
        for (at, together) in (0..).zip(all) {
            let together = together.await.unwrap();
            if at % 5 == 0 {
                let alone = generate(&channel, asked(at)).await.unwrap();
                assert_eq!((together.text, together.tokens), (alone.text, alone.tokens), "request {at}");
            }
        }
    });
}

#[test]
fn shutdown_lets_grpc_streams_finish() {
    let slow = engine_that(|_| Act::Sleep(Duration::from_millis(5)));
    let server = TestServer::with_companions(slow, vec![grpc()], |_| ());
    let runtime = runtime();
    let mut stream = runtime.block_on(async {
        let mut client = InferenceClient::new(channel(&server).await);
        let mut stream = client.generate_stream(request(&[1, 2, 3], 40)).await.unwrap().into_inner();
        stream.message().await.unwrap().unwrap();
        stream
    });
    let reader = runtime.spawn(async move {
        let mut last = None;
        while let Some(piece) = stream.message().await.unwrap() {
            last = piece.outputs.unwrap().finish_info;
        }
        last
    });
    server.stop().unwrap();
    let last = runtime.block_on(reader).unwrap();
    assert_eq!(last.unwrap().num_output_tokens, 40);
}

/// Decodes a frame of a message from msgpack.
fn unpacked(bytes: &[u8]) -> Value {
    rmp_serde::from_slice(bytes).unwrap()
}

#[test]
fn kv_events_have_the_format_of_vllm() {
    let server = TestServer::with_companions(super::client::engine(N_CTX), vec![grpc(), kv_events()], |_| ());
    let runtime = runtime();
    let mut socket = runtime.block_on(async {
        let mut socket = SubSocket::new();
        socket.connect(server.kv_events.as_ref().unwrap()).await.unwrap();
        socket.subscribe("").await.unwrap();
        socket
    });
    let tokens = prompt(3, 150);
    let ask = |tokens: &[u32], more: Value| {
        let mut body = json!({ "prompt": tokens, "n_predict": 1 });
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        server.post("/completion", &body).ok();
    };
    // A late subscriber misses earlier events, so other pages are published until one is received.
    let mut others: Vec<Value> = Vec::new();
    let first = loop {
        let other = prompt(100 + others.len() as u32, 70);
        ask(&other, json!({}));
        others.push(json!(other[..64]));
        let heard = async { tokio::time::timeout(Duration::from_millis(100), socket.recv()).await };
        if let Ok(message) = runtime.block_on(heard) {
            break u64::from_be_bytes(message.unwrap().into_vec()[1][..].try_into().unwrap());
        }
    };
    ask(&tokens, json!({ "cache_salt": "salted" }));
    ask(&tokens, json!({}));
    server.stop().unwrap();
    let mut events: Vec<Value> = Vec::new();
    runtime.block_on(async {
        for number in first + 1.. {
            let frames = socket.recv().await.unwrap().into_vec();
            assert_eq!((frames.len(), frames[0].len()), (3, 0));
            assert_eq!(frames[1][..], number.to_be_bytes());
            let message = unpacked(&frames[2]);
            assert!(message[0].as_f64().unwrap() > 1.7e9 && message[2] == 0, "{message}");
            events.extend(message[1].as_array().unwrap().clone());
            if events.last().is_some_and(|event| event["type"] == "AllBlocksCleared") {
                break;
            }
        }
    });
    events.retain(|event| !others.contains(&event["token_ids"]));
    // Pages with a salt are not published.
    let mut hashes: Vec<Value> = Vec::new();
    let mut published: Vec<Value> = Vec::new();
    for event in &events[..events.len() - 1] {
        assert_eq!(
            (&event["type"], &event["block_size"], &event["medium"]),
            (&json!("BlockStored"), &json!(64), &json!("GPU"))
        );
        assert!(event["lora_id"].is_null() && event["lora_name"].is_null());
        assert_eq!(event["parent_block_hash"], hashes.last().cloned().unwrap_or_default());
        hashes.extend(event["block_hashes"].as_array().unwrap().clone());
        published.extend(event["token_ids"].as_array().unwrap().clone());
    }
    assert_eq!(hashes.len(), 2);
    assert!(hashes.iter().all(|hash| hash.as_u64().unwrap() < 1 << 63));
    assert_eq!(json!(published), json!(tokens[..128]));
}
