//! Rounding of the inputs of linear layers, if it is not the model's own.

use std::str::FromStr;

use ggml_types::{QuantType, types};

use super::error::UnknownWord;
use sterna_model::Model;
use sterna_program::ActQuant;

/// Rounding of the inputs of a model's linear layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActType {
    /// As the model was trained; where that says nothing, as the backend does it
    /// ([`Backend::default_act_quant`](sterna_backend::Backend::default_act_quant)).
    #[default]
    Auto,
    /// As the model was trained.
    Trained,
    /// As asked for.
    Asked(ActQuant),
}

/// Each rounding with its word.
const ACTS: [(&str, ActType); 5] = [
    ("auto", ActType::Auto),
    ("trained", ActType::Trained),
    ("f32", ActType::Asked(ActQuant::None)),
    ("i8", ActType::Asked(ActQuant::I8PerToken)),
    ("i8-block", ActType::Asked(ActQuant::I8PerBlock)),
];

/// Words that [`ActType`] is parsed from; the first is the default. `f32` is no rounding, `i8` rounds each
/// token, and `i8-block` each 32 inputs.
pub const ACT_TYPES: [&str; 5] = [ACTS[0].0, ACTS[1].0, ACTS[2].0, ACTS[3].0, ACTS[4].0];

impl FromStr for ActType {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        let found = ACTS.iter().find(|(known, _)| *known == word);
        found.map(|(_, ty)| *ty).ok_or_else(|| UnknownWord { want: &ACT_TYPES, got: word.to_owned() })
    }
}

/// Changes how the layers of a model round their inputs. Weights of floats never get rounded inputs, and a
/// layer that rounds each token stays so when blocks are asked for. `rounding` is what the backend does with
/// weights of a type by default.
pub fn round(model: &mut Model, how: ActType, rounding: impl Fn(&dyn QuantType) -> ActQuant) {
    let program = &mut model.program;
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
