//! Models with published shapes but without weights.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;

use sterna::gguf::Gguf;
use sterna::synth::{Spec, Synth};

/// Writes a model of this shape whose file contains only its header; the weights are a hole in a sparse file.
pub fn hollow_of(spec: &Spec, dir: &Path) -> Gguf {
    let synth = Synth::new(spec).unwrap();
    let (path, bytes) = (dir.join(&spec.name), synth.file_bytes());
    let file = File::create(&path).unwrap();
    let stop_after_header =
        |written| if written == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    synth.write(&file, stop_after_header).unwrap_err();
    file.set_len(bytes).unwrap();
    Gguf::open(&path).unwrap()
}
