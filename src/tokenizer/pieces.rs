//! Bytes of each token.

use super::byte_level;
use super::vocab::{self, Algorithm, TokenKind, Vocab};

/// The bytes of all tokens, concatenated.
pub struct Pieces {
    bytes: Vec<u8>,
    /// `[n_vocab + 1]`: start of each token.
    starts: Vec<usize>,
}

impl Pieces {
    pub fn new(vocab: &Vocab) -> Self {
        let mut pieces = Self { bytes: Vec::new(), starts: vec![0] };
        for (token, &kind) in vocab.tokens.iter().zip(&vocab.kinds) {
            append(vocab.algorithm, token, kind, &mut pieces.bytes);
            pieces.starts.push(pieces.bytes.len());
        }
        pieces
    }

    /// Bytes of token `id`; empty for an unknown id.
    pub fn get(&self, id: u32) -> &[u8] {
        match self.starts.get(id as usize..).unwrap_or_default() {
            [start, end, ..] => &self.bytes[*start..*end],
            _ => &[],
        }
    }

    /// Bytes of the longest token.
    pub fn longest(&self) -> usize {
        self.starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }

    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }
}

fn append(algorithm: Algorithm, token: &str, kind: TokenKind, out: &mut Vec<u8>) {
    match (kind, algorithm) {
        (TokenKind::Undefined | TokenKind::Unused, _) => {}
        (TokenKind::Unknown | TokenKind::Control | TokenKind::UserDefined, _) => {
            out.extend_from_slice(token.as_bytes());
        }
        (_, Algorithm::ByteLevelBpe) => byte_level::decode(token, out),
        (TokenKind::Byte, Algorithm::ScoredBpe | Algorithm::RankedBpe) => match byte_token(token) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(token.as_bytes()),
        },
        (_, Algorithm::WordPiece) => match vocab::begun(token) {
            Some(text) => out.extend([b" ", text.as_bytes()].concat()),
            None => out.extend_from_slice(token.as_bytes()),
        },
        (TokenKind::Normal, Algorithm::ScoredBpe | Algorithm::RankedBpe) => {
            out.extend(token.replace('▁', " ").into_bytes());
        }
    }
}

/// Parses `<0x41>` as `A`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if hex { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_tokens() {
        assert_eq!(byte_token("<0x0A>"), Some(b'\n'));
        for other in ["<0x0>", "<0x+1>", "0x41", "<0xGG>", "<0x041>", "<0xé>"] {
            assert_eq!(byte_token(other), None, "{other}");
        }
    }
}
