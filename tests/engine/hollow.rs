//! Models of published shapes without their weights.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;

use sterna::gguf::Gguf;
use sterna::synth::{Spec, Synth};

/// A model of that shape whose file has its descriptions and, instead of weights, a hole.
pub fn hollow_of(spec: &Spec, dir: &Path) -> Gguf {
    let synth = Synth::new(spec).unwrap();
    let (path, bytes) = (dir.join(&spec.name), synth.file_bytes());
    let file = File::create(&path).unwrap();
    let after_the_descriptions =
        |written| if written == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    synth.write(&file, after_the_descriptions).unwrap_err();
    file.set_len(bytes).unwrap();
    Gguf::open(&path).unwrap()
}
