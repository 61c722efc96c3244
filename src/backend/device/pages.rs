//! Copies a page of the KV caches between device and host: on the device it consists of several ranges, one
//! or more per cache.

use crate::BackendError;

/// Bytes of all ranges; each is a location and its number of bytes.
pub fn bytes<P>(stretches: impl Iterator<Item = (P, usize)>) -> usize {
    stretches.map(|(_, bytes)| bytes).sum()
}

/// Copies all ranges to `out`, one after the other.
///
/// # Panics
/// If `out` is shorter.
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

/// Copies `bytes` to all ranges, the inverse of [`read`].
///
/// # Panics
/// If `bytes` is shorter.
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
