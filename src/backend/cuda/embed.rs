//! Embedding of tokens, positions and token types: one thread per element.

use ggml_types::types;

use super::cx::{Cx, words};
use super::driver::Launch;
use super::params::{EMBED_THREADS, EmbedParams};
use super::turn;
use super::weight::{NO_LINEAR, WeightFormat};
use sterna_program::{Embed, Program, Weight};

pub fn kernels(p: &Program, s: &Embed) -> Result<Vec<String>, String> {
    let ty = p.weight_decl(s.table).ty.name();
    for (what, added) in [("positions", s.positions), ("token types", s.types)] {
        let Some(added) = added else { continue };
        let ty = p.weight_decl(added).ty;
        if s.basis.is_some() {
            return Err(format!("embed with {what} in a rotated basis"));
        }
        if !ty.is(&types::F32) {
            return Err(format!("embed with {what} of {}", ty.name()));
        }
    }
    let format = WeightFormat::of(p.weight_decl(s.table).ty).ok_or(format!("embed__{ty}"))?;
    let kernel = format!("embed__{}", format.kernels.name());
    Ok([kernel].into_iter().chain(turn::of_basis(p, s.basis)?).collect())
}

pub fn launches(cx: &Cx<'_>, s: &Embed) -> Vec<Launch> {
    let back = s.basis.map(|basis| turn::back(cx, basis, s.x));
    [launch(cx, s)].into_iter().chain(back).collect()
}

fn launch(cx: &Cx<'_>, s: &Embed) -> Launch {
    // The basis is handled by the next launch.
    let Embed { table, basis: _, scale, positions, types, x } = *s;
    let table = &cx.weights[table.0 as usize];
    let added = |w: Option<Weight>| w.map_or(NO_LINEAR, |w| cx.weights[w.0 as usize].params(1.0, None));
    let params = EmbedParams {
        step: cx.tables(),
        table: table.params(1.0, None),
        positions: added(positions),
        types: added(types),
        texts: cx.memory.step.texts(),
        picked: cx.memory.picks.newest(),
        x: cx.memory.bufs[x.0 as usize],
        cols: table.cols as u32,
        scale,
    };
    let kernels = WeightFormat::of(table.ty).expect("it was uploaded").kernels.name();
    Launch {
        kernel: cx.kernel(&format!("embed__{kernels}")),
        grid: [cx.shape.rows as u32, table.cols.div_ceil(EMBED_THREADS as usize) as u32, 1],
        threads: EMBED_THREADS,
        shared_bytes: 0,
        params: words(&params),
    }
}
