//! Layouts of weights on devices that do not read them as they are in files.

pub mod planes;
