//! Files as users have them. The small ones in hexadecimal are from Pillow 13, whose pixels they must have.

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

use super::*;

/// 8 x 8 pixels of CMYK, 0, 128, 255, 25.
const CMYK: &str = "ffd8ffee000e41646f626500640000000000ffdb00430003020203020203030303040303040508050504\
    04050a070706080c0a0c0c0b0a0b0b0d0e12100d0e110e0b0b1016101113141515150c0f171816141812141514ffc0001408\
    00080008044311004d11005911004b1100ffc4001500010100000000000000000000000000000902ffc40014100100000000\
    000000000000000000000000ffda000e0443004d0059004b00003f0054d02a8883ffd9";
/// 2 x 2 pixels, a red frame and a blue one.
const ANIMATED: &str = "524946468400000057454250565038580a00000002000000010000010000414e494d060\
    000000000000000\
    00414e4d4628000000000000000000010000010000640000025650384c0f0000002f014000000710fd8ffe0722a2ff010041\
    4e4d4628000000000000000000010000010000640000005650384c0f0000002f014000000710d1fffe0722a2ff0100";
/// 2 x 1 pixels, a transparent one and a blue one.
const TRANSPARENT: &str = "47494638396102000100810000\
    0a141e0000ff00000000000021f90401000000002c00000000020001000008050001040808003b";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        hex.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn png(size: [u32; 2], pixels: &[u8], color: ExtendedColorType, exif: Option<Vec<u8>>) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = PngEncoder::new(&mut file);
    exif.into_iter().for_each(|exif| encoder.set_exif_metadata(exif).unwrap());
    encoder.write_image(pixels, size[0], size[1], color).unwrap();
    file
}

/// The pixels of each file, written by hand.
#[test]
fn colours_are_those_of_pillow() {
    let pixels = |file: &[u8]| decode(file).unwrap().rgb().to_vec();
    assert!(pixels(&bytes(CMYK)).chunks(3).all(|pixel| pixel == [230, 115, 0]));
    assert_eq!(pixels(&bytes(ANIMATED)), [255, 0, 0].repeat(4));
    assert_eq!(pixels(&bytes(TRANSPARENT)), [10, 20, 30, 0, 0, 255]);
    for (color, stored, want) in [
        (ExtendedColorType::Rgba8, &[1, 2, 3, 0][..], [1, 2, 3]),
        (ExtendedColorType::L8, &[200], [200; 3]),
        (ExtendedColorType::La8, &[7, 0], [7; 3]),
        // The encoder takes the bytes in the order of the machine.
        (
            ExtendedColorType::Rgb16,
            &[0x00ff_u16, 0x7f80, 0xfffe].map(u16::to_ne_bytes).concat(),
            [0, 127, 255],
        ),
        (ExtendedColorType::L16, &0x7f80_u16.to_ne_bytes(), [127; 3]),
        (ExtendedColorType::La16, &[0x7f80_u16, 0].map(u16::to_ne_bytes).concat(), [127; 3]),
    ] {
        assert_eq!(pixels(&png([1, 1], stored, color, None)), want, "{color:?}");
    }
}

/// Every orientation of the EXIF specification, as the pixels are shown.
#[test]
fn every_orientation_is_applied() {
    for (orientation, width, want) in [
        (0, 3, "abcdef"),
        (1, 3, "abcdef"),
        (2, 3, "cbafed"),
        (3, 3, "fedcba"),
        (4, 3, "defabc"),
        (5, 2, "adbecf"),
        (6, 2, "daebfc"),
        (7, 2, "fcebda"),
        (8, 2, "cfbead"),
        (9, 3, "abcdef"),
    ] {
        // One entry of type SHORT: tag 0x0112.
        let mut exif = b"II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0".to_vec();
        exif.extend([orientation, 0, 0, 0, 0, 0, 0, 0]);
        let file = png([3, 2], b"abcdef", ExtendedColorType::L8, Some(exif));
        let picture = decode(&file).unwrap();
        let shown: Vec<u8> = picture.rgb().iter().step_by(3).copied().collect();
        assert_eq!((picture.width(), String::from_utf8_lossy(&shown)), (width, want.into()), "{orientation}");
    }
    let broken = png([3, 2], b"abcdef", ExtendedColorType::L8, Some(b"II\x2a\0\xff\xff\xff\xff".to_vec()));
    assert_eq!(decode(&broken).unwrap().width(), 3);
}

/// The beginning of a file is no picture; the last bytes may be missing, which hold checksums, ends and, of
/// an animation, the second frame.
#[test]
fn files_that_are_cut_off_are_refused() {
    let whole = png([3, 2], b"abcdef", ExtendedColorType::L8, None);
    for (name, file, end) in [
        ("png", whole, 22),
        ("jpeg", bytes(CMYK), 0),
        ("webp", bytes(ANIMATED), 60),
        ("gif", bytes(TRANSPARENT), 4),
    ] {
        assert!(decode(&file).is_ok(), "{name}");
        for len in 0..file.len() - end {
            assert!(decode(&file[..len]).is_err(), "{name}: {len} of {} bytes", file.len());
        }
    }
}

/// Headers of pictures that would take gigabytes.
#[test]
fn sizes_are_refused_by_headers() {
    let huge = |file: &str, at: usize, sides: &[u8]| {
        let mut file = bytes(file);
        file[at..at + sides.len()].copy_from_slice(sides);
        file
    };
    for (name, file) in [
        ("jpeg", huge(CMYK, 92, &[0xff; 4])),
        ("webp", huge(ANIMATED, 24, &[0xff, 0x3f, 0, 0xff, 0x3f, 0])),
        ("gif", huge(TRANSPARENT, 6, &[0xff; 4])),
    ] {
        let refused = decode(&file).unwrap_err();
        assert!(matches!(refused, DecodeError::Size { .. }), "{name}: {refused}");
    }
}

#[test]
fn other_formats_are_refused_by_the_names_of_ours() {
    for file in [&b"II\x2a\0\x08\0\0\0"[..], b"\0\0\0\x1cftypavif\0\0\0\0", b"<svg/>", b""] {
        assert_eq!(decode(file).unwrap_err().to_string(), "not an image: want PNG, JPEG, WebP, GIF or BMP");
    }
}
