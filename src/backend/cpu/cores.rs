//! What the system says of its processors and memory.

use std::collections::BTreeSet;
use std::fs;

/// Physical cores that this process may use, at least 1: the threads of one core share its arithmetic units.
pub fn physical_cores() -> usize {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let cores: BTreeSet<String> = (0..)
        .map_while(|cpu| {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            fs::read_to_string(path).ok()
        })
        .collect();
    if cores.is_empty() { available } else { cores.len().min(available) }
}

/// Name of the processor.
pub fn model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim().to_owned());
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Bytes of memory that can be had without swapping, where the system tells.
pub fn free_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_core_and_a_name() {
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        assert!((1..=available).contains(&physical_cores()));
        assert!(!model().is_empty());
    }
}
