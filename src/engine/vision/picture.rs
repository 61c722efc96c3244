//! A decoded picture, and the rows that a text model gets for it.

use std::ops::Range;
use std::sync::Arc;

use sterna_program::ImageSpan;

/// A decoded picture.
#[derive(Clone)]
pub struct Picture {
    width: u32,
    height: u32,
    rgb: Vec<u8>,
    id: Option<[u8; 32]>,
}

impl Picture {
    /// A picture of 8-bit RGB, `[height, width, 3]`. `id` identifies its content: two pictures with the same
    /// id may share cached work, so it must come from a hash without known collisions. Without an id nothing
    /// is shared.
    ///
    /// # Panics
    /// If a side is 0, or the number of bytes differs.
    pub fn new([width, height]: [u32; 2], rgb: Vec<u8>, id: Option<[u8; 32]>) -> Self {
        let n_pixels = width as usize * height as usize;
        assert!(n_pixels > 0 && rgb.len() == 3 * n_pixels, "{} bytes for {width} x {height}", rgb.len());
        Self { width, height, rgb, id }
    }

    /// Width in pixels.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Height in pixels.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// `[height, width, 3]`.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// Identifies its content.
    pub fn id(&self) -> Option<[u8; 32]> {
        self.id
    }
}

impl std::fmt::Debug for Picture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Picture({} x {})", self.width, self.height)
    }
}

/// The rows of an image for the text model: one per token, in place of an embedding.
#[derive(Clone, Default, PartialEq)]
pub struct ImageRows {
    pub(crate) grid: [u32; 2],
    /// `[rows * columns of the grid, dim]`.
    pub(crate) values: Vec<f32>,
    /// Further rows, each list `[rows * columns of the grid, dim]`.
    pub(crate) deepstack: Vec<Vec<f32>>,
    /// Tokens of texts between the tiles, with the numbers of their rows in order.
    pub(crate) texts: Vec<(usize, u32)>,
    pub(crate) id: Option<[u8; 32]>,
}

impl ImageRows {
    /// Number of rows, each of which takes a position.
    #[expect(clippy::len_without_is_empty, reason = "an image has at least one row")]
    pub fn len(&self) -> usize {
        self.grid[0] as usize * self.grid[1] as usize
    }

    /// Rows and columns of the grid of tokens.
    pub fn grid(&self) -> [u32; 2] {
        self.grid
    }

    /// Further rows of each token, each list `[len, dim]`, which are added after layers of the text model
    /// (Qwen3-VL).
    pub fn deepstack(&self) -> &[Vec<f32>] {
        &self.deepstack
    }

    /// Tokens of texts between the tiles of the image, with the numbers of their rows, in order. The values
    /// of these rows have no meaning: the text model computes them.
    pub fn texts(&self) -> &[(usize, u32)] {
        &self.texts
    }

    /// The rows of `within` that are not tokens of texts.
    pub(crate) fn of_pixels(&self, within: Range<usize>) -> Vec<Range<usize>> {
        let (mut parts, mut start) = (Vec::new(), within.start);
        let texts = self.texts.iter().map(|(row, _)| *row).filter(|row| within.contains(row));
        for end in texts.chain([within.end]) {
            if start < end {
                parts.push(start..end);
            }
            start = end + 1;
        }
        parts
    }

    /// Number of elements of all rows.
    pub(crate) fn n_elems(&self) -> usize {
        self.values.len() * (1 + self.deepstack.len())
    }

    /// The rows, `[len, dim]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }
}

impl std::fmt::Debug for ImageRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ImageRows({:?})", self.grid)
    }
}

/// An image in a prompt: its rows take the positions from `at` on. The prompt's tokens there are
/// [placeholders](Self::PLACEHOLDER), or those of texts between tiles.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedImage {
    pub(crate) at: usize,
    pub(crate) rows: Arc<ImageRows>,
}

impl PlacedImage {
    /// Token at the positions of an image. A model with embeddings per layer reads those of this token there.
    pub const PLACEHOLDER: u32 = 0;

    /// Appends an image to the tokens of a prompt.
    pub fn append(rows: Arc<ImageRows>, tokens: &mut Vec<u32>) -> Self {
        let at = tokens.len();
        tokens.resize(at + rows.len(), Self::PLACEHOLDER);
        rows.texts.iter().for_each(|(row, token)| tokens[at + row] = *token);
        Self { at, rows }
    }

    /// The position of its first row.
    pub fn start(&self) -> usize {
        self.at
    }

    /// The position after its last row.
    pub fn end(&self) -> usize {
        self.at + self.rows.len()
    }

    /// Its rows.
    pub fn rows(&self) -> &Arc<ImageRows> {
        &self.rows
    }

    /// Its place, for the page table.
    pub(crate) fn span(&self) -> ImageSpan {
        ImageSpan { start: self.at as u32, grid: self.rows.grid, block: 1 }
    }
}

/// Reason why an image cannot be part of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The engine has no vision tower.
    #[error("this model reads images only with its mmproj file, and none is loaded{}", SET_MMPROJ.concat())]
    NoTower,
    /// The sides are too different.
    #[error("a picture of {width} x {height}: one side is more than {most} times the other")]
    Ratio {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// Largest ratio.
        most: u32,
    },
    /// Images in a request that does not generate text.
    #[error("images are supported only in prompts of text to generate, without scores of the prompt")]
    Unsupported,
    /// The chat template leaves out an image, or repeats it.
    #[error("the chat template does not show each image once")]
    Template,
    /// A session with images cannot be saved.
    #[error("a session with images cannot be saved")]
    Saved,
    /// The tower has no position for some of the patches.
    #[error("a picture of {patches} patches on a side; the vision tower has positions for {room}")]
    Positions {
        /// Patches on the longer side.
        patches: usize,
        /// Positions of the tower.
        room: usize,
    },
    /// A step cannot hold all rows of the image.
    #[error("an image of {rows} rows must run in one step, which has room for {room}{}", SET_BATCH.concat())]
    Batch {
        /// Rows of the image.
        rows: usize,
        /// Rows of the largest step, less one per other sequence.
        room: usize,
    },
}

/// The end of [`ImageError::NoTower`].
pub(crate) const SET_MMPROJ: [&str; 3] = ["; ", "EngineOptions::mmproj", " gives the file"];

/// The end of [`ImageError::Batch`].
pub(crate) const SET_BATCH: [&str; 3] = ["; ", "EngineOptions::batch", " sets it"];
