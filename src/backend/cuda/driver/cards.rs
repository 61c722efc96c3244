//! GPUs as data: the properties that launch geometry, occupancy and tests need.

use super::Limits;
use crate::CardRates;

/// A GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Name as reported by the driver.
    pub name: &'static str,
    /// Compute capability.
    pub compute: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Maximum shared memory per block, after opting in to more than 48 KiB.
    pub block_shared_bytes: u32,
    /// Shared memory per multiprocessor. Each block takes [`RESERVED_SHARED_BYTES`] of it in addition to its
    /// own.
    pub shared_bytes: u32,
    /// 32-bit registers per multiprocessor, which is also the maximum per block.
    pub registers: u32,
    /// Maximum resident threads per multiprocessor.
    pub threads: u32,
    /// L2 cache.
    pub l2_bytes: u64,
    /// Memory.
    pub memory_bytes: u64,
    /// Its rates.
    pub rates: CardRates,
}

const GIGA: u64 = 1_000_000_000;

/// Bytes per second copied to a GPU over 16 lanes of PCIe 4.0 and 5.0: fiddler #7 and
/// tinygrad/open-gpu-kernel-modules #29.
const PCIE_4: u64 = 24_700_000_000;
const PCIE_5: u64 = 56_300_000_000;

/// Rates of a GeForce GPU, from its memory bandwidth in GB/s, its int8 rate in TOPS, and its link. Halves
/// with float accumulation run at a quarter of the int8 rate, and floats at an eighth.
const fn geforce(memory: u64, int8: u64, link_bytes: u64) -> CardRates {
    let int8_ops = int8 * 1000 * GIGA;
    CardRates {
        memory_bytes: memory * GIGA,
        link_bytes,
        int8_ops,
        half_ops: int8_ops / 4,
        float_ops: int8_ops / 8,
    }
}

/// Shared memory that a GPU reserves per block, from compute capability 8.0 on.
pub const RESERVED_SHARED_BYTES: u32 = 1 << 10;

/// Maximum shared memory per block for a compute capability, from the programming guide's table.
pub fn block_shared_bytes(compute: (i32, i32)) -> u32 {
    let kib = match compute {
        (7, 5) => 64,
        (8, 0 | 7) => 163,
        (8, _) | (12, _) => 99,
        (9.., _) => 227,
        _ => 48,
    };
    kib << 10
}

/// A small fictitious GPU: persistent blocks run several rounds, and a quarter of its cache is smaller than
/// most weights.
pub const SMALL: Spec = Spec {
    name: "small card",
    compute: (8, 0),
    multiprocessors: 3,
    block_shared_bytes: 99 << 10,
    shared_bytes: 100 << 10,
    registers: 64 << 10,
    threads: 1536,
    l2_bytes: 80 << 10,
    memory_bytes: 2 << 30,
    rates: geforce(40, 8, PCIE_4),
};

/// Sources: NVIDIA's programming guide for compute capabilities, and the white paper of each GPU.
pub const CARDS: &[Spec] = &[
    Spec {
        name: "NVIDIA H100 80GB HBM3",
        compute: (9, 0),
        multiprocessors: 132,
        block_shared_bytes: 227 << 10,
        shared_bytes: 228 << 10,
        threads: 2048,
        l2_bytes: 50 << 20,
        memory_bytes: 80 << 30,
        rates: CardRates {
            memory_bytes: 3350 * GIGA,
            link_bytes: PCIE_5,
            int8_ops: 1_979_000 * GIGA,
            half_ops: 989_500 * GIGA,
            float_ops: 66_900 * GIGA,
        },
        ..SMALL
    },
    Spec {
        name: "NVIDIA GeForce RTX 5080",
        compute: (12, 0),
        multiprocessors: 84,
        l2_bytes: 64 << 20,
        memory_bytes: 16 << 30,
        rates: geforce(960, 450, PCIE_5),
        ..SMALL
    },
    Spec {
        name: "NVIDIA GeForce RTX 3060",
        compute: (8, 6),
        multiprocessors: 28,
        l2_bytes: 3 << 20,
        memory_bytes: 12 << 30,
        rates: geforce(360, 102, PCIE_4),
        ..SMALL
    },
    SMALL,
];

/// More GPUs for planning memory. No test uses their geometry.
pub const FOR_PLANS: &[Spec] = &[
    Spec {
        name: "NVIDIA GeForce RTX 5090",
        compute: (12, 0),
        multiprocessors: 170,
        l2_bytes: 96 << 20,
        memory_bytes: 32 << 30,
        rates: geforce(1792, 838, PCIE_5),
        ..SMALL
    },
    Spec {
        name: "NVIDIA GeForce RTX 4090",
        compute: (8, 9),
        multiprocessors: 128,
        l2_bytes: 72 << 20,
        memory_bytes: 24 << 30,
        rates: geforce(1008, 660, PCIE_4),
        ..SMALL
    },
    Spec {
        name: "NVIDIA GeForce RTX 3090",
        compute: (8, 6),
        multiprocessors: 82,
        l2_bytes: 6 << 20,
        memory_bytes: 24 << 30,
        rates: geforce(936, 284, PCIE_4),
        ..SMALL
    },
    Spec {
        name: "NVIDIA GeForce RTX 4060 Ti",
        compute: (8, 9),
        multiprocessors: 34,
        l2_bytes: 32 << 20,
        memory_bytes: 8 << 30,
        // It has eight lanes.
        rates: geforce(288, 176, PCIE_4 / 2),
        ..SMALL
    },
    Spec {
        name: "NVIDIA Tesla T4",
        compute: (7, 5),
        multiprocessors: 40,
        block_shared_bytes: 64 << 10,
        shared_bytes: 64 << 10,
        threads: 1024,
        l2_bytes: 4 << 20,
        memory_bytes: 16 << 30,
        rates: CardRates {
            memory_bytes: 320 * GIGA,
            // PCIe 3.0.
            link_bytes: PCIE_4 / 2,
            int8_ops: 130_000 * GIGA,
            half_ops: 65_000 * GIGA,
            float_ops: 8_100 * GIGA,
        },
        ..SMALL
    },
];

/// The GPU that memory is planned for by default.
pub const DEFAULT: &Spec = &CARDS[1];

impl Spec {
    /// The GPU whose memory is closest to `bytes`; if several are, the one with the most multiprocessors.
    pub fn with_memory(bytes: u64) -> &'static Self {
        let distance = |card: &&Self| (card.memory_bytes.abs_diff(bytes), u32::MAX - card.multiprocessors);
        Self::made().min_by_key(distance).unwrap_or(DEFAULT)
    }

    /// All GPUs, including the fictitious one.
    pub fn known() -> impl Iterator<Item = &'static Self> {
        CARDS.iter().chain(FOR_PLANS)
    }

    /// All real GPUs.
    pub fn made() -> impl Iterator<Item = &'static Self> {
        Self::known().filter(|card| **card != SMALL)
    }

    /// The first GPU whose name contains all words of `name`, such as "H100" or "rtx 3060".
    pub fn find(name: &str) -> Option<&'static Self> {
        let name = name.to_lowercase();
        let has =
            |card: &&'static Self| name.split([' ', '-']).all(|word| card.name.to_lowercase().contains(word));
        Self::known().find(has)
    }

    /// Properties that launch geometry depends on.
    pub fn limits(&self) -> Limits {
        Limits::of(self.multiprocessors, self.block_shared_bytes, self.l2_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_what_their_compute_capability_has() {
        for card in Spec::made() {
            assert_eq!(block_shared_bytes(card.compute), card.block_shared_bytes, "{}", card.name);
        }
    }

    #[test]
    fn cards_are_found_by_parts_of_their_names() {
        assert!(Spec::known().all(|card| Spec::find(card.name) == Some(card)));
        assert_eq!(Spec::find("rtx-3060").map(|card| card.multiprocessors), Some(28));
        assert_eq!(Spec::find("h100").map(|card| card.multiprocessors), Some(132));
        assert_eq!(Spec::find("no such card"), None);
    }

    #[test]
    fn a_size_of_memory_stands_for_the_card_that_is_closest() {
        for (gib, want) in
            [(8, "4060 Ti"), (12, "3060"), (16, "5080"), (15, "5080"), (96, "H100"), (2, "4060 Ti")]
        {
            let name = Spec::with_memory(gib << 30).name;
            assert!(name.contains(want), "{gib} GiB: {name}");
        }
        assert!(DEFAULT.name.contains("5080"));
    }

    #[test]
    fn a_block_and_what_the_card_keeps_of_it_fill_a_multiprocessor_at_most() {
        for card in Spec::known() {
            // Turing reserves none.
            let kept = if card.compute >= (8, 0) { RESERVED_SHARED_BYTES } else { 0 };
            assert!(card.block_shared_bytes + kept <= card.shared_bytes, "{}", card.name);
        }
    }
}
