//! Idefics 3 and SmolVLM: a SigLIP tower over square tiles and the whole picture, and one matrix over joined
//! patches.

use super::tower::{File, Filter, Merge, Projector, Sizing, TileRule, Tiles, Vision};
use crate::ModelError;
use sterna_program::{ProjAdd, RowsOf};

/// Idefics 3 and SmolVLM.
pub static PROJECTOR: Projector = Projector { names: &["idefics3"], read };

/// Largest side of a block of patches; larger ones are treated as a damaged file.
const MOST_SIDE: usize = 16;

/// Longest side that transformers resizes any picture to.
const MOST_PIXELS: usize = 4096;

fn read(file: &File<'_>) -> Result<Vision, ModelError> {
    let (dim, text_dim, n_patches) = (file.hyper.dim, file.text_dim, file.side * file.side);
    let side = file.number("projector.scale_factor", 2, 1..=MOST_SIDE)?;
    let tile = file.image;
    let longest = file.number("preproc_image_size", tile, 1..=MOST_PIXELS)?;
    if !file.side.is_multiple_of(side) {
        let want = format!("a divisor of the {} patches of a side", file.side);
        return Err(file.wrong("projector.scale_factor", want, side));
    }
    let (mut post_norm, mut positions) = (None, None);
    let tower = file.half(n_patches, "v.", |m| {
        let weight = m.elements("v.patch_embd.weight", dim * file.patch_elems())?;
        let x = file.patches(m, weight)?;
        file.blocks(m, x, None)?;
        post_norm = Some(file.post_norm(m)?);
        positions = Some(file.positions(m)?);
        Ok(())
    })?;
    let joined = side * side * dim;
    let merger = file.half(n_patches / (side * side), "mm.", |m| {
        let [x, out] = [("x", joined), ("out", text_dim)].map(|(name, cols)| m.buf(name, RowsOf::Step, cols));
        let w = m.projection("mm.model.fc", text_dim, joined)?;
        m.push("project", ProjAdd::plain(x, w, out));
        Ok(())
    })?;
    let sizing = Sizing::Square(tile as u32);
    Ok(Vision {
        filter: Filter::Lanczos,
        tiles: Some(Tiles { side: tile as u32, rule: TileRule::Longest(longest as u32), mark }),
        positions: positions.expect("read with the tower"),
        post_norm,
        ..file.vision([tower, merger], sizing, Merge::Join { side }, [FAKE, FAKE])
    })
}

/// Text before each tile and the whole picture, and after that.
const FAKE: &str = "<fake_token_around_image>";

fn mark([rows, cols]: [usize; 2], at: usize) -> String {
    match at {
        0 if rows == 0 => "<global-img>".to_owned(),
        0 => "<row_1_col_1>".to_owned(),
        _ if at == rows * cols => format!("\n\n{FAKE}<global-img>"),
        _ => {
            let newline = if at.is_multiple_of(cols) { "\n" } else { "" };
            format!("{newline}{FAKE}<row_{}_col_{}>", at / cols + 1, at % cols + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::mark;

    /// As in the processor of transformers, after the first mark of all images.
    #[test]
    fn marks_of_tiles() {
        let marks: Vec<String> = (0..5).map(|at| mark([2, 2], at)).collect();
        let fake = "<fake_token_around_image>";
        assert_eq!(marks[..2], ["<row_1_col_1>".to_owned(), format!("{fake}<row_1_col_2>")]);
        assert_eq!(marks[2], format!("\n{fake}<row_2_col_1>"));
        assert_eq!(marks[4], format!("\n\n{fake}<global-img>"));
        assert_eq!(mark([0, 0], 0), "<global-img>");
    }
}
