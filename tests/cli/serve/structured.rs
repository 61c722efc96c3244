//! Structured output: grammars, schemas and tool calls. The model has random weights, so well-formed output
//! comes from the grammar.

use serde_json::{Value, json};

use super::client::{TestServer, engine};

fn chat(more: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "Go." }], "max_tokens": 60, "seed": 3 });
    let Value::Object(more) = more else { panic!("an object") };
    more.into_iter().for_each(|(name, value)| body[name] = value);
    body
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_default()
}

#[test]
fn every_kind_of_grammar_is_enforced() {
    let server = TestServer::start(|_| ());
    let schema = json!({ "type": "object", "properties": { "a": { "enum": [1, 2] } }, "required": ["a"] });
    let is_schema = |text: &str| {
        let json: Value = serde_json::from_str(text).unwrap_or_default();
        json == json!({ "a": 1 }) || json == json!({ "a": 2 })
    };
    let is_word = |text: &str| text == "yes" || text == "no";
    type Check<'a> = &'a dyn Fn(&str) -> bool;
    let cases: Vec<(Value, Check<'_>)> = vec![
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": schema } } }),
            &is_schema,
        ),
        (json!({ "response_format": { "type": "json_object", "schema": schema } }), &is_schema),
        (json!({ "response_format": { "type": "json_schema", "schema": schema } }), &is_schema),
        (json!({ "response_format": { "json_schema": { "schema": schema } } }), &is_schema),
        (
            json!({ "response_format": { "type": "json_object", "json_schema": { "schema": schema } } }),
            &is_schema,
        ),
        (json!({ "json_schema": schema }), &is_schema),
        (json!({ "guided_json": schema.to_string() }), &is_schema),
        (json!({ "structured_outputs": { "json": schema } }), &is_schema),
        (json!({ "grammar": "root ::= \"yes\" | \"no\"" }), &is_word),
        (json!({ "structured_outputs": { "choice": ["yes", "no"] } }), &is_word),
        (json!({ "guided_regex": "yes|no" }), &is_word),
    ];
    for (fields, check) in &cases {
        let answer = server.post("/v1/chat/completions", &chat(fields.clone())).ok();
        assert!(check(content(&answer)), "{fields}: {answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{fields}");
    }
    let answer = server.post(
        "/completion",
        &json!({ "prompt": "A", "n_predict": 9, "grammar": "root ::= \"yes\" | \"no\"" }),
    );
    assert!(is_word(answer.ok()["content"].as_str().unwrap()));
    let body = json!({ "prompt": ["A", "B"], "max_tokens": 9, "n": 2,
        "structured_outputs": { "choice": ["yes", "no"] } });
    let answer = server.post("/v1/completions", &body).ok();
    let choices = answer["choices"].as_array().unwrap();
    assert!(choices.len() == 4 && choices.iter().all(|choice| is_word(choice["text"].as_str().unwrap())));
}

/// The token that completes a grammar is listed, also if it is the last one that the limit allows.
#[test]
fn every_token_of_structured_text_is_listed() {
    let server = TestServer::start(|_| ());
    let choice = json!({ "choice": ["yes", "no"] });
    let joined = |entries: &Value| -> String {
        entries.as_array().unwrap().iter().map(|entry| entry["token"].as_str().unwrap()).collect()
    };
    let read = |ids: &Value| server.post("/detokenize", &json!({ "tokens": ids })).ok()["content"].clone();
    let fields = json!({ "structured_outputs": choice, "logprobs": true, "return_token_ids": true });
    let answer = server.post("/v1/chat/completions", &chat(fields.clone())).ok();
    let n_tokens = answer["usage"]["completion_tokens"].as_u64().unwrap();
    let mut at_the_limit = chat(fields);
    at_the_limit["max_tokens"] = n_tokens.into();
    for answer in [&answer, &server.post("/v1/chat/completions", &at_the_limit).ok()] {
        let choice = &answer["choices"][0];
        assert!(["yes", "no"].contains(&content(answer)), "{answer}");
        assert_eq!(joined(&choice["logprobs"]["content"]), content(answer), "{answer}");
        assert_eq!(choice["token_ids"].as_array().unwrap().len() as u64, n_tokens, "{answer}");
        assert_eq!(read(&choice["token_ids"]), content(answer));
        assert_eq!(choice["finish_reason"], "stop");
    }
    let native = json!({ "prompt": "A", "n_predict": 60, "structured_outputs": choice, "n_probs": 1,
        "return_tokens": true });
    let answer = server.post("/completion", &native).ok();
    assert_eq!(joined(&answer["completion_probabilities"]), answer["content"].as_str().unwrap());
    assert_eq!(read(&answer["tokens"]), answer["content"]);
    let old = json!({ "prompt": "A", "max_tokens": 60, "structured_outputs": choice, "logprobs": 1 });
    let choice = server.post("/v1/completions", &old).ok()["choices"][0].clone();
    let tokens = choice["logprobs"]["tokens"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(choice["text"], text);
    let ollama = json!({ "prompt": "A", "raw": true, "stream": false, "options": { "num_predict": 60 },
        "format": { "enum": ["yes", "no"] } });
    let answer = server.post("/api/generate", &ollama).ok();
    let text = read(&answer["context"]).as_str().unwrap().to_owned();
    assert!(text.ends_with(answer["response"].as_str().unwrap()), "{text}: {answer}");
}

/// A keyword that limits single values never fails a request whose schema is not strict, in any API. In a
/// strict one that cannot be enforced it is refused with the name of its tool, the place and the keyword.
#[test]
fn unenforceable_schemas_fail_only_if_strict() {
    let server = TestServer::with_engine(engine(1024), |_| ());
    let one = |a: Value| json!({ "type": "object", "properties": { "a": a }, "required": ["a"] });
    let pattern = one(json!({ "type": "string", "pattern": "^(?!-)[a-z-]+$" }));
    let loose = [
        pattern.clone(),
        one(json!({ "type": "string", "pattern": "^((25[0-5]|[0-9]{1,2})\\.?\\b){4}$" })),
        one(json!({ "type": "integer", "enum": ["1", "2"] })),
        one(json!({ "type": "number", "maximum": 3.4028234663852886e38 })),
        one(json!({ "type": "array", "items": {}, "uniqueItems": true })),
        one(json!(null)),
        json!({ "type": "object", "properties": null }),
        json!({ "type": "object", "properties": {}, "required": null }),
        json!({ "type": "object", "properties": [] }),
        json!([]),
    ];
    let chat_tool = |schema: &Value, strict: bool| {
        let function = json!({ "name": "look", "parameters": schema, "strict": strict });
        chat(json!({ "max_tokens": 2, "tools": [{ "type": "function", "function": function }] }))
    };
    for schema in &loose {
        let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
        let tool = json!({ "type": "function", "name": "look", "parameters": schema });
        let user = json!([{ "role": "user", "content": "Go." }]);
        let bodies = [
            ("/v1/chat/completions", chat_tool(schema, false)),
            ("/v1/chat/completions", chat(json!({ "max_tokens": 2, "response_format": format }))),
            ("/v1/responses", json!({ "input": "Go.", "max_output_tokens": 16, "tools": [tool] })),
            (
                "/v1/messages",
                json!({ "messages": user, "max_tokens": 2,
                    "tools": [{ "name": "look", "input_schema": schema }] }),
            ),
            ("/completion", json!({ "prompt": "A", "n_predict": 2, "json_schema": schema })),
        ];
        for (path, body) in bodies {
            let answer = server.post(path, &body);
            assert_eq!(answer.status, 200, "{path}: {body}: {}", answer.text);
        }
    }
    let ollama = json!({ "prompt": "A", "raw": true, "stream": false, "options": { "num_predict": 2 },
        "format": pattern });
    assert_eq!(server.post("/api/generate", &ollama).status, 200);
    // A schema with an invalid type has nothing to enforce.
    for schema in [json!(123), json!({ "type": 123 }), json!({ "type": "hiccup" })] {
        let format = json!({ "type": "json_object", "schema": schema });
        let error = server.post("/v1/chat/completions", &chat(json!({ "response_format": format })));
        assert_eq!(error.error(400)["param"], "response_format.schema");
    }
    let error = server.post("/v1/chat/completions", &chat_tool(&pattern, true)).error(400);
    let message = error["message"].as_str().unwrap();
    let named = "the tool `look` has the keyword `pattern` at #/properties/a, which";
    assert!(message.contains(named) && !message.contains("%json"), "{message}");
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "strict": true,
        "schema": pattern } });
    let error = server.post("/v1/chat/completions", &chat(json!({ "response_format": format }))).error(400);
    assert!(error["message"].as_str().unwrap().contains("`pattern` at #/properties/a"), "{error}");
}

/// The form that the schema of an answer describes is enforced, or the request is refused with the reason, in
/// every API. The schema of a tool is softened, since it comes with others.
#[test]
fn unenforceable_forms_of_answers_are_refused() {
    let server = TestServer::with_engine(engine(1024), |_| ());
    let schema = json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/none" } } });
    let user = json!([{ "role": "user", "content": "Go." }]);
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": schema } });
    let format = json!({ "type": "json_schema", "schema": schema });
    let named = json!({ "type": "json_schema", "json_schema": { "schema": schema } });
    let (chat_path, native) = ("/v1/chat/completions", json!({ "prompt": "A", "n_predict": 2 }));
    let of_native = |field: &str, value: &Value| {
        let mut body = native.clone();
        body[field] = value.clone();
        body
    };
    let refused = [
        (chat_path, "response_format", chat(json!({ "response_format": named }))),
        (chat_path, "response_format", chat(json!({ "response_format": format }))),
        (chat_path, "response_format", chat(json!({ "response_format": named, "tools": [tool] }))),
        (chat_path, "guided_json", chat(json!({ "guided_json": schema }))),
        (chat_path, "structured_outputs.json", chat(json!({ "structured_outputs": { "json": schema } }))),
        ("/v1/completions", "response_format", of_native("response_format", &named)),
        ("/completion", "json_schema", of_native("json_schema", &schema)),
        (
            "/v1/messages",
            "output_config.format.schema",
            json!({ "messages": user, "max_tokens": 2, "output_config": { "format": format } }),
        ),
        ("/v1/responses", "text.format", json!({ "input": "Go.", "text": { "format": format } })),
        ("/api/chat", "format", json!({ "messages": user, "stream": false, "format": schema })),
        ("/api/generate", "format", json!({ "prompt": "Go.", "stream": false, "format": schema })),
    ];
    for (path, field, body) in refused {
        let answer = server.post(path, &body);
        let why = "`$ref` at #/properties/a, which cannot be enforced: there is nothing at `#/$defs/none`";
        assert_eq!(answer.status, 400, "{path}: {body}");
        assert!(answer.text.contains(why) && answer.text.contains(field), "{path}: {}", answer.text);
    }
    let loose = chat(json!({ "tools": [tool], "max_tokens": 2 }));
    assert_eq!(server.post(chat_path, &loose).status, 200);
}

/// A function without parameters has no arguments.
#[test]
fn tools_without_parameters_are_called_without_arguments() {
    let server = TestServer::with_engine(engine(1024), |_| ());
    let less = server.post("/tokenize", &json!({ "content": "<" })).ok()["tokens"][0].to_string();
    for parameters in [json!(null), json!({})] {
        let function = json!({ "name": "ping", "parameters": parameters });
        let body = chat(json!({ "tools": [{ "type": "function", "function": function }],
            "tool_choice": "required", "parallel_tool_calls": false, "logit_bias": { &less: -100 } }));
        let answer = server.post("/v1/chat/completions", &body).ok();
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(arguments, json!({}), "{answer}");
    }
}

#[test]
fn json_whitespace_is_compact_or_free() {
    let server = TestServer::start(|_| ());
    let schema = json!({ "type": "array", "items": { "enum": [1, 2] }, "minItems": 9, "maxItems": 9 });
    let line = server.post("/v1/chat/completions", &chat(json!({ "guided_json": schema }))).ok();
    assert!(!content(&line).contains('\n') && !content(&line).contains("  "), "{line}");
    let has_lines = (0..20).any(|seed| {
        let fields = json!({ "guided_json": schema, "json_whitespace": "free", "seed": seed,
            "temperature": 2, "max_tokens": 200 });
        content(&server.post("/v1/chat/completions", &chat(fields)).ok()).contains('\n')
    });
    assert!(has_lines);
    let wrong = chat(json!({ "guided_json": schema, "json_whitespace": "none" }));
    assert_eq!(server.post("/v1/chat/completions", &wrong).error(400)["param"], "json_whitespace");
}

/// Tool calls, streamed and not: the name comes once, and the pieces of the arguments join to JSON of the
/// schema.
#[test]
fn tool_calls_follow_choice_and_schema() {
    // With this small vocabulary tools take many tokens.
    let server = TestServer::with_engine(engine(1024), |_| ());
    let tool = |name: &str| {
        json!({ "type": "function", "function": { "name": name, "parameters": { "type": "object",
            "properties": { "c": { "enum": ["x", "y"] } }, "required": ["c"],
            "additionalProperties": false } } })
    };
    let named = json!({ "type": "function", "function": { "name": "g" } });
    // Before a required call the model may think, and a random model would not stop.
    let less = server.post("/tokenize", &json!({ "content": "<" })).ok()["tokens"][0].to_string();
    let body =
        chat(json!({ "tools": [tool("f"), tool("g")], "tool_choice": named, "logit_bias": { less: -100 } }));
    let answer = server.post("/v1/chat/completions", &body).ok();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("g")));
    assert!(choice["message"]["content"].is_null());
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["c"] == "x" || arguments["c"] == "y", "{arguments}");

    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let chunks = server.post("/v1/chat/completions", &streamed).chunks();
    let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    let calls: Vec<&Value> = deltas.iter().filter_map(|delta| delta.get("tool_calls")).collect();
    assert!(calls.iter().all(|calls| calls[0]["index"] == 0));
    let names: Vec<&str> = calls.iter().filter_map(|calls| calls[0]["function"]["name"].as_str()).collect();
    assert_eq!(names, ["g"]);
    let pieces: String =
        calls.iter().filter_map(|calls| calls[0]["function"]["arguments"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&pieces).unwrap(), arguments);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

    // If the model may call but does not, its answer follows the schema given along with the tools.
    let schema = json!({ "type": "json_schema", "json_schema": { "schema": { "enum": [1, 2] } } });
    let bias = body["logit_bias"].clone();
    let fields = json!({ "tools": [tool("f")], "response_format": schema, "logit_bias": bias });
    let answer = server.post("/v1/chat/completions", &chat(fields)).ok();
    assert!(["1", "2"].contains(&content(&answer)), "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let other = chat(json!({ "tools": [tool("f")], "guided_regex": "a" }));
    assert_eq!(server.post("/v1/chat/completions", &other).error(400)["param"], "guided_regex");

    // The next turn has the call and the output of the tool.
    let mut next = chat(json!({ "tools": [tool("g")], "tool_choice": "none", "max_tokens": 2 }));
    let talk = next["messages"].as_array_mut().unwrap();
    talk.push(choice["message"].clone());
    talk.push(json!({ "role": "tool", "tool_call_id": call["id"], "content": "7" }));
    assert_eq!(server.post("/v1/chat/completions", &next).status, 200);
    let shown = server.post("/apply-template", &next).ok();
    assert!(shown["prompt"].as_str().unwrap().contains("tool_response"), "{shown}");

    // An answer that is cut off within a call.
    let mut short = body;
    short["max_tokens"] = 3.into();
    let answer = server.post("/v1/chat/completions", &short).ok();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

/// The template decides the format of calls, for the grammar and for the parser.
#[test]
fn tool_calls_use_the_format_of_the_template() {
    let function = json!({ "name": "g", "parameters": { "type": "object", "required": ["c"],
        "properties": { "c": { "enum": ["x", "y"] } }, "additionalProperties": false } });
    for words in ["[TOOL_CALLS] [ARGS]", "[func_name1("] {
        let template = format!("{{# {words} #}}{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}");
        let server = TestServer::start(|options| options.template = Some(template));
        let less = server.post("/tokenize", &json!({ "content": "<" })).ok()["tokens"][0].to_string();
        let body = chat(json!({ "tools": [{ "type": "function", "function": function }],
            "tool_choice": "required", "parallel_tool_calls": false, "logit_bias": { less: -100 } }));
        let answer = server.post("/v1/chat/completions", &body).ok();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{words}: {answer}");
        assert!(choice["message"]["content"].is_null(), "{words}: {answer}");
        let call = &choice["message"]["tool_calls"][0]["function"];
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert!(call["name"] == "g" && (arguments["c"] == "x" || arguments["c"] == "y"), "{words}: {answer}");
    }
}

/// Channels are parsed without tools, too.
#[test]
fn channels_are_split_into_reasoning_and_answer() {
    let template = "{# <|channel|> <|message|> <|call|> #}{% for m in messages %}{{ m.content }}{% endfor %}";
    let server = TestServer::with_engine(engine(512), |options| options.template = Some(template.into()));
    let said = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes";
    let body = chat(json!({ "structured_outputs": { "choice": [said] }, "max_tokens": 200 }));
    let answer = server.post("/v1/chat/completions", &body).ok();
    let message = &answer["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], content(&answer)), (&json!("hm"), "yes"), "{answer}");
    let mut streamed = body;
    streamed["stream"] = true.into();
    let chunks = server.post("/v1/chat/completions", &streamed).chunks();
    let joined = |key: &str| -> String {
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][key].as_str()).collect()
    };
    assert_eq!((joined("reasoning_content").as_str(), joined("content").as_str()), ("hm", "yes"));
}

/// Sequences with and without grammars run in the same steps, and each gives the text that it gives alone.
#[test]
fn grammars_run_next_to_free_text() {
    let server = TestServer::start(|_| ());
    let bodies: Vec<Value> = (0..6)
        .map(|i| match i % 2 {
            0 => chat(json!({ "seed": i, "max_tokens": 12, "ignore_eos": true })),
            _ => chat(json!({ "seed": i, "guided_regex": "[a-f]{5,9}" })),
        })
        .collect();
    let say = |body: &Value| content(&server.post("/v1/chat/completions", body).ok()).to_owned();
    let alone: Vec<String> = bodies.iter().map(say).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = bodies.iter().map(|body| scope.spawn(|| say(body))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
    for text in alone.iter().skip(1).step_by(2) {
        assert!((5..=9).contains(&text.len()) && text.chars().all(|c| ('a'..='f').contains(&c)), "{text:?}");
    }
}

/// Deep, long, endless and invalid grammars: each is refused or followed, and a good request after it is
/// answered.
#[test]
fn hostile_grammars_do_no_harm() {
    let server = TestServer::start(|_| ());
    let deep = (0..60).fold(json!({}), |inner, _| json!({ "type": "object", "properties": { "a": inner } }));
    let link = |at: usize| (format!("a{at}"), json!({ "$ref": format!("#/$defs/a{}", at + 1) }));
    let chain: Value = (0..500).map(link).collect::<serde_json::Map<_, _>>().into();
    let twice: String = (1..16).map(|at| format!("r{at} ::= r{} r{}\n", at + 1, at + 1)).collect();
    let words: Vec<String> = (0..20_000).map(|at| format!("word{at}")).collect();
    let hostile = [
        json!({ "json_schema": deep }),
        json!({ "json_schema": { "$ref": "#/$defs/a0", "$defs": chain } }),
        json!({ "json_schema": { "$ref": "#" } }),
        json!({ "json_schema": { "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/a" } } } }),
        json!({ "json_schema": { "$ref": "file:///etc/passwd" } }),
        json!({ "json_schema": { "enum": words } }),
        json!({ "json_schema": { "type": "string", "minLength": 1_000_000_000 } }),
        json!({ "json_schema": { "type": "array", "minItems": -1, "maxItems": 1e300 } }),
        json!({ "json_schema": { "type": "string", "pattern": "(?=a)\\1" } }),
        json!({ "json_schema": { "x-guidance": { "item_separator": "(" }, "type": "array" } }),
        json!({ "guided_regex": "((a{1,1000}){1,1000}){1,1000}" }),
        json!({ "guided_regex": "(".repeat(5000) + &")".repeat(5000) }),
        json!({ "guided_regex": "(a|a)*".repeat(300) + "b" }),
        json!({ "grammar": "root ::= root \"a\" | root" }),
        json!({ "grammar": "root ::= \"a\"{1000000000}" }),
        json!({ "grammar": "root ::= ".to_owned() + &"(".repeat(20_000) }),
        json!({ "grammar": "root ::= missing" }),
        json!({ "grammar": format!("root ::= r1 r1\n{twice}r16 ::= [a-z]?\n") }),
        json!({ "json_schema": { "type": "integer", "multipleOf": 99_999_989 } }),
        json!({ "grammar": "start: %json { \"$ref\": \"http://127.0.0.1:9/\" }" }),
    ];
    for fields in hostile {
        let mut body = json!({ "prompt": "You", "n_predict": 3 });
        fields.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        let answer = server.post("/completion", &body);
        let shown: String = fields.to_string().chars().take(80).collect();
        assert!([200, 400].contains(&answer.status), "{shown}: {} {}", answer.status, answer.text);
        server.still_answers();
    }
}
