//! The form of a vision tower, and the parts of an mmproj file that projectors share.

use std::ops::{Range, RangeInclusive};

use ggml_types::kv;

use crate::hyper::{RopeHyper, RopeScaling};
use crate::{Builder, Hyper, ModelError, Options};
use sterna_gguf::{FileTensor, Gguf};
use sterna_program::{
    Act, Attend, AttnIn, Buf, FfnIn, Limits, Linear, NormKind, PAGE, Program, ProjAdd, RopeId, RowsOf,
};

/// A kind of projector: its names in files, and the function that reads it.
#[derive(Debug)]
pub struct Projector {
    /// Values of `clip.projector_type`.
    pub names: &'static [&'static str],
    pub(super) read: fn(&File<'_>) -> Result<Vision, ModelError>,
}

/// A vision tower that is ready for a backend.
#[derive(Clone, Debug)]
pub struct Vision {
    /// Value of `clip.projector_type`.
    pub projector: String,
    /// Over patches: adds the product of the buffer `patches`, `[n_patches, 3 * patch * patch]`, to `x`,
    /// which the host fills with the patches' positions, and runs the blocks on `x`, `[n_patches, dim]`. All
    /// patches of a picture run in one step.
    pub tower: Half,
    /// Over tokens: from `x`, the merged patches, to `out`, `[n_tokens, text_dim]`. The host has set it and
    /// `merged`, if there is such a buffer, to 0.
    pub merger: Half,
    /// Further rows of each token, from the tower's rows after some blocks, in the order of these.
    pub deepstack: Vec<Deepstack>,
    /// Windows that most blocks of the tower attend within. Not together with further rows.
    pub windows: Option<Windows>,
    /// Side of a patch in pixels.
    pub patch: usize,
    /// Subtracted from a channel's values of 0 to 1.
    pub mean: [f32; 3],
    /// Divisor of the difference.
    pub std: [f32; 3],
    /// True if the tower reads `2 x - 1` in place of the result `x`.
    pub is_centred: bool,
    /// Size of the picture in pixels.
    pub sizing: Sizing,
    /// Filter for resizing.
    pub filter: Filter,
    /// How large pictures are cut. `sizing` is that of the whole picture, which follows the tiles.
    pub tiles: Option<Tiles>,
    /// Learned positions.
    pub positions: Positions,
    /// Norm of the tower's rows.
    pub post_norm: Option<RowNorm>,
    /// How patches become tokens.
    pub merge: Merge,
    /// Applied to the merged rows.
    pub affine: Option<Affine>,
    /// A row for the text model after each row of tokens but the last, `[text_dim]`.
    pub row_end: Option<Vec<f32>>,
    /// Width of the text model.
    pub text_dim: usize,
    /// True if rows of an image see each other in the text model ([`Attend::whole_images`]).
    pub whole_images: bool,
    /// True if the text model has a RoPE of several axes ([`Rope::axes`](sterna_program::Rope::axes)).
    pub axes: bool,
    /// Text before an image in a prompt.
    pub begin: &'static str,
    /// Text after it.
    pub end: &'static str,
}

/// One of the two programs and its weights: `weights[i]` is that of `program.weights[i]`.
#[derive(Clone, Debug)]
pub struct Half {
    /// The program.
    pub program: Program,
    /// Its weights, not yet read.
    pub weights: Vec<FileTensor>,
}

/// Further rows of images, from the tower's rows after one of its blocks.
#[derive(Clone, Debug)]
pub struct Deepstack {
    /// Number of the tower's stages after which its `x` is read.
    pub end: usize,
    /// From `x`, the merged patches, to `out`, as [`Vision::merger`].
    pub merger: Half,
}

/// Windows of patches: squares from the upper left, cut at the right and at the lower border. Each is a
/// sequence of its own in the stages that are not `whole`.
#[derive(Clone, Debug)]
pub struct Windows {
    /// Side in patches, a multiple of the merged blocks.
    pub side: usize,
    /// Ranges of stages whose patches see the whole picture.
    pub whole: Vec<Range<usize>>,
}

/// A norm that the host applies to rows.
#[derive(Clone, Debug)]
pub struct RowNorm {
    /// Kind of normalisation.
    pub kind: NormKind,
    /// `[dim]`.
    pub weight: Vec<f32>,
    /// `[dim]`.
    pub bias: Option<Vec<f32>>,
    /// Added to the mean square or the variance.
    pub eps: f32,
}

/// A factor and an offset per column: `factor * x + offset`.
#[derive(Clone, Debug)]
pub struct Affine {
    /// `[dim]`.
    pub factor: Vec<f32>,
    /// `[dim]`.
    pub offset: Vec<f32>,
}

/// Rule for the size of a picture before it is cut into patches. Pictures are stretched to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sizing {
    /// Always a square of this side.
    Square(u32),
    /// The nearest multiples of `step` whose product is from `min_pixels` to `max_pixels`, at about the
    /// picture's proportions.
    Multiples {
        /// Pixels per token on each side.
        step: u32,
        /// Smallest number of pixels.
        min_pixels: u64,
        /// Largest number of pixels.
        max_pixels: u64,
    },
    /// The least multiples of `step` that cover the picture, which is made smaller if a side is longer than
    /// `longest`.
    Longest {
        /// Pixels per token on each side.
        step: u32,
        /// Longest side in pixels.
        longest: u32,
    },
    /// The largest multiples of `step` at the picture's proportions that have at most `tokens` squares of it.
    Budget {
        /// Pixels per token on each side.
        step: u32,
        /// Most tokens.
        tokens: u64,
    },
}

/// Tiles of large pictures, each of which is encoded as a picture.
#[derive(Clone, Copy, Debug)]
pub struct Tiles {
    /// Side of a tile in pixels.
    pub side: u32,
    /// Rule for their number.
    pub rule: TileRule,
    /// Text before the rows of a tile: the number of rows and columns of tiles, and the number of the tile.
    /// The whole picture is the last one; without tiles, number 0 of a grid of 0 x 0.
    pub mark: fn([usize; 2], usize) -> String,
}

/// Rule for the number of tiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TileRule {
    /// Every picture is resized to this longest side, then to multiples of a tile. The whole picture is made
    /// from that.
    Longest(u32),
    /// A picture of more than `max_pixels` is stretched to the grid of `tiles.0` to `tiles.1` tiles whose
    /// proportions are nearest to its own.
    Nearest {
        /// Fewest and most tiles.
        tiles: (u32, u32),
        /// Most pixels of a picture that is not cut, rounded to multiples of `step`.
        max_pixels: f64,
        /// Pixels per token on each side.
        step: u32,
    },
}

/// Filter for resizing, as Pillow has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A triangle, over the pixels that a target pixel covers.
    Bilinear,
    /// Cubic convolution with a = -0.5.
    Bicubic,
    /// Windowed sinc of three lobes.
    Lanczos,
}

/// The learned positions of a grid of patches.
#[derive(Clone, Debug)]
pub enum Positions {
    /// One row per patch of a square, row by row. Another grid is interpolated, bilinear with aligned
    /// corners.
    Square {
        /// `[side * side, dim]`.
        table: Vec<f32>,
        /// Side of the square in patches.
        side: usize,
    },
    /// One row per patch of a square, row by row. Another grid is resized, bilinear without aligned corners,
    /// over all rows that a patch covers.
    Resized {
        /// `[side * side, dim]`.
        table: Vec<f32>,
        /// Side of the square in patches.
        side: usize,
    },
    /// None: zeros.
    None {
        /// Number of columns.
        dim: usize,
    },
    /// The sum of a row per column of the grid and one per row of the grid.
    Axes {
        /// `[n, dim]`.
        columns: Vec<f32>,
        /// `[n, dim]`.
        rows: Vec<f32>,
        /// Longest side of a grid.
        n: usize,
    },
}

/// The way in which the patches of a block of `side * side` become one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Their mean. Patches are listed row by row.
    Mean {
        /// Side of a block in patches.
        side: usize,
    },
    /// Their rows joined. Patches are listed block by block.
    Join {
        /// Side of a block in patches.
        side: usize,
    },
}

impl Merge {
    /// Side of a block in patches.
    pub fn side(self) -> usize {
        match self {
            Self::Mean { side } | Self::Join { side } => side,
        }
    }

    /// Side of the blocks in which patches are listed; 1 for row by row.
    pub fn listed(self) -> usize {
        match self {
            Self::Mean { .. } => 1,
            Self::Join { side } => side,
        }
    }
}

/// Limits on the tokens of an image; `None` is the projector's default. Projectors with a fixed number of
/// tokens ignore them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenLimits {
    /// Fewest tokens.
    pub min: Option<usize>,
    /// Most tokens.
    pub max: Option<usize>,
}

impl Vision {
    /// Largest number of patches of a picture.
    pub fn max_patches(&self) -> usize {
        self.tower.program.limits.rows
    }

    /// All of its programs.
    pub fn halves(&self) -> impl Iterator<Item = &Half> {
        [&self.tower, &self.merger]
            .into_iter()
            .chain(self.deepstack.iter().map(|deepstack| &deepstack.merger))
    }

    /// Bytes of the tables that the host keeps: learned positions, norm and factors.
    pub fn host_bytes(&self) -> u64 {
        let positions = match &self.positions {
            Positions::Square { table, .. } | Positions::Resized { table, .. } => table.len(),
            Positions::Axes { columns, rows, .. } => columns.len() + rows.len(),
            Positions::None { .. } => 0,
        };
        let norm = self.post_norm.as_ref();
        let norm = norm.map_or(0, |norm| norm.weight.len() + norm.bias.as_ref().map_or(0, Vec::len));
        let affine = self.affine.as_ref().map_or(0, |affine| affine.factor.len() + affine.offset.len());
        let row_end = self.row_end.as_ref().map_or(0, Vec::len);
        4 * (positions + norm + affine + row_end) as u64
    }
}

/// Prefix of the tensors for further rows of images.
const DEEPSTACK: &str = "v.deepstack.";

/// The common keys of an mmproj file.
pub(super) struct File<'a> {
    pub gguf: &'a Gguf,
    pub limits: TokenLimits,
    pub projector: String,
    pub hyper: Hyper,
    /// Side of a patch in pixels.
    pub patch: usize,
    /// Side of the square pictures that the positions are for, in pixels.
    pub image: usize,
    /// The same in whole patches: a rest of less than a patch at the right and at the bottom is not read.
    pub side: usize,
    pub text_dim: usize,
    /// Activation function of the networks, if the file names one that is supported.
    pub act: Option<Act>,
    pub mean: [f32; 3],
    pub std: [f32; 3],
}

impl<'a> File<'a> {
    /// Larger values are treated as a damaged file.
    const MOST: usize = 1 << 16;

    pub fn of(gguf: &'a Gguf, limits: TokenLimits) -> Result<Self, ModelError> {
        let metadata = gguf.metadata();
        let wrong = |key: &str, want: &str, got: String| ModelError::Metadata {
            key: key.to_owned(),
            want: want.to_owned(),
            got,
        };
        let architecture = metadata.str("general.architecture")?.unwrap_or("none");
        if architecture != "clip" {
            let want = "clip, as in an mmproj file";
            return Err(wrong("general.architecture", want, architecture.to_owned()));
        }
        const VISION: &str = "clip.has_vision_encoder";
        if metadata.bool(VISION)? != Some(true) {
            return Err(wrong(VISION, "true", "no vision encoder".to_owned()));
        }
        let projector = match metadata.str("clip.projector_type")? {
            Some(projector) => projector,
            None => metadata.require_str("clip.vision.projector_type")?,
        };
        let number = |name: &str| {
            let key = format!("clip.vision.{name}");
            match metadata.require_usize(&key)? {
                n if (1..=Self::MOST).contains(&n) => Ok(n),
                n => Err(wrong(&key, &format!("1 to {}", Self::MOST), n.to_string())),
            }
        };
        let (dim, n_heads) = (number("embedding_length")?, number("attention.head_count")?);
        if !dim.is_multiple_of(n_heads) {
            let key = "clip.vision.attention.head_count";
            return Err(wrong(key, &format!("a divisor of the width {dim}"), n_heads.to_string()));
        }
        let (patch, image) = (number("patch_size")?, number("image_size")?);
        if image < patch {
            let key = "clip.vision.image_size";
            return Err(wrong(key, &format!("at least the patch size {patch}"), image.to_string()));
        }
        let flag = |key: &str| Ok::<_, ModelError>(metadata.bool(key)? == Some(true));
        let act = match (flag("clip.use_gelu")?, flag("clip.use_silu")?) {
            (true, false) => Some(Act::GeluTanh),
            (false, true) => Some(Act::Silu),
            (false, false) => None,
            (true, true) => {
                return Err(wrong("clip.use_gelu", "not together with clip.use_silu", "both".to_owned()));
            }
        };
        let channels = |name: &str| {
            let key = format!("clip.vision.{name}");
            let values: Vec<f32> = metadata.require_f32s(&key)?.collect();
            let is_valid = values.iter().all(|x| x.is_finite());
            let channels = <[f32; 3]>::try_from(values).ok().filter(|_| is_valid);
            channels.ok_or_else(|| wrong(&key, "3 finite numbers", "others".to_owned()))
        };
        let std = channels("image_std")?;
        if std.contains(&0.0) {
            return Err(wrong("clip.vision.image_std", "numbers other than 0", format!("{std:?}")));
        }
        let norm_eps = metadata.require_f32("clip.vision.attention.layer_norm_epsilon")?;
        // llama.cpp's files of Qwen2-VL have 0 or the width of the text model as `feed_forward_length`. In
        // files of early 2025, this tensor is the other matrix.
        let ffn_dim = match gguf.find("v.blk.0.ffn_up.weight") {
            Some(up) if up.cols() == dim => up.rows(),
            Some(up) => up.cols(),
            None => number("feed_forward_length")?,
        };
        let head_dim = dim / n_heads;
        let hyper = Hyper {
            name: None,
            architecture: "clip".to_owned(),
            n_ctx_train: 0,
            n_layers: number("block_count")?,
            dim,
            ffn_dim,
            n_heads,
            n_kv_heads: n_heads,
            differing: None,
            head_dim,
            n_vocab: 0,
            norm_eps,
            rope: RopeHyper { dims: head_dim, freq_base: 10000.0, scaling: RopeScaling::None },
        };
        Ok(Self {
            gguf,
            limits,
            projector: projector.to_owned(),
            hyper,
            patch,
            image,
            side: image / patch,
            text_dim: number("projection_dim")?,
            act,
            mean: channels("image_mean")?,
            std,
        })
    }

    /// A tower of these programs with pictures of this size and text around them. What only some projectors
    /// have is left out: bicubic, without tiles, learned positions, a norm, or anything in the text model.
    pub fn vision(
        &self,
        [tower, merger]: [Half; 2],
        sizing: Sizing,
        merge: Merge,
        [begin, end]: [&'static str; 2],
    ) -> Vision {
        Vision {
            projector: self.projector.clone(),
            tower,
            merger,
            deepstack: Vec::new(),
            windows: None,
            patch: self.patch,
            mean: self.mean,
            std: self.std,
            is_centred: false,
            sizing,
            filter: Filter::Bicubic,
            tiles: None,
            positions: Positions::None { dim: self.hyper.dim },
            post_norm: None,
            merge,
            affine: None,
            row_end: None,
            text_dim: self.text_dim,
            whole_images: false,
            axes: false,
            begin,
            end,
        }
    }

    /// A number under `clip.vision.`, or this one if it is missing.
    ///
    /// # Errors
    /// [`ModelError::Metadata`] for numbers outside of a range.
    pub fn number(
        &self,
        name: &str,
        usual: usize,
        range: RangeInclusive<usize>,
    ) -> Result<usize, ModelError> {
        let found = self.gguf.metadata().usize(&format!("clip.vision.{name}"))?.unwrap_or(usual);
        match range.contains(&found) {
            true => Ok(found),
            false => Err(self.wrong(name, format!("{} to {}", range.start(), range.end()), found)),
        }
    }

    /// An error about a number under `clip.vision.`.
    pub fn wrong(&self, name: &str, want: String, got: usize) -> ModelError {
        ModelError::Metadata { key: format!("clip.vision.{name}"), want, got: got.to_string() }
    }

    /// The activation function of the networks.
    ///
    /// # Errors
    /// [`ModelError::Metadata`] if the file names none.
    pub fn act(&self) -> Result<Act, ModelError> {
        self.act.ok_or_else(|| ModelError::Metadata {
            key: "clip.use_gelu".to_owned(),
            want: "true, or clip.use_silu: quick GELU is only supported in qwen2vl_merger".to_owned(),
            got: "neither".to_owned(),
        })
    }

    /// Builds a program for steps of up to `rows` rows, from the tensors that begin with `prefix`.
    pub fn half(
        &self,
        rows: usize,
        prefix: &str,
        build: impl FnOnce(&mut Builder<'_>) -> Result<(), ModelError>,
    ) -> Result<Half, ModelError> {
        self.half_of_windows(rows, 1, rows, prefix, build)
    }

    /// Builds a program for steps of up to `rows` rows in up to `windows` sequences of `of_window` rows.
    pub fn half_of_windows(
        &self,
        rows: usize,
        windows: usize,
        of_window: usize,
        prefix: &str,
        build: impl FnOnce(&mut Builder<'_>) -> Result<(), ModelError>,
    ) -> Result<Half, ModelError> {
        let limits = Limits {
            rows,
            outputs: 1,
            seqs: windows,
            pages: rows.div_ceil(PAGE).max(windows * of_window.min(rows).div_ceil(PAGE)),
            exact_pages: 0,
            sliding_pages: 0,
            states: 0,
        };
        let options = Options::new(limits, kv::F32, kv::F32);
        let mut builder = Builder::new(self.gguf, self.hyper.clone(), &options)?;
        let is_other = |name: &str| {
            name.starts_with("mm.a.") || name.starts_with(DEEPSTACK) && !prefix.starts_with(DEEPSTACK)
        };
        // Files of towers that end before their last block may have its tensors.
        let is_after = |name: &str| {
            let block = name.strip_prefix("v.blk.").and_then(|rest| rest.split('.').next());
            block.and_then(|block| block.parse().ok()).is_some_and(|at: usize| at >= self.hyper.n_layers)
        };
        builder.leave_out(|name| !name.starts_with(prefix) || is_other(name) || is_after(name));
        build(&mut builder)?;
        let (program, weights, _) = builder.finish()?;
        program.check_all_named(&[])?;
        Ok(Half { program, weights })
    }

    /// The product of patches with `weight`, `[dim, 3 * patch * patch]`, added to `x`, which contains their
    /// positions.
    pub fn patches(&self, m: &mut Builder<'_>, weight: Vec<f32>) -> Result<Buf, ModelError> {
        let (dim, inputs) = (self.hyper.dim, self.patch_elems());
        let [patches, x] =
            [("patches", inputs), ("x", dim)].map(|(name, cols)| m.buf(name, RowsOf::Step, cols));
        let w = m.layer_of("v.patch_embd", weight, dim, inputs)?;
        m.push("patches", ProjAdd::plain(patches, w, x));
        Ok(x)
    }

    /// Elements of a patch: channel by channel, row by row.
    pub fn patch_elems(&self) -> usize {
        3 * self.patch * self.patch
    }

    /// Pre-norm blocks with RMS norms, full attention and gated networks. Returns the stages of each.
    pub fn gated_blocks(
        &self,
        m: &mut Builder<'_>,
        x: Buf,
        rope: RopeId,
    ) -> Result<Vec<Range<usize>>, ModelError> {
        let Hyper { n_layers, dim, ffn_dim, n_heads, head_dim, .. } = self.hyper;
        let (act, scale) = (self.act()?, 1.0 / (head_dim as f32).sqrt());
        let [q, y, hidden] =
            [("q", dim), ("y", dim), ("h", ffn_dim)].map(|(name, cols)| m.buf(name, RowsOf::Step, cols));
        let kv = m.kv_of_heads(n_heads, head_dim);
        let mut stages = Vec::with_capacity(n_layers);
        for layer in 0..n_layers {
            let start = m.program().stages.len();
            let blk = |name: &str| format!("v.blk.{layer}.{name}");
            let norm = m.rms_norm(&blk("ln1"), dim)?;
            let qkv = m.qkv(&format!("v.blk.{layer}"), dim, dim, dim)?;
            let attn_in = AttnIn::of(x, norm, qkv, kv, q);
            m.push(format!("{layer}.attn_in"), AttnIn { rope: Some(rope), ..attn_in });
            let attend = Attend { ahead: Attend::ALL, ..Attend::causal(q, kv, scale, y) };
            m.push(format!("{layer}.attend"), attend);
            let w = m.projection(&blk("attn_out"), dim, dim)?;
            m.push(format!("{layer}.attn_out"), ProjAdd::plain(y, w, x));

            let norm = m.rms_norm(&blk("ln2"), dim)?;
            let gate = m.projection(&blk("ffn_gate"), ffn_dim, dim)?;
            let up = m.projection(&blk("ffn_up"), ffn_dim, dim)?;
            m.push(format!("{layer}.ffn_in"), FfnIn::gated(x, norm, gate, up, act, hidden));
            let w = m.projection(&blk("ffn_down"), dim, ffn_dim)?;
            m.push(format!("{layer}.ffn_out"), ProjAdd::plain(hidden, w, x));
            stages.push(start..m.program().stages.len());
        }
        Ok(stages)
    }

    /// Pre-norm blocks with LayerNorm and biases: full attention, and a network without a gate.
    pub fn blocks(&self, m: &mut Builder<'_>, x: Buf, rope: Option<RopeId>) -> Result<(), ModelError> {
        self.blocks_of(m, x, rope, self.act()?, 1.0)
    }

    /// The same with quick GELU, `x sigmoid(1.702 x)`: SiLU of `1.702 x`, divided by 1.702.
    pub fn quick_blocks(&self, m: &mut Builder<'_>, x: Buf, rope: RopeId) -> Result<(), ModelError> {
        self.blocks_of(m, x, Some(rope), Act::Silu, 1.702)
    }

    /// The same with this activation function of `factor * x`, divided by the factor.
    fn blocks_of(
        &self,
        m: &mut Builder<'_>,
        x: Buf,
        rope: Option<RopeId>,
        act: Act,
        factor: f32,
    ) -> Result<(), ModelError> {
        let Hyper { n_layers, dim, ffn_dim, n_heads, head_dim, .. } = self.hyper;
        let [q, y, hidden] =
            [("q", dim), ("y", dim), ("h", ffn_dim)].map(|(name, cols)| m.buf(name, RowsOf::Step, cols));
        // A block overwrites the keys and values of the block before it.
        let kv = m.kv_of_heads(n_heads, head_dim);
        let scale = 1.0 / (head_dim as f32).sqrt();
        for layer in 0..n_layers {
            let blk = |name: &str| format!("v.blk.{layer}.{name}");
            // Files of early 2025 have exchanged the names of these two.
            let is_old = m.rows_of(&blk("ffn_down.weight")) == Some(ffn_dim) && ffn_dim != dim;
            let (up, down) = if is_old { ("ffn_down", "ffn_up") } else { ("ffn_up", "ffn_down") };

            let norm = m.layer_norm(&blk("ln1"), dim)?;
            let qkv = m.qkv(&format!("v.blk.{layer}"), dim, dim, dim)?;
            m.push(format!("{layer}.attn_in"), AttnIn { rope, ..AttnIn::of(x, norm, qkv, kv, q) });
            let attend = Attend { ahead: Attend::ALL, ..Attend::causal(q, kv, scale, y) };
            m.push(format!("{layer}.attend"), attend);
            let w = m.projection(&blk("attn_out"), dim, dim)?;
            m.push(format!("{layer}.attn_out"), ProjAdd::plain(y, w, x));

            let norm = m.layer_norm(&blk("ln2"), dim)?;
            let up = m.scaled_projection(&blk(up), ffn_dim, dim, factor)?;
            m.push(format!("{layer}.ffn_in"), FfnIn::plain(x, norm, up, act, hidden));
            let w = m.projection(&blk(down), dim, ffn_dim)?;
            let w = Linear { scale: w.scale / factor, ..w };
            m.push(format!("{layer}.ffn_out"), ProjAdd::plain(hidden, w, x));
        }
        Ok(())
    }

    /// The LayerNorm after the blocks, for the host.
    pub fn post_norm(&self, m: &mut Builder<'_>) -> Result<RowNorm, ModelError> {
        let dim = self.hyper.dim;
        let weight = m.elements("v.post_ln.weight", dim)?;
        let bias = Some(m.elements("v.post_ln.bias", dim)?);
        Ok(RowNorm { kind: NormKind::Layer, weight, bias, eps: self.hyper.norm_eps })
    }

    /// The table of learned positions, one row per patch of the square.
    pub fn positions(&self, m: &mut Builder<'_>) -> Result<Positions, ModelError> {
        let n = self.side * self.side * self.hyper.dim;
        Ok(Positions::Square { table: m.elements("v.position_embd.weight", n)?, side: self.side })
    }
}
