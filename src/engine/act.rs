//! Quantisation of the inputs of linear layers, if it differs from the model's own.

use std::str::FromStr;

use ggml_types::{QuantType, types};

use super::error::UnknownWord;
use sterna_program::{ActQuant, Program};

/// Quantisation of the inputs of a model's linear layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActType {
    /// As the model was trained; if the model does not specify it, the backend's default
    /// ([`Backend::default_act_quant`](sterna_backend::Backend::default_act_quant)).
    #[default]
    Auto,
    /// As the model was trained.
    Trained,
    /// As requested.
    Asked(ActQuant),
}

/// Each variant and its name.
const ACTS: [(&str, ActType); 5] = [
    ("auto", ActType::Auto),
    ("trained", ActType::Trained),
    ("f32", ActType::Asked(ActQuant::None)),
    ("i8", ActType::Asked(ActQuant::I8PerToken)),
    ("i8-block", ActType::Asked(ActQuant::I8PerBlock)),
];

/// Names that [`ActType`] is parsed from; the first is the default. `f32` does not quantise, `i8` quantises
/// per token, and `i8-block` per block of 32 inputs.
pub const ACT_TYPES: [&str; 5] = [ACTS[0].0, ACTS[1].0, ACTS[2].0, ACTS[3].0, ACTS[4].0];

impl FromStr for ActType {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        let found = ACTS.iter().find(|(known, _)| *known == word);
        found.map(|(_, ty)| *ty).ok_or_else(|| UnknownWord { want: &ACT_TYPES, got: word.to_owned() })
    }
}

/// Sets how the layers of a program quantise their inputs. Layers with float weights never get quantised
/// inputs, and a layer that is trained with one scale per token keeps it when blocks are requested.
/// `rounding` returns the backend's default for a weight type.
pub fn round(program: &mut Program, how: ActType, rounding: impl Fn(&dyn QuantType) -> ActQuant) {
    let floats: [&dyn QuantType; 3] = [&types::F32, &types::F16, &types::Bf16];
    for linear in program.stages.iter_mut().flat_map(|(_, stage)| stage.linears_mut()) {
        let ty = program.weights[linear.w.0 as usize].ty;
        let of_floats = floats.iter().any(|float| ty.is(*float));
        linear.act = match (how, linear.act) {
            (ActType::Asked(ActQuant::None), _) => ActQuant::None,
            (_, trained) if of_floats => trained,
            (ActType::Auto, ActQuant::None) => rounding(ty),
            (ActType::Auto | ActType::Trained, trained) => trained,
            (ActType::Asked(ActQuant::I8PerBlock), ActQuant::I8PerToken) => ActQuant::I8PerToken,
            (ActType::Asked(act), _) => act,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rounding_has_a_word() {
        for act in [ActQuant::None, ActQuant::I8PerToken, ActQuant::I8PerBlock] {
            assert_eq!(ACTS.iter().filter(|(_, how)| *how == ActType::Asked(act)).count(), 1, "{act:?}");
        }
        assert_eq!(ACT_TYPES[0].parse(), Ok(ActType::default()));
        let unknown = "f8".parse::<ActType>().unwrap_err().to_string();
        assert_eq!(unknown, "want one of auto, trained, f32, i8, i8-block, got f8");
    }
}
