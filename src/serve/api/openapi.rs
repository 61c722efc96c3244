//! The description of all endpoints, for programs (OpenAPI 3.1).

use std::sync::Arc;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::get;
use hyper::header::CONTENT_TYPE;

use crate::app::App;

const DOCUMENT: &str = include_str!("openapi.json");

pub fn routes() -> Router<Arc<App>> {
    let document = async || ([(CONTENT_TYPE, "application/json")], DOCUMENT).into_response();
    Router::new().route("/openapi.json", get(document))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use serde_json::Value;

    use super::*;

    /// But for the files of pages.
    #[test]
    fn every_endpoint_is_described_and_nothing_else() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        let described: BTreeSet<String> = document["paths"].as_object().unwrap().keys().cloned().collect();
        let mut found = BTreeSet::new();
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("api")];
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            let (inner, plain): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
            folders.extend(inner);
            files.extend(plain);
        }
        for file in files.into_iter().filter(|file| !file.ends_with("page.rs")) {
            let text = std::fs::read_to_string(file).unwrap();
            for list in [".route(\"", "for path in [\""] {
                for (at, start) in text.match_indices(list) {
                    let rest = &text[at + start.len() - 1..];
                    let end = if list.starts_with("for") {
                        rest.find(']')
                    } else {
                        rest[1..].find('"').map(|at| at + 2)
                    };
                    let paths = rest[..end.unwrap()].split('"').filter(|word| word.starts_with('/'));
                    found.extend(paths.map(|path| path.replace("{*", "{")));
                }
            }
        }
        assert_eq!(found, described);
    }
}
