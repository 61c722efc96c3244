//! The page: one file that needs nothing from elsewhere.

use std::sync::Arc;
use std::sync::LazyLock;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::StatusCode;
use hyper::header::HeaderValue;

use crate::serve::app::App;

const PAGE: &[u8] = include_bytes!("../page/index.html");

/// What the page may do: run its own script, use its own style, ask this server. Nothing of another.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                      img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// Names this build's page.
static TAG: LazyLock<String> = LazyLock::new(|| format!("\"{:08x}-{}\"", crc32fast::hash(PAGE), PAGE.len()));

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(page))
        .route("/index.html", get(page))
        .route("/favicon.ico", get(async || StatusCode::NO_CONTENT))
}

async fn page(request: Request) -> Response {
    let known = request.headers().get("if-none-match").is_some_and(|tag| tag.as_bytes() == TAG.as_bytes());
    let mut response = match known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => (StatusCode::OK, PAGE).into_response(),
    };
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert("content-security-policy", HeaderValue::from_static(POLICY));
    headers.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    headers.insert("cache-control", HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::from_str(&TAG) {
        headers.insert("etag", tag);
    }
    response
}
