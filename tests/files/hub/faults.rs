//! Downloads with faults of networks, servers and disks.

use std::io::Write;
use std::time::{Duration, Instant};

use sterna::hub::{Hub, HubError, HubOptions, Name, Token};
use support::hub::{HubFault, HubRepo, HubServer, etag};

use super::{COMMIT, Case, LATER, content, error_of, pull, pull_counting};

const N: usize = 300_000;

#[test]
fn cut_connection_resumes_at_any_byte() {
    for k in [0, 1, N / 2, N - 1] {
        let case = Case::new(N);
        case.server.fault("/cdn/", HubFault::Cut(k));
        let (local, again) = pull_counting(&case.hub(), "a/b");
        case.assert_downloaded(&local.unwrap());
        assert_eq!(again.len(), 1, "{again:?}");
        let asked: Vec<_> = case.server.requests().into_iter().filter(|request| request.of_cdn).collect();
        let ranges: Vec<_> = asked.iter().map(|request| request.range.clone()).collect();
        let second = (k > 0).then(|| format!("bytes={k}-"));
        assert_eq!(ranges, [None, second], "cut after {k}");
    }
}

#[test]
fn retries_are_reset_only_by_progress() {
    let case = Case::new(N);
    // More cuts than tries, each a little further.
    (1..9).for_each(|_| case.server.fault("/cdn/", HubFault::Cut(1000)));
    case.assert_downloaded(&case.pull("a/b").unwrap());
    let case = Case::new(N);
    (0..4).for_each(|_| case.server.fault("/cdn/", HubFault::Cut(0)));
    assert!(error_of(case.pull("a/b")).contains("connection"));
    assert_eq!(case.server.n_faults(), 0);
    case.assert_absent();
    // A server that sends the same first bytes again and again makes no progress.
    let case = Case::new(N);
    (0..20).for_each(|_| case.server.fault("/cdn/", HubFault::NoRangeCut(1000)));
    error_of(case.pull("a/b"));
    assert_eq!(case.server.n_faults(), 20 - 4, "the first bytes, and three tries after them");
    case.assert_absent();
}

#[test]
fn partial_file_of_an_earlier_run_is_resumed() {
    let case = Case::new(N);
    (0..5).for_each(|_| {
        case.server.fault("/cdn/", HubFault::Cut(if case.server.n_faults() == 0 { 70_000 } else { 0 }))
    });
    error_of(case.pull("a/b"));
    assert!(case.part().unwrap() == case.model[..70_000]);
    case.assert_downloaded(&case.pull("a/b").unwrap());
    let last = case.server.requests().pop().unwrap();
    assert_eq!(last.range.as_deref(), Some("bytes=70000-"));
}

/// Writes a partial download with these bytes.
fn write_part(case: &Case, bytes: &[u8]) {
    let blobs = case.repo().join("blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let path = blobs.join(format!("{}.sterna-part", etag(&case.model, true)));
    std::fs::File::create(path).unwrap().write_all(bytes).unwrap();
}

#[test]
fn wrong_long_or_complete_partial_files_are_handled() {
    // Wrong bytes: found by the hash, and downloaded again once.
    let case = Case::new(N);
    write_part(&case, &content(5000, 99));
    case.assert_downloaded(&case.pull("a/b").unwrap());
    // Longer than the file.
    let case = Case::new(N);
    write_part(&case, &content(N + 1, 99));
    case.assert_downloaded(&case.pull("a/b").unwrap());
    // Complete, but not renamed yet: nothing is requested from the host of large files.
    let case = Case::new(N);
    write_part(&case, &case.model);
    case.assert_downloaded(&case.pull("a/b").unwrap());
    assert!(case.server.requests().iter().all(|request| !request.of_cdn));
}

/// A link in place of the part is not followed, and a pipe is not waited for.
#[cfg(unix)]
#[test]
fn partial_file_must_be_a_regular_file() {
    let case = Case::new(N);
    write_part(&case, b"");
    let part = case.repo().join("blobs").join(format!("{}.sterna-part", etag(&case.model, true)));
    std::fs::remove_file(&part).unwrap();
    let other = case.repo().join("other");
    std::fs::write(&other, "mine").unwrap();
    std::os::unix::fs::symlink(&other, &part).unwrap();
    assert!(error_of(case.pull("a/b")).contains("is not a regular file"));
    assert_eq!(std::fs::read(&other).unwrap(), b"mine");
    std::fs::remove_file(&part).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&part).status().unwrap().success());
    assert!(error_of(case.pull("a/b")).contains("is not a regular file"));
    std::fs::remove_file(&part).unwrap();
    case.assert_downloaded(&case.pull("a/b").unwrap());
}

#[test]
fn server_that_ignores_ranges_sends_the_whole_file() {
    let case = Case::new(N);
    write_part(&case, &case.model[..100_000]);
    case.server.fault("/cdn/", HubFault::NoRange);
    case.assert_downloaded(&case.pull("a/b").unwrap());
}

#[test]
fn unrequested_range_is_not_written() {
    for fault in [HubFault::WrongRange, HubFault::Status(416, "Content-Range: bytes */7\r\n")] {
        let case = Case::new(N);
        write_part(&case, &case.model[..100_000]);
        case.server.fault("/cdn/", fault);
        let (local, again) = pull_counting(&case.hub(), "a/b");
        case.assert_downloaded(&local.unwrap());
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
        let said = error_of(case.pull("a/b"));
        assert!(said.contains(word) && said.contains("m-Q8_0.gguf"), "{fault:?}: {said}");
        case.assert_absent();
        assert_eq!(case.part(), None, "{fault:?}");
        // The next pull works.
        case.assert_downloaded(&case.pull("a/b").unwrap());
    }
    // The content differs from that in the file list.
    let case = Case::new(N);
    case.server.fault("/resolve/", HubFault::OtherEtag);
    assert!(error_of(case.pull("a/b")).contains("lists"));
    case.assert_absent();
}

#[test]
fn small_files_are_checked_by_their_git_hash() {
    let (case, text) = (Case::new(10), content(2000, 3));
    case.server.add(HubRepo::new("a/c", COMMIT, &[("t.json", &text)]));
    let hub = case.hub();
    case.server.fault("/small/", HubFault::Flip(7));
    assert!(error_of(pull(&hub, "a/c/t.json")).contains("hash"));
    let local = pull(&hub, "a/c/t.json").unwrap();
    assert!(std::fs::read(&local.files[0]).unwrap() == text);
    // The output of `git hash-object`, as an independent value.
    assert_eq!(etag(b"hello\n", false), "ce013625030ba8dba906f756967f9e9ca394464a");
}

#[test]
fn expired_url_is_resolved_again() {
    let case = Case::new(N);
    case.server.fault("/cdn/", HubFault::Cut(1000));
    case.server.fault("/cdn/", HubFault::Status(403, ""));
    case.assert_downloaded(&case.pull("a/b").unwrap());
    let resolved =
        case.server.requests().iter().filter(|request| request.target.contains("/resolve/")).count();
    assert_eq!(resolved, 3);
}

#[test]
fn overloaded_servers_are_retried_after_their_delay() {
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
        case.assert_downloaded(&case.pull("a/b").unwrap());
        assert_eq!(case.server.n_faults(), 0, "{at}");
    }
    let case = Case::new(N);
    (0..4).for_each(|_| case.server.fault("/tree/", HubFault::Status(502, "")));
    let err = case.pull("a/b").unwrap_err();
    assert!(err.is_network() && err.to_string().contains("502"), "{err}");
    // The delay is that of the server.
    let case = Case::new(N);
    case.server.fault("/cdn/", HubFault::Status(429, "Retry-After: 1\r\n"));
    let begun = Instant::now();
    case.assert_downloaded(&case.pull("a/b").unwrap());
    assert!(begun.elapsed() >= Duration::from_secs(1), "asked again after {:?}", begun.elapsed());
}

#[test]
fn silent_connection_times_out() {
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
        case.assert_downloaded(&pull(&hub, "a/b").unwrap());
        assert!(begun.elapsed() > silence, "{at}: it was not silent");
    }
}

#[test]
fn compressed_body_is_refused() {
    let case = Case::new(N);
    case.server.fault("/cdn/", HubFault::Gzip);
    assert!(error_of(case.pull("a/b")).contains("gzip"));
    case.assert_absent();
}

#[test]
fn new_commit_between_two_runs_is_another_file() {
    let case = Case::new(N);
    (0..5).for_each(|k| case.server.fault("/cdn/", HubFault::Cut(if k == 0 { 1000 } else { 0 })));
    error_of(case.pull("a/b"));
    let newer = content(N, 2);
    case.server.add(HubRepo::new("a/b", LATER, &[("x/m-Q8_0.gguf", &newer)]));
    let local = case.pull("a/b").unwrap();
    assert_eq!(local.commit, LATER);
    assert!(std::fs::read(&local.files[0]).unwrap() == newer);
    // The partial file is still that of the old content.
    assert!(case.part().unwrap() == case.model[..1000]);
}

#[test]
fn token_is_sent_only_to_the_hub_and_never_shown() {
    let case = Case::new(N);
    let model = content(1000, 4);
    let repo = HubRepo::new("a/secret", COMMIT, &[("m.gguf", &model)]);
    case.server.add(HubRepo { token: Some("hf_word".to_owned()), ..repo });
    let message = error_of(case.pull("a/secret"));
    assert!(message.contains("HF_TOKEN"), "{message}");
    let token = |text: &str| HubOptions { token: Some(Token::new(text).unwrap()), ..case.options() };
    let hub = Hub::new(token("hf_word")).unwrap();
    let local = pull(&hub, "a/secret").unwrap();
    assert!(std::fs::read(&local.files[0]).unwrap() == model);
    case.server.no_token_leaked();
    let of_hub = case.server.requests().into_iter().filter(|request| !request.of_cdn);
    assert!(of_hub.filter(|request| request.authorization.is_some()).count() >= 3);
    assert!(!format!("{hub:?}").contains("hf_word"));
    // The message of a server is shown, without the token in it.
    case.server.fault("/revision/", HubFault::Status(401, "X-Error-Message: who is hf_word\r\n"));
    let message = error_of(pull(&hub, "a/secret"));
    assert!(message.contains("who is (token)") && !message.contains("hf_word"), "{message}");
    // The URL that the hub has signed is not shown either.
    (0..4).for_each(|_| case.server.fault("/cdn/", HubFault::Status(500, "")));
    let message = error_of(case.pull("a/b"));
    assert!(
        message.contains("500") && !message.contains("secret") && !message.contains("Signature"),
        "{message}"
    );
}

#[test]
fn refusals_say_what_to_do() {
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
        let message = error_of(case.pull(name));
        words
            .iter()
            .for_each(|word| assert!(message.contains(word), "{name}: `{word}` is not in: {message}"));
    }
    // Without a server the error comes at once, not after all tries, which would not end here.
    let endpoint = "http://127.0.0.1:9".to_owned();
    let options = HubOptions { endpoint, tries: u32::MAX, ..case.options() };
    let err = pull(&Hub::new(options).unwrap(), "a/b").unwrap_err();
    assert!(err.is_network(), "{err}");
}

#[test]
fn moved_repository_is_followed() {
    let case = Case::new(N);
    let moved = HubRepo::new("a/old", COMMIT, &[]);
    case.server.add(HubRepo { moved: Some("a/b".to_owned()), ..moved });
    let local = case.pull("a/old").unwrap();
    assert!(std::fs::read(&local.files[0]).unwrap() == case.model);
}

#[test]
fn invalid_redirects_are_not_followed() {
    for (to, word) in [("Location: file:///etc/passwd\r\n", "not http or https"), ("", "without a Location")]
    {
        let case = Case::new(N);
        case.server.fault("/resolve/", HubFault::Status(302, to));
        assert!(error_of(case.pull("a/b")).contains(word), "{to}");
        case.assert_absent();
    }
    let case = Case::new(N);
    (0..20)
        .for_each(|_| case.server.fault("/cdn/", HubFault::Status(302, "Location: /cdn/x?Signature=1\r\n")));
    assert!(error_of(case.pull("a/b")).contains("redirects"));
}

#[test]
fn invalid_file_list_is_an_error() {
    let server = HubServer::start();
    server.add(HubRepo::new("a/b", "not-a-commit", &[("m.gguf", b"GGUF")]));
    let dir = tempfile::tempdir().unwrap();
    let options = HubOptions { endpoint: server.endpoint(), ..HubOptions::new(dir.path().into()) };
    let err = Hub::new(options).unwrap().find(&Name::parse("a/b").unwrap()).unwrap_err();
    assert!(matches!(err, HubError::Answer { .. }), "{err}");
}

#[test]
fn ranges_are_read_without_caching_the_file() {
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
