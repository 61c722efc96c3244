//! The cache: its layout, concurrent downloads, and read-only disks.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sterna::hub::{Cached, Choice, Event, Hub, HubError, HubOptions, Name, Repo, repositories};
use support::hub::{HubFault, HubRepo, etag};

use super::{COMMIT, Case, LATER, content, is_link, pull};

const N: usize = 300_000;

#[test]
fn cache_has_the_layout_of_huggingface_hub() {
    let case = Case::new(N);
    let local = case.pull("a/b").unwrap();
    case.assert_downloaded(&local);
    let link = &local.files[0];
    if cfg!(unix) {
        // As huggingface_hub writes it: a relative link, with one more `..` for the folder in the path.
        let to = std::fs::read_link(link).unwrap();
        assert_eq!(to.to_str().unwrap(), format!("../../../blobs/{}", etag(&case.model, true)));
    }
    assert_eq!(std::fs::read_to_string(case.repo().join("refs/main")).unwrap(), COMMIT);
    let lock = format!("hub/.locks/models--a--b/{}.lock", etag(&case.model, true));
    assert!(case.folder.path().join(lock).is_file());
    // A second pull downloads nothing.
    let before = case.server.requests().len();
    case.assert_downloaded(&case.pull("a/b").unwrap());
    let after = case.server.requests();
    assert!(after[before..].iter().all(|request| request.target.contains("/api/")), "{:?}", &after[before..]);
}

#[test]
fn offline_hub_answers_from_the_cache_without_requests() {
    let case = Case::new(N);
    let name = |text: &str| Name::parse(text).unwrap();
    let offline = Hub::new(HubOptions { offline: true, ..case.options() }).unwrap();
    let err = offline.cached(&name("a/b")).unwrap_err();
    assert!(matches!(err, HubError::Offline { .. }), "{err}");
    let local = case.pull("a/b").unwrap();
    let n_requests = case.server.requests().len();
    for text in
        ["a/b".to_owned(), "a/b:Q8_0".into(), "a/b/x/m-Q8_0.gguf".into(), format!("a/b@{COMMIT}:q8_0")]
    {
        assert_eq!(offline.cached(&name(&text)).unwrap(), local, "{text}");
    }
    for text in ["a/b:Q4_0", "a/b/y.gguf", "a/b@other", "a/c"] {
        assert!(matches!(offline.cached(&name(text)), Err(HubError::Offline { .. })), "{text}");
    }
    assert!(matches!(offline.find(&name("a/b")), Err(HubError::Offline { .. })));
    assert_eq!(case.server.requests().len(), n_requests);
}

#[test]
fn concurrent_fetches_download_once() {
    let case = Case::new(N);
    case.server.fault("/cdn/", HubFault::Slow(10_000));
    let waited = AtomicUsize::new(0);
    let tell = |event: Event<'_>| {
        if let Event::Waiting { .. } = event {
            waited.fetch_add(1, Ordering::Relaxed);
        }
    };
    // On a busy machine one thread could otherwise finish before the other one starts.
    let both = Barrier::new(2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let hub = case.hub();
                let found = hub.find(&Name::parse("a/b").unwrap()).unwrap();
                both.wait();
                case.assert_downloaded(&hub.fetch(&found, &tell).unwrap());
            });
        }
    });
    let n_sent = case.server.requests().iter().filter(|request| request.of_cdn).count();
    assert_eq!(n_sent, 1);
    assert_eq!(waited.into_inner(), 1);
}

#[test]
fn stopped_fetch_resumes_the_next_time() {
    let case = Case::new(N);
    case.server.fault("/cdn/", HubFault::Stall(50_000));
    // It would wait much longer than the test takes.
    let hub = case.hub();
    let found = hub.find(&Name::parse("a/b").unwrap()).unwrap();
    let stopper = hub.stopper();
    let stopped = std::thread::scope(|scope| {
        scope.spawn(|| {
            while case.part().is_none_or(|part| part.len() < 50_000) {
                std::thread::sleep(Duration::from_millis(5));
            }
            stopper.stop();
        });
        hub.fetch(&found, &|_| {})
    });
    assert!(matches!(stopped, Err(HubError::Stopped)), "{stopped:?}");
    case.assert_absent();
    assert_eq!(case.part().unwrap().len(), 50_000);
    case.assert_downloaded(&case.pull("a/b").unwrap());
    assert_eq!(case.server.requests().pop().unwrap().range.as_deref(), Some("bytes=50000-"));
}

#[test]
fn known_content_is_linked_and_not_downloaded() {
    let case = Case::new(N);
    case.pull("a/b").unwrap();
    case.server.add(HubRepo::new("a/b", LATER, &[("renamed.gguf", &case.model)]));
    let n_requests = case.server.requests().len();
    let local = case.pull("a/b").unwrap();
    assert!(local.files[0].ends_with(format!("{LATER}/renamed.gguf")));
    assert!(case.server.requests()[n_requests..].iter().all(|request| !request.of_cdn));
    assert_eq!(case.blobs().len(), 1);
}

#[test]
fn broken_files_and_dangling_links_are_downloaded_again() {
    let case = Case::new(N);
    case.pull("a/b").unwrap();
    let blob = case.repo().join("blobs").join(etag(&case.model, true));
    std::fs::write(&blob, b"short").unwrap();
    case.assert_downloaded(&case.pull("a/b").unwrap());
    std::fs::remove_file(&blob).unwrap();
    case.assert_downloaded(&case.pull("a/b").unwrap());
}

#[test]
fn verify_finds_a_flipped_bit() {
    let case = Case::new(N);
    case.pull("a/b").unwrap();
    case.server.add(HubRepo::new("a/small", COMMIT, &[("t.json", b"{}")]));
    case.pull("a/small/t.json").unwrap();
    let hub = case.hub();
    let verified = |repo: &str| {
        let cached = hub.repository(&Repo::new(repo).unwrap());
        let files = cached.files(COMMIT).unwrap();
        files.iter().map(|file| file.verify(|_| true).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!([verified("a/b"), verified("a/small")], [[Some(true)], [Some(true)]]);
    let blob = case.repo().join("blobs").join(etag(&case.model, true));
    let mut bytes = case.model.clone();
    bytes[N / 2] ^= 1;
    std::fs::write(blob, bytes).unwrap();
    assert_eq!(verified("a/b"), [Some(false)]);
}

#[test]
fn remove_keeps_content_that_is_still_used() {
    let case = Case::new(N);
    case.pull("a/b").unwrap();
    let other = content(1000, 7);
    case.server.add(HubRepo::new("a/b", LATER, &[("m-Q8_0.gguf", &case.model), ("m-Q4_0.gguf", &other)]));
    case.pull("a/b:Q8_0").unwrap();
    case.pull("a/b:Q4_0").unwrap();
    let cached = Cached::new(&case.folder.path().join("hub"), &Repo::new("a/b").unwrap());
    assert_eq!(cached.commits().unwrap(), [COMMIT, LATER]);
    // One of two links to the same content.
    assert_eq!(cached.remove(&cached.files(COMMIT).unwrap()).unwrap(), 0);
    assert_eq!((cached.commits().unwrap(), case.blobs().len()), (vec![LATER.to_owned()], 2));
    let mut files = cached.files(LATER).unwrap();
    files.retain(|file| file.path == "m-Q8_0.gguf");
    assert_eq!(cached.remove(&files).unwrap(), N as u64);
    assert_eq!(case.blobs(), [etag(&other, true)]);
    assert_eq!(repositories(&case.folder.path().join("hub")).unwrap().len(), 1);
    assert_eq!(cached.remove_all().unwrap(), 1000);
    assert!(!case.repo().exists());
    assert_eq!(repositories(&case.folder.path().join("hub")).unwrap().len(), 0);
}

#[cfg(unix)]
#[test]
fn links_to_shared_content_are_followed_but_it_stays() {
    let case = Case::new(N);
    let local = case.pull("a/b").unwrap();
    // The layout of newer clients: one store for all repositories.
    let (hub, blob) =
        (case.folder.path().join("hub"), case.repo().join("blobs").join(etag(&case.model, true)));
    let shared = hub.join("blobs/ab/shared");
    std::fs::create_dir_all(shared.parent().unwrap()).unwrap();
    std::fs::rename(&blob, &shared).unwrap();
    std::os::unix::fs::symlink(&shared, &blob).unwrap();
    assert!(std::fs::read(&local.files[0]).unwrap() == case.model && is_link(&blob));
    let n_requests = case.server.requests().len();
    case.pull("a/b").unwrap();
    assert!(case.server.requests()[n_requests..].iter().all(|request| !request.of_cdn));
    let cached = Cached::new(&hub, &Repo::new("a/b").unwrap());
    assert_eq!(cached.files(COMMIT).unwrap()[0].verify(|_| true).unwrap(), Some(true));
    assert_eq!(cached.remove(&cached.files(COMMIT).unwrap()).unwrap(), 0);
    assert!(!is_link(&blob) && std::fs::read(shared).unwrap() == case.model);
}

/// A read-only cache. Root can write to it, so the test needs another account.
#[cfg(unix)]
#[test]
fn read_only_cache_is_an_error_unless_complete() {
    use std::os::unix::fs::PermissionsExt;

    let case = Case::new(N);
    let local = case.pull("a/b").unwrap();
    let hub = case.folder.path().join("hub");
    let allow = |mode| {
        for folder in [hub.join(".locks"), case.repo().join("blobs"), case.repo(), hub.clone()] {
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    allow(0o555);
    if std::fs::write(hub.join("probe"), b"").is_ok() {
        support::print_note(format_args!("read-only cache: not tried, root can write anyway"));
        return allow(0o755);
    }
    assert_eq!(case.pull("a/b").unwrap(), local);
    case.server.add(HubRepo::new("a/c", COMMIT, &[("m.gguf", b"GGUF")]));
    let err = pull(&case.hub(), "a/c").unwrap_err();
    allow(0o755);
    assert!(matches!(err, HubError::Cache { .. }) && err.to_string().contains("HF_HUB_CACHE"), "{err}");
}

#[test]
fn checkpoint_is_fetched_with_the_converters_files() {
    let case = Case::new(10);
    let weights = content(9000, 6);
    let files: [(&str, &[u8]); 4] = [
        ("config.json", b"{}"),
        ("model.safetensors", &weights),
        ("pytorch_model.bin", b"pickle"),
        ("tokenizer.json", b"{}"),
    ];
    case.server.add(HubRepo::new("a/ck", COMMIT, &files));
    let hub = case.hub();
    let name = Name { choice: Choice::Checkpoint, ..Name::parse("a/ck").unwrap() };
    let local = hub.fetch(&hub.find(&name).unwrap(), &|_| {}).unwrap();
    assert!(std::fs::read(local.folder.join("model.safetensors")).unwrap() == weights);
    assert_eq!(local.files.len(), 3);
    assert!(!local.folder.join("pytorch_model.bin").exists());
    assert_eq!(hub.cached(&name).unwrap().files.len(), 3);
}
