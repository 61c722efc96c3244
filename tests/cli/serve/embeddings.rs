//! Embeddings and reranking in the formats of all APIs.

use std::ops::ControlFlow;

use bytes::Bytes;
use serde_json::{Value, json};
use sterna::engine::{
    BatchOptions, Engine, EngineOptions, Pooled, Pooling, Request, SamplerOptions, normalise,
};
use sterna::gguf::{Gguf, GgufWriter};
use sterna::serve::{Loaded, ModelSource, Opened};
use sterna::synth::{Preset, Synth};
use sterna::tokenizer::Special;

use super::client::{N_CTX, SLOTS, TestServer, engine_with};

/// A decoder with mean pooling.
fn decoder() -> Engine {
    engine_with(|options| EngineOptions { pooling: Some(Pooling::Mean), ..options })
}

/// The file of a small model with random weights.
fn synth_file(preset: &str) -> Bytes {
    let spec = Preset::by_name(preset).unwrap().spec(None, None, 5).unwrap();
    let mut file = Vec::new();
    Synth::new(&spec).unwrap().write(&mut file, |_| ControlFlow::Continue(())).unwrap();
    file.into()
}

fn engine_of(file: Bytes, pooling: Option<Pooling>) -> Engine {
    let options = EngineOptions {
        device: "cpu".parse().unwrap(),
        threads: Some(1),
        n_seqs: SLOTS,
        batch: 64,
        pooling,
        ..EngineOptions::default()
    };
    Engine::from_bytes(file, &options).unwrap()
}

/// A small encoder with a classifier.
fn encoder(pooling: Pooling) -> Engine {
    engine_of(synth_file("tiny-bert"), Some(pooling))
}

/// A small decoder with a classifier of two labels, and a rerank template like that of Qwen3-Reranker.
fn ranking_decoder() -> Engine {
    let gguf = Gguf::from_bytes(synth_file("tiny")).unwrap();
    let mut metadata = gguf.metadata().clone();
    metadata.set("tokenizer.chat_template.rerank", "Query: {query}\nDocument: {document}<|eot_id|>\n");
    metadata.set("bitnet-b1.58.pooling_type", 4_u32);
    let mut writer = GgufWriter::new(metadata).unwrap();
    for info in gguf.tensors() {
        writer.tensor(&info.name, &info.dims, info.type_id, info.n_bytes).unwrap();
    }
    let dim = 256;
    let weights: Vec<u8> = (0..2 * dim).flat_map(|at| (0.1 * (at as f32).sin()).to_le_bytes()).collect();
    writer.tensor("cls.output.weight", &[2, dim], 0, weights.len() as u64).unwrap();
    let mut data = writer.begin(Vec::new()).unwrap();
    for info in gguf.tensors() {
        data.tensor([gguf.raw_bytes(info).unwrap()]).unwrap();
    }
    data.tensor([&weights]).unwrap();
    engine_of(data.finish().unwrap().into(), None)
}

fn serve(engine: Engine) -> TestServer {
    TestServer::with_engine(engine, |_| ())
}

/// The vectors that an engine computes for one sequence at a time.
fn computed(engine: &Engine, texts: &[(Vec<u32>, Pooled)]) -> Vec<Vec<f32>> {
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    let vector = |(tokens, pooled): &(Vec<u32>, Pooled)| {
        let id = batch.add(&Request::pooled(tokens.clone(), *pooled)).unwrap()[0];
        while batch.step().unwrap().iter().all(|(of, event)| *of != id || event.end.is_none()) {}
        batch.take_vector(id).unwrap()
    };
    texts.iter().map(vector).collect()
}

/// The vectors of whole texts without normalisation, and their tokens.
fn vectors(engine: &Engine, texts: &[&str]) -> (Vec<Vec<f32>>, Vec<Vec<u32>>) {
    let tokenizer = engine.tokenizer().unwrap();
    let tokens: Vec<Vec<u32>> =
        texts.iter().map(|text| tokenizer.encode(text, Special::Parse, true)).collect();
    let of: Vec<_> = tokens.iter().map(|tokens| (tokens.clone(), Pooled::default())).collect();
    (computed(engine, &of), tokens)
}

fn scaled(vector: &[f32], norm: i32) -> Vec<f32> {
    let mut vector = vector.to_vec();
    normalise(&mut vector, norm);
    vector
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn bytes_of(base64: &str) -> Vec<u8> {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |c: u8| digits.iter().position(|digit| *digit == c).unwrap() as u32;
    let groups = base64.as_bytes().chunks(4).flat_map(|group| {
        let n = group.iter().filter(|c| **c != b'=').count();
        let bits = (0..n).fold(0, |bits, at| bits | value(group[at]) << (18 - 6 * at));
        bits.to_be_bytes()[1..n].to_vec()
    });
    groups.collect()
}

/// The server may split the batch into other steps, with another rounding.
#[track_caller]
fn near(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(1e-6_f32, |max, x| max.max(x.abs()));
    let is_near = got.iter().zip(want).all(|(a, b)| (a - b).abs() <= 1e-5 * largest);
    assert!(is_near, "{:?} is not {:?}", &got[..got.len().min(4)], &want[..want.len().min(4)]);
}

const TEXTS: [&str; 5] = ["You may copy", "a small owl", "the tall tree on the hill", "owl", "Hi <|eot_id|>"];

#[test]
fn embedding_endpoints_return_the_engines_vectors() {
    let (want, tokens) = vectors(&decoder(), &TEXTS);
    let n_tokens: usize = tokens.iter().map(Vec::len).sum();
    let server = serve(decoder());
    let post = |path: &str, body: Value| server.post(path, &body).ok();
    let list = |body: Value| -> Vec<Vec<f32>> {
        let answer = post("/v1/embeddings", body);
        let data = answer["data"].as_array().unwrap();
        let indexes = data.iter().map(|entry| entry["index"].as_u64().unwrap() as usize);
        assert!(indexes.eq(0..data.len()));
        data.iter().map(|entry| floats(&entry["embedding"])).collect()
    };
    let before = server.metric("llamacpp:prompt_tokens_total");
    let answer = post("/v1/embeddings", json!({ "model": "any", "input": TEXTS, "user": "me" }));
    assert_eq!((&answer["object"], &answer["data"][1]["object"]), (&json!("list"), &json!("embedding")));
    assert_eq!(answer["usage"], json!({ "prompt_tokens": n_tokens, "total_tokens": n_tokens }));
    assert_eq!(server.metric("llamacpp:prompt_tokens_total") - before, n_tokens as f64);
    assert_eq!(server.metric("llamacpp:pooled_texts_total"), TEXTS.len() as f64);
    assert_eq!(server.metric("vllm:request_success_total{finished_reason=\"stop\"}"), TEXTS.len() as f64);
    for (entry, want) in answer["data"].as_array().unwrap().iter().zip(&want) {
        near(&floats(&entry["embedding"]), &scaled(want, 2));
    }
    // Token ids, one text, and the reverse order.
    for (got, want) in list(json!({ "input": tokens })).iter().zip(&want) {
        near(got, &scaled(want, 2));
    }
    near(&list(json!({ "input": tokens[2] }))[0], &scaled(&want[2], 2));
    near(&list(json!({ "input": TEXTS[3] }))[0], &scaled(&want[3], 2));
    let reversed: Vec<&str> = TEXTS.iter().rev().copied().collect();
    for (got, want) in list(json!({ "input": reversed })).iter().zip(want.iter().rev()) {
        near(got, &scaled(want, 2));
    }
    // More texts than slots, each with its own vector.
    let many: Vec<&str> = TEXTS.iter().cycle().take(40).copied().collect();
    for (at, got) in list(json!({ "input": many })).iter().enumerate() {
        near(got, &scaled(&want[at % TEXTS.len()], 2));
    }
    // As base64.
    let answer = post("/embeddings", json!({ "input": TEXTS, "encoding_format": "base64" }));
    for (entry, want) in answer["data"].as_array().unwrap().iter().zip(&want) {
        let bytes = bytes_of(entry["embedding"].as_str().unwrap());
        let numbers = bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        near(&numbers.collect::<Vec<f32>>(), &scaled(want, 2));
    }
    // Fewer dimensions, and other norms.
    let first = &list(json!({ "input": TEXTS[0], "dimensions": 8 }))[0];
    near(first, &scaled(&want[0][..8], 2));
    for norm in [-1, 0, 1, 2, 3] {
        near(&list(json!({ "input": TEXTS[0], "embd_normalize": norm }))[0], &scaled(&want[0], norm));
    }
    // The format of llama-server.
    for (path, name) in [("/embedding", "content"), ("/embedding", "input"), ("/v1/embeddings", "content")] {
        let answer = post(path, json!({ name: TEXTS }));
        for (at, want) in want.iter().enumerate() {
            assert_eq!(answer[at]["index"], at);
            near(&floats(&answer[at]["embedding"][0]), &scaled(want, 2));
        }
    }
    // The format of ollama.
    let answer = post("/api/embed", json!({ "model": "any", "input": TEXTS }));
    assert_eq!(answer["prompt_eval_count"], n_tokens);
    assert!(answer["total_duration"].as_u64().unwrap() > 0);
    for (got, want) in answer["embeddings"].as_array().unwrap().iter().zip(&want) {
        near(&floats(got), &scaled(want, 2));
    }
    let answer = post("/api/embed", json!({ "input": TEXTS[1], "dimensions": 4, "keep_alive": "5m" }));
    near(&floats(&answer["embeddings"][0]), &scaled(&want[1][..4], 2));
    near(&floats(&post("/api/embeddings", json!({ "prompt": TEXTS[1] }))["embedding"]), &want[1]);
    // The format of TEI.
    let tei = |body: Value| post("/embed", body).as_array().unwrap().iter().map(floats).collect::<Vec<_>>();
    for inputs in [json!(TEXTS), json!(tokens)] {
        for (got, want) in tei(json!({ "inputs": inputs })).iter().zip(&want) {
            near(got, &scaled(want, 2));
        }
    }
    let right = json!({ "inputs": TEXTS[1], "normalize": false, "truncation_direction": "Right" });
    near(&tei(right)[0], &want[1]);
    near(&tei(json!({ "inputs": TEXTS[1], "dimensions": 4 }))[0], &scaled(&want[1][..4], 2));
    for (name, value) in [("truncation_direction", "Left"), ("prompt_name", "query")] {
        assert_eq!(server.post("/embed", &json!({ "inputs": "a", name: value })).error(400)["param"], name);
    }
    assert_eq!(post("/api/embed", json!({ "input": [] }))["embeddings"], json!([]));
    assert_eq!(post("/api/embeddings", json!({}))["embedding"], json!([]));
    server.still_answers();
}

#[test]
fn pooling_none_returns_a_vector_per_token() {
    let none = || engine_with(|options| EngineOptions { pooling: Some(Pooling::None), ..options });
    let (want, tokens) = vectors(&none(), &TEXTS[..2]);
    let server = serve(none());
    let answer = server.post("/embedding", &json!({ "content": TEXTS[..2] })).ok();
    for (at, want) in want.iter().enumerate() {
        let rows = answer[at]["embedding"].as_array().unwrap();
        assert_eq!(rows.len(), tokens[at].len());
        near(&rows.iter().flat_map(floats).collect::<Vec<f32>>(), want);
    }
    for path in ["/v1/embeddings", "/embeddings", "/embed"] {
        let error = server.post(path, &json!({ "input": "a", "inputs": "a" })).error(400);
        assert!(error["message"].as_str().unwrap().contains("/embedding"), "{error}");
    }
    assert_eq!(server.post("/api/embed", &json!({ "input": "a" })).status, 400);
}

#[test]
fn long_texts_are_refused_or_truncated() {
    let server = serve(decoder());
    let (n_long, fits) = (N_CTX + 7, vec![5; N_CTX]);
    let long = vec![5; n_long];
    let error = server.post("/v1/embeddings", &json!({ "input": [fits, long] })).error(400);
    assert_eq!(error["type"], "invalid_request_error");
    assert_eq!((&error["code"], &error["param"]), (&json!("context_length_exceeded"), &json!("input[1]")));
    assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(n_long), &json!(N_CTX)));
    let cut = |body: Value| server.post("/v1/embeddings", &body).ok()["usage"]["prompt_tokens"].clone();
    assert_eq!(cut(json!({ "input": fits })), N_CTX);
    assert_eq!(cut(json!({ "input": long, "truncate_prompt_tokens": -1 })), N_CTX);
    assert_eq!(cut(json!({ "input": long, "truncate_prompt_tokens": 9 })), 9);
    assert_eq!(cut(json!({ "input": long, "truncate": true })), N_CTX);
    let words = "the owl ".repeat(2 * N_CTX);
    let ollama = |more: Value| {
        let mut body = json!({ "input": words });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/api/embed", &body)
    };
    assert_eq!(ollama(json!({})).ok()["prompt_eval_count"], N_CTX);
    let refused = ollama(json!({ "truncate": false }));
    assert!(refused.status == 400 && refused.text.contains("maximum context length"), "{}", refused.text);
    // The way out is a field of the API.
    let tei = server.post("/embed", &json!({ "inputs": words })).error(400)["message"].to_string();
    for message in [&refused.text, &tei] {
        assert!(message.contains("`truncate`") && !message.contains("truncate_prompt"), "{message}");
    }
    assert!(error["message"].as_str().unwrap().contains("`truncate_prompt_tokens`"), "{error}");
    for wrong in [json!(0), json!(-2), json!(N_CTX + 1), json!("9")] {
        let error = server.post("/v1/embeddings", &json!({ "input": "a", "truncate_prompt_tokens": wrong }));
        assert_eq!(error.error(400)["param"], "truncate_prompt_tokens");
    }
}

#[test]
fn invalid_embedding_requests_name_the_field() {
    let server = serve(decoder());
    let dim = server.engine().vector_len();
    let n_vocab = server.engine().hyper().n_vocab;
    let wrong = [
        (json!({}), "input", "is missing"),
        (json!({ "input": "" }), "input", "not empty"),
        (json!({ "input": [] }), "input", "1 to 2048"),
        (json!({ "input": [[]] }), "input[0]", "at least one token"),
        (json!({ "input": ["a", ""] }), "input[1]", "not empty"),
        (json!({ "input": vec!["a"; 10_000] }), "input", "got 10000"),
        (json!({ "input": { "text": "a" } }), "input", "a text"),
        (json!({ "input": [true] }), "input[0]", "a text"),
        (json!({ "input": 5 }), "input", "a text"),
        (json!({ "content": 5 }), "content", "a text"),
        (json!({ "input": [3, n_vocab] }), "input", "tokens below"),
        (json!({ "input": [[3], [-1]] }), "input[1]", "tokens below"),
        (json!({ "input": "a", "dimensions": 0 }), "dimensions", "from 1 to"),
        (json!({ "input": "a", "dimensions": dim + 1 }), "dimensions", "from 1 to"),
        (json!({ "input": "a", "encoding_format": "hex" }), "encoding_format", "float, base64"),
        (json!({ "input": "a", "embd_normalize": -2 }), "embd_normalize", "from -1"),
    ];
    for (body, param, words) in &wrong {
        let error = server.post("/v1/embeddings", body).error(400);
        assert_eq!((&error["type"], &error["param"]), (&json!("invalid_request_error"), &json!(param)));
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
    for body in [json!({ "input": 3 }), json!({ "input": ["a", 3] }), json!({ "input": [[1]] })] {
        let answer = server.post("/api/embed", &body);
        assert!(answer.status == 400 && answer.json()["error"].is_string(), "{}", answer.text);
    }
    for (path, body, param) in [
        ("/embed", json!({ "inputs": 5 }), "inputs"),
        ("/embed", json!({ "inputs": ["a", 5] }), "inputs[1]"),
        ("/embed", json!({ "inputs": [5, "a"] }), "inputs[1]"),
        ("/embedding", json!({ "content": 5 }), "content"),
        ("/tokenize", json!({ "content": 5 }), "content"),
        ("/v1/completions", json!({ "prompt": 7 }), "prompt"),
    ] {
        assert_eq!(server.post(path, &body).error(400)["param"], param);
    }
    assert_eq!(server.post("/embedding", &json!({ "content": ["a", 5] })).ok()[1], Value::Null);
    let error = server.post("/v1/rerank", &json!({ "query": "a", "documents": ["b"] })).error(400);
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("--reranking") && message.contains("/v1/embeddings"), "{message}");
    server.still_answers();
}

#[test]
fn embeddings_run_next_to_generation() {
    let (want, _) = vectors(&decoder(), &TEXTS);
    let server = serve(decoder());
    let story = json!({ "prompt": "You may", "n_predict": 60, "ignore_eos": true, "temperature": 0 });
    let alone = server.post("/completion", &story).ok()["content"].clone();
    std::thread::scope(|scope| {
        let generated = scope.spawn(|| server.post("/completion", &story).ok()["content"].clone());
        for _ in 0..4 {
            let answer = server.post("/v1/embeddings", &json!({ "input": TEXTS })).ok();
            for (at, want) in want.iter().enumerate() {
                near(&floats(&answer["data"][at]["embedding"]), &scaled(want, 2));
            }
        }
        assert_eq!(generated.join().unwrap(), alone);
    });
    let answer = server.post("/api/show", &json!({}));
    assert!(!answer.ok()["capabilities"].as_array().unwrap().contains(&json!("embedding")));
}

#[test]
fn encoder_embeds_and_refuses_to_generate() {
    let (want, tokens) = vectors(&encoder(Pooling::Cls), &TEXTS);
    let engine = encoder(Pooling::Cls);
    let eos = engine.tokenizer().unwrap().eos().unwrap();
    assert!(tokens.iter().all(|tokens| tokens.last() == Some(&eos)));
    let server = serve(engine);
    let many: Vec<&str> = TEXTS.iter().cycle().take(23).copied().collect();
    let answer = server.post("/v1/embeddings", &json!({ "input": many })).ok();
    for (at, entry) in answer["data"].as_array().unwrap().iter().enumerate() {
        near(&floats(&entry["embedding"]), &scaled(&want[at % TEXTS.len()], 2));
    }
    // Truncation keeps the EOS token at the end.
    let text = json!({ "input": TEXTS[2], "truncate_prompt_tokens": 4 });
    let cut = server.post("/v1/embeddings", &text).ok()["data"][0]["embedding"].clone();
    let ids = [&tokens[2][..3], &[eos]].concat();
    let whole = server.post("/v1/embeddings", &json!({ "input": ids })).ok();
    near(&floats(&cut), &floats(&whole["data"][0]["embedding"]));

    for (path, body) in [
        ("/v1/completions", json!({ "prompt": "a" })),
        ("/completion", json!({ "prompt": "a" })),
        ("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": "a" }] })),
        ("/v1/responses", json!({ "input": "a" })),
        ("/v1/messages", json!({ "max_tokens": 4, "messages": [{ "role": "user", "content": "a" }] })),
    ] {
        let error = server.post(path, &body).error(400);
        assert!(error["message"].as_str().unwrap().contains("/v1/embeddings"), "{path}: {error}");
    }
    let answer = server.post("/api/generate", &json!({ "prompt": "a" }));
    assert!(answer.status == 400 && answer.text.contains("/v1/embeddings"), "{}", answer.text);
    let props = server.get("/props").ok();
    assert_eq!((&props["capabilities"], &props["pooling"]), (&json!(["embedding"]), &json!("cls")));
    assert_eq!(server.post("/api/show", &json!({})).ok()["capabilities"], json!(["embedding"]));
    assert_eq!(server.get("/v1/models").ok()["models"][0]["capabilities"], json!(["embedding"]));
}

#[test]
fn rerank_endpoints_rank_documents() {
    let query = "where is the owl";
    let documents =
        ["a small owl", "You may copy", "the tall tree on the hill", "an owl on a tree", "<|eot_id|>"];
    let engine = encoder(Pooling::Rank);
    let tokenizer = engine.tokenizer().unwrap();
    let encode = |text: &str| tokenizer.encode(text, Special::AsText, false);
    let (bos, eos) = (tokenizer.bos().unwrap(), tokenizer.eos().unwrap());
    let pairs: Vec<(Vec<u32>, Pooled)> = documents
        .map(|document| {
            let first = [&[bos], &*encode(query), &[eos]].concat();
            let pooled = Pooled { second: Some(first.len()) };
            ([&first[..], &encode(document), &[eos]].concat(), pooled)
        })
        .into();
    let n_tokens: usize = pairs.iter().map(|(tokens, _)| tokens.len()).sum();
    let scores: Vec<f32> = computed(&engine, &pairs).into_iter().map(|scores| scores[0]).collect();
    let mut order: Vec<usize> = (0..documents.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));

    let server = serve(encoder(Pooling::Rank));
    let body = json!({ "model": "any", "query": query, "documents": documents });
    let indexes = |results: &Value| -> Vec<usize> {
        let results = results.as_array().unwrap().iter();
        results.map(|result| result["index"].as_u64().unwrap() as usize).collect()
    };
    for path in ["/v1/rerank", "/rerank", "/reranking", "/v1/reranking", "/v2/rerank"] {
        let answer = server.post(path, &body).ok();
        assert_eq!(answer["usage"], json!({ "prompt_tokens": n_tokens, "total_tokens": n_tokens }));
        assert_eq!(indexes(&answer["results"]), order);
        for result in answer["results"].as_array().unwrap() {
            let index = result["index"].as_u64().unwrap() as usize;
            near(&[result["relevance_score"].as_f64().unwrap() as f32], &[scores[index]]);
            assert!(result.get("document").is_none());
        }
    }
    let of_objects = documents.map(|text| json!({ "text": text }));
    let best = json!({ "query": query, "documents": of_objects, "top_n": 2, "return_documents": true });
    let results = server.post("/v1/rerank", &best).ok()["results"].clone();
    assert_eq!(indexes(&results), order[..2]);
    assert_eq!(results[0]["document"], json!({ "text": documents[order[0]] }));
    // The format of TEI.
    let sigmoid = 1.0 / (1.0 + (-scores[order[0]]).exp());
    for (raw, want) in [(json!(null), sigmoid), (json!(false), sigmoid), (json!(true), scores[order[0]])] {
        let texts = json!({ "query": query, "texts": documents, "return_text": true, "raw_scores": raw });
        let ranks = server.post("/rerank", &texts).ok();
        assert_eq!((indexes(&ranks), &ranks[0]["text"]), (order.clone(), &json!(documents[order[0]])));
        near(&[ranks[0]["score"].as_f64().unwrap() as f32], &[want]);
    }
    let squashed = json!({ "query": query, "documents": documents, "raw_scores": false });
    let results = server.post("/rerank", &squashed).ok()["results"].clone();
    near(&[results[0]["relevance_score"].as_f64().unwrap() as f32], &[sigmoid]);
    // A document that is too long.
    let long = "the owl ".repeat(400);
    let cut = |more: Value| {
        let mut body = json!({ "query": query, "documents": [long] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/rerank", &body)
    };
    let error = cut(json!({})).error(400);
    assert_eq!(
        (&error["code"], &error["param"]),
        (&json!("context_length_exceeded"), &json!("documents[0]"))
    );
    let n_ctx = server.engine().n_ctx();
    assert_eq!(cut(json!({ "truncate": true })).ok()["usage"]["prompt_tokens"], n_ctx);
    let n_few = cut(json!({ "max_tokens_per_doc": 5 })).ok()["usage"]["prompt_tokens"].clone();
    assert_eq!(n_few, encode(query).len() + 3 + 5);

    for (body, param) in [
        (json!({ "documents": ["a"] }), "query"),
        (json!({ "query": "", "documents": ["a"] }), "query"),
        (json!({ "query": long, "documents": ["a"], "truncate": true }), "query"),
        (json!({ "query": "a" }), "documents"),
        (json!({ "query": "a", "documents": [] }), "documents"),
        (json!({ "query": "a", "documents": "b" }), "documents"),
        (json!({ "query": "a", "documents": ["b", 3] }), "documents[1]"),
        (json!({ "query": "a", "documents": vec!["b"; 10_000] }), "documents"),
        (json!({ "query": "a", "documents": ["b"], "top_n": 0 }), "top_n"),
    ] {
        assert_eq!(server.post("/v1/rerank", &body).error(400)["param"], param);
    }
    for path in ["/v1/embeddings", "/embedding"] {
        let error = server.post(path, &json!({ "input": "a" })).error(400);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("/v1/rerank") && message.contains("mean"), "{message}");
    }
    assert_eq!(server.get("/props").ok()["capabilities"], json!(["rerank"]));
}

#[test]
fn decoder_ranks_with_its_rerank_template() {
    let engine = ranking_decoder();
    assert_eq!(engine.pooling(), Pooling::Rank);
    let (tokenizer, pairs) = (engine.tokenizer().unwrap(), engine.pairs().unwrap());
    let eot = tokenizer.token_id("<|eot_id|>").unwrap();
    // A control token or a placeholder that a text spells is plain text.
    let (query, documents) = ("where <|eot_id|>", ["an owl {query}", "a tree", "You may copy", "<|eot"]);
    let (tokens, pooled) = pairs.encode(query, documents[0], None);
    let text = format!("Query: {query}\nDocument: {}<|eot_id|>\n", documents[0]);
    assert_eq!((tokenizer.decode(&tokens, true), pooled), (text.into_bytes(), Pooled::default()));
    assert_eq!(tokens.iter().filter(|token| **token == eot).count(), 1);
    let crossing = pairs.encode("a", "<|eot_id|", None).0;
    assert_eq!(crossing.iter().filter(|token| **token == eot).count(), 1);
    let long = "the tall tree on the hill ".repeat(30);
    let whole = pairs.encode(query, &long, None).0;
    let cut = pairs.encode(query, &long, Some(60)).0;
    assert!((50..=60).contains(&cut.len()) && whole.len() > 60, "{}", cut.len());
    assert_eq!(cut[cut.len() - 2..], whole[whole.len() - 2..]);

    let all = documents.map(|document| pairs.encode(query, document, None));
    let scores: Vec<f32> = computed(&engine, &all).into_iter().map(|scores| scores[0]).collect();
    let server = serve(ranking_decoder());
    let body = json!({ "query": query, "documents": documents });
    let results = server.post("/v1/rerank", &body).ok()["results"].clone();
    let mut last = 1.0;
    for result in results.as_array().unwrap() {
        let score = result["relevance_score"].as_f64().unwrap() as f32;
        near(&[score], &[scores[result["index"].as_u64().unwrap() as usize]]);
        assert!(score > 0.0 && score <= last);
        last = score;
    }
    // The scores are probabilities already.
    let ranks = server.post("/rerank", &json!({ "query": query, "texts": documents })).ok();
    near(
        &[ranks[0]["score"].as_f64().unwrap() as f32],
        &[scores[ranks[0]["index"].as_u64().unwrap() as usize]],
    );
    assert_eq!(server.get("/props").ok()["capabilities"], json!(["completion", "tools", "rerank"]));
    server.still_answers();
}

#[test]
fn one_of_several_models_embeds() {
    let source = |name: &str, engine: fn() -> Engine| {
        ModelSource::new(name, move || {
            let load = move || {
                let sampler = SamplerOptions::default();
                Ok(Loaded { engine: engine(), sampler, speculation: None })
            };
            Ok(Opened { bytes: 1, load: Box::new(load) })
        })
    };
    let models = vec![source("writes", decoder), source("embeds", || encoder(Pooling::Mean))];
    let server = TestServer::several(models, |_| ());
    let answer = server.post("/v1/embeddings", &json!({ "model": "embeds", "input": "an owl" })).ok();
    let (want, _) = vectors(&encoder(Pooling::Mean), &["an owl"]);
    near(&floats(&answer["data"][0]["embedding"]), &scaled(&want[0], 2));
    assert_eq!(answer["model"], "embeds");
    let unload = json!({ "model": "embeds", "input": "", "keep_alive": 0 });
    assert_eq!(server.post("/api/embed", &unload).ok()["embeddings"], json!([]));
    server.until("it is unloaded", |server| {
        server.get("/v1/models").ok()["data"][1]["status"]["value"] == "unloaded"
    });
}
