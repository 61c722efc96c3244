//! Images of a conversation: from parts of requests to rows of the prompt. Pictures are decoded and encoded
//! outside the threads of HTTP and of the engine. Only what the operator allows reads URLs.

use std::borrow::Cow;
use std::sync::{Arc, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::error::ApiError;
use super::model::Served;
use sterna_engine::{ImageRows, Picture, PlacedImage};
use sterna_image::MAX_BYTES;
use sterna_tokenizer::Special;
use sterna_tokenizer::chat::{self, Prompt};

/// Maximum images of a request.
pub const IMAGES: usize = 16;

/// An image in a request.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenImage {
    /// Its path in the request.
    pub path: String,
    /// Its file.
    pub file: ImageFile,
}

/// The file of an image, as requests contain it.
#[derive(Clone, Debug, PartialEq)]
pub enum ImageFile {
    /// A data URL, or the URL of a file.
    Url(String),
    /// The file in base64.
    Base64(String),
}

/// The images of a conversation, in the order of their [marks](chat::IMAGE) in its messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Images {
    /// The images.
    pub list: Vec<GivenImage>,
    /// True if the model sees the images in results of tools; otherwise it is told that they exist.
    in_results: bool,
    /// True if those may also be URLs of files.
    fetched: bool,
}

impl Images {
    /// No images yet, of a conversation with this model.
    pub fn of(served: &Served) -> Self {
        let (in_results, fetched) = (served.engine.vision().is_some(), served.fetch_image.is_some());
        Self { list: Vec::new(), in_results, fetched }
    }

    /// No images yet, for a model that sees those in results of tools.
    #[cfg(test)]
    pub fn in_results() -> Self {
        Self { in_results: true, ..Self::default() }
    }

    /// True if the model sees the images in results of tools.
    pub fn sees_results(&self) -> bool {
        self.in_results
    }

    /// Adds an image, and returns its mark.
    pub fn add(&mut self, path: String, file: ImageFile) -> &'static str {
        self.list.push(GivenImage { path, file });
        chat::IMAGE
    }

    /// Adds the image of a part of a tool's result, if the model can see it, and returns its mark.
    pub fn add_result(&mut self, path: &str, part: &Value) -> Option<&'static str> {
        let (name, file) = of_part(part).filter(|_| self.in_results)?;
        let is_here = !matches!(&file, ImageFile::Url(url) if !url.starts_with("data:"));
        (is_here || self.fetched).then(|| self.add(format!("{path}.{name}"), file))
    }

    /// Adds those of another list after its own.
    pub fn append(&mut self, mut more: Self) {
        self.list.append(&mut more.list);
    }
}

/// The image of a part in the forms of OpenAI, Anthropic and MCP, with the name of its field.
fn of_part(part: &Value) -> Option<(&'static str, ImageFile)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let url = |name: &'static str| {
        let value = part.get(name)?;
        let url = text(value).or_else(|| text(value.get("url")?))?;
        Some((name, ImageFile::Url(url)))
    };
    let source = || {
        let source = part.get("source")?;
        let data = source.get("data").and_then(text).map(ImageFile::Base64);
        Some(("source", data.or_else(|| text(source.get("url")?).map(ImageFile::Url))?))
    };
    let data = || Some(("data", ImageFile::Base64(text(part.get("data")?)?)));
    url("image_url").or_else(source).or_else(data).or_else(|| url("url"))
}

/// Appends a newline, unless the text before or after it is an image.
pub fn separate(text: &mut String, next: &str) {
    if !text.ends_with(chat::IMAGE) && !next.starts_with(chat::IMAGE) {
        text.push('\n');
    }
}

/// Joins texts by newlines, but not next to images.
pub fn joined<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> String {
    let mut all = String::new();
    for (at, text) in texts.into_iter().enumerate() {
        if at > 0 {
            separate(&mut all, text.as_ref());
        }
        all += text.as_ref();
    }
    all
}

/// The bytes of an image's file.
fn bytes(served: &Served, GivenImage { path, file }: &GivenImage) -> Result<Vec<u8>, ApiError> {
    let fail = |message: String| Err(ApiError::in_field(path, format!("`{path}`: {message}")));
    let data = match file {
        ImageFile::Base64(data) => Cow::Borrowed(data),
        ImageFile::Url(url) => match url.strip_prefix("data:") {
            None => return fetched(served, url).or_else(fail),
            Some(data) => match data.split_once(";base64,") {
                Some((_, data)) => Cow::Owned(data.to_owned()),
                None => return fail("want a data URL in base64, as in data:image/png;base64,...".to_owned()),
            },
        },
    };
    if data.len() / 4 * 3 > MAX_BYTES + 3 {
        return fail(format!("an image of more than {MAX_BYTES} bytes"));
    }
    STANDARD.decode(data.as_bytes()).or_else(|err| fail(format!("not base64: {err}")))
}

/// The file at a URL, if the server may read it.
fn fetched(served: &Served, url: &str) -> Result<Vec<u8>, String> {
    let shown: String = url.escape_debug().take(60).collect();
    let is_web = ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme));
    match served.fetch_image.as_ref().filter(|_| is_web) {
        Some(fetch) => fetch.get(url),
        None if is_web => Err(format!(
            "want a data URL, because this server fetches no images, got \"{shown}\"; `sterna serve \
             --image-hosts` allows hosts"
        )),
        None => Err(format!("want a data URL, got \"{shown}\"")),
    }
}

/// An image of a request.
enum Found {
    /// Its rows, which are still known.
    Rows(Arc<ImageRows>),
    /// The picture, which has to be encoded.
    Picture(Picture),
}

/// Looks up or decodes the images of a rendered prompt, and passes each with its index to `each`.
fn found(
    served: &Served,
    prompt: &Prompt,
    images: &[GivenImage],
    mut each: impl FnMut(usize, Found) -> Result<(), sterna_engine::Error>,
) -> Result<(), ApiError> {
    let Some(first) = images.first() else { return Ok(()) };
    let fail = |path: &str, message: String| ApiError::in_field(path, format!("`{path}`: {message}"));
    if images.len() > IMAGES {
        return Err(fail(
            &first.path,
            format!("{} images in a request, want at most {IMAGES}", images.len()),
        ));
    }
    if prompt.images.len() != images.len() {
        let message = format!("the chat template shows {} of {} images", prompt.images.len(), images.len());
        return Err(fail(&first.path, message));
    }
    for (at, image) in images.iter().enumerate() {
        let file = bytes(served, image)?;
        let one_picture = || served.picture.lock().unwrap_or_else(PoisonError::into_inner);
        let (found, _one) = match served.engine.known_image(&sterna_image::id(&file)) {
            Some(rows) => (Found::Rows(rows), None),
            None => {
                let one = one_picture();
                let picture = sterna_image::decode(&file);
                let picture = picture.map_err(|err| fail(&image.path, err.to_string()))?;
                (Found::Picture(picture), Some(one))
            }
        };
        each(at, found).map_err(|err| fail(&image.path, err.to_string()))?;
    }
    Ok(())
}

/// Puts the rows of the images at their places in a rendered prompt.
///
/// # Errors
/// 400 that names the part of an image that cannot be read or decoded.
pub fn placed(
    served: &Served,
    prompt: &mut Prompt,
    images: &[GivenImage],
) -> Result<Vec<PlacedImage>, ApiError> {
    let (mut ids, mut placed, mut done) = (Vec::new(), Vec::with_capacity(images.len()), 0);
    found(served, prompt, images, |at, found| {
        let rows = match found {
            Found::Rows(rows) => rows,
            Found::Picture(picture) => served.engine.encode_image(&picture)?,
        };
        let at = prompt.images[at];
        ids.extend_from_slice(&prompt.ids[done..at]);
        placed.push(PlacedImage::append(rows, &mut ids));
        done = at;
        Ok(())
    })?;
    ids.extend_from_slice(&prompt.ids[done..]);
    prompt.ids = ids;
    Ok(placed)
}

/// Number of tokens of a rendered prompt with its images, which are not encoded.
///
/// # Errors
/// As [`placed`].
pub fn count(served: &Served, prompt: &Prompt, images: &[GivenImage]) -> Result<usize, ApiError> {
    let mut n_tokens = prompt.ids.len();
    found(served, prompt, images, |_, found| {
        n_tokens += match found {
            Found::Rows(rows) => rows.len(),
            Found::Picture(picture) => served.engine.image_tokens(&picture)?,
        };
        Ok(())
    })?;
    Ok(n_tokens)
}

/// A text without a chat template, after `n` images and their markers.
pub fn before(served: &Served, around: [&str; 2], n: usize, text: String) -> Prompt {
    let ([begin, end], tokenizer) = (around, served.tokenizer());
    let (mut ids, mut images) = (Vec::new(), Vec::with_capacity(n));
    for at in 0..n {
        let between = if at == 0 { begin.to_owned() } else { format!("{end}{begin}") };
        ids.extend(tokenizer.encode(&between, Special::Parse, at == 0));
        images.push(ids.len());
    }
    ids.extend(tokenizer.encode(&format!("{end}{text}"), Special::Parse, false));
    Prompt { text, ids, images }
}

/// Checks that the model reads images, and returns the texts before and after each.
///
/// # Errors
/// 400 that says which flag loads the tower.
pub fn check(served: &Served, GivenImage { path, .. }: &GivenImage) -> Result<[&'static str; 2], ApiError> {
    match served.engine.vision() {
        Some(vision) => Ok(vision.around()),
        None => {
            let message = format!(
                "`{path}`: this model reads images only with its mmproj file: start the server with -mm \
                 FILE, the file called mmproj-*.gguf that belongs to the model"
            );
            Err(ApiError { code: Some("unsupported_model"), ..ApiError::in_field(path, message) })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn images_of_parts_in_every_form() {
        let [url, base64] = [ImageFile::Url("u".into()), ImageFile::Base64("b".into())];
        for (part, want) in [
            (json!({ "type": "input_image", "image_url": "u" }), Some(("image_url", url.clone()))),
            (json!({ "type": "image_url", "image_url": { "url": "u" } }), Some(("image_url", url.clone()))),
            (
                json!({ "type": "image", "source": { "type": "base64", "data": "b" } }),
                Some(("source", base64.clone())),
            ),
            (
                json!({ "type": "image", "source": { "type": "url", "url": "u" } }),
                Some(("source", url.clone())),
            ),
            (json!({ "type": "image", "data": "b", "mimeType": "image/png" }), Some(("data", base64))),
            (json!({ "type": "image", "url": "u" }), Some(("url", url))),
            (json!({ "type": "input_image", "file_id": "f" }), None),
            (json!({ "type": "image", "source": { "type": "file", "file_id": "f" } }), None),
        ] {
            assert_eq!(of_part(&part), want, "{part}");
        }
    }

    #[test]
    fn a_newline_separates_texts_but_not_images() {
        assert_eq!(joined(["a", "b"]), "a\nb");
        assert_eq!(joined(["a", chat::IMAGE, "b"]), format!("a{}b", chat::IMAGE));
        assert_eq!(joined(["", "b"]), "\nb");
    }
}
