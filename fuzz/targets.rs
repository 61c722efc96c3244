//! The fuzz targets. Shared with `tests/files/fuzz_corpus.rs`, which replays the corpora without a fuzzer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;
use std::{fs, process};

use bytes::Bytes;
use serde_json::{Value, json};
use sterna::convert::{ConvertOptions, Converter};
use sterna::engine::{Engine, EngineOptions, Grammar as _, SamplerOptions};
use sterna::gguf::{Array, Gguf, GgufWriter, Metadata};
use sterna::grammar::{Grammars, Limits as GrammarLimits, Source, to_lark};
use sterna::model::{self, Model};
use sterna::program::Limits;
use sterna::quantize::Imatrix;
use sterna::serve::{Loaded, ModelSource, ServeOptions, Server};
use sterna::tokenizer::chat::{ChatTemplate, Message};
use sterna::tokenizer::{Special, StreamDecoder, Tokenizer, TokenizerOptions};
use sterna::tools::{Delta, Format, MARKS, Parser, ParserOptions, Thoughts, Tool};

/// Opens a GGUF file, reads everything in it, and writes it again: the result must read the same.
pub fn gguf(data: &[u8]) {
    let Ok(file) = Gguf::from_bytes(Bytes::copy_from_slice(data)) else { return };
    for info in file.tensors() {
        if let Ok(tensor) = file.host_tensor(info) {
            let mut row = vec![0.0; tensor.cols];
            let last = tensor.rows - 1;
            tensor
                .ty
                .decode_row(&tensor.bytes, tensor.rows, last, &mut row)
                .expect("checked when it was opened");
        }
    }
    if let Ok(hyper) = model::hyper(&file) {
        // Builds a program, or reports what is wrong with the hyperparameters or tensors.
        let kv = ggml_types::kv_by_name("f16").expect("f16 is in the registry");
        let limits =
            Limits { rows: 4, outputs: 1, seqs: 1, pages: 1, exact_pages: 0, sliding_pages: 0, states: 3 };
        let options = model::Options::new(limits, kv, kv);
        if let Ok(model) = Model::build(&file, hyper, &options) {
            model.program.check().expect("models build valid programs");
        }
    }
    let mut writer = GgufWriter::new(file.metadata().clone()).expect("the alignment was valid before");
    for info in file.tensors() {
        let bytes = info.n_bytes;
        writer.tensor(&info.name, &info.dims, info.type_id, bytes).expect("the tensor was valid before");
    }
    let mut out = writer.begin(Vec::new()).expect("writing to memory cannot fail");
    for info in file.tensors() {
        out.tensor([file.raw_bytes(info).unwrap()]).expect("as long as it was declared");
    }
    let again =
        Gguf::from_bytes(out.finish().expect("all are written").into()).expect("what we write is GGUF");
    let text = |file: &Gguf| file.metadata().iter().map(|entry| format!("{entry:?}")).collect::<Vec<_>>();
    assert_eq!(text(&file), text(&again));
    for (before, after) in file.tensors().iter().zip(again.tensors()) {
        assert_eq!((&before.name, &before.dims, before.type_id), (&after.name, &after.dims, after.type_id));
        // A tensor of unknown size extends to the next one, so it may now include padding.
        assert!(again.raw_bytes(after).unwrap().starts_with(&file.raw_bytes(before).unwrap()));
    }
}

/// Reads the input as an importance matrix in either format. A valid one is written again and must read the
/// same.
pub fn imatrix(data: &[u8]) {
    let read = |data: &[u8]| match data.starts_with(b"GGUF") {
        true => Imatrix::from_gguf(&Gguf::from_bytes(Bytes::copy_from_slice(data)).ok()?).ok(),
        false => Imatrix::from_dat(data).ok(),
    };
    let Some(found) = read(data).filter(|found| !found.is_empty()) else { return };
    let mut written = Vec::new();
    // Products of the values may overflow, and are rejected when read again.
    found.write(&mut written).expect("writing to memory cannot fail");
    if let Some(again) = read(&written) {
        assert_eq!(again.len(), found.len());
    }
}

/// Converts a checkpoint: a model's configuration, tokenizer.json and safetensors file, separated by U+0001.
/// An empty section, or one that is missing, is that of a good checkpoint.
pub fn checkpoint(data: &[u8]) {
    const FILES: [(&str, &[u8]); 3] = [
        ("config.json", include_bytes!("../tests/data/golden/hf/qwen35/config.json")),
        ("tokenizer.json", include_bytes!("../tests/data/golden/hf/qwen35/tokenizer.json")),
        ("model.safetensors", include_bytes!("../tests/data/golden/hf/qwen35/model.safetensors")),
    ];
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = std::env::temp_dir().join(format!("sterna-fuzz-{}", process::id()));
        fs::create_dir_all(&folder).expect("a folder for temporary files");
        folder
    });
    let mut sections = data.splitn(FILES.len(), |byte| *byte == 1);
    for (name, good) in FILES {
        let section = sections.next().filter(|section| !section.is_empty());
        fs::write(FOLDER.join(name), section.unwrap_or(good)).expect("space for temporary files");
    }
    let Ok(converter) = Converter::open(&FOLDER, &ConvertOptions::default()) else { return };
    let Ok(quantizer) = converter.quantizer() else { return };
    let mut out = Vec::new();
    if quantizer.write(&mut out, |_| ControlFlow::Continue(())).is_ok() {
        Gguf::from_bytes(out.into()).expect("what we write is GGUF");
    }
}

/// Restores a saved session. An even first byte: the rest is a list of changes to a good file, each a
/// position (u16) and a byte; an odd one: the rest is the file. The checksum is right in both cases.
pub fn session(data: &[u8]) {
    static SAVED: LazyLock<(Engine, Vec<u8>)> = LazyLock::new(|| {
        let options = EngineOptions {
            device: "cpu".parse().expect("a backend"),
            n_ctx: Some(192),
            threads: Some(1),
            ..EngineOptions::default()
        };
        let file = Bytes::from_static(include_bytes!("../tests/data/golden/hf/qwen35.llamacpp-f16.gguf"));
        let engine = Engine::from_bytes(file, &options).expect("a good model");
        let mut session = engine.session().expect("a free slot");
        session.prefill(&[5; 70]).expect("tokens of the vocabulary");
        let mut saved = Vec::new();
        session.save(&mut saved).expect("writing to memory cannot fail");
        drop(session);
        (engine, saved)
    });
    let (engine, saved) = &*SAVED;
    let (&kind, rest) = data.split_first().unwrap_or((&0, &[]));
    let mut file = match kind % 2 {
        0 => saved[..saved.len() - 4 - usize::from(kind / 16)].to_vec(),
        _ => rest.to_vec(),
    };
    if kind % 2 == 0 {
        for change in rest.chunks_exact(3) {
            let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % file.len();
            file[at] ^= change[2];
        }
    }
    file.extend(crc32fast::hash(&file).to_le_bytes());
    if let Ok(mut session) = engine.restore(&mut &file[..]) {
        // Its numbers may be anything, so its logits may be NaN.
        let _ = session.decode(&[1]);
        let _ = session.decode(&[2]);
    }
}

/// Compiles a grammar of the kind that the first byte selects, and follows it for a few tokens.
pub fn grammar(data: &[u8]) {
    static TINY: LazyLock<(Grammars, u32)> = LazyLock::new(|| {
        let file = include_bytes!("../tests/data/golden/tokenizer/tiny-vocab.gguf");
        let gguf = Gguf::from_bytes(Bytes::from_static(file)).expect("a good file");
        let tokenizer = Tokenizer::from_gguf(&gguf, TokenizerOptions::default()).expect("a good vocabulary");
        let limits = GrammarLimits { time: Duration::from_secs(2), ..GrammarLimits::default() };
        (Grammars::with_limits(&tokenizer, limits), tokenizer.n_vocab() as u32)
    });
    let (grammars, n_vocab) = &*TINY;
    let (&kind, rest) = data.split_first().unwrap_or((&0, &[]));
    let text = String::from_utf8_lossy(rest).into_owned();
    let source = match kind % 5 {
        0 | 1 => {
            let Ok(schema) = serde_json::from_str(&text) else { return };
            Source::JsonSchema { schema, strict: kind % 5 == 0 }
        }
        2 => Source::Regex(text),
        3 => Source::Lark(text),
        _ => Source::Gbnf(text),
    };
    let Ok(compiled) = grammars.compile(&source) else { return };
    let mut state = compiled.start();
    for step in 0..8u32 {
        if state.is_done() {
            return;
        }
        let Ok(mask) = state.mask() else { return };
        let allowed = |token: &u32| mask.allows(*token);
        let from = (u32::from(kind) * 31 + step * 101) % n_vocab;
        let Some(token) = (from..*n_vocab).chain(0..from).find(allowed) else { return };
        state.accept(token).expect("an allowed token is accepted");
    }
}

/// Paths for the last two targets, selected by the first byte of the input.
const PATHS: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/completion",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/api/chat",
    "/api/generate",
    "/api/show",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/slots/0?action=erase",
];

/// A server in this process, with a tiny model and short answers.
fn server() -> SocketAddr {
    static ADDRESS: LazyLock<SocketAddr> = LazyLock::new(|| {
        let options = EngineOptions {
            device: "cpu".parse().expect("a backend"),
            n_ctx: Some(128),
            threads: Some(1),
            n_seqs: 2,
            batch: 64,
            ..EngineOptions::default()
        };
        let file = Bytes::from_static(include_bytes!("../tests/data/golden/bitnet/tiny-i2_s.gguf"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of this machine");
        let serve = ServeOptions { max_tokens: Some(8), ..ServeOptions::default() };
        let model = ModelSource::once("tiny", move || {
            let engine = Engine::from_bytes(file, &options)?;
            Ok(Loaded { engine, sampler: SamplerOptions::default(), speculation: None })
        });
        let server = Server::start(listener, serve, Vec::new(), model);
        let server = server.expect("threads");
        let address = server.address();
        while !send(address, "GET", "/health", b"").0.contains(" 200 ") {
            std::thread::sleep(Duration::from_millis(5));
        }
        // The server lives as long as the process.
        std::mem::forget(server);
        address
    });
    *ADDRESS
}

/// Sends a request and returns the head and body of the answer.
fn send(address: SocketAddr, method: &str, path: &str, body: &[u8]) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(&[head.as_bytes(), body].concat()).expect("the server reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the answer is complete");
    let answer = String::from_utf8(answer).expect("the answer is UTF-8");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.to_owned(), body.to_owned())
}

/// Sends the input as the body of a request; its first byte selects the path. The answer is never status 500,
/// and its body is JSON, events or lines of JSON.
pub fn request(data: &[u8]) {
    let (&path, body) = data.split_first().unwrap_or((&0, &[]));
    let path = PATHS[usize::from(path) % PATHS.len()];
    let (head, answer) = send(server(), "POST", path, body);
    let status = head.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
    assert!(status.is_some_and(|status| status < 500 || status == 501), "{path}: {head}\n{answer}");
    let lines = if head.contains("text/event-stream") {
        events(&answer)
    } else if head.contains("application/x-ndjson") {
        answer.lines().collect()
    } else {
        vec![answer.as_str()]
    };
    for line in lines.into_iter().filter(|line| *line != "[DONE]") {
        serde_json::from_str::<Value>(line).unwrap_or_else(|err| panic!("{path}: {err}: {line}"));
    }
}

/// Checks the form of server-sent events and returns their data.
fn events(answer: &str) -> Vec<&str> {
    fn data(event: &str) -> Option<&str> {
        let data = match event.strip_prefix("event: ") {
            Some(named) => named.split_once('\n')?.1,
            None => event,
        };
        data.strip_prefix("data: ").filter(|data| !data.contains('\n'))
    }
    let events = answer.strip_suffix("\n\n").unwrap_or_else(|| panic!("cut off: {answer:?}"));
    let events = events.split("\n\n").filter(|event| *event != ":");
    events.map(|event| data(event).unwrap_or_else(|| panic!("no data: {event:?}"))).collect()
}

/// A streamed text must equal the whole text, whatever stops it. Input: a byte for the seed, then stop texts
/// and a prompt, separated by zeros.
pub fn sse(data: &[u8]) {
    let (&seed, rest) = data.split_first().unwrap_or((&0, &[]));
    let rest = String::from_utf8_lossy(rest);
    let (stop, prompt) = rest.rsplit_once('\0').unwrap_or(("", &rest));
    let stop: Vec<&str> = stop.split('\0').filter(|stop| stop.len() <= 256).take(16).collect();
    let mut body =
        json!({ "prompt": prompt, "stop": stop, "seed": seed, "n_predict": 48, "ignore_eos": true });
    let (head, whole) = send(server(), "POST", "/completion", body.to_string().as_bytes());
    if !head.contains(" 200 ") {
        assert!(head.contains(" 400 "), "{head}\n{whole}");
        return;
    }
    let whole: Value = serde_json::from_str(&whole).expect("an object");
    body["stream"] = true.into();
    let (_, pieces) = send(server(), "POST", "/completion", body.to_string().as_bytes());
    let pieces =
        events(&pieces).into_iter().map(|data| serde_json::from_str::<Value>(data).expect("an object"));
    let text: String = pieces.map(|piece| piece["content"].as_str().expect("a text").to_owned()).collect();
    assert_eq!(whole["content"], text, "{stop:?}");
}

/// Encodes the input with a real vocabulary, and reads it as a vocabulary with a text to encode.
pub fn tokenizer(data: &[u8]) {
    static TINY: LazyLock<Tokenizer> = LazyLock::new(|| {
        let file = include_bytes!("../tests/data/golden/tokenizer/tiny-vocab.gguf");
        let gguf = Gguf::from_bytes(Bytes::from_static(file)).expect("a good file");
        Tokenizer::from_gguf(&gguf, TokenizerOptions::default()).expect("a good vocabulary")
    });
    let text = String::from_utf8_lossy(data);
    for special in [Special::AsText, Special::Parse] {
        let ids = encode_and_decode(&TINY, &text, special);
        assert_eq!(TINY.decode(&ids, true), text.as_bytes(), "a byte-level vocabulary loses nothing");
    }
    let (metadata, text) = vocabulary(data);
    if let Ok(tokenizer) = Tokenizer::from_metadata(&metadata, TokenizerOptions::default()) {
        encode_and_decode(&tokenizer, &text, Special::AsText);
        encode_and_decode(&tokenizer, &text, Special::Parse);
        // Ids that no text encodes to.
        tokenizer.decode(&[0, u32::MAX, tokenizer.n_vocab() as u32], false);
    }
}

fn encode_and_decode(tokenizer: &Tokenizer, text: &str, special: Special) -> Vec<u32> {
    let with_special = tokenizer.encode(text, special, true);
    let ids = tokenizer.encode(text, special, false);
    assert!(with_special.len() <= ids.len() + 2);
    assert!(ids.iter().all(|&id| (id as usize) < tokenizer.n_vocab()));
    let whole = tokenizer.decode(&ids, true);
    let whole = String::from_utf8_lossy(&whole);
    let mut stream = StreamDecoder::new(tokenizer, true);
    let mut streamed: String = ids.iter().map(|&id| stream.push(id).to_owned()).collect();
    streamed += stream.finish();
    assert!(streamed == whole || streamed.strip_prefix(' ') == Some(&whole), "{streamed:?} is not {whole:?}");
    ids
}

/// Reads a vocabulary from arbitrary bytes: a byte of flags, then tokens, merges and a text, separated by
/// U+0001, with list items separated by U+0002. A token's type and score depend on its length.
fn vocabulary(data: &[u8]) -> (Metadata, String) {
    let (&flags, rest) = data.split_first().unwrap_or((&0, &[]));
    let rest = String::from_utf8_lossy(rest);
    let mut sections = rest.split('\u{1}');
    let mut list = || sections.next().unwrap_or_default().split('\u{2}');
    let (tokens, merges): (Vec<&str>, Vec<&str>) = (list().collect(), list().collect());
    let text = sections.next().unwrap_or_default().to_owned();

    let pre = ["llama-bpe", "gpt-2", "default", "qwen2", "falcon", "smollm", "", "unknown"];
    let mut metadata = Metadata::default();
    let mut set_array = |key: &str, array: Array| metadata.set(format!("tokenizer.ggml.{key}"), array);
    set_array("tokens", Array::from_strs(tokens.iter().copied()));
    set_array("merges", Array::from_strs(merges.iter().copied()));
    set_array("token_type", Array::from_i32s(tokens.iter().map(|token| (token.len() % 8) as i32)));
    if flags & 0x10 == 0 {
        let n_scores = tokens.len() - usize::from(flags & 0x20 != 0);
        set_array(
            "scores",
            Array::from_f32s(tokens[..n_scores].iter().map(|token| f32::from(token.len() as u16 % 5))),
        );
    }
    metadata.set("tokenizer.ggml.model", if flags & 0x08 == 0 { "gpt2" } else { "llama" }.to_owned());
    metadata.set("tokenizer.ggml.pre", pre[usize::from(flags & 7)].to_owned());
    metadata.set("tokenizer.ggml.bos_token_id", u32::from(flags >> 6));
    metadata.set("tokenizer.ggml.add_bos_token", flags & 0x40 != 0);
    metadata.set("general.name", if flags & 0x80 == 0 { "phi-3" } else { "" }.to_owned());
    (metadata, text)
}

/// Uses the input as a chat template: it renders or returns an error.
pub fn chat_template(data: &[u8]) {
    let source = String::from_utf8_lossy(data);
    let Ok(template) = ChatTemplate::with_tokens(&source, "<s>".to_owned(), "</s>".to_owned()) else {
        return;
    };
    let turns = [("system", "Be brief."), ("user", " Hi! "), ("assistant", "Hello."), ("user", "2+2?")];
    let messages = turns.map(|(role, content)| Message::new(role, content));
    let _ = template.render(&messages, true);
    let _ = template.render(&messages[1..2], false);
    let _ = template.render(&[], true);
}

/// Converts the input from GBNF to Lark, or returns an error with its position.
pub fn gbnf(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let find = |name: &str| (name.len() < 12).then_some(3);
    if let Ok(lark) = to_lark(&text, &find, 100) {
        assert!(lark.starts_with("start: ") && lark.ends_with('\n'), "{lark}");
    }
}

/// Parses the input as a model's message with calls, in every format: a byte that determines the cuts, then
/// the text. The cuts must not change the result, and arguments in tags must become JSON.
pub fn tools(data: &[u8]) {
    let (&cut, text) = data.split_first().unwrap_or((&0, &[]));
    let text = String::from_utf8_lossy(text);
    let parameters = serde_json::json!({"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}});
    let tool = Tool { name: "f".into(), description: None, parameters, shown: None, strict: false };
    for (_, format) in Format::ALL {
        let options = ParserOptions {
            format: Some(*format),
            tools: vec![tool.clone()],
            thoughts: (cut & 1 == 1).then_some(Thoughts::Marked(&MARKS[usize::from(cut / 4) % MARKS.len()])),
            thinks: cut & 2 == 2,
            seed: 0,
        };
        let whole = deltas(&options, [&*text]);
        let size = usize::from(cut / 4) + 1;
        let chars: Vec<char> = text.chars().collect();
        let pieces: Vec<String> = chars.chunks(size).map(|chars| chars.iter().collect()).collect();
        assert_eq!(deltas(&options, pieces.iter().map(String::as_str)), whole, "{format:?}, cut by {size}");
        let mut arguments = String::new();
        for delta in whole {
            match delta {
                Delta::CallBegun { .. } => arguments.clear(),
                Delta::Arguments { text, .. } => arguments += &text,
                Delta::CallEnded { .. }
                    if matches!(
                        format,
                        Format::Qwen3Coder | Format::SeedOss | Format::Glm | Format::MiniMax
                    ) =>
                {
                    serde_json::from_str::<serde_json::Value>(&arguments).expect("tags become JSON");
                }
                _ => {}
            }
        }
    }
}

/// Parses pieces, and joins neighbouring deltas of the same kind.
fn deltas<'p>(options: &ParserOptions, pieces: impl IntoIterator<Item = &'p str>) -> Vec<Delta> {
    let mut parser = Parser::new(options.clone());
    let mut all: Vec<Delta> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    all.extend(parser.finish());
    let mut joined: Vec<Delta> = Vec::new();
    for delta in all {
        match (joined.last_mut(), delta) {
            (Some(Delta::Content(last)), Delta::Content(text)) => *last += &text,
            (Some(Delta::Reasoning(last)), Delta::Reasoning(text)) => *last += &text,
            (Some(Delta::Arguments { text: last, .. }), Delta::Arguments { text, .. }) => *last += &text,
            (_, delta) => joined.push(delta),
        }
    }
    joined
}
