//! The web page at `/`: a chat, and a text that a model continues.
//!
//! The files in this folder are served as they are; there is no build step. They contact no other server, and
//! store conversations only in the browser. Start reading at `page.mjs`. The endpoints they use are in
//! `api.mjs`: `/props`, `/v1/models`, `/v1/chat/completions`, `/completion`.

/// A file of the page.
#[derive(Debug)]
pub struct Asset {
    /// Path below the server's prefix, if it has one.
    pub path: &'static str,
    /// Its `Content-Type`.
    pub media_type: &'static str,
    /// Its contents.
    pub bytes: &'static [u8],
}

impl Asset {
    /// Its `ETag`, with quotes. With `Cache-Control: no-cache` a browser revalidates each time and gets 304,
    /// so it never mixes files of two versions.
    pub fn etag(&self) -> String {
        format!("\"{:08x}-{:x}\"", crc32fast::hash(self.bytes), self.bytes.len())
    }
}

/// Headers of every file of the page, besides type and tag.
pub const HEADERS: &[(&str, &str)] = &[
    ("Content-Security-Policy", CONTENT_SECURITY_POLICY),
    ("Cache-Control", "no-cache"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
];

/// Only the page's own files run, images are its own or those that the user adds, other servers are not
/// contacted, and `require-trusted-types-for` makes the browser reject every way to create HTML from text.
const CONTENT_SECURITY_POLICY: &str = concat!(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; ",
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; ",
    "require-trusted-types-for 'script'; trusted-types 'none'",
);

/// The files of the page, each with its path.
pub const ASSETS: &[Asset] = &[
    asset("/", "text/html; charset=utf-8", include_bytes!("index.html")),
    asset("/page/base.css", STYLE, include_bytes!("base.css")),
    asset("/page/dialogs.css", STYLE, include_bytes!("dialogs.css")),
    asset("/page/frame.css", STYLE, include_bytes!("frame.css")),
    asset("/page/reading.css", STYLE, include_bytes!("reading.css")),
    asset("/page/icon.svg", "image/svg+xml", include_bytes!("icon.svg")),
    asset("/page/theme.js", SCRIPT, include_bytes!("theme.js")),
    asset("/page/api.mjs", SCRIPT, include_bytes!("api.mjs")),
    asset("/page/clipboard.mjs", SCRIPT, include_bytes!("clipboard.mjs")),
    asset("/page/composer.mjs", SCRIPT, include_bytes!("composer.mjs")),
    asset("/page/conversation.mjs", SCRIPT, include_bytes!("conversation.mjs")),
    asset("/page/dom.mjs", SCRIPT, include_bytes!("dom.mjs")),
    asset("/page/editor.mjs", SCRIPT, include_bytes!("editor.mjs")),
    asset("/page/highlight.mjs", SCRIPT, include_bytes!("highlight.mjs")),
    asset("/page/icons.mjs", SCRIPT, include_bytes!("icons.mjs")),
    asset("/page/images.mjs", SCRIPT, include_bytes!("images.mjs")),
    asset("/page/inline.mjs", SCRIPT, include_bytes!("inline.mjs")),
    asset("/page/markdown.mjs", SCRIPT, include_bytes!("markdown.mjs")),
    asset("/page/math.mjs", SCRIPT, include_bytes!("math.mjs")),
    asset("/page/menu.mjs", SCRIPT, include_bytes!("menu.mjs")),
    asset("/page/notice.mjs", SCRIPT, include_bytes!("notice.mjs")),
    asset("/page/page.mjs", SCRIPT, include_bytes!("page.mjs")),
    asset("/page/preferences.mjs", SCRIPT, include_bytes!("preferences.mjs")),
    asset("/page/render.mjs", SCRIPT, include_bytes!("render.mjs")),
    asset("/page/run.mjs", SCRIPT, include_bytes!("run.mjs")),
    asset("/page/server.mjs", SCRIPT, include_bytes!("server.mjs")),
    asset("/page/settings-view.mjs", SCRIPT, include_bytes!("settings-view.mjs")),
    asset("/page/settings.mjs", SCRIPT, include_bytes!("settings.mjs")),
    asset("/page/sidebar.mjs", SCRIPT, include_bytes!("sidebar.mjs")),
    asset("/page/sse.mjs", SCRIPT, include_bytes!("sse.mjs")),
    asset("/page/store.mjs", SCRIPT, include_bytes!("store.mjs")),
    asset("/page/text-view.mjs", SCRIPT, include_bytes!("text-view.mjs")),
    asset("/page/text.mjs", SCRIPT, include_bytes!("text.mjs")),
    asset("/page/thread.mjs", SCRIPT, include_bytes!("thread.mjs")),
    asset("/page/transfer.mjs", SCRIPT, include_bytes!("transfer.mjs")),
    asset("/page/turn-view.mjs", SCRIPT, include_bytes!("turn-view.mjs")),
];

const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

const fn asset(path: &'static str, media_type: &'static str, bytes: &'static [u8]) -> Asset {
    Asset { path, media_type, bytes }
}
