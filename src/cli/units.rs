//! Parsing of memory sizes and counts on the command line.

use crate::engine::error::binary_units;

/// Units, and the bytes of each. Without a B, or with iB, they are powers of 1024, as is usual for memory.
const UNITS: [(&str, u64); 4] = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("T", 1 << 40)];

/// Reads a memory size such as `16G`, `16GiB`, `15.5G` or `16GB`, which is 16 000 000 000 bytes.
///
/// # Errors
/// Invalid text. A missing unit is an error, since a plain 16 is never meant as bytes.
pub fn memory_size(text: &str) -> Result<u64, String> {
    /// Smallest and largest memory of a device; anything else is taken for a typing error.
    const RANGE: std::ops::RangeInclusive<u64> = 64 << 20..=16 << 40;
    let want = "want a size with a unit, such as 16G, 15.5GiB or 8192M";
    let at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or(format!("{want}; `{text}` has none"))?;
    let (number, unit) = text.split_at(at);
    let unit = unit.to_ascii_uppercase();
    let (scale, rest) = UNITS
        .iter()
        .find_map(|(name, scale)| Some((*scale, unit.strip_prefix(name)?)))
        .ok_or_else(|| want.to_owned())?;
    let power = scale.ilog2() / 10;
    let scale = match rest {
        "" | "IB" => scale,
        "B" => 1000_u64.pow(power),
        _ => return Err(want.to_owned()),
    };
    let number: f64 = number.trim().parse().map_err(|_| want.to_owned())?;
    let bytes = (number * scale as f64) as u64;
    if !RANGE.contains(&bytes) {
        return Err(format!(
            "{text} is out of range for a memory size: want {} to {}",
            binary_units(*RANGE.start()),
            binary_units(*RANGE.end())
        ));
    }
    Ok(bytes)
}

/// A number of threads; `None`, given as -1 like in llama.cpp, is the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads(pub Option<usize>);

/// Reads a number of threads.
///
/// # Errors
/// The valid range.
pub fn threads(text: &str) -> Result<Threads, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(Threads(None)),
        Ok(n @ 1..=1024) => Ok(Threads(usize::try_from(n).ok())),
        _ => Err("want 1 to 1024, or -1 for the physical cores".to_owned()),
    }
}

/// Reads a number that is 0 or more.
///
/// # Errors
/// The valid range.
pub fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "want a whole number, 0 or more".to_owned())
}

/// A number and a noun, which is plural unless the number is 1.
pub fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, want) in [
            ("16G", 16 << 30),
            ("16g", 16 << 30),
            ("16GiB", 16 << 30),
            ("16 GiB", 16 << 30),
            ("16GB", 16_000_000_000),
            ("15.5G", 31 << 29),
            ("8192M", 8 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(memory_size(text), Ok(want), "{text}");
        }
        for text in ["16", "", "G", "16X", "16GX", "-4G", "1K", "0G", "1e9G", "NaNG", "17T", "1..5G"] {
            let said = memory_size(text).unwrap_err();
            assert!(said.contains("want"), "{text}: {said}");
        }
    }

    #[test]
    fn one_thing_is_singular() {
        assert_eq!([0, 1, 2].map(|n| counted(n, "text")), ["0 texts", "1 text", "2 texts"]);
    }

    #[test]
    fn bytes_are_rounded_for_people() {
        assert_eq!(
            [0, 1023, 1536, 5 << 20, 31 << 29].map(binary_units),
            ["0 B", "1023 B", "1.5 KiB", "5.0 MiB", "15.50 GiB"]
        );
    }
}
