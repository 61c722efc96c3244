//! Images in the keys of the prefix cache. Tokens alone do not tell images apart, so each image has a number
//! that is no token, and pages are looked up with the numbers of images in the places of their rows. The same
//! image after the same tokens is the same chain of pages, whatever follows it.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::sequence::Sequence;
use crate::vision::picture::ImageRows;

/// Numbers of the images that prompts of a batch have had.
#[derive(Default)]
pub(super) struct ImageKeys {
    known: HashMap<([u8; 32], [u32; 2]), u32>,
    n_given: u32,
}

impl ImageKeys {
    /// The first number. Tokens are below it.
    const FIRST: u32 = 1 << 31;
    /// Images that are remembered. When there are more, pages with the earlier ones are not found again.
    const MOST: usize = 1 << 16;

    /// The number of an image, which no image with another id or grid has; `None` without an id.
    pub fn of(&mut self, rows: &ImageRows) -> Option<u32> {
        let image = (rows.id?, rows.grid);
        if let Some(number) = self.known.get(&image) {
            return Some(*number);
        }
        let number = self.n_given.checked_add(Self::FIRST)?;
        if self.known.len() == Self::MOST {
            self.known.clear();
        }
        self.n_given += 1;
        self.known.insert(image, number);
        Some(number)
    }
}

/// The tokens of a sequence as the prefix cache knows them, with the numbers of its images.
pub(super) fn keys<'a>(seq: &'a Sequence, numbers: &[u32]) -> Cow<'a, [u32]> {
    if numbers.is_empty() {
        return Cow::Borrowed(&seq.tokens);
    }
    let mut keys = seq.tokens.clone();
    for (image, number) in seq.images.iter().zip(numbers) {
        keys[image.start()..image.end()].fill(*number);
    }
    Cow::Owned(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_tell_ids_and_grids_apart() {
        let mut keys = ImageKeys::default();
        let mut of = |id: Option<u8>, grid: [u32; 2]| {
            keys.of(&ImageRows { grid, id: id.map(|byte| [byte; 32]), ..ImageRows::default() })
        };
        let first = of(Some(1), [2, 3]);
        assert_eq!((first, of(Some(1), [2, 3])), (Some(1 << 31), first));
        let others = [of(Some(2), [2, 3]), of(Some(1), [3, 2]), of(None, [2, 3])];
        assert_eq!(others, [Some((1 << 31) + 1), Some((1 << 31) + 2), None]);
    }
}
