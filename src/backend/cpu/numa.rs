//! NUMA: the CPUs that each thread of a pool may run on. Linux only.

use crate::{BackendError, Numa, OptionId};

/// CPU numbers of a node.
type Node = Vec<usize>;

/// Allowed CPUs per thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places(Vec<Node>);

impl Places {
    /// Placement of `threads` threads on this machine; `None` if all may run on every CPU.
    ///
    /// # Errors
    /// [`BackendError::Option`] if the system does not support pinning threads.
    pub fn new(numa: Option<Numa>, threads: usize) -> Result<Option<Self>, BackendError> {
        let Some(numa) = numa.filter(|numa| *numa != Numa::Numactl) else { return Ok(None) };
        let refuse = |detail: &str| BackendError::option(super::system::NAME, OptionId::Numa, detail);
        let allowed = system::allowed().ok_or_else(|| refuse("threads can only be pinned on Linux"))?;
        Ok(Self::among(numa, threads, &nodes(), &allowed, system::current()))
    }

    /// Distributes threads over `nodes`; nodes without an allowed CPU are ignored.
    fn among(numa: Numa, threads: usize, nodes: &[Node], allowed: &[usize], current: usize) -> Option<Self> {
        let of_node = |node: &Node| node.iter().copied().filter(|cpu| allowed.contains(cpu)).collect();
        let mut nodes: Vec<Node> = nodes.iter().map(of_node).filter(|node: &Node| !node.is_empty()).collect();
        if numa == Numa::Isolate {
            nodes.retain(|node| node.contains(&current));
        } else if nodes.len() < 2 {
            return None;
        }
        let place = |thread: usize| nodes.get(thread % nodes.len().max(1)).cloned();
        (0..threads).map(place).collect::<Option<_>>().map(Self)
    }

    /// Pins the calling thread to the CPUs of thread `thread` of the pool.
    pub fn enter(&self, thread: usize) {
        system::pin(&self.0[thread]);
    }
}

/// The nodes of this machine.
fn nodes() -> Vec<Node> {
    let list = |node: usize| std::fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist"));
    // Node numbers may have gaps.
    (0..1024).filter_map(|node| parsed(list(node).ok()?.trim())).collect()
}

/// Parses a list of CPUs such as `0-3,8`.
fn parsed(list: &str) -> Option<Node> {
    let mut node = Node::new();
    for range in list.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        node.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(node)
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

    /// CPUs that this thread may run on.
    pub fn allowed() -> Option<Vec<usize>> {
        let set = sched_getaffinity(None).ok()?;
        Some((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
    }

    pub fn current() -> usize {
        sched_getcpu()
    }

    pub fn pin(cpus: &[usize]) {
        let mut set = CpuSet::new();
        cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
        // Fails if a CPU has gone offline; the thread then runs where it did before.
        let _ = sched_setaffinity(None, &set);
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub fn allowed() -> Option<Vec<usize>> {
        None
    }

    pub fn current() -> usize {
        0
    }

    pub fn pin(_: &[usize]) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_go_where_llama_cpp_puts_them() {
        let nodes = [vec![0, 1, 4, 5], vec![2, 3, 6, 7], vec![8]];
        let allowed = [0, 1, 2, 3, 4, 5, 6];
        let placed = |numa, threads| Places::among(numa, threads, &nodes, &allowed, 3).map(|places| places.0);
        let (first, second) = (vec![0, 1, 4, 5], vec![2, 3, 6]);
        assert_eq!(
            placed(Numa::Distribute, 3),
            Some(vec![first.clone(), second.clone(), first]),
            "a node without allowed CPUs gets no threads"
        );
        assert_eq!(placed(Numa::Isolate, 2), Some(vec![second.clone(), second]));
        assert_eq!(Places::among(Numa::Distribute, 2, &nodes[..1], &allowed, 0), None, "one node");
        assert_eq!(Places::among(Numa::Isolate, 2, &[], &allowed, 0), None, "a system that reports no nodes");
    }

    #[test]
    fn lists_of_processors_as_linux_writes_them() {
        assert_eq!(parsed("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parsed(""), Some(vec![]));
        assert_eq!(parsed("0-x"), None);
    }
}
