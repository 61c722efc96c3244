//! Runs tasks on several threads, with results in order.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Runs tasks 0 to `n - 1` on at most `threads` threads, including the caller's.
pub fn in_parallel<T: Send>(n: usize, threads: usize, task: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= n {
                return done;
            }
            done.push((at, task(at)));
        }
    };
    let mut done = thread::scope(|scope| {
        // If the system cannot create a thread, the others run its share.
        let helpers: Vec<_> = (1..threads.min(n))
            .map_while(|_| thread::Builder::new().spawn_scoped(scope, work).ok())
            .collect();
        let mut done = work();
        helpers.into_iter().for_each(|helper| done.extend(helper.join().expect("tasks do not panic")));
        done
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_and_in_its_place() {
        for (n, threads) in [(0, 3), (1, 3), (7, 1), (100, 3), (2, 9)] {
            assert_eq!(in_parallel(n, threads, |at| at * at), (0..n).map(|at| at * at).collect::<Vec<_>>());
        }
    }
}
