//! Disk cache of kernels compiled by the driver, used if wgpu supports it: on Vulkan.
//!
//! A file is a hash, followed by the driver's data. A file that does not match its hash is ignored, and so
//! are read and write errors: a cache must not cause failures.
#![allow(unsafe_code)] // The caller promises that a driver gets its own data back.

use std::fs;
use std::path::{Path, PathBuf};

use wgpu::{AdapterInfo, Device, Features, PipelineCache, PipelineCacheDescriptor};

/// Largest file that is read. The kernels of a program take a few MiB.
const MAX_BYTES: u64 = 256 << 20;

pub struct DiskCache {
    pub cache: PipelineCache,
    path: PathBuf,
}

impl DiskCache {
    /// Opens the cache of an adapter's kernels in a folder, empty at first. Returns `None` if the device does
    /// not support it.
    pub fn open(device: &Device, info: &AdapterInfo, dir: &Path) -> Option<Self> {
        if !device.features().contains(Features::PIPELINE_CACHE) {
            return None;
        }
        let path = dir.join(wgpu::util::pipeline_cache_key(info)?);
        let data = read(&path);
        let desc = PipelineCacheDescriptor { label: None, data: data.as_deref(), fallback: true };
        // SAFETY: the data comes from `get_data` in a run that stored it with its hash, and wgpu and the
        // driver compare its adapter and driver version with their own.
        let cache = unsafe { device.create_pipeline_cache(&desc) };
        Some(Self { cache, path })
    }

    /// Writes the driver's data if it differs from the file: to a temporary file first, so that no run sees
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
            // The next run compiles again. If the file does not exist, there is nothing to remove.
            let _ = fs::remove_file(&partial);
        }
    }
}

/// Content of a file if its hash matches.
fn read(path: &Path) -> Option<Vec<u8>> {
    let bytes =
        fs::metadata(path).ok().filter(|file| file.len() <= MAX_BYTES).and_then(|_| fs::read(path).ok())?;
    let (head, data) = bytes.split_first_chunk()?;
    (u64::from_le_bytes(*head) == hash(data)).then(|| data.to_vec())
}

/// FNV-1a.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
