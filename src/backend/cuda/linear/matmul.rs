//! The ways of multiplying, and the choice among them.

use super::shared::part;
use crate::cuda::driver::Limits;
use crate::cuda::octets::OctetTiles;
use crate::cuda::params::{LINEAR_ROWS, MMA_FEW_ROWS, OCTET_MAX_ROWS};
use crate::cuda::weight::{Mma, Products};

/// A way of multiplying, for which every stage with linear layers has a kernel per type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matmul {
    /// Row by row.
    Single,
    /// Row by row, quantised by block.
    Dp4a,
    /// Several rows at a time.
    Rows,
    /// Integers on tensor cores, with one scale per tensor or row of weights.
    Ints,
    /// Integers on tensor cores, with a scale per block.
    IntBlocks,
    /// Halves on tensor cores.
    Halves,
    /// Codes on tensor cores, for a few rows.
    Few,
    /// Codes on tensor cores, for many rows.
    Codes,
    /// The same as `Few`, with weights in octets that are streamed through shared memory, for as many tiles
    /// of 8 rows at a time.
    Octets(OctetTiles),
    /// The same for more rows.
    OctetsMany,
}

impl Matmul {
    /// The ways of products with these operands on tensor cores; the first one is for single rows.
    pub const fn variants(mma: Option<Mma>) -> &'static [Self] {
        match mma {
            None => &[Self::Single, Self::Rows],
            Some(Mma::Ints) => &[Self::Single, Self::Ints],
            Some(Mma::IntBlocks) => &[Self::Single, Self::Rows, Self::IntBlocks],
            Some(Mma::Halves) => &[Self::Single, Self::Rows, Self::Halves],
            Some(Mma::Codes) => &[Self::Dp4a, Self::Few, Self::Codes],
        }
    }

    /// The ways of products with weights in octets.
    pub fn of_octets(products: Products) -> impl Iterator<Item = Self> {
        let octets = products.octets();
        let most = octets.map(|octets| octets.most_tiles);
        let few = OctetTiles::ALL.into_iter().filter(move |tiles| Some(*tiles) <= most).map(Self::Octets);
        few.chain(octets.filter(|octets| octets.many).map(|_| Self::OctetsMany))
    }

    /// The way for `rows` rows of `cols` inputs. `in_octets` as in `Work`.
    pub fn choose(products: Products, limits: Limits, cols: usize, rows: usize, in_octets: bool) -> Self {
        let few = rows <= OCTET_MAX_ROWS as usize;
        let streams = if few { limits.streams_octets } else { limits.streams_prompts };
        let octets = products.octets().filter(|octets| streams && in_octets && (few || octets.many));
        match products.mma {
            Some(mma) if rows >= mma.least_rows() => match mma {
                Mma::Ints => Self::Ints,
                Mma::IntBlocks => Self::IntBlocks,
                Mma::Halves => Self::Halves,
                Mma::Codes => match octets {
                    Some(octets) if few => Self::Octets(OctetTiles::of_rows(rows, octets.most_tiles)),
                    Some(_) => Self::OctetsMany,
                    None if rows <= MMA_FEW_ROWS as usize => Self::Few,
                    None => Self::Codes,
                },
            },
            _ if rows > 1 && part(products, limits, cols, LINEAR_ROWS as usize).is_some() => Self::Rows,
            mma => Self::variants(mma)[0],
        }
    }

    /// The kind in its kernels' names.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Single => "",
            Self::Dp4a => "dp4a",
            Self::Rows => "rows",
            Self::Ints | Self::IntBlocks | Self::Halves => "mma",
            Self::Few => "few",
            Self::Codes => "codes",
            Self::Octets(OctetTiles::One) => "octets8",
            Self::Octets(OctetTiles::Two) => "octets16",
            Self::Octets(OctetTiles::Four) => "octets32",
            Self::Octets(OctetTiles::Eight) => "octets64",
            Self::OctetsMany => "octets_many",
        }
    }

    /// True if it uses tensor cores.
    pub fn is_on_tensor_cores(self) -> bool {
        !matches!(self, Self::Single | Self::Dp4a | Self::Rows)
    }
}
