//! What a plain read of memory reaches on this machine: the roof under which decoding is measured.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

/// Passes over the memory; the fastest counts, since a disturbed pass says nothing about the machine.
const PASSES: usize = 6;

/// Bytes a second that `threads` threads read together from `bytes` bytes of their own, each its part from
/// front to back. `bytes` should be several times the last cache.
pub fn measure(threads: usize, bytes: usize) -> f64 {
    let threads = threads.max(1);
    let words = (bytes / threads / size_of::<u64>()).max(1);
    let barrier = Barrier::new(threads + 1);
    let mut fastest = f64::INFINITY;
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let part = vec![1u64; words];
                for _ in 0..PASSES {
                    barrier.wait();
                    black_box(sum(black_box(&part)));
                    barrier.wait();
                }
            });
        }
        for _ in 0..PASSES {
            barrier.wait();
            let start = Instant::now();
            barrier.wait();
            fastest = fastest.min(start.elapsed().as_secs_f64());
        }
    });
    (threads * words * size_of::<u64>()) as f64 / fastest
}

/// Wrapping sum in eight lanes, which any target turns into vector loads.
fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0u64; 8];
    for chunk in words.chunks_exact(8) {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.iter().fold(0, |sum, lane| sum.wrapping_add(*lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_whole_group_of_words_is_read() {
        assert_eq!(sum(&vec![3; 8000]), 24000);
        assert!(measure(2, 1 << 20) > 0.0);
    }
}
