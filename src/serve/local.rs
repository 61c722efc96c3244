//! The page for running models in the browser, at `/local/`: a folder of files that `web/build` writes.
//!
//! The files are read once at startup, so a page never mixes files of two versions, and no request can name a
//! path of this machine.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

/// Maximum bytes of all files: the page has about 7 MB.
const MAX_BYTES: u64 = 64 << 20;

/// The files of the page.
#[derive(Clone, Debug)]
pub struct LocalPage {
    files: Arc<BTreeMap<String, LocalFile>>,
}

/// A file of the page.
#[derive(Debug)]
pub struct LocalFile {
    /// Its `Content-Type`.
    pub media_type: &'static str,
    /// Its `ETag`, with quotes.
    pub etag: String,
    /// Its contents.
    pub bytes: Bytes,
}

impl LocalPage {
    /// Reads the files of a folder.
    ///
    /// # Errors
    /// A file cannot be read; [`io::ErrorKind::InvalidInput`] for a folder without `index.html` or over the
    /// size limit.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let wrong = |what: &str| {
            let what =
                format!("{}: {what}; want a folder that web/build wrote (web/dist/page)", folder.display());
            io::Error::new(io::ErrorKind::InvalidInput, what)
        };
        let (mut files, mut left) = (BTreeMap::new(), MAX_BYTES);
        let mut folders = vec![(folder.to_owned(), String::new())];
        while let Some((path, name)) = folders.pop() {
            for entry in fs::read_dir(path)? {
                let entry = entry?;
                let Ok(last) = entry.file_name().into_string() else { continue };
                let (name, about) = (format!("{name}{last}"), entry.metadata()?);
                if about.is_dir() {
                    folders.push((entry.path(), format!("{name}/")));
                } else if about.is_file() {
                    left = left.checked_sub(about.len()).ok_or_else(|| wrong("too large for the page"))?;
                    files.insert(name.clone(), LocalFile::new(&name, fs::read(entry.path())?));
                }
            }
        }
        match files.contains_key("index.html") {
            true => Ok(Self { files: Arc::new(files) }),
            false => Err(wrong("no index.html")),
        }
    }

    /// The file at a path below `/local/`.
    pub fn find(&self, path: &str) -> Option<&LocalFile> {
        self.files.get(if path.is_empty() { "index.html" } else { path })
    }
}

impl LocalFile {
    fn new(name: &str, bytes: Vec<u8>) -> Self {
        let media_type = match name.rsplit('.').next() {
            Some("html") => "text/html; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("js" | "mjs") => "text/javascript; charset=utf-8",
            Some("svg") => "image/svg+xml",
            Some("wasm") => "application/wasm",
            _ => "application/octet-stream",
        };
        let etag = format!("\"{:08x}-{:x}\"", crc32fast::hash(&bytes), bytes.len());
        Self { media_type, etag, bytes: bytes.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_read_once_and_no_path_outside_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let said = LocalPage::read(dir.path()).unwrap_err().to_string();
        assert!(said.contains("no index.html") && said.contains("web/build"), "{said}");
        fs::write(dir.path().join("index.html"), "<p>").unwrap();
        fs::create_dir(dir.path().join("sterna")).unwrap();
        fs::write(dir.path().join("sterna/engine_bg.wasm"), [0]).unwrap();
        let page = LocalPage::read(dir.path()).unwrap();
        fs::write(dir.path().join("index.html"), "changed").unwrap();
        assert_eq!(page.find("").unwrap().bytes, "<p>");
        assert_eq!(page.find("sterna/engine_bg.wasm").unwrap().media_type, "application/wasm");
        for path in ["../index.html", "/index.html", "sterna", "sterna/", "nothing"] {
            assert!(page.find(path).is_none(), "{path}");
        }
    }
}
