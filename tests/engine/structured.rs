//! Constrained generation with the demo model and a model of random weights: the text matches the schema, and
//! is the same in a batch as alone.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};
use sterna::Error;
use sterna::engine::{
    BatchOptions, Engine, EngineOptions, Event, GenerateOptions, Grammar, NgramLookup, Request,
    SamplerOptions, SeqId, Speculation, StopReason,
};
use sterna::gguf::Gguf;
use sterna::grammar::{Compiled, Grammars, Source};
use sterna::tokenizer::{Special, Tokenizer};
use sterna::tools::{
    Choice, Delta, Format, Parser, ParserOptions, THINK, Thoughts, Tool, Wanted, json_after_thoughts,
    json_in_channels,
};

use super::speculation::Free;

fn engine_of(gguf: Gguf, change: impl FnOnce(&mut EngineOptions)) -> Engine {
    let mut options = EngineOptions {
        n_ctx: Some(512),
        threads: Some(1),
        n_seqs: 4,
        batch: 64,
        ..EngineOptions::default()
    };
    change(&mut options);
    let backend = support::case::backend("cpu", 1).unwrap();
    Engine::on_backend(gguf, &options, backend, |_| ()).unwrap()
}

fn random(change: impl FnOnce(&mut EngineOptions)) -> Engine {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    engine_of(Gguf::open(&path).unwrap(), change)
}

/// The random model, and the demo model if it is in this build.
fn engines() -> Vec<(&'static str, Engine)> {
    let demo =
        sterna::demo::model().map(|bytes| ("demo", engine_of(Gguf::from_bytes(bytes).unwrap(), |_| ())));
    [("random", random(|_| ()))].into_iter().chain(demo).collect()
}

fn options(grammar: Arc<dyn Grammar>, seed: u64, max_tokens: usize) -> GenerateOptions {
    let sampler = SamplerOptions { seed: Some(seed), ..SamplerOptions::default() };
    GenerateOptions {
        sampler,
        grammar: Some(grammar),
        max_tokens: Some(max_tokens),
        ..GenerateOptions::default()
    }
}

/// Generates text with a new session; also returns the stop reason.
fn generate(engine: &Engine, prompt: &str, options: &GenerateOptions) -> (String, StopReason) {
    let prompt = engine.tokenizer().unwrap().encode(prompt, Special::Parse, true);
    let mut session = engine.session().unwrap();
    let mut generation = session.generate(&prompt, options).unwrap();
    let text = generation.by_ref().map(Result::unwrap).collect();
    (text, generation.stop_reason().unwrap())
}

fn schemas() -> Vec<Value> {
    vec![
        json!({
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "age": {"type": "integer", "minimum": 0, "maximum": 130},
                "mood": {"enum": ["calm", "wild"]},
                "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2},
            },
            "required": ["name", "age", "mood", "tags"],
            "additionalProperties": false,
        }),
        json!({
            "type": "object",
            "properties": {
                "left": {"$ref": "#/$defs/leaf"},
                "right": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"type": "null"}]},
            },
            "required": ["left", "right"],
            "additionalProperties": false,
            "$defs": {"leaf": {
                "type": "array",
                "prefixItems": [{"type": "boolean"}, {"const": "x"}],
                "items": false,
                "minItems": 2,
            }},
        }),
        json!({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
        json!({"type": "string", "format": "date"}),
    ]
}

#[test]
fn texts_match_their_schema() {
    for (name, engine) in engines() {
        let grammars = Grammars::new(engine.tokenizer().unwrap());
        for schema in schemas() {
            let validator = jsonschema::validator_for(&schema).unwrap();
            let source = Source::JsonSchema { schema: schema.clone(), strict: true };
            let compiled = Arc::new(grammars.compile(&source).unwrap());
            for seed in 0..4 {
                let (text, end) =
                    generate(&engine, "Once upon a time", &options(compiled.clone(), seed, 300));
                assert_eq!(end, StopReason::EndOfText, "{name}, {schema}: {text}");
                let value: Value =
                    serde_json::from_str(&text).unwrap_or_else(|err| panic!("{name}: {text}: {err}"));
                assert!(validator.is_valid(&value), "{name}, {schema}: {text}");
            }
        }
    }
}

#[test]
fn complete_texts_end_without_an_end_token() {
    let engine = random(|_| ());
    let grammars = Grammars::new(engine.tokenizer().unwrap());
    let compiled = Arc::new(grammars.compile(&Source::Choice(vec!["yes".into(), "no".into()])).unwrap());
    // Even if end tokens are forbidden, and if the limit is reached at the same time.
    let longest = engine.tokenizer().unwrap().encode("yes", Special::AsText, false).len();
    for (ignore_eos, max_tokens) in [(false, 50), (true, 50), (false, 3)] {
        let options = GenerateOptions { ignore_eos, ..options(compiled.clone(), 1, max_tokens.max(longest)) };
        let (text, end) = generate(&engine, "Well", &options);
        assert!(["yes", "no"].contains(&text.as_str()), "{text}");
        assert_eq!(end, StopReason::EndOfText);
    }
}

#[test]
fn bias_without_allowed_tokens_is_an_error() {
    let engine = random(|_| ());
    let tokenizer = engine.tokenizer().unwrap();
    let compiled = Arc::new(Grammars::new(tokenizer).compile(&Source::Regex("[0-9]{3}".into())).unwrap());
    let mut barred = options(compiled.clone(), 0, 20);
    let digits = (0..tokenizer.n_vocab() as u32)
        .filter(|&id| tokenizer.token_bytes(id).iter().any(u8::is_ascii_digit));
    barred.sampler.logit_bias = digits.map(|id| (id, f32::NEG_INFINITY)).collect();
    let prompt = tokenizer.encode("Count:", Special::Parse, true);
    let mut session = engine.session().unwrap();
    let mut generation = session.generate(&prompt, &barred).unwrap();
    assert!(matches!(generation.next(), Some(Err(Error::Constraint(_)))));
    assert_eq!((generation.next().is_none(), generation.stop_reason()), (true, Some(StopReason::Constraint)));
    drop(session);
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    let bad = batch.add(&Request::new(prompt.clone(), barred)).unwrap()[0];
    let good = batch.add(&Request::new(prompt, options(compiled, 0, 20))).unwrap()[0];
    let mut ends = BTreeMap::new();
    batch
        .run(|id, event| -> Result<(), Error> {
            ends.extend(event.end.map(|end| (id, (end, event.fault))));
            Ok(())
        })
        .unwrap();
    assert!(matches!(ends[&bad], (StopReason::Constraint, Some(_))), "{ends:?}");
    assert_eq!(ends[&good], (StopReason::EndOfText, None));
}

/// With grammars and without, several continuations of a prompt, and so few pages that sequences are
/// preempted.
#[test]
fn batched_sequences_with_grammars_match_single_ones() {
    let engine = random(|options| (options.kv_positions, options.drafts) = (Some(6 * 64), 12));
    let tokenizer = engine.tokenizer().unwrap();
    let grammars = Grammars::new(tokenizer);
    let compile = |source| -> Arc<dyn Grammar> { Arc::new(grammars.compile(&source).unwrap()) };
    let sources = [
        Some(compile(Source::JsonObject)),
        Some(compile(Source::JsonSchema { schema: schemas()[0].clone(), strict: true })),
        None,
        Some(compile(Source::Gbnf("root ::= \"(\" root \")\" | [a-z]{20,}".into()))),
    ];
    let long = "word ".repeat(40);
    let requests: Vec<(Vec<u32>, GenerateOptions)> = (0..12)
        .map(|i| {
            let prompt = tokenizer.encode(&format!("{long}{}", "x ".repeat(i * 7)), Special::Parse, true);
            let mut options = options(sources[0].clone().unwrap(), i as u64, 40 + i);
            options.grammar = sources[i % sources.len()].clone();
            // The others repeat a token, which drafts find.
            options.sampler.temperature = if i == 3 { 5.0 } else { options.sampler.temperature };
            (prompt, options)
        })
        .collect();
    let want: Vec<Vec<u32>> = requests
        .iter()
        .map(|(prompt, options)| {
            let mut session = engine.session().unwrap();
            let mut generation = session.generate(prompt, options).unwrap();
            while let Some(event) = generation.next_event() {
                event.unwrap();
            }
            generation.tokens().to_vec()
        })
        .collect();
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    let mut picked: BTreeMap<SeqId, Vec<u32>> = BTreeMap::new();
    let drafts = |options: &GenerateOptions| {
        let speculation: Option<Arc<dyn Speculation>> = Some(Arc::new(Free(NgramLookup { size: 1, max: 6 })));
        GenerateOptions { speculation, ..options.clone() }
    };
    let ids: Vec<SeqId> = requests
        .iter()
        .map(|(prompt, options)| batch.add(&Request::new(prompt.clone(), drafts(options))).unwrap()[0])
        .collect();
    // Three continuations: the first has the seed of request 3, and its prompt.
    let several = Request { n: 3, ..Request::new(requests[3].0.clone(), requests[3].1.clone()) };
    let several = batch.add(&several).unwrap();
    let take = |id: SeqId, event: Event| -> Result<(), Error> {
        picked.entry(id).or_default().extend(event.token.map(|token| token.id));
        Ok(())
    };
    batch.run(take).unwrap();
    assert!(batch.stats().preemptions > 0, "the pool is too large for this test");
    assert!(batch.stats().accepted_tokens > 0, "{:?}", batch.stats());
    for (id, want) in ids.iter().zip(&want) {
        assert_eq!(&picked[id], want);
    }
    assert_eq!(picked[&several[0]], want[3]);
    assert_ne!(picked[&several[1]], want[3], "seeds differ");
}

static WEATHER: LazyLock<Vec<Tool>> = LazyLock::new(|| {
    let parameters = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 10},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "unit": {"type": "string", "enum": ["C", "F"]},
        },
        "required": ["city", "days", "unit"],
        "additionalProperties": false,
    });
    let tool = |name: &str, parameters| Tool {
        name: name.into(),
        description: None,
        parameters,
        shown: None,
        strict: true,
    };
    vec![tool("weather", parameters), tool("time", json!({"type": "object", "additionalProperties": false}))]
});

fn tool_grammar(
    grammars: &Grammars,
    format: Format,
    choice: &Choice,
    parallel: bool,
    thinks: bool,
) -> Compiled {
    let wanted = Wanted {
        tools: &WEATHER,
        choice,
        parallel,
        thoughts: thinking_in(format),
        thinks,
        answer: None,
        token: &|_| None,
    };
    let lark = format.grammar(&wanted).unwrap();
    grammars.compile(&Source::Lark(lark.clone())).unwrap_or_else(|err| panic!("{format:?}: {err}\n{lark}"))
}

/// True if a grammar allows a whole text, in the longest tokens that it allows.
fn allows(tokenizer: &Tokenizer, grammar: &Compiled, text: &str) -> bool {
    let mut state = grammar.start();
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        if state.is_done() {
            return false;
        }
        let mask = state.mask().unwrap();
        let begins = |id: &u32| {
            let bytes = tokenizer.token_bytes(*id);
            !bytes.is_empty() && rest.starts_with(bytes) && !tokenizer.is_special(*id) && mask.allows(*id)
        };
        let tokens = (0..tokenizer.n_vocab() as u32).filter(begins);
        let Some(token) = tokens.max_by_key(|id| tokenizer.token_bytes(*id).len()) else { return false };
        state.accept(token).unwrap();
        rest = &rest[tokenizer.token_bytes(token).len()..];
    }
    state.is_done() || tokenizer.eog().any(|id| state.mask().unwrap().allows(id))
}

/// Arguments of a call for three days.
const ARGUMENTS: &str = "{\"city\": \"Bern\", \"days\": 3, \"unit\": \"C\"}";

/// Format of the thoughts of most models.
const THOUGHTS: Option<Thoughts> = Some(Thoughts::Marked(&THINK));

/// Format of the thoughts of models with this call format.
fn thinking_in(format: Format) -> Option<Thoughts> {
    if format.has_channels() { Some(Thoughts::Channels) } else { THOUGHTS }
}

/// A call for the weather of some days in the given format.
fn weather_call(format: Format, days: u8) -> String {
    let arguments = || ARGUMENTS.replace('3', &days.to_string());
    let json = |key: &str| format!("{{\"name\": \"weather\", \"{key}\": {}}}", arguments());
    match format {
        Format::Hermes => format!("<tool_call>\n{}\n</tool_call>", json("arguments")),
        Format::Llama3 => json("parameters"),
        Format::Mistral => format!("[TOOL_CALLS][{}]", json("arguments")),
        Format::MistralArgs => format!("[TOOL_CALLS]weather[ARGS]{}", arguments()),
        Format::Harmony => {
            format!("<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{}", arguments())
        }
        Format::DeepSeek => format!(
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{}\n```\
             <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            arguments()
        ),
        Format::DeepSeek31 => format!(
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{}<｜tool▁call▁end｜>\
             <｜tool▁calls▁end｜>",
            arguments()
        ),
        Format::KimiK2 => format!(
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{}\
             <|tool_call_end|><|tool_calls_section_end|>",
            arguments()
        ),
        Format::Pythonic => format!("[weather(city=\"Bern\", days={days}, unit=\"C\")]"),
        Format::Lfm2 => {
            format!("<|tool_call_start|>[weather(city=\"Bern\", days={days}, unit=\"C\")]<|tool_call_end|>")
        }
        Format::ToolCode => {
            format!("```tool_code\nweather(city=\"Bern\", days={days}, unit=\"C\")\n```")
        }
        Format::FunctionGemma => format!(
            "<start_function_call>call:weather{{city:<escape>Bern<escape>,days:{days},\
             unit:<escape>C<escape>}}<end_function_call>"
        ),
        Format::Gemma4 => format!(
            "<|tool_call>call:weather{{city:<|\"|>Bern<|\"|>,days:{days},unit:<|\"|>C<|\"|>}}<tool_call|>"
        ),
        Format::Glm4 => format!("weather\n{}", arguments()),
        Format::Olmo3 => {
            format!("<function_calls>\nweather(city=\"Bern\", days={days}, unit=\"C\")\n</function_calls>")
        }
        Format::Granite3 => format!("<|tool_call|>[{}]", json("arguments")),
        Format::Phi4Mini => format!("<|tool_call|>[{}]<|/tool_call|>", json("arguments")),
        Format::Nemotron2 => format!("<TOOLCALL>[{}]</TOOLCALL>", json("arguments")),
        Format::Hunyuan => format!("<tool_calls>\n[{}]\n</tool_calls>", json("arguments")),
        Format::Cohere2 => format!(
            "<|START_ACTION|>[\n    {{\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": \
             {}}}\n]<|END_ACTION|>",
            arguments()
        ),
        Format::CommandR => format!(
            "Action: ```json\n[\n    {{\"tool_name\": \"weather\", \"parameters\": {}}}\n]```",
            arguments()
        ),
        Format::Apertus => format!("<|tools_prefix|>[{{\"weather\": {}}}]<|tools_suffix|>", arguments()),
        Format::Generic => format!("{{\"tool_calls\": [{}]}}", json("arguments")),
        Format::Qwen3Coder => format!(
            "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n\
             <parameter=days>\n{days}\n</parameter>\n<parameter=unit>\nC\n</parameter>\n\
             </function>\n</tool_call>"
        ),
        Format::SeedOss => format!(
            "<seed:tool_call>\n<function=weather>\n<parameter=city>Bern</parameter>\n\
             <parameter=days>{days}</parameter>\n<parameter=unit>C</parameter>\n</function>\n\
             </seed:tool_call>"
        ),
        Format::Glm => format!(
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n\
             <arg_key>days</arg_key>\n<arg_value>{days}</arg_value>\n<arg_key>unit</arg_key>\n\
             <arg_value>C</arg_value>\n</tool_call>"
        ),
        Format::MiniMax => format!(
            "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Bern</parameter>\n\
             <parameter name=\"days\">{days}</parameter>\n<parameter name=\"unit\">C</parameter>\n</invoke>\n\
             </minimax:tool_call>"
        ),
    }
}

/// An answer without a call in the given format.
fn answer_in(format: Format, text: &str) -> String {
    match format {
        Format::Generic => format!("{{\"response\": \"{text}\"}}"),
        Format::Harmony => in_final_channel(text),
        _ => text.to_owned(),
    }
}

fn in_final_channel(text: &str) -> String {
    format!("<|channel|>final<|message|>{text}")
}

/// Thoughts before a message.
fn thoughts(format: Format) -> &'static str {
    match format {
        Format::Harmony => "<|channel|>analysis<|message|>Hm.\n<|end|><|start|>assistant",
        _ => "Hm.\n</think>\n",
    }
}

#[test]
fn calls_follow_their_format() {
    let engine = random(|_| ());
    let tokenizer = engine.tokenizer().unwrap();
    let grammars = Grammars::new(tokenizer);
    for (_, format) in Format::ALL.iter().copied() {
        // In some formats it begins like a call.
        let answer = match format {
            Format::Llama3 => "{I know}: sunny.",
            Format::Pythonic => "[I know]: sunny.",
            _ => "I know: sunny.",
        };
        let text = &answer_in(format, answer);
        let (call, bad) = (weather_call(format, 3), weather_call(format, 30));
        let named = Choice::Named("weather".into());
        for (choice, is_free) in [(&Choice::Auto, true), (&Choice::Required, false), (&named, false)] {
            let grammar = tool_grammar(&grammars, format, choice, true, false);
            assert!(allows(tokenizer, &grammar, &call), "{format:?}, {choice:?}: {call}");
            assert!(!allows(tokenizer, &grammar, &bad), "{format:?}, {choice:?}: {bad}");
            assert_eq!(allows(tokenizer, &grammar, text), is_free, "{format:?}, {choice:?}: {text}");
            let thinks = tool_grammar(&grammars, format, choice, true, true);
            assert!(
                allows(tokenizer, &thinks, &format!("{}{call}", thoughts(format))),
                "{format:?}, {choice:?}"
            );
            // With channels thoughts are optional; if the template has opened them, they must end.
            let may_begin = format.has_channels();
            assert_eq!(allows(tokenizer, &thinks, &call), may_begin, "{format:?}, {choice:?}");
        }
        // The parser reads the arguments of the call.
        let options =
            ParserOptions { format: Some(format), tools: WEATHER.clone(), ..ParserOptions::default() };
        let mut parser = Parser::new(options);
        let mut deltas = parser.push(&call);
        deltas.extend(parser.finish());
        let read: String = deltas
            .iter()
            .filter_map(|delta| match delta {
                Delta::Arguments { text, .. } => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(read, ARGUMENTS, "{format:?}");
        assert!(matches!(deltas.last(), Some(Delta::CallEnded { index: 0 })), "{format:?}: {deltas:?}");
    }
    let two = format!("{0}\n{0}", weather_call(Format::Hermes, 3));
    for (parallel, choice) in [(true, Choice::Auto), (true, Choice::Required), (false, Choice::Auto)] {
        let grammar = tool_grammar(&grammars, Format::Hermes, &choice, parallel, false);
        assert_eq!(allows(tokenizer, &grammar, &two), parallel, "{choice:?}");
    }
}

/// Descriptions of tools do not enlarge the grammar.
#[test]
fn long_tool_descriptions_do_not_enlarge_the_grammar() {
    let engine = random(|_| ());
    let tokenizer = engine.tokenizer().unwrap();
    let long = "All that there is to say of it. ".repeat(60);
    let parameters = json!({"type": "object", "description": long, "required": ["a"],
        "properties": {"a": {"type": "integer", "description": long, "examples": [long]}}});
    let tool = |at: usize| Tool {
        name: format!("tool_{at}"),
        description: Some(long.clone()),
        parameters: parameters.clone(),
        shown: None,
        strict: at.is_multiple_of(2),
    };
    let tools: Vec<Tool> = (0..100).map(tool).collect();
    let (choice, token) = (&Choice::Auto, &|_: &str| None);
    let wanted = Wanted {
        tools: &tools,
        choice,
        parallel: true,
        thoughts: THOUGHTS,
        thinks: false,
        answer: None,
        token,
    };
    let lark = Format::Hermes.grammar(&wanted).unwrap();
    assert!(lark.len() > 500_000);
    let grammar = Grammars::new(tokenizer).compile(&Source::Lark(lark)).unwrap();
    let call = |arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"tool_77\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    assert!(allows(tokenizer, &grammar, &call("{\"a\": 1}")));
    assert!(!allows(tokenizer, &grammar, &call("{\"a\": \"b\"}")));
}

/// With optional tools and a schema for the answer, a message is either such JSON or a call.
#[test]
fn answers_match_a_schema_if_calls_are_optional() {
    let engine = random(|_| ());
    let tokenizer = engine.tokenizer().unwrap();
    let grammars = Grammars::new(tokenizer);
    let schema = json!({
        "type": "object",
        "properties": {"sunny": {"type": "boolean"}},
        "required": ["sunny"],
        "additionalProperties": false,
    });
    let (json, other) = ("{\"sunny\": true}", "{\"sunny\": 3}");
    for (_, format) in Format::ALL.iter().copied() {
        let answer_of = |text: &str| match format {
            Format::Harmony => in_final_channel(text),
            _ => text.to_owned(),
        };
        let (right, wrong) = (answer_of(json), answer_of(other));
        for (choice, may_answer) in [(&Choice::Auto, true), (&Choice::Required, false)] {
            for (thinks, before) in [(false, ""), (true, thoughts(format))] {
                let (answer, token) = (Some((&schema, true)), &|_: &str| None);
                let wanted = Wanted {
                    tools: &WEATHER,
                    choice,
                    parallel: true,
                    thoughts: thinking_in(format),
                    thinks,
                    answer,
                    token,
                };
                let lark = format.grammar(&wanted).unwrap();
                let grammar = grammars.compile(&Source::Lark(lark)).unwrap();
                let allows = |text: &str| allows(tokenizer, &grammar, &format!("{before}{text}"));
                assert!(allows(&weather_call(format, 3)), "{format:?}, {choice:?}");
                assert!(!allows(&weather_call(format, 30)), "{format:?}, {choice:?}");
                assert_eq!(allows(&right), may_answer, "{format:?}, {choice:?}");
                assert!(!allows(&wrong) && !allows(&answer_of("It is sunny.")), "{format:?}, {choice:?}");
            }
        }
        // The parser returns such an answer as content.
        let tools = WEATHER.clone();
        let options = ParserOptions {
            format: Some(format),
            tools,
            thoughts: thinking_in(format),
            ..ParserOptions::default()
        };
        let mut parser = Parser::new(options);
        let mut deltas = parser.push(&right);
        deltas.extend(parser.finish());
        let text = |delta: &Delta| match delta {
            Delta::Content(text) => text.clone(),
            other => panic!("{format:?}: {other:?}"),
        };
        assert_eq!(deltas.iter().map(text).collect::<String>(), json, "{format:?}");
    }
}

/// After thoughts that a template has opened, the text is JSON that matches the schema.
#[test]
fn json_after_thoughts_matches_the_schema() {
    let engine = random(|_| ());
    let tokenizer = engine.tokenizer().unwrap();
    let lark = json_after_thoughts(&THINK, &WEATHER[0].parameters, true, &|_| None);
    let grammar = Grammars::new(tokenizer).compile(&Source::Lark(lark)).unwrap();
    for thoughts in ["</think>", "Hm, {\"city\": 3}?\n</think>\n\n"] {
        assert!(allows(tokenizer, &grammar, &format!("{thoughts}{ARGUMENTS}")), "{thoughts}");
        assert!(!allows(tokenizer, &grammar, &format!("{thoughts}{{\"city\": 3}}")), "{thoughts}");
        assert!(!allows(tokenizer, &grammar, thoughts));
    }
    assert!(!allows(tokenizer, &grammar, ARGUMENTS), "the thoughts do not end");
}

/// With channels, thoughts are optional, and the answer in its channel is JSON that matches the schema.
#[test]
fn json_in_the_final_channel_matches_the_schema() {
    let engine = random(|_| ());
    let tokenizer = engine.tokenizer().unwrap();
    let lark = json_in_channels(&WEATHER[0].parameters, true, &|_| None);
    let grammar = Grammars::new(tokenizer).compile(&Source::Lark(lark)).unwrap();
    for before in ["", thoughts(Format::Harmony)] {
        let allows = |text: &str| allows(tokenizer, &grammar, &format!("{before}{text}"));
        assert!(allows(&in_final_channel(ARGUMENTS)), "{before}");
        assert!(!allows(&in_final_channel("{\"city\": 3}")) && !allows(ARGUMENTS), "{before}");
    }
    let marked = format!("<|channel|>final <|constrain|>json<|message|>{ARGUMENTS}");
    assert!(allows(tokenizer, &grammar, &marked));
}

/// Required arguments must be present, and unknown ones are refused.
#[test]
fn pythonic_arguments_match_the_schema() {
    let engine = random(|_| ());
    let tokenizer = engine.tokenizer().unwrap();
    let parameters = json!({
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "integer"}, "c": {"type": "string"}},
        "required": ["b"],
    });
    let tools = [Tool { name: "f".into(), description: None, parameters, shown: None, strict: true }];
    let (choice, token) = (&Choice::Required, &|_: &str| None);
    let wanted = Wanted {
        tools: &tools,
        choice,
        parallel: true,
        thoughts: THOUGHTS,
        thinks: false,
        answer: None,
        token,
    };
    let lark = Format::Pythonic.grammar(&wanted).unwrap();
    let grammar = Grammars::new(tokenizer).compile(&Source::Lark(lark)).unwrap();
    for (arguments, is_right) in [
        ("b=1", true),
        ("a=True, b=1", true),
        ("a=False, b=1, c=\"x\"", true),
        ("b=1, c=\"x\"), f(b=2", true),
        ("", false),
        ("a=True", false),
        ("b=\"x\"", false),
        ("b=1, d=2", false),
        (", b=1", false),
    ] {
        assert_eq!(allows(tokenizer, &grammar, &format!("[f({arguments})]")), is_right, "{arguments}");
    }
}

/// Strings in lists and objects have FunctionGemma's quotes as well.
#[test]
fn function_gemma_arguments_match_the_schema() {
    let engine = random(|_| ());
    let tokenizer = engine.tokenizer().unwrap();
    let parameters = json!({
        "type": "object",
        "properties": {
            "names": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
            "place": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "ids": {"type": "array", "items": {"type": "integer"}},
                },
                "required": ["city"],
            },
        },
        "required": ["names"],
    });
    let tools = [Tool { name: "f".into(), description: None, parameters, shown: None, strict: true }];
    let (choice, token) = (&Choice::Required, &|_: &str| None);
    let wanted = Wanted {
        tools: &tools,
        choice,
        parallel: true,
        thoughts: THOUGHTS,
        thinks: false,
        answer: None,
        token,
    };
    let lark = Format::FunctionGemma.grammar(&wanted).unwrap();
    let grammar = Grammars::new(tokenizer).compile(&Source::Lark(lark)).unwrap();
    let options = ParserOptions {
        format: Some(Format::FunctionGemma),
        tools: tools.to_vec(),
        ..ParserOptions::default()
    };
    for (arguments, json) in [
        ("names:[~a, \"b\"~]", Some("{\"names\": [\"a, \\\"b\\\"\"]}")),
        (
            "names:[~a~,~b~],place:{city:~x~}",
            Some("{\"names\": [\"a\", \"b\"], \"place\": {\"city\": \"x\"}}"),
        ),
        (
            "names:[~~],place:{city:~x~,ids:[1, 2]}",
            Some("{\"names\": [\"\"], \"place\": {\"city\": \"x\", \"ids\": [1, 2]}}"),
        ),
        ("names:[]", None),
        ("names:[~a~,~b~,~c~]", None),
        ("names:[1]", None),
        ("place:{city:~x~}", None),
        ("names:[~a~],place:{ids:[1]}", None),
    ] {
        let arguments = arguments.replace('~', "<escape>");
        let call = format!("<start_function_call>call:f{{{arguments}}}<end_function_call>");
        assert_eq!(allows(tokenizer, &grammar, &call), json.is_some(), "{call}");
        let Some(json) = json else { continue };
        let mut parser = Parser::new(options.clone());
        let deltas = [parser.push(&call), parser.finish()].concat();
        let text = |delta: &Delta| {
            if let Delta::Arguments { text, .. } = delta { text.clone() } else { String::new() }
        };
        assert_eq!(deltas.iter().map(text).collect::<String>(), json);
    }
}

/// Forced calls of a model with random weights are complete, of a known tool, and match its schema.
#[test]
fn forced_calls_match_their_schema() {
    let engine = random(|_| ());
    let grammars = Grammars::new(engine.tokenizer().unwrap());
    for (_, format) in Format::ALL {
        let grammar = Arc::new(tool_grammar(&grammars, *format, &Choice::Required, false, false));
        for seed in 0..4 {
            let (text, end) = generate(&engine, "Weather?", &options(grammar.clone(), seed, 400));
            if end == StopReason::Limit {
                // A string argument without a maximum length may not end.
                continue;
            }
            let options =
                ParserOptions { format: Some(*format), tools: WEATHER.clone(), ..ParserOptions::default() };
            let mut parser = Parser::new(options);
            let mut deltas = parser.push(&text);
            deltas.extend(parser.finish());
            let (mut name, mut arguments) = (String::new(), String::new());
            for delta in &deltas {
                match delta {
                    Delta::CallBegun { name: of, .. } => name.clone_from(of),
                    Delta::Arguments { text, .. } => arguments += text,
                    Delta::CallEnded { index: 0 } => {}
                    // A model of random weights may think before it calls.
                    Delta::Content(_) if format.has_channels() => {}
                    other => panic!("{format:?}: {other:?} in {text}"),
                }
            }
            let tool =
                WEATHER.iter().find(|tool| tool.name == name).unwrap_or_else(|| panic!("{format:?}: {text}"));
            let value: Value =
                serde_json::from_str(&arguments).unwrap_or_else(|err| panic!("{arguments}: {err}"));
            let mut schema = tool.parameters.clone();
            if format.has_plain_texts() {
                // Plain text has no maximum length.
                if let Some(city) = schema.pointer_mut("/properties/city") {
                    *city = json!({ "type": "string" });
                }
            }
            assert!(jsonschema::is_valid(&schema, &value), "{format:?}: {text}");
        }
    }
}
