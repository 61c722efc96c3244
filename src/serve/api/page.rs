//! The page, file by file.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::StatusCode;
use hyper::header::{ETAG, HeaderName, HeaderValue, IF_NONE_MATCH};

use crate::serve::app::App;
use crate::serve::page::{ASSETS, Asset, HEADERS};

pub fn routes() -> Router<Arc<App>> {
    ASSETS.iter().fold(Router::new(), |router, asset| {
        router.route(asset.path, get(async move |request: Request| file(asset, &request)))
    })
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
