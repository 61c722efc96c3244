//! The choice of files in a repository.

use sterna::hub::HubError;
use support::hub::HubRepo;

use super::{COMMIT, Case, LATER, content};

#[test]
fn split_model_is_fetched_over_all_list_pages() {
    let case = Case::new(10);
    let parts: Vec<_> =
        (1..=7).map(|k| (format!("q/m-Q4_0-{k:05}-of-00007.gguf"), content(5000, k))).collect();
    let files: Vec<(&str, &[u8])> = parts.iter().map(|(path, bytes)| (path.as_str(), &bytes[..])).collect();
    case.server.add(HubRepo::new("a/split", COMMIT, &files));
    let local = case.pull("a/split:Q4_0").unwrap();
    assert_eq!(local.files.len(), 7);
    for (path, (name, bytes)) in local.files.iter().zip(&parts) {
        assert!(path.ends_with(name) && std::fs::read(path).unwrap() == *bytes, "{name}");
    }
    case.server.no_token_leaked();
}

#[test]
fn paths_outside_the_folder_write_nothing() {
    for path in ["../../../x-Q8_0.gguf", "/x-Q8_0.gguf", "a/../x-Q8_0.gguf", "..\\x-Q8_0.gguf"] {
        let case = Case::new(10);
        case.server.add(HubRepo::new("a/evil", COMMIT, &[(path, b"GGUF")]));
        let err = case.pull("a/evil").unwrap_err();
        assert!(matches!(err, HubError::Path { .. }), "{path}: {err}");
        assert_eq!(std::fs::read_dir(case.folder.path()).unwrap().count(), 0, "{path}");
    }
}

#[test]
fn names_with_special_characters_are_kept() {
    let case = Case::new(10);
    let (path, bytes) = ("ü b#%?+/m (1).gguf", content(3000, 5));
    let path = path.replace('?', "");
    case.server.add(HubRepo::new("a/odd", COMMIT, &[(&path, &bytes)]));
    let local = case.pull("a/odd").unwrap();
    assert!(local.files[0].ends_with(&path) && std::fs::read(&local.files[0]).unwrap() == bytes);
}

#[test]
fn revisions_are_branches_tags_and_commits() {
    let case = Case::new(10);
    let older = content(100, 8);
    let repo = HubRepo::new("a/b", LATER, &[("m.gguf", &older)]);
    case.server.add(HubRepo { revision: "refs/pr/3".to_owned(), ..repo });
    for name in ["a/b@refs/pr/3".to_owned(), format!("a/b@{LATER}")] {
        let local = case.pull(&name).unwrap();
        assert_eq!(local.commit, LATER);
        assert!(std::fs::read(&local.files[0]).unwrap() == older);
    }
    assert_eq!(std::fs::read_to_string(case.repo().join("refs/refs/pr/3")).unwrap(), LATER);
    assert!(!case.repo().join("refs").join(LATER).exists());
    case.pull("a/b").unwrap();
    assert_eq!(std::fs::read_to_string(case.repo().join("refs/main")).unwrap(), COMMIT);
}
