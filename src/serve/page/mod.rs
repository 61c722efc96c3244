//! The page at `/`. The files beside this one are served as they are.

/// A file of the page.
#[derive(Debug)]
pub struct Asset {
    /// Where it is served.
    pub path: &'static str,
    /// Its `Content-Type`.
    pub media_type: &'static str,
    /// Its contents.
    pub bytes: &'static [u8],
}

impl Asset {
    /// Its `ETag`, with quotes.
    pub fn etag(&self) -> String {
        format!("\"{:08x}-{:x}\"", crc32fast::hash(self.bytes), self.bytes.len())
    }
}

/// Headers of every file of the page, beside its type and its tag.
pub const HEADERS: &[(&str, &str)] = &[
    (
        "Content-Security-Policy",
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("Cache-Control", "no-cache"),
    ("Referrer-Policy", "no-referrer"),
];

/// The files of the page, each at its path.
pub const ASSETS: &[Asset] =
    &[Asset { path: "/", media_type: "text/html; charset=utf-8", bytes: include_bytes!("index.html") }];
