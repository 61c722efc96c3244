//! CPU and memory, as reported by the system.

use std::fs;
use std::path::Path;

/// Name of the backend.
pub const NAME: &str = "cpu";

/// Name of the CPU.
pub fn model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim().to_owned());
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Bytes of memory that this process can take without swapping, if the system reports them: the machine's
/// free memory, or what the process's control groups allow if that is less.
pub fn free_bytes() -> Option<u64> {
    room_to_grow().or_else(of_linux)
}

/// Free and total memory as text; `None` if the system does not report it.
pub fn memory() -> Option<String> {
    let total = of_meminfo("MemTotal:")?;
    let limit = in_groups(GroupFiles::limit_bytes).filter(|limit| *limit < total);
    let of = if limit.is_some() { " (control group limit)" } else { "" };
    let [free, total] = [free_bytes()?, limit.unwrap_or(total)].map(|bytes| bytes >> 20);
    Some(format!("{free} MiB of {total} MiB{of} are free"))
}

/// Bytes by which WebAssembly memory can still grow: its addresses have 32 bits.
#[cfg(target_arch = "wasm32")]
fn room_to_grow() -> Option<u64> {
    const PAGE: u64 = 1 << 16;
    Some((1 << 32) - std::arch::wasm32::memory_size(0) as u64 * PAGE)
}

#[cfg(not(target_arch = "wasm32"))]
fn room_to_grow() -> Option<u64> {
    None
}

fn of_linux() -> Option<u64> {
    let available = of_meminfo("MemAvailable:")?;
    Some(available.min(in_groups(GroupFiles::free_bytes).unwrap_or(u64::MAX)))
}

/// Value of a line of `/proc/meminfo`, in bytes.
fn of_meminfo(line: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|text| text.strip_prefix(line))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// The smallest value of `of` over the control groups of this process.
fn in_groups(of: impl Fn(&GroupFiles, &Path) -> Option<u64>) -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    least_in_groups(Path::new("/sys/fs/cgroup"), &groups, of)
}

/// File names that a version of control groups uses.
struct GroupFiles {
    limit: &'static str,
    usage: &'static str,
    /// Lines of `memory.stat` for file pages, which are included in the usage but can be reclaimed.
    reclaimable: [&'static str; 2],
}

const V1: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
};

const V2: GroupFiles = GroupFiles {
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: ["inactive_file", "active_file"],
};

/// The smallest value of `of` over the groups in `groups`, a `/proc/self/cgroup`, and their ancestors.
fn least_in_groups(root: &Path, groups: &str, of: impl Fn(&GroupFiles, &Path) -> Option<u64>) -> Option<u64> {
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (root, files) = match controllers {
            "" => (root.to_owned(), V2),
            _ => (controllers.split(',').any(|name| name == "memory").then(|| root.join("memory"))?, V1),
        };
        // In a container the path may be the host's; its last ancestor, the root, is then the container's
        // group.
        let ancestors = Path::new(path.trim_start_matches('/')).ancestors();
        ancestors.filter_map(|path| of(&files, &root.join(path))).min()
    };
    groups.lines().filter_map(of_line).min()
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

impl GroupFiles {
    /// Limit of a group in bytes, if it has one.
    fn limit_bytes(&self, dir: &Path) -> Option<u64> {
        number(&fs::read_to_string(dir.join(self.limit)).ok()?)
    }

    /// Bytes that a group can still allocate, if it has a limit.
    fn free_bytes(&self, dir: &Path) -> Option<u64> {
        let read = |name| fs::read_to_string(dir.join(name)).ok();
        let (limit, usage) = (self.limit_bytes(dir)?, number(&read(self.usage)?)?);
        let stat = read("memory.stat").unwrap_or_default();
        let lines = stat.lines().filter_map(|line| line.split_once(' '));
        let reclaimable = lines.filter(|(name, _)| self.reclaimable.contains(name));
        let reclaimable = reclaimable.filter_map(|(_, value)| number(value)).fold(0, u64::saturating_add);
        Some(limit.saturating_sub(usage.saturating_sub(reclaimable)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, name: &str, text: &str) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join(name), text).unwrap();
    }

    #[test]
    fn the_tightest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let free = |groups| least_in_groups(root.path(), groups, GroupFiles::free_bytes);
        assert_eq!(free("0::/a/b\n"), None);
        let (a, b) = (root.path().join("a"), root.path().join("a/b"));
        write(&b, "memory.max", "max\n");
        write(&b, "memory.current", "70\n");
        assert_eq!(free("0::/a/b\n"), None);
        write(&a, "memory.max", "1000\n");
        write(&a, "memory.current", "900\n");
        assert_eq!(free("0::/a/b\n"), Some(100));
        // File pages can be reclaimed, others cannot.
        write(&a, "memory.stat", "anon 500\nactive_file 30\ninactive_file 250\nfile 400\n");
        assert_eq!(free("0::/a/b\n"), Some(380));
        write(&b, "memory.max", "80\n");
        assert_eq!(free("0::/a/b\n"), Some(10));
        assert_eq!(least_in_groups(root.path(), "0::/a/b\n", GroupFiles::limit_bytes), Some(80));
        write(&b, "memory.current", "90\n");
        assert_eq!(free("0::/a/b\n"), Some(0));
        assert_eq!(free("0::/a\n"), Some(380));
    }

    #[test]
    fn groups_of_version_1_and_in_a_container() {
        let root = tempfile::tempdir().unwrap();
        let memory = root.path().join("memory");
        write(&memory, "memory.limit_in_bytes", "5000\n");
        write(&memory, "memory.usage_in_bytes", "4000\n");
        write(&memory, "memory.stat", "inactive_file 1\ntotal_inactive_file 100\ntotal_active_file 20\n");
        let groups = "7:cpu,cpuacct:/docker/x\n6:hugetlb,memory:/docker/x\n0::/docker/x\nnonsense\n";
        let free = |groups| least_in_groups(root.path(), groups, GroupFiles::free_bytes);
        assert_eq!(free(groups), Some(1120));
        assert_eq!(free("7:cpu:/\n"), None);
    }

    #[test]
    fn there_is_a_name() {
        assert!(!model().is_empty());
    }
}
