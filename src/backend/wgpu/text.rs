//! Kernel sources as they are compiled in: without comments and indents, which are half of the text.

/// The text of a file, by its path relative to the calling file.
macro_rules! wgsl {
    ($file:expr) => {
        const {
            const LEN: usize = $crate::wgpu::text::bare::<0>(include_str!($file)).1;
            const BARE: [u8; LEN] = $crate::wgpu::text::bare(include_str!($file)).0;
            match std::str::from_utf8(&BARE) {
                Ok(text) => text,
                Err(_) => panic!("whole lines"),
            }
        }
    };
}
pub(super) use wgsl;

/// Strips comment lines, empty lines and indents from `text`: the first `N` bytes of the result, and its
/// length. Comments must be on lines of their own.
pub const fn bare<const N: usize>(text: &str) -> ([u8; N], usize) {
    let (text, mut out, mut len, mut at) = (text.as_bytes(), [0; N], 0, 0);
    while at < text.len() {
        while at < text.len() && text[at] == b' ' {
            at += 1;
        }
        let is_comment = at + 1 < text.len() && text[at] == b'/' && text[at + 1] == b'/';
        let says = !is_comment && at < text.len() && text[at] != b'\n';
        loop {
            let byte = if at < text.len() { text[at] } else { b'\n' };
            if says {
                if len < N {
                    out[len] = byte;
                }
                len += 1;
            }
            at += 1;
            if byte == b'\n' {
                break;
            }
        }
    }
    (out, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_indents_are_left_out() {
        const TEXT: &str = "// é: a comment.\n\n#if a\n    let b = c / d;\n    // More.\n}";
        let (bytes, len) = bare::<40>(TEXT);
        assert_eq!(&bytes[..len], b"#if a\nlet b = c / d;\n}\n");
        assert_eq!(bare::<0>(TEXT).1, len);
        assert_eq!(bare::<0>("").1, 0);
    }
}
