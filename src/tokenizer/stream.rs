//! Decodes tokens that arrive one at a time.

use std::str;

use super::Tokenizer;

/// Assembles characters from bytes. Invalid UTF-8 becomes U+FFFD, exactly as in `String::from_utf8_lossy` of
/// all bytes.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    /// Start of an incomplete character, at most 3 bytes; during `push`, also the new bytes.
    pending: Vec<u8>,
    text: String,
}

impl Utf8Stream {
    /// Takes bytes and returns the characters that they complete.
    pub fn push(&mut self, bytes: &[u8]) -> &str {
        self.text.clear();
        self.pending.extend_from_slice(bytes);
        let mut done = 0;
        while done < self.pending.len() {
            match str::from_utf8(&self.pending[done..]) {
                Ok(valid) => {
                    self.text.push_str(valid);
                    done = self.pending.len();
                }
                Err(err) => {
                    let valid = done..done + err.valid_up_to();
                    self.text
                        .push_str(str::from_utf8(&self.pending[valid.clone()]).expect("valid up to here"));
                    done = valid.end;
                    let Some(wrong) = err.error_len() else { break };
                    self.text.push(char::REPLACEMENT_CHARACTER);
                    done += wrong;
                }
            }
        }
        self.pending.drain(..done);
        &self.text
    }

    /// True if a character is incomplete.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Ends the text: returns U+FFFD if a character is incomplete.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        &self.text
    }
}

impl Tokenizer {
    /// Returns a stream for the bytes after `ids`. It holds the incomplete character at the end of `ids`, at
    /// most 3 bytes, so that the next tokens can complete it. Control tokens write nothing unless
    /// `show_special`.
    pub fn utf8_after(&self, ids: &[u32], show_special: bool) -> Utf8Stream {
        let mut last: Vec<u8> = Vec::new();
        for &id in ids.iter().rev() {
            if last.len() >= 3 {
                break;
            }
            last.splice(0..0, self.shown_bytes(id, show_special).iter().copied());
        }
        let begins = |&at: &usize| {
            last[at] >= 0xc0
                && str::from_utf8(&last[at..])
                    .is_err_and(|err| err.valid_up_to() == 0 && err.error_len().is_none())
        };
        let pending = (last.len().saturating_sub(3)..last.len()).find(begins);
        Utf8Stream { pending: pending.map_or(Vec::new(), |at| last[at..].to_vec()), text: String::new() }
    }
}

/// Decodes the tokens of a running text, always in whole characters.
pub struct StreamDecoder<'t> {
    tokenizer: &'t Tokenizer,
    show_special: bool,
    utf8: Utf8Stream,
}

impl<'t> StreamDecoder<'t> {
    /// Creates a decoder for the continuation of a text: nothing is stripped from its start. Control tokens
    /// are written out if `show_special`.
    pub fn new(tokenizer: &'t Tokenizer, show_special: bool) -> Self {
        Self { tokenizer, show_special, utf8: Utf8Stream::default() }
    }

    /// Takes a token and returns the characters that it completes, possibly none.
    pub fn push(&mut self, id: u32) -> &str {
        self.utf8.push(self.tokenizer.shown_bytes(id, self.show_special))
    }

    /// Ends the text: returns U+FFFD if a character is incomplete.
    pub fn finish(&mut self) -> &str {
        self.utf8.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streamed(chunks: &[&[u8]]) -> Vec<String> {
        let mut stream = Utf8Stream::default();
        let mut pieces: Vec<String> = chunks.iter().map(|chunk| stream.push(chunk).to_owned()).collect();
        pieces.push(stream.finish().to_owned());
        pieces
    }

    #[test]
    fn a_character_waits_for_its_last_byte() {
        assert_eq!(streamed(&[b"a\xe6", b"\xbc", b"\xa2b"]), ["a", "", "漢b", ""]);
        assert_eq!(streamed(&[b"\xf0\x9f", b"\xa6\x9c"]), ["", "🦜", ""]);
    }

    #[test]
    fn incomplete_and_wrong_bytes_are_replaced() {
        assert_eq!(streamed(&[b"\xf0\x9f"]), ["", "\u{fffd}"]);
        assert_eq!(streamed(&[b"\xf0\x9f", b"x"]), ["", "\u{fffd}x", ""]);
        assert_eq!(streamed(&[b"\xff\xfe"]), ["\u{fffd}\u{fffd}", ""]);
    }

    #[test]
    fn any_cut_gives_what_the_whole_gives() {
        let bytes = b"\xe6\xbc\xa2\xe6\xbc\xf0\x9f\xa6\x9c\x80\xc0\xafa\xed\xa0\x80\xf4\x90\x80\x80\xe2\x82";
        for cut in 1..bytes.len() {
            let chunks: Vec<&[u8]> = bytes.chunks(cut).collect();
            assert_eq!(streamed(&chunks).concat(), String::from_utf8_lossy(bytes), "cut every {cut}");
        }
    }
}
