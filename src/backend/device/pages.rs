//! A page of the KV caches on its way to the host and back: a device has it in several stretches, cache after
//! cache.

use crate::BackendError;

/// Bytes of all stretches together; each is where it lies, and its bytes.
pub fn bytes<P>(stretches: impl Iterator<Item = (P, usize)>) -> usize {
    stretches.map(|(_, bytes)| bytes).sum()
}

/// Copies all stretches to `out`, one behind the other.
///
/// # Panics
/// Where `out` is shorter.
pub fn read<P>(
    stretches: impl Iterator<Item = (P, usize)>,
    mut out: &mut [u8],
    mut read: impl FnMut(P, &mut [u8]) -> Result<(), BackendError>,
) -> Result<(), BackendError> {
    for (at, bytes) in stretches {
        let (to, rest) = out.split_at_mut(bytes);
        read(at, to)?;
        out = rest;
    }
    Ok(())
}

/// The reverse.
///
/// # Panics
/// Where `bytes` is shorter.
pub fn write<P>(
    stretches: impl Iterator<Item = (P, usize)>,
    mut bytes: &[u8],
    mut write: impl FnMut(P, &[u8]) -> Result<(), BackendError>,
) -> Result<(), BackendError> {
    for (at, len) in stretches {
        let (from, rest) = bytes.split_at(len);
        write(at, from)?;
        bytes = rest;
    }
    Ok(())
}
