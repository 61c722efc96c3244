//! Images of a conversation: from data URLs to rows of the prompt. Runs outside the threads of HTTP and of
//! the engine, and fetches nothing.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::error::ApiError;
use super::model::Served;
use sterna_engine::PlacedImage;
use sterna_image::MAX_BYTES;
use sterna_tokenizer::chat::Prompt;

/// Maximum images of a request.
pub const IMAGES: usize = 16;

/// An image part of a message.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageUrl {
    /// Its path in the request.
    pub path: String,
    /// The URL.
    pub url: String,
}

/// The bytes of a data URL in base64.
fn bytes(ImageUrl { path, url }: &ImageUrl) -> Result<Vec<u8>, ApiError> {
    let fail = |message: String| Err(ApiError::in_field(path, format!("`{path}`: {message}")));
    let Some(data) = url.strip_prefix("data:") else {
        let shown: String = url.chars().take(60).collect();
        return fail(format!("want a data URL, because this server fetches no images, got {shown:?}"));
    };
    let Some((_, data)) = data.split_once(";base64,") else {
        return fail("want a data URL in base64, as in data:image/png;base64,...".to_owned());
    };
    if data.len() / 4 * 3 > MAX_BYTES + 3 {
        return fail(format!("an image of more than {MAX_BYTES} bytes"));
    }
    STANDARD.decode(data).or_else(|err| fail(format!("not base64: {err}")))
}

/// Puts the rows of the images at their places in a rendered prompt.
///
/// # Errors
/// 400 that names the part of an image that cannot be decoded, or if there is no vision tower.
pub fn placed(
    served: &Served,
    prompt: &mut Prompt,
    images: &[ImageUrl],
) -> Result<Vec<PlacedImage>, ApiError> {
    let Some(first) = images.first() else { return Ok(Vec::new()) };
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
    let (mut ids, mut placed, mut done) = (Vec::new(), Vec::with_capacity(images.len()), 0);
    for (image, at) in images.iter().zip(&prompt.images) {
        let picture =
            sterna_image::decode(&bytes(image)?).map_err(|err| fail(&image.path, err.to_string()))?;
        let rows = served.engine.encode_image(&picture).map_err(|err| fail(&image.path, err.to_string()))?;
        ids.extend_from_slice(&prompt.ids[done..*at]);
        placed.push(PlacedImage::append(rows, &mut ids));
        done = *at;
    }
    ids.extend_from_slice(&prompt.ids[done..]);
    prompt.ids = ids;
    Ok(placed)
}

/// Checks that the model reads images.
///
/// # Errors
/// 400 that says which flag loads the tower.
pub fn check(served: &Served, ImageUrl { path, .. }: &ImageUrl) -> Result<[&'static str; 2], ApiError> {
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
