//! Conversion of Hugging Face checkpoints to GGUF: comparisons bit for bit with the files of other converters
//! and with the checkpoint's own bytes, round trips, and broken checkpoints.

mod bert;
mod checkpoints;
mod drafts;
mod folder;
mod golden;
mod hostile;
mod hybrid;
mod metaspace;
mod of_transformers;
mod packed;
mod peft;
mod round_trip;
mod unlisted;

use std::ops::ControlFlow;
use std::path::Path;

use sterna::convert::{ConvertError, ConvertOptions, Converter, Outtype};
use sterna::gguf::Gguf;
use sterna::quantize::TensorReport;

/// Default options with this type.
fn to(outtype: &str) -> ConvertOptions {
    ConvertOptions { outtype: Outtype::named(outtype).unwrap(), threads: 2, ..ConvertOptions::default() }
}

/// Converts a folder. Returns the file, the reports on its tensors, and the notes.
fn convert(
    folder: &Path,
    options: &ConvertOptions,
) -> Result<(Gguf, Vec<TensorReport>, Vec<String>), ConvertError> {
    let converter = Converter::open(folder, options)?;
    let quantizer = converter.quantizer()?;
    let (mut out, bytes) = (Vec::new(), quantizer.file_bytes());
    let reports = quantizer.write(&mut out, |_| ControlFlow::Continue(()))?;
    assert_eq!(out.len() as u64, bytes, "the size of the file differs from `file_bytes`");
    Ok((Gguf::from_bytes(out.into()).unwrap(), reports, converter.notes().to_vec()))
}

/// All values of a tensor.
fn values(gguf: &Gguf, name: &str) -> Vec<f32> {
    let tensor = gguf.tensor(name).unwrap();
    let mut values = vec![f32::NAN; tensor.rows * tensor.cols];
    for (row, out) in values.chunks_exact_mut(tensor.cols).enumerate() {
        tensor.ty.decode_row(&tensor.bytes, tensor.rows, row, out).unwrap();
    }
    values
}
