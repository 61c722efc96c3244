//! The alphabet of byte-level BPE: one printable character for each byte.
//!
//! Published with GPT-2: a byte that is a printable Latin-1 character maps to itself; the other 68 map to the
//! characters from U+0100 on, in order.

/// Number of characters from U+0000 up to the last one of the alphabet.
const N_CHARS: usize = 256 + 68;

const fn prints(byte: usize) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

const CHARS: [char; 256] = {
    let mut chars = ['\0'; 256];
    let (mut byte, mut next) = (0, 256);
    while byte < 256 {
        let code = if prints(byte) { byte as u32 } else { next };
        if !prints(byte) {
            next += 1;
        }
        chars[byte] = match char::from_u32(code) {
            Some(char) => char,
            None => unreachable!(),
        };
        byte += 1;
    }
    chars
};

/// Byte + 1 by character code; 0 if the character is not in the alphabet.
const BYTES: [u16; N_CHARS] = {
    let mut bytes = [0; N_CHARS];
    let mut byte = 0;
    while byte < 256 {
        bytes[CHARS[byte] as usize] = byte as u16 + 1;
        byte += 1;
    }
    bytes
};

/// Character that represents `byte`.
pub fn char_of(byte: u8) -> char {
    CHARS[byte as usize]
}

pub fn byte_of(char: char) -> Option<u8> {
    match BYTES.get(char as usize) {
        None | Some(0) => None,
        Some(byte) => Some((byte - 1) as u8),
    }
}

/// Appends `text` in this alphabet.
pub fn encode(text: &str, out: &mut String) {
    out.extend(text.bytes().map(char_of));
}

/// Appends the bytes that `token` spells; a character outside the alphabet is appended as UTF-8.
pub fn decode(token: &str, out: &mut Vec<u8>) {
    for char in token.chars() {
        match byte_of(char) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_characters() {
        for (byte, char) in [
            (b' ', 'Ġ'),
            (b'\n', 'Ċ'),
            (b'\t', 'ĉ'),
            (0, 'Ā'),
            (0x7f, 'ġ'),
            (0xad, 'Ń'),
            (b'a', 'a'),
            (0xff, 'ÿ'),
        ] {
            assert_eq!(char_of(byte), char, "byte {byte:#x}");
        }
    }

    #[test]
    fn every_byte_comes_back() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!(byte_of(' '), None);
        assert_eq!(byte_of('\u{144}'), None);
        assert_eq!(byte_of('漢'), None);
    }
}
