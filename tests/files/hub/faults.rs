//! What networks, servers and disks do to a transfer.

use std::io::Write;
use std::time::{Duration, Instant};

use sterna::hub::{Hub, HubError, HubOptions, Name, Token};
use support::hub::{HubFault, HubRepo, HubServer, etag};

use super::{COMMIT, Case, LATER, content, pull, pull_counting, said};

const N: usize = 300_000;

#[test]
fn a_connection_that_is_cut_anywhere_goes_on_there() {
    for k in [0, 1, N / 2, N - 1] {
        let case = Case::new(N);
        case.server.fault("/cdn/", HubFault::Cut(k));
        let (local, again) = pull_counting(&case.hub(), "a/b");
        case.is_whole(&local.unwrap());
        assert_eq!(again.len(), 1, "{again:?}");
        let asked: Vec<_> = case.server.requests().into_iter().filter(|request| request.of_cdn).collect();
        let ranges: Vec<_> = asked.iter().map(|request| request.range.clone()).collect();
        let second = (k > 0).then(|| format!("bytes={k}-"));
        assert_eq!(ranges, [None, second], "cut after {k}");
    }
}

#[test]
fn every_byte_that_comes_begins_the_tries_anew_and_no_others_do() {
    let case = Case::new(N);
    // More cuts than tries, each a little further.
    (1..9).for_each(|_| case.server.fault("/cdn/", HubFault::Cut(1000)));
    case.is_whole(&case.pull("a/b").unwrap());
    let case = Case::new(N);
    (0..4).for_each(|_| case.server.fault("/cdn/", HubFault::Cut(0)));
    assert!(said(case.pull("a/b")).contains("connection"));
    assert_eq!(case.server.n_faults(), 0);
    case.is_absent();
    // A server that sends the same beginning again and again makes no progress.
    let case = Case::new(N);
    (0..20).for_each(|_| case.server.fault("/cdn/", HubFault::NoRangeCut(1000)));
    said(case.pull("a/b"));
    assert_eq!(case.server.n_faults(), 20 - 4, "the first bytes, and three tries after them");
    case.is_absent();
}

#[test]
fn a_part_of_an_earlier_run_is_gone_on_with() {
    let case = Case::new(N);
    (0..5).for_each(|_| {
        case.server.fault("/cdn/", HubFault::Cut(if case.server.n_faults() == 0 { 70_000 } else { 0 }))
    });
    said(case.pull("a/b"));
    assert!(case.part().unwrap() == case.model[..70_000]);
    case.is_whole(&case.pull("a/b").unwrap());
    let last = case.server.requests().pop().unwrap();
    assert_eq!(last.range.as_deref(), Some("bytes=70000-"));
}

/// Leaves a part with these bytes behind.
fn leave(case: &Case, bytes: &[u8]) {
    let blobs = case.repo().join("blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let path = blobs.join(format!("{}.sterna-part", etag(&case.model, true)));
    std::fs::File::create(path).unwrap().write_all(bytes).unwrap();
}

#[test]
fn a_part_that_is_wrong_too_long_or_whole_is_dealt_with() {
    // Wrong bytes: found by the hash, and begun anew once.
    let case = Case::new(N);
    leave(&case, &content(5000, 99));
    case.is_whole(&case.pull("a/b").unwrap());
    // Longer than the file.
    let case = Case::new(N);
    leave(&case, &content(N + 1, 99));
    case.is_whole(&case.pull("a/b").unwrap());
    // Whole, but not named yet: nothing is asked of the host of large files.
    let case = Case::new(N);
    leave(&case, &case.model);
    case.is_whole(&case.pull("a/b").unwrap());
    assert!(case.server.requests().iter().all(|request| !request.of_cdn));
}

#[test]
fn a_server_that_ignores_ranges_sends_the_file_and_no_byte_twice() {
    let case = Case::new(N);
    leave(&case, &case.model[..100_000]);
    case.server.fault("/cdn/", HubFault::NoRange);
    case.is_whole(&case.pull("a/b").unwrap());
}

#[test]
fn a_range_that_was_not_asked_for_is_not_written() {
    for fault in [HubFault::WrongRange, HubFault::Status(416, "Content-Range: bytes */7\r\n")] {
        let case = Case::new(N);
        leave(&case, &case.model[..100_000]);
        case.server.fault("/cdn/", fault);
        let (local, again) = pull_counting(&case.hub(), "a/b");
        case.is_whole(&local.unwrap());
        assert_eq!(again.len(), 1, "{again:?}");
    }
}

#[test]
fn wrong_contents_are_never_kept() {
    for (fault, word) in [
        (HubFault::Flip(0), "hash"),
        (HubFault::Flip(N - 1), "hash"),
        (HubFault::Short(N - 1), "299999"),
        (HubFault::Short(0), "0 bytes"),
        (HubFault::Long, "more bytes arrived"),
    ] {
        let case = Case::new(N);
        case.server.fault("/cdn/", fault.clone());
        let said = said(case.pull("a/b"));
        assert!(said.contains(word) && said.contains("m-Q8_0.gguf"), "{fault:?}: {said}");
        case.is_absent();
        assert_eq!(case.part(), None, "{fault:?}");
        // Nothing of it is in the way of the next time.
        case.is_whole(&case.pull("a/b").unwrap());
    }
    // Another content than the list has.
    let case = Case::new(N);
    case.server.fault("/resolve/", HubFault::OtherEtag);
    assert!(said(case.pull("a/b")).contains("lists"));
    case.is_absent();
}

#[test]
fn small_files_are_checked_by_the_hash_that_git_gives_them() {
    let (case, text) = (Case::new(10), content(2000, 3));
    case.server.add(HubRepo::new("a/c", COMMIT, &[("t.json", &text)]));
    let hub = case.hub();
    case.server.fault("/small/", HubFault::Flip(7));
    assert!(said(pull(&hub, "a/c/t.json")).contains("hash"));
    let local = pull(&hub, "a/c/t.json").unwrap();
    assert!(std::fs::read(&local.files[0]).unwrap() == text);
    // As `git hash-object` says: an independent value.
    assert_eq!(etag(b"hello\n", false), "ce013625030ba8dba906f756967f9e9ca394464a");
}

#[test]
fn an_address_that_has_expired_is_asked_for_again() {
    let case = Case::new(N);
    case.server.fault("/cdn/", HubFault::Cut(1000));
    case.server.fault("/cdn/", HubFault::Status(403, ""));
    case.is_whole(&case.pull("a/b").unwrap());
    let resolved =
        case.server.requests().iter().filter(|request| request.target.contains("/resolve/")).count();
    assert_eq!(resolved, 3);
}

#[test]
fn servers_out_of_breath_are_asked_again_when_they_say() {
    for (at, fault) in [
        ("/revision/", HubFault::Status(503, "")),
        ("/tree/", HubFault::Status(429, "Retry-After: 0\r\n")),
        ("/resolve/", HubFault::Status(429, "ratelimit: \"api\";r=0;t=0\r\n")),
        ("/cdn/", HubFault::Status(500, "")),
        ("/cdn/", HubFault::Status(504, "")),
        ("/revision/", HubFault::Cut(3)),
        ("/resolve/", HubFault::Status(408, "")),
    ] {
        let case = Case::new(N);
        case.server.fault(at, fault);
        case.is_whole(&case.pull("a/b").unwrap());
        assert_eq!(case.server.n_faults(), 0, "{at}");
    }
    let case = Case::new(N);
    (0..4).for_each(|_| case.server.fault("/tree/", HubFault::Status(502, "")));
    let err = case.pull("a/b").unwrap_err();
    assert!(err.is_network() && err.to_string().contains("502"), "{err}");
    // What a server says about when is what happens.
    let case = Case::new(N);
    case.server.fault("/cdn/", HubFault::Status(429, "Retry-After: 1\r\n"));
    let begun = Instant::now();
    case.is_whole(&case.pull("a/b").unwrap());
    assert!(begun.elapsed() >= Duration::from_secs(1), "asked again after {:?}", begun.elapsed());
}

#[test]
fn a_silent_connection_is_given_up() {
    for (at, fault) in [
        ("/revision/", HubFault::Stall(5)),
        ("/resolve/", HubFault::Silent),
        ("/cdn/", HubFault::Silent),
        ("/cdn/", HubFault::Stall(5)),
    ] {
        let case = Case::new(N);
        case.server.fault(at, fault);
        let silence = Duration::from_millis(300);
        let hub = Hub::new(HubOptions { silence, ..case.options() }).unwrap();
        let begun = Instant::now();
        case.is_whole(&pull(&hub, "a/b").unwrap());
        assert!(begun.elapsed() > silence, "{at}: it was not silent");
    }
}

#[test]
fn a_body_that_is_packed_is_refused() {
    let case = Case::new(N);
    case.server.fault("/cdn/", HubFault::Gzip);
    assert!(said(case.pull("a/b")).contains("gzip"));
    case.is_absent();
}

#[test]
fn another_commit_between_two_runs_is_another_file() {
    let case = Case::new(N);
    (0..5).for_each(|k| case.server.fault("/cdn/", HubFault::Cut(if k == 0 { 1000 } else { 0 })));
    said(case.pull("a/b"));
    let newer = content(N, 2);
    case.server.add(HubRepo::new("a/b", LATER, &[("x/m-Q8_0.gguf", &newer)]));
    let local = case.pull("a/b").unwrap();
    assert_eq!(local.commit, LATER);
    assert!(std::fs::read(&local.files[0]).unwrap() == newer);
    // The old part is still that of the old content.
    assert!(case.part().unwrap() == case.model[..1000]);
}

#[test]
fn a_token_goes_to_the_hub_alone_and_shows_nowhere() {
    let case = Case::new(N);
    let model = content(1000, 4);
    let repo = HubRepo::new("a/secret", COMMIT, &[("m.gguf", &model)]);
    case.server.add(HubRepo { token: Some("hf_word".to_owned()), ..repo });
    let message = said(case.pull("a/secret"));
    assert!(message.contains("HF_TOKEN"), "{message}");
    let token = |text: &str| HubOptions { token: Some(Token::new(text).unwrap()), ..case.options() };
    let hub = Hub::new(token("hf_word")).unwrap();
    let local = pull(&hub, "a/secret").unwrap();
    assert!(std::fs::read(&local.files[0]).unwrap() == model);
    case.server.no_token_leaked();
    let of_hub = case.server.requests().into_iter().filter(|request| !request.of_cdn);
    assert!(of_hub.filter(|request| request.authorization.is_some()).count() >= 3);
    assert!(!format!("{hub:?}").contains("hf_word"));
    // The words of a server are shown, but not the token in them.
    case.server.fault("/revision/", HubFault::Status(401, "X-Error-Message: who is hf_word\r\n"));
    let message = said(pull(&hub, "a/secret"));
    assert!(message.contains("who is (token)") && !message.contains("hf_word"), "{message}");
    // Nor is the address that the hub signed.
    (0..4).for_each(|_| case.server.fault("/cdn/", HubFault::Status(500, "")));
    let message = said(case.pull("a/b"));
    assert!(
        message.contains("500") && !message.contains("secret") && !message.contains("Signature"),
        "{message}"
    );
}

#[test]
fn each_refusal_has_its_way_out() {
    let case = Case::new(N);
    let gated = HubRepo::new("a/gated", COMMIT, &[("m.gguf", b"GGUF")]);
    case.server.add(HubRepo { token: Some("hf_word".to_owned()), gated: true, ..gated });
    case.server.add(HubRepo::new("a/none", COMMIT, &[("model.safetensors", b"x"), ("config.json", b"{}")]));
    for (name, words) in [
        ("a/lacking", &["a/lacking", "private", "HF_TOKEN"][..]),
        ("a/gated", &["gated", "/a/gated", "HF_TOKEN"]),
        ("a/b@nowhere", &["revision `nowhere`"]),
        ("a/b/y.gguf", &["no file y.gguf", "x/m-Q8_0.gguf"]),
        ("a/b:Q4_0", &["Q4_0", "x/m-Q8_0.gguf"]),
        ("a/none", &["no GGUF", "safetensors"]),
    ] {
        let message = said(case.pull(name));
        words
            .iter()
            .for_each(|word| assert!(message.contains(word), "{name}: `{word}` is not in: {message}"));
    }
    // No server: said at once, and not after all tries, which here would never end.
    let endpoint = "http://127.0.0.1:9".to_owned();
    let options = HubOptions { endpoint, tries: u32::MAX, ..case.options() };
    let err = pull(&Hub::new(options).unwrap(), "a/b").unwrap_err();
    assert!(err.is_network(), "{err}");
}

#[test]
fn a_repository_that_has_moved_is_followed() {
    let case = Case::new(N);
    let moved = HubRepo::new("a/old", COMMIT, &[]);
    case.server.add(HubRepo { moved: Some("a/b".to_owned()), ..moved });
    let local = case.pull("a/old").unwrap();
    assert!(std::fs::read(&local.files[0]).unwrap() == case.model);
}

#[test]
fn redirects_that_lead_astray_are_not_followed() {
    for (to, word) in [("Location: file:///etc/passwd\r\n", "not http or https"), ("", "without a Location")]
    {
        let case = Case::new(N);
        case.server.fault("/resolve/", HubFault::Status(302, to));
        assert!(said(case.pull("a/b")).contains(word), "{to}");
        case.is_absent();
    }
    let case = Case::new(N);
    (0..20)
        .for_each(|_| case.server.fault("/cdn/", HubFault::Status(302, "Location: /cdn/x?Signature=1\r\n")));
    assert!(said(case.pull("a/b")).contains("redirects"));
}

#[test]
fn a_list_that_is_no_list_is_an_error() {
    let server = HubServer::start();
    server.add(HubRepo::new("a/b", "not-a-commit", &[("m.gguf", b"GGUF")]));
    let dir = tempfile::tempdir().unwrap();
    let options = HubOptions { endpoint: server.endpoint(), ..HubOptions::new(dir.path().into()) };
    let err = Hub::new(options).unwrap().find(&Name::parse("a/b").unwrap()).unwrap_err();
    assert!(matches!(err, HubError::Answer { .. }), "{err}");
}

#[test]
fn ranges_of_a_file_can_be_read_without_keeping_it() {
    let case = Case::new(N);
    let hub = case.hub();
    let found = hub.find(&Name::parse("a/b").unwrap()).unwrap();
    let file = &found.files[0];
    assert_eq!(file.size, N as u64);
    let read = |range| hub.read_range(&found, file, range).unwrap();
    assert!(read(0..1000) == case.model[..1000]);
    assert!(read(2000..3000) == case.model[2000..3000]);
    assert!(read(N as u64 - 5..N as u64 + 5) == case.model[N - 5..]);
    assert!(read(N as u64..N as u64 + 5).is_empty());
    for fault in [HubFault::NoRange, HubFault::Cut(3), HubFault::Status(503, "Retry-After: 0\r\n")] {
        case.server.fault("/cdn/", fault);
        assert!(read(2000..3000) == case.model[2000..3000]);
    }
    case.server.fault("/cdn/", HubFault::WrongRange);
    assert!(hub.read_range(&found, file, 2000..3000).is_err());
    assert_eq!(case.blobs(), [] as [&str; 0]);
}
