//! Checkpoints of Hugging Face's form to GGUF: against other converters' files bit for bit, against the
//! checkpoint's own bytes, back and forth, and every way a checkpoint can be broken.

mod bert;
mod folder;
mod golden;
mod hostile;
mod hybrid;
mod metaspace;
mod packed;
mod round_trip;

use std::ops::ControlFlow;
use std::path::Path;

use sterna::convert::{ConvertError, ConvertOptions, Converter, Outtype};
use sterna::gguf::Gguf;
use sterna::quantize::TensorReport;

/// Options with this type alone.
fn to(outtype: &str) -> ConvertOptions {
    ConvertOptions { outtype: Outtype::named(outtype).unwrap(), threads: 2, ..ConvertOptions::default() }
}

/// The file that a folder becomes, what is reported of its tensors, and the notes.
fn convert(
    folder: &Path,
    options: &ConvertOptions,
) -> Result<(Gguf, Vec<TensorReport>, Vec<String>), ConvertError> {
    let converter = Converter::open(folder, options)?;
    let quantizer = converter.quantizer()?;
    let (mut out, bytes) = (Vec::new(), quantizer.file_bytes());
    let reports = quantizer.write(&mut out, |_| ControlFlow::Continue(()))?;
    assert_eq!(out.len() as u64, bytes, "the file has another size than was said");
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
