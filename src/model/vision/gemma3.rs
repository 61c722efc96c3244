//! Gemma 3: a SigLIP tower over a picture of fixed size, the mean of blocks of patches, and one matrix after
//! an RMS norm. Always the same number of tokens.

use super::tower::{File, Filter, Merge, Projector, Sizing, Vision};
use crate::ModelError;
use sterna_program::{Linear, ProjIn, RowsOf};

/// Gemma 3.
pub static PROJECTOR: Projector = Projector { names: &["gemma3"], read };

/// Side of a block, if a file does not specify it.
const SIDE: usize = 4;

fn read(file: &File<'_>) -> Result<Vision, ModelError> {
    let (dim, text_dim, n_patches) = (file.hyper.dim, file.text_dim, file.side * file.side);
    let (mut post_norm, mut positions, mut side) = (None, None, SIDE);
    let tower = file.half(n_patches, "v.", |m| {
        const KEY: &str = "vision.projector.scale_factor";
        side = m.number_or(KEY, SIDE)?;
        if side == 0 || !file.side.is_multiple_of(side) {
            return Err(m.wrong(KEY, format!("a divisor of the {} patches of a side", file.side), side));
        }
        let weight = m.elements("v.patch_embd.weight", dim * file.patch_elems())?;
        let x = file.patches(m, weight)?;
        file.blocks(m, x, None)?;
        post_norm = Some(file.post_norm(m)?);
        positions = Some(file.positions(m)?);
        Ok(())
    })?;
    let merger = file.half(n_patches / (side * side), "mm.", |m| {
        let [x, out] = [("x", dim), ("out", text_dim)].map(|(name, cols)| m.buf(name, RowsOf::Step, cols));
        let norm = m.rms_norm("mm.soft_emb_norm", dim)?;
        // Stored as inputs x outputs.
        let stored = m.elements("mm.input_projection.weight", dim * text_dim)?;
        let w = (0..text_dim).flat_map(|out| (0..dim).map(move |input| input * text_dim + out));
        let w: Vec<f32> = w.map(|at| stored[at]).collect();
        let w: Linear = m.layer_of("mm.input_projection", w, text_dim, dim)?;
        m.push("project", ProjIn { x, norm, products: vec![(w, out)] });
        Ok(())
    })?;
    let sizing = Sizing::Square(file.image as u32);
    Ok(Vision {
        filter: Filter::Bilinear,
        positions: positions.expect("read with the tower"),
        post_norm,
        whole_images: true,
        ..file.vision(
            [tower, merger],
            sizing,
            Merge::Mean { side },
            ["\n\n<start_of_image>", "<end_of_image>\n\n"],
        )
    })
}
