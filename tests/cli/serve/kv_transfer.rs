//! Disaggregated prefill: one server computes a prompt, and another one continues. Broken or hostile peers
//! only cost time.
#![cfg(feature = "grpc")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use sterna::grpc::{Grpc, GrpcOptions, KvTransferOptions};
use sterna::serve::{Companion, ModelSource, ServeOptions, Server};
use support::prost_types::value::Kind;
use support::prost_types::{Struct, Value};
use support::tonic::{Code, Status};
use support::vllm_proto::finish_info::FinishReason;
use support::vllm_proto::{GenerateRequest, KvCacheParameters, RandomSampling};

use super::client::TestServer;
use super::grpc::{Generated, channel, generate, prompt, request, runtime};
use super::slots::with_cache;

const HELLO: &[u8] = b"sterna kv pages\n";
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn server(cache: &str, change: impl FnOnce(&mut KvTransferOptions)) -> TestServer {
    let mut transfer = KvTransferOptions::new(LOOPBACK);
    change(&mut transfer);
    TestServer::with_companions(with_cache(cache), vec![grpc(Some(transfer))], |_| ())
}

/// A server that fetches pages from `one`.
fn reader(cache: &str, one: &TestServer) -> TestServer {
    server(cache, |options| options.peers.push(one.pages.unwrap()))
}

fn grpc(kv_transfer: Option<KvTransferOptions>) -> Box<dyn Companion> {
    Box::new(Grpc::new(GrpcOptions { address: LOOPBACK, card: None, kv_transfer }))
}

fn ask(server: &TestServer, request: GenerateRequest) -> Result<Generated, Status> {
    runtime().block_on(async { generate(&channel(server).await, request).await })
}

fn params(fields: &[(&str, Kind)]) -> Struct {
    let field = |(name, kind): &(&str, Kind)| ((*name).to_owned(), Value { kind: Some(kind.clone()) });
    Struct { fields: fields.iter().map(field).collect::<BTreeMap<_, _>>() }
}

fn with(mut request: GenerateRequest, params: Struct, salt: &str) -> GenerateRequest {
    let kv_transfer_params = Some(params);
    request.kv =
        Some(KvCacheParameters { kv_transfer_params, cache_salt: salt.into(), ..Default::default() });
    request
}

/// Computes a prompt, and returns the transfer parameters for the other server.
fn prefill(server: &TestServer, tokens: &[u32]) -> Struct {
    let keep = params(&[("do_remote_decode", Kind::BoolValue(true))]);
    let said = ask(server, with(request(tokens, 1), keep, "")).unwrap();
    assert_eq!((said.tokens.len(), said.finish.finish_reason()), (1, FinishReason::Length));
    said.finish.kv_transfer_params.expect("the answer has transfer parameters")
}

/// The same parameters with another address of the pages.
fn at(mut transfer: Struct, address: SocketAddr) -> Struct {
    let port = Value { kind: Some(Kind::StringValue(address.port().to_string())) };
    transfer.fields.insert("remote_port".into(), port);
    transfer
}

fn text<'a>(transfer: &'a Struct, name: &str) -> &'a str {
    match &transfer.fields[name].kind {
        Some(Kind::StringValue(text)) => text,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn another_server_continues_with_the_same_text() {
    for cache in ["f16", "turboquant"] {
        let (one, alone) = (server(cache, |_| ()), server(cache, |_| ()));
        let other = reader(cache, &one);
        for (seed, n) in [(1, 65), (2, 128), (3, 129), (4, 200), (5, 280)] {
            let asked = |temperature: f32| {
                let mut asked = request(&prompt(seed, n), 30);
                asked.temperature = Some(temperature);
                asked.sampling = Some(RandomSampling { seed: Some(7), ..Default::default() });
                asked
            };
            for temperature in [0.0, 1.2] {
                let want = ask(&alone, asked(temperature)).unwrap();
                let transfer = prefill(&one, &prompt(seed, n));
                // With another salt the pages are fetched again.
                let salt = format!("{temperature}");
                let got = ask(&other, with(asked(temperature), transfer.clone(), &salt)).unwrap();
                assert_eq!((&got.text, &got.tokens), (&want.text, &want.tokens), "{cache}, {n} tokens");
                assert_eq!(got.finish.num_cached_tokens, Some((n - 1) / 64 * 64), "{cache}, {n} tokens");
                assert_eq!(got.finish.kv_transfer_params, None);
                // A key is valid once.
                let again =
                    ask(&other, with(asked(temperature), transfer, &format!("again {salt}"))).unwrap();
                assert_eq!((&again.text, again.finish.num_cached_tokens), (&want.text, Some(0)));
                // A transfer of pages that the server already has does no harm.
                let transfer = prefill(&one, &prompt(seed, n));
                assert_eq!(ask(&other, with(asked(temperature), transfer, &salt)).unwrap().text, want.text);
            }
        }
        // Less than a page is not transferred, and the parameters say so.
        let transfer = prefill(&one, &prompt(9, 64));
        assert_eq!(transfer.fields["do_remote_prefill"].kind, Some(Kind::BoolValue(false)));
        let want = ask(&alone, request(&prompt(9, 64), 9)).unwrap();
        assert_eq!(ask(&other, with(request(&prompt(9, 64), 9), transfer, "")).unwrap().text, want.text);
    }
}

#[test]
fn unavailable_pages_are_computed() {
    let one = server("f16", |_| ());
    // The time that this server would wait for a host.
    let other = server("f16", |options| {
        options.fetch_time = Duration::from_secs(300);
        options.peers.push(one.pages.unwrap());
    });
    let codec = reader("q8_0", &one);
    let asked = || request(&prompt(1, 200), 20);
    let want = ask(&one, asked()).unwrap().text;
    let computed = |server: &TestServer, transfer: Struct, salt: &str| {
        let got = ask(server, with(asked(), transfer, salt)).unwrap();
        assert_eq!(got.finish.num_cached_tokens, Some(0), "{salt}");
        got.text
    };
    // Pages of another cache type, which gives another text.
    let of_codec = ask(&codec, asked()).unwrap().text;
    assert_eq!(computed(&codec, prefill(&one, &prompt(1, 200)), "codec"), of_codec);
    // Pages of another prompt.
    assert_eq!(computed(&other, prefill(&one, &prompt(2, 200)), "prompt"), want);
    // A wrong key.
    let mut transfer = prefill(&one, &prompt(1, 200));
    let key: String = text(&transfer, "remote_key").chars().rev().collect();
    transfer.fields.insert("remote_key".into(), Value { kind: Some(Kind::StringValue(key)) });
    assert_eq!(computed(&other, transfer, "key"), want);
    // A host that is not allowed is not contacted.
    let mut transfer = prefill(&one, &prompt(1, 200));
    let host = Value { kind: Some(Kind::StringValue("192.0.2.1".into())) };
    transfer.fields.insert("remote_host".into(), host);
    let begun = Instant::now();
    assert_eq!(computed(&other, transfer, "host"), want);
    assert!(begun.elapsed() < Duration::from_secs(200), "{:?}", begun.elapsed());
    // Another port of a host that is allowed is not contacted, either.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let transfer = at(prefill(&one, &prompt(1, 200)), listener.local_addr().unwrap());
    assert_eq!(computed(&other, transfer, "port"), want);
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    // Pages of a server that has ended.
    let transfer = prefill(&one, &prompt(1, 200));
    drop(one);
    assert_eq!(computed(&other, transfer, "gone"), want);
    other.still_answers();
}

#[test]
fn kept_pages_are_bounded_and_bad_parameters_refused() {
    let one = server("f16", |options| options.most_prompts = 2);
    let other = reader("f16", &one);
    let transfer: Vec<Struct> = (0..3).map(|seed| prefill(&one, &prompt(seed, 150))).collect();
    let cached = |seed: u32, transfer: &Struct| {
        let got = ask(&other, with(request(&prompt(seed, 150), 2), transfer.clone(), "")).unwrap();
        got.finish.num_cached_tokens
    };
    assert_eq!(cached(0, &transfer[0]), Some(0), "the oldest prompt is dropped");
    assert_eq!((cached(1, &transfer[1]), cached(2, &transfer[2])), (Some(128), Some(128)));

    let short = server("f16", |options| options.kept_time = Duration::ZERO);
    let transfer = prefill(&short, &prompt(7, 150));
    assert_eq!(fetch(&transfer)[HELLO.len()..], 0u64.to_le_bytes(), "the prompt has expired");
    let small = server("f16", |options| {
        options.most_bytes = 10_000;
        options.peers.push(one.pages.unwrap());
    });
    let none = prefill(&small, &prompt(8, 150));
    assert_eq!(none.fields["do_remote_prefill"].kind, Some(Kind::BoolValue(false)), "it is too large");
    // The limit holds for fetched pages, too.
    let got = ask(&small, with(request(&prompt(5, 150), 2), prefill(&one, &prompt(5, 150)), "")).unwrap();
    assert_eq!(got.finish.num_cached_tokens, Some(0));

    let plain = TestServer::with_companions(with_cache("f16"), vec![grpc(None)], |_| ());
    let transfer = prefill(&one, &prompt(5, 150));
    for name in ["do_remote_decode", "do_remote_prefill"] {
        let mut changed = transfer.clone();
        changed.fields.insert(name.into(), Value { kind: Some(Kind::BoolValue(true)) });
        let err = ask(&plain, with(request(&[1, 2], 1), changed, "")).unwrap_err();
        assert_eq!(err.code(), Code::InvalidArgument);
        assert!(err.message().contains("kv_transfer"), "{err}");
    }
    let broken = [
        ("remote_host", Kind::StringValue("localhost".into())),
        ("remote_port", Kind::StringValue("70000".into())),
        ("remote_port", Kind::NumberValue(1.5)),
        ("remote_key", Kind::StringValue("zz".repeat(32))),
        ("remote_key", Kind::StringValue("é".repeat(32))),
        ("remote_key", Kind::BoolValue(true)),
    ];
    for (name, kind) in broken {
        let mut changed = transfer.clone();
        changed.fields.insert(name.into(), Value { kind: Some(kind) });
        let err = ask(&other, with(request(&[1, 2], 1), changed, "")).unwrap_err();
        assert_eq!(err.code(), Code::InvalidArgument, "{name}");
    }
    let keep = params(&[("do_remote_decode", Kind::BoolValue(true))]);
    let mut two = with(request(&[1, 2], 1), keep, "");
    two.sampling = Some(RandomSampling { num_sequences: 2, ..Default::default() });
    assert_eq!(ask(&one, two).unwrap_err().code(), Code::InvalidArgument);
    // Parameters of other servers are ignored.
    let changed = params(&[("remote_engine_id", Kind::StringValue("one".into()))]);
    assert!(ask(&plain, with(request(&[1, 2], 1), changed, "")).is_ok());
    other.still_answers();
}

/// Reads the request of one client in place of a server, and calls `answer` with its connection.
fn answer_one(listener: &TcpListener, answer: impl Fn(&mut TcpStream) + Send + 'static) {
    let listener = listener.try_clone().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = [0; HELLO.len() + 32];
        stream.read_exact(&mut asked).unwrap();
        answer(&mut stream);
    });
}

/// Fetches pages as a server does.
fn fetch(transfer: &Struct) -> Vec<u8> {
    let address = format!("{}:{}", text(transfer, "remote_host"), text(transfer, "remote_port"));
    let mut stream = TcpStream::connect(address).unwrap();
    let key = text(transfer, "remote_key");
    let key: Vec<u8> = (0..32).map(|i| u8::from_str_radix(&key[2 * i..2 * i + 2], 16).unwrap()).collect();
    stream.write_all(&[HELLO, &key].concat()).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    all
}

#[test]
fn hostile_peers_only_cost_time() {
    let one = server("f16", |_| ());
    // `patient` is for answers that end, even if the cores are busy, and `hasty` for answers that do not end.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let fetching = |time: Duration| {
        server("f16", |options| {
            options.fetch_time = time;
            options.peers.push(address);
        })
    };
    let (patient, hasty) = (fetching(Duration::from_secs(120)), fetching(Duration::from_millis(400)));
    let asked = || request(&prompt(1, 200), 20);
    let want = ask(&one, asked()).unwrap().text;
    let good = fetch(&prefill(&one, &prompt(1, 200)));
    assert_eq!(good[..HELLO.len()], *HELLO);
    let head = HELLO.len() + 8;
    let transfer = prefill(&one, &prompt(1, 200));
    let try_on = |other: &TestServer, name: &str, answer: Box<dyn Fn(&mut TcpStream) + Send>, cached: u32| {
        let begun = Instant::now();
        answer_one(&listener, answer);
        let transfer = at(transfer.clone(), address);
        let got = ask(other, with(asked(), transfer, name)).unwrap();
        assert_eq!((&got.text, got.finish.num_cached_tokens), (&want, Some(cached)), "{name}");
        assert!(begun.elapsed() < Duration::from_secs(100), "{name}: {:?}", begun.elapsed());
    };
    let try_with = |name: &str, answer, cached| try_on(&patient, name, answer, cached);
    let says = |bytes: Vec<u8>| -> Box<dyn Fn(&mut TcpStream) + Send> {
        Box::new(move |stream| drop(stream.write_all(&bytes)))
    };
    let sized = |n: u64, rest: &[u8]| [HELLO, &n.to_le_bytes(), rest].concat();
    // First, an answer that works.
    try_with("good", says(good.clone()), 192);
    try_with("nothing", says(Vec::new()), 0);
    try_with("another greeting", says(b"HTTP/1.1 200 OK\r\n\r\n".repeat(9)), 0);
    try_with("a length that lies", says(sized(u64::MAX, &good[head..])), 0);
    try_with("a length too large", says(sized(1 << 34, &good[head..])), 0);
    try_with("a length too small", says(sized(good.len() as u64 - head as u64 - 9, &good[head..])), 0);
    try_with("less than was said", says(good[..good.len() / 2].to_vec()), 0);
    let n = (good.len() - head) as u64;
    try_with("zeros", says(sized(n, &vec![0; n as usize])), 0);
    try_with("a long line", says(sized(n, &vec![b'a'; n as usize])), 0);
    // One changed byte in the title, the format, the tokens, a page, the checksum.
    let end_of_lines = good.windows(2).position(|pair| pair == b"\n\n").unwrap() + 2;
    for at in [head + 3, head + 40, end_of_lines + 3, end_of_lines + 9, good.len() / 2, good.len() - 1] {
        let mut changed = good.clone();
        changed[at] ^= 1;
        try_with(&format!("byte {at} changed"), says(changed), 0);
    }
    // Data after the pages is not read.
    let endless = good.clone();
    try_with(
        "endless",
        Box::new(move |stream| {
            let _ = stream.write_all(&endless);
            while stream.write_all(&[7; 4096]).is_ok() {}
        }),
        192,
    );
    let trickle = good.clone();
    try_on(
        &hasty,
        "a byte at a time",
        Box::new(move |stream| {
            for byte in &trickle {
                if stream.write_all(&[*byte]).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }),
        0,
    );
    try_on(&hasty, "silence", Box::new(|stream| drop(stream.read(&mut [0]))), 0);
    hasty.still_answers();
    patient.still_answers();
}

#[test]
fn hostile_clients_get_no_pages() {
    let one = server("f16", |_| ());
    let other = reader("f16", &one);
    let transfer = prefill(&one, &prompt(1, 200));
    let address = format!("{}:{}", text(&transfer, "remote_host"), text(&transfer, "remote_port"));
    let connect = || {
        let stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    };
    let get = |bytes: &[u8]| {
        let mut stream = connect();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        all
    };
    let none = [HELLO, &0u64.to_le_bytes()].concat();
    assert_eq!(get(&[HELLO, &[0; 32]].concat()), none);
    assert_eq!(get(&[HELLO, &[b'x'; 32]].concat()), none);
    for bytes in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0; 48], &[255; 100_000], HELLO] {
        assert!(get(bytes).is_empty(), "{bytes:?}");
    }
    // Silent clients do not block others.
    let idle: Vec<TcpStream> = (0..20).map(|_| connect()).collect();
    let got = ask(&other, with(request(&prompt(1, 200), 3), transfer, "")).unwrap();
    assert_eq!(got.finish.num_cached_tokens, Some(192));
    drop(idle);
    one.still_answers();
}

#[test]
fn unspecified_transfer_address_is_refused() {
    let transfer = KvTransferOptions::new(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
    let (options, companions) = (ServeOptions::default(), vec![grpc(Some(transfer))]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let model = ModelSource::once("tiny", || Err("it is not loaded".into()));
    let started = Server::start(listener, options, companions, model);
    let message = started.err().expect("the server does not start").to_string();
    assert!(message.contains("0.0.0.0") && message.contains("reach"), "{message}");
}
