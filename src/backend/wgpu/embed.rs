//! Embedding of tokens and positions: one workgroup per row, one dispatch per part of the table; then token
//! types.

use ggml_types::types;

use super::shader::Kernel;
use super::weight::WeightFormat;
use super::{Cx, Device, Dispatch, Grid, adapters, hadamard, upload};
use sterna_program::{Embed, Program, RowsOf};

pub fn missing(cx: &Device<'_>, p: &Program, s: &Embed) -> Vec<String> {
    let table = p.weight_decl(s.table);
    let Some(format) = WeightFormat::of(table.ty) else { return vec![format!("embed__{}", table.ty.name())] };
    let mut missing: Vec<String> =
        upload::unsupported(cx.gpu, &table.name, format, table.cols).into_iter().collect();
    missing.extend(hadamard::missing(p, s.basis));
    if s.basis.is_some() && s.positions.is_some() {
        missing.push("embed with positions in a rotated basis".to_owned());
    }
    for (added, of) in [(s.positions, "positions"), (s.types, "token types")] {
        let Some(decl) = added.map(|added| p.weight_decl(added)) else { continue };
        let whole = decl.rows * stride(decl.cols) * 4;
        if !decl.ty.is(&types::F32) || whole as u64 + 64 > cx.gpu.max_part_bytes {
            missing.push(format!("embed with {} {of} of {}", decl.rows, decl.ty.name()));
        }
    }
    missing
}

/// Floats per row of an f32 weight, which is padded to 8 elements.
fn stride(cols: usize) -> usize {
    cols.next_multiple_of(8)
}

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a Embed) -> Vec<Dispatch<'a>> {
    let Embed { table, stride: per_token, first, basis, scale, positions, types, ref lora, x } = *s;
    let table = &cx.weights[table.0 as usize];
    let x_buf = &cx.memory.bufs[x.0 as usize];
    let kernel = Kernel::Embed(WeightFormat::of(table.ty).expect("it was uploaded").kernels.name());
    let positions = positions.map(|positions| &cx.weights[positions.0 as usize]);
    let positions_stride = positions.map_or(0, |positions| stride(positions.cols));
    let positions = positions.map_or(&cx.memory.constants, |positions| positions.parts[0].alone());
    let dispatch = |part| Dispatch {
        kernels: vec![(usize::MAX, kernel)],
        params: table
            .params(part)
            .into_iter()
            .chain([table.cols as u32, positions_stride as u32, scale.to_bits(), per_token, first])
            .collect(),
        buffers: vec![
            &cx.memory.step.buffer,
            part.alone(),
            positions,
            &cx.memory.picks.newest,
            if basis.is_some() { &cx.memory.prepared } else { x_buf },
        ],
        grid: Grid::Rows { x: 1, rows: RowsOf::Step },
    };
    let back = basis.map(|basis| hadamard::back(cx, basis, x));
    let types = types.map(|types| {
        let types = &cx.weights[types.0 as usize];
        Dispatch {
            kernels: vec![(usize::MAX, Kernel::TokenTypes)],
            params: vec![types.cols as u32, stride(types.cols) as u32],
            buffers: vec![&cx.memory.step.buffer, types.parts[0].alone(), x_buf],
            grid: Grid::Rows { x: types.cols as u32, rows: RowsOf::Step },
        }
    });
    let out = adapters::Out { buffer: x_buf, cols: cx.p.buf_decl(x).cols, at: 0 };
    let of_adapters = if cx.adapted { adapters::of_tokens(cx, lora, out) } else { Vec::new() };
    table.parts.iter().map(dispatch).chain(back).chain(types).chain(of_adapters).collect()
}
