//! Re-encodes the output head in another type: for ternary models it is most of the bytes read per token.

use std::str::FromStr;

use bytes::Bytes;
use ggml_types::{HostTensor, QuantType, types};

use super::error::{Error, UnknownWord};
use sterna_gguf::FileTensor;
use sterna_host::in_parallel;
use sterna_program::{Program, Stage, Weight};

/// Type of the output head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadType {
    /// Same type as in the file.
    #[default]
    Keep,
    /// Encoded as Q8_0 when it is loaded.
    Q8_0,
    /// Encoded as Q6_K when it is loaded.
    Q6K,
}

const HEADS: [HeadType; 3] = [HeadType::Keep, HeadType::Q8_0, HeadType::Q6K];

/// Names that [`HeadType`] is parsed from; the first is the default.
pub const HEAD_TYPES: [&str; 3] = [HEADS[0].name(), HEADS[1].name(), HEADS[2].name()];

impl HeadType {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Q8_0 => "q8_0",
            Self::Q6K => "q6_k",
        }
    }

    /// The type to encode the head in; `None` to keep it.
    fn encoded(self) -> Option<&'static dyn QuantType> {
        match self {
            Self::Keep => None,
            Self::Q8_0 => Some(&types::Q8_0),
            Self::Q6K => Some(&types::Q6K),
        }
    }
}

impl FromStr for HeadType {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        let found = HEADS.into_iter().find(|head| head.name() == word);
        found.ok_or_else(|| UnknownWord { want: &HEAD_TYPES, got: word.to_owned() })
    }
}

const TASK_ROWS: usize = 64;

/// Declares the head of a program as another type. The file tensor is not changed: [`encoded`] creates the
/// bytes. If the embedding table also serves as the head, the head becomes a separate weight.
///
/// # Errors
/// [`Error::Option`] if the type cannot hold the head's rows.
pub fn retype(
    program: &mut Program,
    weights: &mut Vec<FileTensor>,
    head_type: HeadType,
) -> Result<(), Error> {
    let Some(ty) = head_type.encoded() else { return Ok(()) };
    let Some(head) = program.logits().map(|s| s.w.w) else { return Ok(()) };
    let decl = program.weight_decl(head).clone();
    if decl.ty.is(ty) {
        return Ok(());
    }
    if !decl.cols.is_multiple_of(ty.block_elems()) {
        let block = ty.block_elems();
        let want = format!("a type for rows of {}, which is not a multiple of {block}", decl.cols);
        let (option, got) = ("EngineOptions::head_type", head_type.name().to_owned());
        return Err(Error::Option { option, want, got });
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
    weights.push(weights[head.0 as usize].clone());
    Ok(())
}

/// Returns a tensor re-encoded in another type.
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
