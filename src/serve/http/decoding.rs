//! Compressed bodies: the codings of `Content-Encoding`, decoded within the limit of a body.

use std::io::Read;

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use flate2::read::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use hyper::header::{CONTENT_ENCODING, HeaderMap};
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use crate::error::ApiError;

/// Maximum codings of a body.
const CODINGS: usize = 4;
/// Largest window of zstd that a client may use in HTTP (RFC 9659).
const ZSTD_WINDOW: u64 = 8 << 20;
/// Bytes that are decoded at a time.
const PIECE: usize = 64 << 10;

/// Coding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// `gzip`.
    Gzip,
    /// `deflate`: zlib's format, or without its header as some clients send it.
    Deflate,
    /// `br`.
    Brotli,
    /// `zstd`.
    Zstd,
}

impl Coding {
    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }
}

/// The codings of a request's body, in the order in which they were applied.
///
/// # Errors
/// 415 for a coding that is not supported, or more than four.
pub fn codings(headers: &HeaderMap) -> Result<Vec<Coding>, ApiError> {
    let mut codings = Vec::new();
    for line in headers.get_all(CONTENT_ENCODING) {
        let line = String::from_utf8_lossy(line.as_bytes());
        for name in line.split(',').map(str::trim) {
            codings.push(match &*name.to_ascii_lowercase() {
                "" | "identity" => continue,
                "gzip" | "x-gzip" => Coding::Gzip,
                "deflate" => Coding::Deflate,
                "br" => Coding::Brotli,
                "zstd" => Coding::Zstd,
                _ => return Err(ApiError::unsupported_coding(name)),
            });
        }
    }
    match codings.get(CODINGS) {
        Some(coding) => Err(ApiError::unsupported_coding(&format!("{} as the fifth", coding.name()))),
        None => Ok(codings),
    }
}

/// Why a body cannot be decoded.
#[derive(Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// It is longer than the limit.
    TooLarge,
    /// It is not in the named coding.
    Broken(&'static str, String),
}

/// Decodes `body`. No coding may give more than `limit` bytes.
///
/// # Errors
/// [`DecodeError`].
pub fn decode(body: &[u8], codings: &[Coding], limit: usize) -> Result<Vec<u8>, DecodeError> {
    let mut bytes = Vec::new();
    // The last one was applied last.
    for (at, coding) in codings.iter().rev().enumerate() {
        let from = if at == 0 { body } else { &bytes };
        let mut out = Decoded { bytes: Vec::new(), limit };
        let done = match coding {
            Coding::Gzip => out.fill(&mut MultiGzDecoder::new(from)),
            Coding::Deflate => out.inflate(from),
            Coding::Brotli => out.unbrotli(from),
            Coding::Zstd => out.unzstd(from),
        };
        done.map_err(|err| err.map_or(DecodeError::TooLarge, |err| DecodeError::Broken(coding.name(), err)))?;
        bytes = out.bytes;
    }
    Ok(bytes)
}

/// Result of a step: `Err(None)` if the limit is exceeded, otherwise what is wrong.
type Step<T> = Result<T, Option<String>>;

fn broken<T>(what: impl ToString) -> Step<T> {
    Err(Some(what.to_string()))
}

const CUT_OFF: &str = "it is cut off";
const MORE: &str = "there is more after its end";

/// Decoded bytes, at most `limit`.
struct Decoded {
    bytes: Vec<u8>,
    limit: usize,
}

impl Decoded {
    fn push(&mut self, piece: &[u8]) -> Step<()> {
        if piece.len() > self.limit - self.bytes.len() {
            return Err(None);
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    fn fill(&mut self, from: &mut impl Read) -> Step<()> {
        let left = self.limit - self.bytes.len();
        let most = u64::try_from(left).unwrap_or(u64::MAX).saturating_add(1);
        let read = from.take(most).read_to_end(&mut self.bytes);
        match read {
            Ok(_) if self.bytes.len() > self.limit => Err(None),
            Ok(_) => Ok(()),
            Err(err) => broken(err),
        }
    }

    fn inflate(&mut self, mut from: &[u8]) -> Step<()> {
        let header = from.first_chunk::<2>().map(|head| u16::from_be_bytes(*head));
        let is_zlib = header.is_some_and(|header| header >> 8 & 15 == 8 && header.is_multiple_of(31));
        let mut stream = Decompress::new(is_zlib);
        let mut piece = vec![0; PIECE];
        loop {
            let (read, wrote) = (stream.total_in(), stream.total_out());
            let status = stream.decompress(from, &mut piece, FlushDecompress::None);
            let (read, wrote) = (stream.total_in() - read, stream.total_out() - wrote);
            from = &from[read as usize..];
            self.push(&piece[..wrote as usize])?;
            match status {
                Ok(Status::StreamEnd) if from.is_empty() => return Ok(()),
                Ok(Status::StreamEnd) => return broken(MORE),
                Ok(_) if read == 0 && wrote == 0 => return broken(CUT_OFF),
                Ok(_) => {}
                Err(err) => return broken(err),
            }
        }
    }

    fn unbrotli(&mut self, from: &[u8]) -> Step<()> {
        let alloc = StandardAlloc::default;
        let mut state = BrotliState::new_strict(alloc(), alloc(), alloc());
        let (mut left, mut at, mut total) = (from.len(), 0, 0);
        let mut piece = vec![0; PIECE];
        loop {
            let (mut room, mut end) = (PIECE, 0);
            let result = BrotliDecompressStream(
                &mut left, &mut at, from, &mut room, &mut end, &mut piece, &mut total, &mut state,
            );
            self.push(&piece[..end])?;
            match result {
                BrotliResult::ResultSuccess if left == 0 => return Ok(()),
                BrotliResult::ResultSuccess => return broken(MORE),
                BrotliResult::NeedsMoreOutput => {}
                BrotliResult::NeedsMoreInput => return broken(CUT_OFF),
                BrotliResult::ResultFailure => return broken("it is not valid"),
            }
        }
    }

    fn unzstd(&mut self, mut from: &[u8]) -> Step<()> {
        if from.is_empty() {
            return broken(CUT_OFF);
        }
        while !from.is_empty() {
            let mut decoder = FrameDecoder::new();
            decoder.set_max_window_size(ZSTD_WINDOW);
            let mut stream = match StreamingDecoder::new_with_decoder(&mut from, decoder) {
                Ok(stream) => stream,
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    match from.get(length as usize..) {
                        Some(rest) => from = rest,
                        None => return broken(CUT_OFF),
                    }
                    continue;
                }
                Err(err) => return broken(err),
            };
            self.fill(&mut stream)?;
            let decoder = stream.into_frame_decoder();
            let sum = decoder.get_checksum_from_data();
            if sum.is_some() && sum != decoder.get_calculated_checksum() {
                return broken("its checksum does not match");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use hyper::header::HeaderValue;

    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    const TEXT: &[u8] = b"{\"prompt\": \"You may\"}";
    /// The text in each coding, by Python, Node.js and the zstd command; `deflate` also without its header.
    const CODED: &[(Coding, &str)] = &[
        (Coding::Gzip, "1f8b0800000000000203ab562a28cacf2d2851b252508acc2f55c84dac54aa0500d3f9469d15000000"),
        (Coding::Deflate, "78daab562a28cacf2d2851b252508acc2f55c84dac54aa05004fc20721"),
        (Coding::Deflate, "ab562a28cacf2d2851b252508acc2f55c84dac54aa0500"),
        (Coding::Brotli, "0b0a807b2270726f6d7074223a2022596f75206d6179227d03"),
        (Coding::Zstd, "28b52ffd0468a900007b2270726f6d7074223a2022596f75206d6179227d8f8c8b24"),
    ];

    fn is_broken(decoded: &Result<Vec<u8>, DecodeError>) -> bool {
        matches!(decoded, Err(DecodeError::Broken(..)))
    }

    #[test]
    fn codings_are_decoded_and_broken_streams_refused() {
        for (coding, hex) in CODED {
            let coded = bytes(hex);
            let decoded = |coded: &[u8]| decode(coded, &[*coding], TEXT.len());
            assert_eq!(decoded(&coded).unwrap(), TEXT, "{coding:?}");
            assert_eq!(decode(&coded, &[*coding], TEXT.len() - 1), Err(DecodeError::TooLarge), "{coding:?}");
            for end in 0..coded.len() {
                assert!(is_broken(&decoded(&coded[..end])), "{coding:?} {end}");
            }
            assert!(is_broken(&decoded(&[&coded[..], b"more"].concat())), "{coding:?}");
            // The text itself is in no coding.
            assert!(decoded(b"{\"prompt\": 1}").is_err(), "{coding:?}");
            let twice = decode(&gzip(&coded), &[*coding, Coding::Gzip], 1 << 20);
            assert_eq!(twice.unwrap(), TEXT, "{coding:?}");
        }
        let wrong_sum = CODED[4].1.replace("8f8c8b24", "8f8c8b25");
        assert!(is_broken(&decode(&bytes(&wrong_sum), &[Coding::Zstd], 99)));
        // Several members and frames, and a frame to be skipped.
        for (coding, hex) in [CODED[0], CODED[4]] {
            let twice = bytes(hex).repeat(2);
            assert_eq!(decode(&twice, &[coding], 99).unwrap(), TEXT.repeat(2));
        }
        let skips = [&bytes("502a4d1803000000010203")[..], &bytes(CODED[4].1)].concat();
        assert_eq!(decode(&skips, &[Coding::Zstd], 99).unwrap(), TEXT);
        // A window of 128 MiB is not allocated.
        assert!(is_broken(&decode(&bytes("28b52ffd0088a90000"), &[Coding::Zstd], 99)));
    }

    #[test]
    fn bombs_are_cut_off() {
        let zeros = vec![0; 1 << 20];
        let bombs = [
            (Coding::Gzip, gzip(&zeros)),
            (Coding::Brotli, bytes("5bffff8f7f02201e0b0472ef1f00")),
            (
                Coding::Zstd,
                bytes(
                    "28b52ffd04684c000008000100fcff39100202001000020010000200100002001000020010\
                 000200100003001000f13e16e1",
                ),
            ),
        ];
        for (coding, bomb) in &bombs {
            assert_eq!(decode(bomb, &[*coding], 1 << 20).as_ref(), Ok(&zeros), "{coding:?}");
            assert_eq!(decode(bomb, &[*coding], 1000), Err(DecodeError::TooLarge), "{coding:?}");
        }
        // Empty members: nothing in the end, but much in between.
        let bomb = gzip(&gzip(b"").repeat(1000));
        assert_eq!(decode(&bomb, &[Coding::Gzip, Coding::Gzip], 1000), Err(DecodeError::TooLarge));
    }

    #[test]
    fn unknown_codings_are_refused() {
        let of = |lines: &[&'static str]| {
            let lines = lines.iter().map(|line| (CONTENT_ENCODING, HeaderValue::from_static(line)));
            codings(&lines.collect())
        };
        assert_eq!(of(&[]), Ok(Vec::new()));
        assert_eq!(of(&["identity, ", "X-GZIP,br", "Zstd"]), {
            Ok(vec![Coding::Gzip, Coding::Brotli, Coding::Zstd])
        });
        for line in ["compress", "gzip, aws-chunked", "gzip;q=1", "br, br, br, br, br"] {
            assert_eq!(of(&[line]).unwrap_err().status, 415, "{line}");
        }
    }
}
