//! Contents of a repository: the commit of a revision, and the list of its files.

use std::io::Read;

use serde_json::Value;

use super::error::HubError;
use super::http::{About, Client, Fault, encoded, join};
use super::names::{Repo, is_commit, is_hex};

/// Maximum bytes of one answer, and maximum pages of one list.
const MAX_BYTES: u64 = 64 << 20;
const MAX_PAGES: usize = 1000;

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Path in the repository, as the hub lists it: unchecked until the file is chosen.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Name of the content, also used for its blob in the cache: its SHA-256 with 64 hexadecimal digits
    /// (large files), or git's SHA-1 with 40.
    pub etag: String,
}

/// Resolves `revision` to a commit.
///
/// # Errors
/// No such repository or revision; no access; no network; an answer that cannot be read.
pub(super) fn commit(client: &Client, repo: &Repo, revision: &str) -> Result<String, HubError> {
    let url = format!("{}/api/models/{repo}/revision/{}", client.endpoint, encoded(revision, false));
    let repo = repo.to_string();
    let (json, _) = json(client, &url, About { repo: &repo, revision, file: None })?;
    let sha = json.get("sha").and_then(Value::as_str).filter(|sha| is_commit(sha));
    let wrong = || HubError::Answer { host: client.host(), why: "no commit for the revision".to_owned() };
    Ok(sha.ok_or_else(wrong)?.to_owned())
}

/// Lists all files of a commit, page by page.
///
/// # Errors
/// Same as [`commit`].
pub(super) fn files(client: &Client, repo: &Repo, commit: &str) -> Result<Vec<RemoteFile>, HubError> {
    let mut url = format!("{}/api/models/{repo}/tree/{commit}?recursive=true", client.endpoint);
    let repo = repo.to_string();
    let wrong = |why: &str| HubError::Answer { host: client.host(), why: why.to_owned() };
    let mut files = Vec::new();
    for _ in 0..MAX_PAGES {
        let (page, next) = json(client, &url, About { repo: &repo, revision: commit, file: None })?;
        let entries = page.as_array().ok_or_else(|| wrong("a list of files was expected"))?;
        for entry in entries.iter().filter(|entry| entry.get("type").and_then(Value::as_str) == Some("file"))
        {
            files.push(file(entry).ok_or_else(|| wrong("a file without path, size or hash in the list"))?);
        }
        match next {
            None => return Ok(files),
            // The URL comes from the hub, and `get` sends the token only to the hub.
            Some(next) => url = join(&url, &next).ok_or_else(|| wrong("an invalid URL of the next page"))?,
        }
    }
    Err(wrong("the list of files has too many pages"))
}

fn file(entry: &Value) -> Option<RemoteFile> {
    let lfs = entry.get("lfs").filter(|lfs| lfs.is_object());
    let digits = if lfs.is_some() { 64 } else { 40 };
    let of = lfs.unwrap_or(entry);
    let etag = of.get("oid").and_then(Value::as_str).filter(|oid| is_hex(oid, digits))?;
    let size = of.get("size").or_else(|| entry.get("size"))?.as_u64()?;
    let path = entry.get("path")?.as_str()?;
    Some(RemoteFile { path: path.to_owned(), size, etag: etag.to_owned() })
}

/// An answer as JSON, and the URL of the next page.
fn json(client: &Client, url: &str, about: About<'_>) -> Result<(Value, Option<String>), HubError> {
    // A user waits for the first answer, so without a network there are only two tries.
    let mut tries = client.tries();
    loop {
        match json_once(client, url, about) {
            Ok(json) => return Ok(json),
            Err(fault @ Fault::Passing(HubError::Network { .. }, _)) => {
                tries = tries.at_most(2);
                tries.again(fault, |_, _| {})?;
            }
            Err(fault) => tries.again(fault, |_, _| {})?,
        }
    }
}

fn json_once(client: &Client, url: &str, about: About<'_>) -> Result<(Value, Option<String>), Fault> {
    let mut answer = client.check(client.get(url, None)?, about)?;
    let next = answer.headers.get_all("link").iter().filter_map(|link| next_page(link.to_str().ok()?)).next();
    let mut bytes = Vec::new();
    let read = answer.body.as_reader().take(MAX_BYTES).read_to_end(&mut bytes);
    read.map_err(|err| client.broken(&answer.host, &err))?;
    let why = |err| HubError::Answer { host: answer.host.clone(), why: format!("JSON was expected: {err}") };
    Ok((serde_json::from_slice(&bytes).map_err(why)?, next))
}

/// The URL of `<...>; rel="next"` in a `Link` header.
fn next_page(link: &str) -> Option<String> {
    link.split('<').find_map(|part| {
        let (url, rest) = part.split_once('>')?;
        let params = rest.split(',').next().unwrap_or_default();
        let is_next = params.split(';').any(|param| matches!(param.trim(), "rel=\"next\"" | "rel=next"));
        is_next.then(|| url.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_next_page_of_a_list() {
        let next = |link: &str| next_page(link);
        assert_eq!(
            next("<https://a.co/x?cursor=b,c>; rel=\"next\"").as_deref(),
            Some("https://a.co/x?cursor=b,c")
        );
        assert_eq!(next("</p>; rel=\"prev\", </n>; rel=\"next\"").as_deref(), Some("/n"));
        assert_eq!(next("</p>; rel=\"prev\""), None);
    }

    #[test]
    fn entries_without_a_proper_hash_are_none() {
        let (sha1, sha256) = ("0".repeat(40), "a".repeat(64));
        let plain = json!({"type": "file", "path": "a.md", "size": 3, "oid": sha1});
        assert_eq!(file(&plain), Some(RemoteFile { path: "a.md".into(), size: 3, etag: sha1.clone() }));
        let lfs = json!({"path": "m", "size": 9, "oid": sha1, "lfs": {"oid": sha256, "size": 9}});
        assert_eq!(file(&lfs), Some(RemoteFile { path: "m".into(), size: 9, etag: sha256.clone() }));
        for wrong in [
            json!({"path": "m", "size": 9, "oid": "../../x"}),
            json!({"path": "m", "size": -1, "oid": sha1}),
            json!({"path": "m", "size": 9, "oid": sha1, "lfs": {"oid": sha1, "size": 9}}),
            json!({"size": 9, "oid": sha1}),
            json!(null),
        ] {
            assert_eq!(file(&wrong), None, "{wrong}");
        }
    }
}
