//! Answers of OpenAI's and llama-server's endpoints.

use std::io::{Read, Write};

use serde_json::{Map, Value, json};
use sterna::engine::EngineOptions;
use sterna::tokenizer::Special;

use super::client::{N_CTX, SLOTS, TestServer, engine_with};

fn chat(more: Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "Tell me of the sea." }],
        "max_tokens": 8, "seed": 5, "ignore_eos": true,
    });
    let Value::Object(more) = more else { panic!("an object") };
    more.into_iter().for_each(|(name, value)| body[name] = value);
    body
}

/// Text and finish reason of each choice of a streamed chat.
fn joined(chunks: &[Value], n: usize) -> Vec<(String, String)> {
    let mut joined = vec![(String::new(), String::new()); n];
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()) {
        let (text, reason) = &mut joined[choice["index"].as_u64().unwrap() as usize];
        assert_eq!(reason, "", "a chunk after the end");
        *text += choice["delta"]["content"].as_str().unwrap_or_default();
        *reason = choice["finish_reason"].as_str().unwrap_or_default().to_owned();
    }
    joined
}

#[test]
fn streamed_chat_equals_the_plain_answer() {
    let server = TestServer::start(|_| ());
    let plain =
        server.post("/v1/chat/completions", &chat(json!({ "n": 2, "logprobs": true, "top_logprobs": 2 })));
    let plain = plain.ok();
    assert_eq!(plain["object"], "chat.completion");
    assert!(plain["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(plain["system_fingerprint"].as_str().unwrap().starts_with('b'));
    assert_eq!(plain["usage"]["completion_tokens"], 16);
    assert_eq!(plain["choices"][0]["message"]["role"], "assistant");
    assert_ne!(plain["choices"][0]["message"]["content"], plain["choices"][1]["message"]["content"]);

    let more = json!({
        "n": 2, "logprobs": true, "top_logprobs": 2, "stream": true,
        "stream_options": { "include_usage": true },
    });
    let answer = server.post("/v1/chat/completions", &chat(more));
    assert_eq!(answer.header("cache-control"), Some("no-cache"));
    let chunks = answer.chunks();
    for (index, chunk) in chunks.iter().take(2).enumerate() {
        assert_eq!(chunk["choices"][0]["index"], index);
        assert_eq!(chunk["choices"][0]["delta"], json!({ "role": "assistant", "content": null }));
    }
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["total_tokens"], plain["usage"]["total_tokens"]);
    for chunk in others {
        assert!(chunk["usage"].is_null() && chunk.get("usage").is_some());
        assert_eq!((&chunk["id"], &chunk["created"]), (&last["id"], &last["created"]));
    }
    for (index, (text, reason)) in joined(&chunks, 2).into_iter().enumerate() {
        let choice = &plain["choices"][index];
        assert_eq!(choice["message"]["content"], text);
        assert_eq!((choice["finish_reason"].as_str(), reason.as_str()), (Some("length"), "length"));
        let of_choice = others.iter().map(|chunk| &chunk["choices"][0]).filter(|one| one["index"] == index);
        let entries = of_choice.filter_map(|one| one["logprobs"]["content"].as_array());
        let entries: Vec<Value> = entries.flatten().cloned().collect();
        assert_eq!(choice["logprobs"]["content"], Value::from(entries.clone()));
        assert_eq!(entries.len(), 8);
        for entry in &entries {
            assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 2);
            assert!(entry["logprob"].as_f64().unwrap() <= 0.0);
        }
    }
    // Without `include_usage` every chunk has choices.
    let chunks = server.post("/v1/chat/completions", &chat(json!({ "stream": true }))).chunks();
    assert!(chunks.iter().all(|chunk| chunk["choices"].as_array().unwrap().len() == 1));
}

#[test]
fn chat_honours_seed_stop_and_logit_bias() {
    let server = TestServer::start(|_| ());
    let text = |more: Value| {
        let answer = server.post("/v1/chat/completions", &chat(more)).ok();
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    assert_eq!(text(json!({})), text(json!({})));
    assert_ne!(text(json!({ "max_tokens": 24 })), text(json!({ "max_tokens": 24, "seed": 6 })));
    let greedy = text(json!({ "temperature": 0, "max_tokens": 24 }));
    let stop: String = greedy.chars().skip(6).take(3).collect();
    let before = greedy.split(&stop).next().unwrap();
    for stream in [false, true] {
        let more =
            json!({ "temperature": 0, "max_tokens": 24, "stop": [stop, "never said"], "stream": stream });
        let answer = server.post("/v1/chat/completions", &chat(more));
        let (text, reason) = match stream {
            true => joined(&answer.chunks(), 1).swap_remove(0),
            false => {
                let choice = answer.ok()["choices"][0].clone();
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                (text(&choice["message"]["content"]), text(&choice["finish_reason"]))
            }
        };
        assert_eq!((text.as_str(), reason.as_str()), (before, "stop"));
    }
    let native = json!({ "prompt": "You", "n_predict": 4, "temperature": 0, "ignore_eos": true,
        "logit_bias": [[9, 1000.0]], "return_tokens": true });
    assert_eq!(server.post("/completion", &native).ok()["tokens"], json!([9, 9, 9, 9]));
    let tokenizer = server.engine().tokenizer().unwrap();
    let word = tokenizer.encode("owl", Special::Parse, false);
    let banned: Map<String, Value> = word.iter().map(|id| (id.to_string(), json!(-100))).collect();
    let biased = |bias: Value| text(json!({ "temperature": 0, "logit_bias": bias }));
    assert_eq!(biased(json!({ "owl": -100 })), biased(banned.into()));
    let openai = json!({ "prompt": "You", "max_tokens": 3, "temperature": 0,
        "logit_bias": { "9": 1000 }, "logprobs": 1 });
    let tokens = server.post("/v1/completions", &openai).ok()["choices"][0]["logprobs"]["tokens"].clone();
    assert_eq!(tokens.as_array().unwrap().len(), 3);
    assert_eq!(tokens[0], tokens[2]);
}

#[test]
fn completions_take_texts_token_ids_and_lists() {
    let server = TestServer::start(|_| ());
    let tokens = server.engine().tokenizer().unwrap().encode("You may", Special::Parse, true);
    let ask = |prompt: Value, more: Value| {
        let mut body = json!({ "prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": true });
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        server.post("/v1/completions", &body)
    };
    let one = ask(json!("You may"), json!({})).ok();
    assert_eq!(one["object"], "text_completion");
    let text = one["choices"][0]["text"].as_str().unwrap().to_owned();
    assert!(!text.is_empty());
    assert_eq!(ask(json!(tokens), json!({})).ok()["choices"][0]["text"], text);
    let many = ask(json!(["You may", tokens, "The"]), json!({ "n": 2 })).ok();
    let many = many["choices"].as_array().unwrap();
    assert_eq!(many.len(), 6);
    for (at, choice) in many.iter().enumerate() {
        assert_eq!(choice["index"], at);
        assert!(at >= 4 || choice["text"] == text, "{choice}");
    }
    let echoed = ask(json!("You may"), json!({ "echo": true })).ok();
    assert_eq!(echoed["choices"][0]["text"], format!("You may{text}"));
    let chunks = ask(json!("You may"), json!({ "stream": true, "echo": true })).chunks();
    let streamed: String = chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(streamed, format!("You may{text}"));
    let ids =
        ask(json!("You may"), json!({ "return_token_ids": true })).ok()["choices"][0]["token_ids"].clone();
    let ids: Vec<u32> = serde_json::from_value(ids).unwrap();
    assert_eq!(ids.len(), 6);
    let shown = server.engine().tokenizer().unwrap().decode(&ids, false);
    assert_eq!(String::from_utf8_lossy(&shown).trim_start(), text.trim_start());
    let more = json!({ "stream": true, "return_token_ids": true });
    let chunks = ask(json!("You may"), more).chunks();
    let ids_of = |chunk: &Value| chunk["choices"][0]["token_ids"].as_array().cloned().unwrap_or_default();
    assert_eq!(chunks.iter().flat_map(ids_of).collect::<Vec<_>>(), ids);
    assert!(one["choices"][0].get("token_ids").is_none());
}

#[test]
fn llama_server_completion_has_its_fields() {
    let server = TestServer::start(|_| ());
    let ask = |more: Value| {
        let mut body = json!({ "prompt": "You may", "n_predict": 6, "temperature": 0, "ignore_eos": true });
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        server.post("/completion", &body)
    };
    let plain = ask(json!({ "n_probs": 3 })).ok();
    assert_eq!((&plain["stop"], &plain["stop_type"]), (&json!(true), &json!("limit")));
    assert_eq!(plain["tokens_predicted"], 6);
    assert_eq!(plain["completion_probabilities"].as_array().unwrap().len(), 6);
    for (name, value) in plain["timings"].as_object().unwrap() {
        assert!(value.as_f64().is_some_and(f64::is_finite), "{name}: {value}");
    }
    let probabilities = ask(json!({ "n_probs": 3, "post_sampling_probs": true })).ok();
    let first = &probabilities["completion_probabilities"][0];
    assert!(first["prob"].as_f64().unwrap() > 0.0 && first["top_probs"].as_array().unwrap().len() == 3);

    let streamed = ask(json!({ "stream": true, "return_progress": true })).data();
    let pieces: Vec<Value> = streamed.iter().map(|data| serde_json::from_str(data).unwrap()).collect();
    let progress = &pieces[0]["prompt_progress"];
    assert_eq!(progress["total"], plain["tokens_evaluated"]);
    // The first progress is sent before prefill.
    assert_eq!((&progress["processed"], &progress["time_ms"]), (&progress["cache"], &json!(0)));
    assert_eq!(pieces[1]["prompt_progress"]["processed"], progress["total"]);
    let text: String = pieces.iter().map(|piece| piece["content"].as_str().unwrap()).collect();
    assert_eq!(plain["content"], text);
    let (last, others) = pieces.split_last().unwrap();
    assert!(others.iter().all(|piece| piece["stop"] == false) && last["stop"] == true);

    let chosen = ask(json!({ "response_fields": ["content", "timings/predicted_n", "nothing"] })).ok();
    assert_eq!(chosen, json!({ "content": text, "timings/predicted_n": 6 }));
    let word: String = text.chars().skip(3).take(2).collect();
    let stopped = ask(json!({ "stop": ["never", word] })).ok();
    assert_eq!((&stopped["stop_type"], &stopped["stopping_word"]), (&json!("word"), &json!(word)));
    let evaluated = ask(json!({ "n_predict": 0 })).ok();
    assert_eq!((&evaluated["content"], &evaluated["tokens_predicted"]), (&json!(""), &json!(0)));
    let two = ask(json!({ "prompt": ["You may", "You may"] })).ok();
    assert_eq!(two.as_array().unwrap().iter().filter(|one| one["content"] == text.as_str()).count(), 2);
}

#[test]
fn tokenize_and_apply_template_endpoints_work() {
    let server = TestServer::start(|_| ());
    let tokenizer = server.engine().tokenizer().unwrap();
    let ids = tokenizer.encode("You may", Special::Parse, false);
    let answer = server.post("/tokenize", &json!({ "content": "You may" })).ok();
    assert_eq!(answer["tokens"], json!(ids));
    let mixed = json!({ "content": ["You", 9, " may", 5], "add_special": true });
    let encode = |text: &str, adds: bool| tokenizer.encode(text, Special::Parse, adds);
    let joined = [encode("You", true), vec![9], encode(" may", false), vec![5]].concat();
    assert_eq!(server.post("/tokenize", &mixed).ok()["tokens"], json!(joined));
    let pieces = server.post("/tokenize", &json!({ "content": "You may", "with_pieces": true })).ok();
    let text: String =
        pieces["tokens"].as_array().unwrap().iter().map(|one| one["piece"].as_str().unwrap()).collect();
    assert_eq!(text, "You may");
    assert_eq!(server.post("/tokenize", &json!({ "prompt": "You may" })).ok()["max_model_len"], N_CTX);
    assert_eq!(server.post("/detokenize", &json!({ "tokens": ids })).ok()["content"], "You may");
    let error = server.post("/detokenize", &json!({ "tokens": [1 << 30] })).error(400);
    assert_eq!(error["param"], "tokens");
    let (info, tokenizer) = (server.get("/tokenizer_info").ok(), server.engine().tokenizer().unwrap());
    let eos = tokenizer.eos().unwrap();
    let spelled = String::from_utf8_lossy(tokenizer.token_bytes(eos));
    assert_eq!((&info["eos_token"], &info["eos_token_id"]), (&json!(spelled), &json!(eos)));
    assert_eq!(
        (&info["vocab_size"], &info["model_max_length"]),
        (&json!(tokenizer.n_vocab()), &json!(N_CTX))
    );
    let talk = json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "Hi" }] }] });
    let prompt = server.post("/apply-template", &talk).ok()["prompt"].as_str().unwrap().to_owned();
    assert!(prompt.contains("Hi"), "{prompt}");
}

/// The token that ends a turn, written by the template and spelled in a message.
#[test]
fn messages_cannot_forge_the_end_of_a_turn() {
    let server = TestServer::start(|options| options.template = Some("chatml".into()));
    let tokenizer = server.engine().tokenizer().unwrap();
    let eos = tokenizer.eos().expect("the model has an end of text");
    let spelled = String::from_utf8(tokenizer.token_bytes(eos).to_vec()).unwrap();
    let tokens = |content: &str| {
        let body = json!({ "messages": [{ "role": "user", "content": content }] });
        let answer = server.post("/tokenize", &body).ok();
        serde_json::from_value::<Vec<u32>>(answer["tokens"].clone()).unwrap()
    };
    assert!(tokenizer.encode(&spelled, Special::Parse, false).contains(&eos));
    assert!(!tokens(&format!("a {spelled} b{spelled}")).contains(&eos), "{spelled}");
    // Text without control tokens is tokenised as usual.
    let plain = "<|im_start|>user\nHonest text.<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(tokens("Honest text."), tokenizer.encode(plain, Special::Parse, true));
    // The protection does not change the text.
    let body = json!({ "messages": [{ "role": "user", "content": spelled }] });
    let prompt = server.post("/apply-template", &body).ok()["prompt"].clone();
    assert_eq!(prompt, format!("<|im_start|>user\n{spelled}<|im_end|>\n<|im_start|>assistant\n"));
    // The prompt of a completion may have control tokens.
    let ids = server.post("/tokenize", &json!({ "content": spelled })).ok()["tokens"].clone();
    assert_eq!(ids, json!([eos]));
}

#[test]
fn last_assistant_message_is_continued() {
    let server = TestServer::start(|_| ());
    let apply = |more: Value| {
        let mut body = json!({ "messages": [
            { "role": "user", "content": "Hi" }, { "role": "assistant", "content": "I say" }] });
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        server.post("/apply-template", &body)
    };
    let prompt = apply(json!({})).ok()["prompt"].as_str().unwrap().to_owned();
    assert!(prompt.ends_with("I say"), "{prompt}");
    let asked = apply(json!({ "continue_final_message": true, "add_generation_prompt": false })).ok();
    assert_eq!(asked["prompt"], prompt);
    let closed =
        apply(json!({ "continue_final_message": false })).ok()["prompt"].as_str().unwrap().to_owned();
    assert!(!closed.ends_with("I say"), "{closed}");
    let both = apply(json!({ "continue_final_message": true, "add_generation_prompt": true })).error(400);
    assert_eq!(both["param"], "continue_final_message");
    let twice = json!({ "messages": [
        { "role": "assistant", "content": "a" }, { "role": "assistant", "content": "b" }] });
    assert_eq!(server.post("/apply-template", &twice).error(400)["param"], "messages");
}

#[test]
fn server_describes_its_model_and_state() {
    let server = TestServer::start(|options| options.alias = Some("small/one".into()));
    let props = server.get("/props").ok();
    assert_eq!((&props["model_alias"], &props["total_slots"]), (&json!("small/one"), &json!(SLOTS)));
    assert_eq!(props["default_generation_settings"]["n_ctx"], N_CTX);
    assert!(!props.to_string().contains(env!("CARGO_MANIFEST_DIR")), "a path of this machine");
    let models = server.get("/v1/models").ok();
    assert_eq!(models["data"][0]["id"], "small/one");
    assert_eq!(server.get("/v1/models/small/one").ok(), models["data"][0]);
    assert_eq!(server.get("/v1/models/other").error(404)["code"], "model_not_found");
    let n_params = models["data"][0]["meta"]["n_params"].as_f64().unwrap();
    let listed = models["models"][0]["details"].clone();
    for details in [server.post("/api/show", &json!({})).ok()["details"].clone(), listed] {
        assert_eq!(details["parameter_size"], format!("{:.2}M", n_params / 1e6));
        assert_eq!(
            (&details["quantization_level"], &details["family"]),
            (&json!("I2_S"), &json!("bitnet-b1.58"))
        );
    }
    let slots = server.get("/slots").ok();
    assert_eq!(slots.as_array().unwrap().len(), SLOTS);
    assert_eq!(server.get("/v1/health").ok(), json!({ "status": "ok" }));
    let page = server.get("/");
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    let tag = page.header("etag").unwrap();
    let again =
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: {tag}\r\nConnection: close\r\n\r\n");
    assert_eq!(server.send(&again).status, 304);
    server.still_answers();
    let metrics = server.get("/metrics");
    assert!(metrics.header("process-start-time-unix").is_some());
    // Header names have their usual capitalisation.
    let mut raw = String::new();
    let mut stream = server.connect();
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    stream.read_to_string(&mut raw).unwrap();
    assert!(raw.contains("\r\nContent-Type: application/json\r\n"), "{raw}");
    assert_eq!(server.metric("llamacpp:tokens_predicted_total"), 2.0);
    assert_eq!(server.metric("vllm:time_to_first_token_seconds_count"), 1.0);
    assert_eq!(server.metric("vllm:request_success_total{finished_reason=\"length\"}"), 1.0);
}

/// Drafts only change the number of steps, which timings and metrics report.
#[test]
fn drafts_are_counted_and_keep_the_text() {
    let plain = TestServer::start(|_| ());
    let drafting =
        TestServer::with_engine(engine_with(|options| EngineOptions { drafts: 12, ..options }), |_| ());
    let prompt: Vec<u32> = (1..40).chain(1..40).collect();
    let ask = |server: &TestServer, temperature: f64| {
        let body = json!({ "prompt": prompt, "n_predict": 80, "temperature": temperature, "seed": 4,
            "ignore_eos": true });
        server.post("/completion", &body).ok()
    };
    let mut sums = [0, 0];
    for temperature in [0.0, 0.7] {
        let (want, got) = (ask(&plain, temperature), ask(&drafting, temperature));
        assert_eq!(got["content"], want["content"]);
        assert!(want["timings"].get("draft_n").is_none());
        for (sum, name) in sums.iter_mut().zip(["draft_n", "draft_n_accepted"]) {
            *sum += got["timings"][name].as_u64().unwrap_or_default();
        }
    }
    assert!(sums[0] >= sums[1] && sums[1] > 0, "{sums:?}");
    for (sum, name) in sums.iter().zip(["draft_tokens", "accepted_tokens"]) {
        for prefix in ["llamacpp", "vllm"] {
            let metric = format!("{prefix}:spec_decode_num_{name}_total");
            assert_eq!(drafting.metric(&metric), *sum as f64);
            assert_eq!(plain.metric(&metric), 0.0);
        }
    }
    let n_drafts = drafting.metric("vllm:spec_decode_num_drafts_total");
    let first = drafting.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"}");
    assert!(n_drafts <= sums[0] as f64 && (1.0..=n_drafts).contains(&first), "{first} of {n_drafts}");
}

#[test]
fn prompt_prefixes_are_reused() {
    let server = TestServer::start(|_| ());
    let prompt: Vec<u32> = (1..200).collect();
    let ask = |more: Value| {
        let mut body = json!({ "prompt": prompt, "n_predict": 2 });
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        server.post("/completion", &body).ok()["timings"]["cache_n"].clone()
    };
    assert_eq!(ask(json!({})), 0);
    assert_eq!(ask(json!({})), 192);
    assert_eq!(ask(json!({ "cache_prompt": false })), 0);
    assert_eq!(ask(json!({ "cache_salt": "another" })), 0);
}

#[test]
fn stop_token_ids_and_min_tokens_bound_the_answer() {
    let server = TestServer::start(|_| ());
    let body = json!({ "prompt": [5, 6, 7], "n_predict": 12, "temperature": 1, "seed": 3, "ignore_eos": true,
        "return_tokens": true });
    let with = |more: Value| {
        let mut body = body.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/completion", &body).ok()
    };
    let plain = with(json!({}));
    let tokens = plain["tokens"].as_array().unwrap();
    let end = (2..tokens.len()).find(|at| !tokens[..*at].contains(&tokens[*at])).unwrap();
    let stopped = with(json!({ "stop_token_ids": [tokens[end]] }));
    assert_eq!(stopped["tokens"].as_array().unwrap(), &tokens[..end]);
    assert_eq!(stopped["stop_type"], "eos");
    let longer = with(json!({ "stop_token_ids": [tokens[end]], "min_tokens": 12 }));
    let longer = longer["tokens"].as_array().unwrap();
    assert!(longer.len() == 12 && longer[..end] == tokens[..end] && !longer.contains(&tokens[end]));

    let text = plain["content"].as_str().unwrap();
    let word: String = text.chars().skip(2).take(2).collect();
    let shown = with(json!({ "stop": [word], "include_stop_str_in_output": true }));
    let shown = shown["content"].as_str().unwrap();
    assert!(shown.ends_with(&word) && text.starts_with(shown), "{shown:?} of {text:?}");
    assert_eq!(with(json!({ "stop": [word], "min_tokens": 12 }))["content"], text);
    for (name, bad) in [("stop_token_ids", json!([1e9])), ("min_tokens", json!(-1))] {
        let mut body = body.clone();
        body[name] = bad;
        assert_eq!(server.post("/completion", &body).error(400)["param"], name);
    }
}

#[test]
fn stop_text_may_spell_a_control_token() {
    let server = TestServer::start(|_| ());
    let tokenizer = server.engine().tokenizer().unwrap();
    let bos = tokenizer.bos().unwrap();
    let stop = String::from_utf8_lossy(tokenizer.token_bytes(bos));
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    // With this bias the model generates only this token.
    let body = json!({ "prompt": [5], "messages": messages, "max_tokens": 5,
        "logit_bias": { bos.to_string(): 1e6 }, "stop": [stop], "stop_sequences": [stop] });
    let native = server.post("/completion", &body).ok();
    assert_eq!((&native["stop_type"], &native["stopping_word"]), (&json!("word"), &json!(stop)));
    assert_eq!((&native["tokens_predicted"], &native["content"]), (&json!(1), &json!("")));
    for path in ["/v1/completions", "/v1/chat/completions"] {
        let answer = server.post(path, &body).ok();
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{path}");
        assert_eq!(answer["usage"]["completion_tokens"], 1, "{path}");
    }
    let message = server.post("/v1/messages", &body).ok();
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
}

#[test]
fn prompt_logprobs_equal_those_of_generation() {
    let server = TestServer::start(|_| ());
    let prompt: Vec<u64> = (0..70).map(|i| i * i * 7 % 500).collect();
    let body =
        json!({ "prompt": prompt, "n_predict": 9, "temperature": 0, "ignore_eos": true, "n_probs": 3 });
    let said = server.post("/completion", &body).ok();
    let said = said["completion_probabilities"].as_array().unwrap();
    let all: Vec<Value> =
        prompt.iter().map(|id| json!(id)).chain(said.iter().map(|token| token["id"].clone())).collect();
    let body = json!({ "prompt": all, "echo": true, "logprobs": 2, "max_tokens": 0, "n": 2 });
    let answer = server.post("/v1/completions", &body).ok();
    assert_eq!(
        (&answer["usage"]["completion_tokens"], &answer["usage"]["prompt_tokens"]),
        (&json!(0), &json!(79))
    );
    let logprobs = &answer["choices"][0]["logprobs"];
    let scores = logprobs["token_logprobs"].as_array().unwrap();
    assert_eq!((scores.len(), &scores[0]), (79, &Value::Null));
    let generated: Vec<&Value> = said.iter().map(|token| &token["logprob"]).collect();
    assert_eq!(scores[70..].iter().collect::<Vec<_>>(), generated);
    assert_eq!(answer["choices"][1]["logprobs"], *logprobs);
    assert!(logprobs["top_logprobs"][5].as_object().unwrap().len() <= 2);
    let pieces: String =
        logprobs["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
    assert!(pieces.chars().count() >= answer["choices"][0]["text"].as_str().unwrap().chars().count());

    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let chunks = server.post("/v1/completions", &streamed).chunks();
    let first = chunks.iter().find(|chunk| chunk["choices"][0]["index"] == 0).unwrap();
    assert_eq!(first["choices"][0]["text"], answer["choices"][0]["text"]);
    assert_eq!(first["choices"][0]["logprobs"], *logprobs);

    // With two generated tokens after the prompt, and with a prompt of one token, which has no logprob.
    let on = json!({ "prompt": prompt, "echo": true, "logprobs": 0, "max_tokens": 2, "temperature": 0 });
    let on = server.post("/v1/completions", &on).ok();
    assert_eq!(on["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len(), 72);
    let one = json!({ "prompt": [5], "echo": true, "logprobs": 1, "max_tokens": 0 });
    let one = server.post("/v1/completions", &one).ok();
    assert_eq!(one["choices"][0]["logprobs"]["token_logprobs"], json!([null]));
}
