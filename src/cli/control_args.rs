//! Flags of control vectors.

use std::ops::RangeInclusive;
use std::path::Path;

use clap::{ArgAction, Args};

use super::CliError;
use crate::engine::ControlVector;
use crate::gguf::Gguf;

/// Control vectors with their scales, and the layers that they are added after.
#[derive(Args, Clone, Debug, Default)]
pub struct ControlArgs {
    /// Control vector, a GGUF file, added to the residual stream; repeatable, or a comma-separated list
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    control_vector: Vec<String>,
    /// The same with a scale, as in happy.gguf:0.8
    #[arg(long, value_name = "FILE:SCALE", value_delimiter = ',')]
    control_vector_scaled: Vec<String>,
    /// First and last layer after which control vectors are added [default: all]
    #[arg(long, value_names = ["START", "END"], num_args = 2, action = ArgAction::Set)]
    control_vector_layer_range: Vec<usize>,
}

impl ControlArgs {
    /// Opens the control vectors: those of `--control-vector`, then the scaled ones.
    ///
    /// # Errors
    /// A scale that is not a number; a file that is no control vector.
    pub fn vectors(&self) -> Result<Vec<ControlVector>, CliError> {
        let plain = self.control_vector.iter().map(|path| Ok((path.as_str(), 1.0)));
        let scaled = self.control_vector_scaled.iter().map(|value| {
            let wrong = || format!("--control-vector-scaled {value}: want FILE:SCALE, as in happy.gguf:0.8");
            let (path, scale) = value.rsplit_once(':').ok_or_else(wrong)?;
            let scale: f32 = scale.parse().map_err(|_| wrong())?;
            if scale.is_finite() { Ok((path, scale)) } else { Err(wrong()) }
        });
        let all = plain.chain(scaled).map(|given: Result<_, String>| {
            let (path, scale) = given?;
            Ok(ControlVector::new(path, &Gguf::open(Path::new(path))?, scale)?)
        });
        all.collect()
    }

    /// The layers.
    pub fn layers(&self) -> Option<RangeInclusive<usize>> {
        let [start, end] = self.control_vector_layer_range[..] else { return None };
        Some(start..=end)
    }
}
