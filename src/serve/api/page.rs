//! The files of the web page.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::StatusCode;
use hyper::header::{ETAG, HeaderName, HeaderValue, IF_NONE_MATCH};

use super::Answer;
use super::openapi::Boxed;
use crate::app::App;
use crate::error::ApiError;
use crate::page::{ASSETS, Asset, HEADERS};

pub fn routes() -> Router<Arc<App>> {
    let router = ASSETS.iter().fold(Router::new(), |router, asset| {
        router.route(asset.path, get(async move |request: Request| file(asset, &request)))
    });
    let local = get(Boxed::new(local));
    router.route("/local/", local.clone()).route("/local/{*path}", local)
}

/// A file of the page that runs models in the browser. Its content security policy is in the page itself,
/// except for `frame-ancestors`.
async fn local(app: Arc<App>, request: Request) -> Answer {
    let path = request.uri().path().strip_prefix("/local/").unwrap_or_default();
    let Some(file) = app.options.local_page.as_ref().and_then(|page| page.find(path)) else {
        return Err(ApiError::not_found(format!("the page has no file `{}`", path.escape_debug())));
    };
    let known = request.headers().get(IF_NONE_MATCH);
    let mut response = match known.is_some_and(|known| known.as_bytes() == file.etag.as_bytes()) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => (StatusCode::OK, file.bytes.clone()).into_response(),
    };
    let own = [("content-security-policy", "frame-ancestors 'none'"), ("content-type", file.media_type)];
    for (name, value) in HEADERS.iter().chain(&own) {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("names of headers are written here");
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    if let Ok(tag) = HeaderValue::from_str(&file.etag) {
        response.headers_mut().insert(ETAG, tag);
    }
    Ok(response)
}

fn file(asset: &'static Asset, request: &Request) -> Response {
    let tag = asset.etag();
    let known = request.headers().get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = match known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => (StatusCode::OK, asset.bytes).into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS.iter().chain(&[("content-type", asset.media_type)]) {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("names of headers are written here");
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    response
}
