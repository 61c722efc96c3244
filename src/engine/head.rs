//! The output head in another type than the file's: it is most of what a token reads of a ternary model.

use bytes::Bytes;
use ggml_types::{HostTensor, QuantType, by_name};

use super::error::Error;
use sterna_host::in_parallel;
use sterna_model::Model;
use sterna_program::{Stage, Weight};

/// Words for [`EngineOptions::head_type`](super::EngineOptions::head_type); the first leaves the head as the
/// file has it.
pub const HEAD_TYPES: [&str; 3] = ["keep", "q8_0", "q6_k"];

/// Rows that one task encodes.
const TASK_ROWS: usize = 64;

/// Declares the head of a model as the type of a word. Its tensor stays as it is: [`encoded`] makes the
/// bytes. An embedding that serves as the head too is kept beside it.
///
/// # Errors
/// [`Error::Option`] for another word, and if the type cannot hold the head's rows.
pub fn retype(model: &mut Model, word: &str) -> Result<(), Error> {
    let wrong =
        |want: String| Error::Option { option: "EngineOptions::head_type", want, got: word.to_owned() };
    if !HEAD_TYPES.contains(&word) {
        return Err(wrong(format!("one of {}", HEAD_TYPES.join(", "))));
    }
    let Some(ty) = by_name(word) else { return Ok(()) };
    let program = &mut model.program;
    let Some(head) = program.logits().map(|s| s.w.w) else { return Ok(()) };
    let decl = program.weight_decl(head).clone();
    if decl.ty.is(ty) {
        return Ok(());
    }
    if !decl.cols.is_multiple_of(ty.block_elems()) {
        let block = ty.block_elems();
        return Err(wrong(format!("a type for rows of {}, which is not a multiple of {block}", decl.cols)));
    }
    let is_table = |stage: &Stage| matches!(stage, Stage::Embed(s) if s.table == head);
    if !program.stages.iter().any(|(_, stage)| is_table(stage)) {
        program.weights[head.0 as usize].ty = ty;
        return Ok(());
    }
    let own: Weight = program.weight(format!("{} as {}", decl.name, ty.name()), ty, decl.rows, decl.cols);
    for (_, stage) in &mut program.stages {
        if let Stage::Logits(s) = stage {
            s.w.w = own;
        }
    }
    model.weights.push(model.weights[head.0 as usize].clone());
    Ok(())
}

/// A tensor in another type.
///
/// # Panics
/// If the type cannot hold its rows: see [`retype`].
pub fn encoded(w: &HostTensor, ty: &'static dyn QuantType, threads: usize) -> HostTensor {
    let encode = |task: usize| -> Vec<u8> {
        let mut row = vec![0.0; w.cols];
        let rows = task * TASK_ROWS..w.rows.min((task + 1) * TASK_ROWS);
        rows.flat_map(|at| {
            w.ty.decode_row(&w.bytes, w.rows, at, &mut row).expect("the tensor has this row");
            ty.encode(&row, 1, w.cols).expect("whole blocks")
        })
        .collect()
    };
    let bytes = in_parallel(w.rows.div_ceil(TASK_ROWS), threads, encode).concat();
    HostTensor { name: w.name.clone(), ty, rows: w.rows, cols: w.cols, bytes: Bytes::from(bytes) }
}
