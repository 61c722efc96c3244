//! LFM2-VL: a SigLIP 2 tower with resized positions over tiles and the whole picture, and a network over
//! joined patches.

use super::tower::{File, Filter, Merge, Positions, Projector, Sizing, TileRule, Tiles, Vision};
use crate::ModelError;
use sterna_program::{Act, FfnIn, Norm, ProjAdd, RowsOf};

/// LFM2-VL and LFM2.5-VL.
pub static PROJECTOR: Projector = Projector { names: &["lfm2"], read };

/// Largest side of a block of patches; larger ones are treated as a damaged file.
const MOST_SIDE: usize = 16;

/// Default limits on the tokens of a picture without tiles.
const TOKENS: [usize; 2] = [64, 256];

/// Largest number of such tokens that may be asked for.
const MOST_TOKENS: usize = 4096;

/// Side of a tile in pixels, if a file does not specify it.
const TILE: usize = 512;

/// Fewest and most tiles.
const TILES: [usize; 2] = [2, 10];

/// A picture is cut if it has more pixels than the most tokens, times this.
const TOLERANCE: f64 = 2.0;

/// Epsilon of the projector's norm, which is not configured.
const EPS: f32 = 1e-5;

fn read(file: &File<'_>) -> Result<Vision, ModelError> {
    let (dim, text_dim) = (file.hyper.dim, file.text_dim);
    let side = file.number("projector.scale_factor", 2, 1..=MOST_SIDE)?;
    let step = side * file.patch;
    let pixels = |key: &str, tokens: usize| {
        let most = MOST_TOKENS * step * step;
        Ok::<_, ModelError>(file.number(key, tokens * step * step, 1..=most)? / (step * step))
    };
    let [least, most] = [pixels("image_min_pixels", TOKENS[0])?, pixels("image_max_pixels", TOKENS[1])?];
    let most = file.limits.max.unwrap_or(most).clamp(1, MOST_TOKENS);
    let least = file.limits.min.unwrap_or(least).clamp(1, most);
    let tile = file.number("preproc_image_size", TILE, 1..=1 << 13)?;
    let fewest_tiles = file.number("preproc_min_tiles", TILES[0], 1..=64)?;
    let most_tiles = file.number("preproc_max_tiles", TILES[1], fewest_tiles..=64)?;
    if !tile.is_multiple_of(step) {
        return Err(file.wrong("preproc_image_size", format!("a multiple of {step}"), tile));
    }
    let tokens = most.max((tile / step).pow(2));
    let (mut post_norm, mut positions) = (None, None);
    let tower = file.half(tokens * side * side, "v.", |m| {
        let weight = m.elements("v.patch_embd.weight", dim * file.patch_elems())?;
        let x = file.patches(m, weight)?;
        file.blocks(m, x, None)?;
        post_norm = Some(file.post_norm(m)?);
        // A square of any size.
        let n = m.rows_of("v.position_embd.weight").unwrap_or(0);
        let of_side = n.isqrt();
        if of_side == 0 || of_side * of_side != n {
            let (tensor, want) =
                ("v.position_embd.weight".to_owned(), "a row per patch of a square".to_owned());
            return Err(ModelError::Tensor { tensor, want, got: format!("{n} rows") });
        }
        positions = Some((m.elements("v.position_embd.weight", n * dim)?, of_side));
        Ok(())
    })?;
    let joined = side * side * dim;
    let merger = file.half(tokens, "mm.", |m| {
        let hidden = m.rows_of("mm.1.weight").unwrap_or(1);
        let [x, h, out] = [("x", joined), ("h", hidden), ("out", text_dim)]
            .map(|(name, cols)| m.buf(name, RowsOf::Step, cols));
        let norm = match m.has("mm.input_norm.weight") {
            true => Some(Norm { eps: EPS, ..m.layer_norm("mm.input_norm", joined)? }),
            false => None,
        };
        let up = m.projection("mm.1", hidden, joined)?;
        m.push("merge_in", FfnIn::plain(x, norm, up, Act::Gelu, h));
        let w = m.projection("mm.2", text_dim, hidden)?;
        m.push("merge_out", ProjAdd::plain(h, w, out));
        Ok(())
    })?;
    let (table, of_side) = positions.expect("read with the tower");
    let pixels = |tokens: usize| (tokens * step * step) as u64;
    let tiles = (fewest_tiles as u32, most_tiles as u32);
    let rule = TileRule::Nearest { tiles, max_pixels: TOLERANCE * pixels(most) as f64, step: step as u32 };
    let sizing = Sizing::Multiples { step: step as u32, min_pixels: pixels(least), max_pixels: pixels(most) };
    Ok(Vision {
        filter: Filter::Bilinear,
        tiles: Some(Tiles { side: tile as u32, rule, mark }),
        positions: Positions::Resized { table, side: of_side },
        post_norm,
        ..file.vision([tower, merger], sizing, Merge::Join { side }, ["<|image_start|>", "<|image_end|>"])
    })
}

fn mark([rows, cols]: [usize; 2], at: usize) -> String {
    match at {
        _ if rows == 0 => String::new(),
        _ if at == rows * cols => "<|img_thumbnail|>".to_owned(),
        _ => format!("<|img_row_{}_col_{}|>", at / cols + 1, at % cols + 1),
    }
}
