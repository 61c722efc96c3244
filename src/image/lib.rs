//! Image files: PNG, JPEG, WebP, GIF and BMP to the pictures that the engine encodes, within limits that are
//! checked before anything is decoded.
//!
//! It must never open a file or a connection: its input are bytes. Alpha is dropped, a GIF or WebP with
//! several frames gives its first one, and the picture is turned as its EXIF orientation says.
#![forbid(unsafe_code)]

use std::io::Cursor;

use image::{DynamicImage, ImageDecoder, ImageError, ImageReader};
use sha2::{Digest, Sha256};
use sterna_engine::Picture;

/// Maximum bytes of a file.
pub const MAX_BYTES: usize = 20 << 20;
/// Maximum length of a side in pixels.
pub const MAX_SIDE: u32 = 16384;
/// Maximum number of pixels.
pub const MAX_PIXELS: u64 = 64 << 20;
/// Maximum bytes that a decoder may allocate: a picture of the most pixels, of four 16-bit channels.
const MAX_ALLOC: u64 = 8 * MAX_PIXELS;

/// Reason why a file gives no picture.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The file is too large.
    #[error("an image of {bytes} bytes, want at most {MAX_BYTES}")]
    Bytes {
        /// Its size.
        bytes: usize,
    },
    /// The picture is too large.
    #[error(
        "a picture of {width} x {height} pixels, want at most {MAX_SIDE} on a side and {MAX_PIXELS} in total"
    )]
    Size {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
    /// The format is unknown.
    #[error("not an image: want PNG, JPEG, WebP, GIF or BMP")]
    Format,
    /// The file is damaged, or uses a feature that its decoder does not support.
    #[error("the image cannot be decoded: {0}")]
    Damaged(ImageError),
}

/// The id of the picture of an image file: the SHA-256 of the file.
pub fn id(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Decodes an image file. The id of the picture is that of the [file](id).
///
/// # Errors
/// [`DecodeError`].
pub fn decode(bytes: &[u8]) -> Result<Picture, DecodeError> {
    if bytes.len() > MAX_BYTES {
        return Err(DecodeError::Bytes { bytes: bytes.len() });
    }
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let mut reader = reader.map_err(|err| DecodeError::Damaged(err.into()))?;
    if reader.format().is_none() {
        return Err(DecodeError::Format);
    }
    let mut limits = image::Limits::default();
    limits.max_alloc = Some(MAX_ALLOC);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(DecodeError::Damaged)?;
    let (width, height) = decoder.dimensions();
    let n_pixels = u64::from(width) * u64::from(height);
    if width.max(height) > MAX_SIDE || n_pixels > MAX_PIXELS || n_pixels == 0 {
        return Err(DecodeError::Size { width, height });
    }
    let orientation = decoder.orientation().map_err(DecodeError::Damaged)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(DecodeError::Damaged)?;
    image.apply_orientation(orientation);
    let rgb = image.into_rgb8();
    let size = [rgb.width(), rgb.height()];
    Ok(Picture::new(size, rgb.into_raw(), Some(id(bytes))))
}
