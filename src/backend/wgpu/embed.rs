//! Token (and position) embedding: a workgroup a row, a dispatch a part of the table.

use ggml_types::types;

use super::shader::Kernel;
use super::weight::WeightFormat;
use super::{Cx, Device, Dispatch, Grid, turn, upload};
use sterna_program::{Embed, Program, RowsOf};

pub fn missing(cx: &Device<'_>, p: &Program, s: &Embed) -> Vec<String> {
    let table = p.weight_decl(s.table);
    let Some(format) = WeightFormat::of(table.ty) else { return vec![format!("embed__{}", table.ty.name())] };
    let mut missing: Vec<String> =
        upload::unsupported(cx.gpu, &table.name, format, table.cols).into_iter().collect();
    missing.extend(turn::missing(p, s.basis));
    if let Some(positions) = s.positions {
        let decl = p.weight_decl(positions);
        if s.basis.is_some() {
            missing.push("embed with positions in a rotated basis".to_owned());
        }
        let whole = decl.rows * decl.cols.next_multiple_of(8) * 4;
        if !decl.ty.is(&types::F32) || whole as u64 + 64 > cx.gpu.max_part_bytes {
            missing.push(format!("embed with {} positions of {}", decl.rows, decl.ty.name()));
        }
    }
    missing
}

pub fn dispatches<'a>(cx: &Cx<'a>, s: &Embed) -> Vec<Dispatch<'a>> {
    let table = &cx.weights[s.table.0 as usize];
    let kernel = Kernel::Embed(WeightFormat::of(table.ty).expect("it was uploaded").kernels.name());
    let positions = s.positions.map(|positions| &cx.weights[positions.0 as usize]);
    // Rows of f32 weights are padded to 8 elements.
    let stride = positions.map_or(0, |positions| positions.cols.next_multiple_of(8));
    let positions = positions.map_or(&cx.memory.constants, |positions| positions.parts[0].alone());
    let dispatch = |part| Dispatch {
        kernels: vec![(usize::MAX, kernel)],
        params: table
            .params(part)
            .into_iter()
            .chain([table.cols as u32, stride as u32, s.scale.to_bits()])
            .collect(),
        buffers: vec![
            &cx.memory.step.buffer,
            part.alone(),
            positions,
            &cx.memory.picks.newest,
            if s.basis.is_some() { &cx.memory.turned } else { &cx.memory.bufs[s.x.0 as usize] },
        ],
        grid: Grid::Rows { x: 1, rows: RowsOf::Step },
    };
    let back = s.basis.map(|basis| turn::back(cx, basis, s.x));
    table.parts.iter().map(dispatch).chain(back).collect()
}
