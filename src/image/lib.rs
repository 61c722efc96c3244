//! Image files: PNG, JPEG, WebP, GIF and BMP to the pictures that the engine encodes, within limits that are
//! checked before anything is decoded.
//!
//! It must never open a file or a connection: its input are bytes. Alpha is dropped, a GIF or WebP with
//! several frames gives its first one, and the picture is turned as its EXIF orientation says.
#![forbid(unsafe_code)]

use std::io::Cursor;

use image::{ColorType, DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, RgbImage};
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
    /// A JPEG file ends before its picture does. Its decoder would make the rest up.
    #[error("the image cannot be decoded: the JPEG file is cut off, its end marker is missing")]
    CutOff,
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
    match reader.format() {
        Some(ImageFormat::Jpeg) if !has_end(bytes) => return Err(DecodeError::CutOff),
        Some(format) if format.reading_enabled() => {}
        _ => return Err(DecodeError::Format),
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
    let rgb = rgb(image);
    let size = [rgb.width(), rgb.height()];
    Ok(Picture::new(size, rgb.into_raw(), Some(id(bytes))))
}

/// 8-bit RGB. Alpha is dropped, and 16 bits are cut to the high 8, as Pillow does.
fn rgb(image: DynamicImage) -> RgbImage {
    if !matches!(image.color(), ColorType::L16 | ColorType::La16 | ColorType::Rgb16 | ColorType::Rgba16) {
        return image.into_rgb8();
    }
    let wide = image.into_rgb16();
    let (width, height) = wide.dimensions();
    let high = wide.into_raw().into_iter().map(|x| (x >> 8) as u8).collect();
    RgbImage::from_raw(width, height, high).expect("3 bytes per pixel")
}

/// True if a JPEG file has an end marker after the beginning of its first scan.
fn has_end(bytes: &[u8]) -> bool {
    let mut rest = &bytes[2..];
    loop {
        match *rest {
            // Bytes that fill up, and markers without a length.
            [0xff, 0xff, ..] => rest = &rest[1..],
            [0xff, 0x01 | 0xd0..=0xd8, ..] => rest = &rest[2..],
            [0xff, 0xda, ..] => return rest.windows(2).any(|marker| marker == [0xff, 0xd9]),
            [0xff, _, high, low, ..] => {
                let len = usize::from(u16::from_be_bytes([high, low]));
                let Some(after) = rest.get(2 + len..) else { return false };
                rest = after;
            }
            // Not a marker: the decoder says what is wrong.
            _ => return rest.len() >= 4,
        }
    }
}

#[cfg(test)]
mod tests;
