//! Kernels as the driver has compiled them, kept on disk from one run to the next where wgpu offers it: on
//! Vulkan.
//!
//! A file is the hash of what follows, and what the driver gave. What does not match its hash is ignored, and
//! so is what cannot be read or written: a cache is no reason to fail.
#![allow(unsafe_code)] // The caller promises that a driver gets its own data back.

use std::fs;
use std::path::{Path, PathBuf};

use wgpu::{AdapterInfo, Device, Features, PipelineCache, PipelineCacheDescriptor};

/// Largest file that is read: those of all kernels of a program take a few MiB.
const MOST_BYTES: u64 = 256 << 20;

/// A cache, and where it is kept.
pub struct DiskCache {
    pub cache: PipelineCache,
    path: PathBuf,
}

impl DiskCache {
    /// The cache of an adapter's kernels in a folder, empty at first; `None` if the device
    /// has no such thing.
    pub fn open(device: &Device, info: &AdapterInfo, dir: &Path) -> Option<Self> {
        if !device.features().contains(Features::PIPELINE_CACHE) {
            return None;
        }
        let path = dir.join(wgpu::util::pipeline_cache_key(info)?);
        let data = read(&path);
        let desc = PipelineCacheDescriptor { label: None, data: data.as_deref(), fallback: true };
        // SAFETY: data is what `get_data` gave to a run that wrote it with its hash, and wgpu and the driver
        // compare adapter and driver version with theirs.
        let cache = unsafe { device.create_pipeline_cache(&desc) };
        Some(Self { cache, path })
    }

    /// Writes what the driver has, if it is not what the file has: to another file first, so that no run sees
    /// half of it.
    pub fn save(&self) {
        let Some(data) = self.cache.get_data() else { return };
        if read(&self.path).is_some_and(|kept| kept == data) {
            return;
        }
        let Some(dir) = self.path.parent() else { return };
        let partial = self.path.with_extension(format!("{}.partial", std::process::id()));
        let bytes = [&hash(&data).to_le_bytes()[..], &data].concat();
        let written = fs::create_dir_all(dir)
            .and_then(|()| fs::write(&partial, bytes))
            .and_then(|()| fs::rename(&partial, &self.path));
        if written.is_err() {
            // The next run compiles anew. If there is no such file, there is nothing to remove.
            let _ = fs::remove_file(&partial);
        }
    }
}

/// Contents of a file, if it is whole.
fn read(path: &Path) -> Option<Vec<u8>> {
    let bytes =
        fs::metadata(path).ok().filter(|file| file.len() <= MOST_BYTES).and_then(|_| fs::read(path).ok())?;
    let (head, data) = bytes.split_first_chunk()?;
    (u64::from_le_bytes(*head) == hash(data)).then(|| data.to_vec())
}

/// FNV-1a.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
