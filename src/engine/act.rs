//! Rounding of the inputs of linear layers, if it is not the model's own.

use ggml_types::{QuantType, types};

use super::error::Error;
use sterna_model::Model;
use sterna_program::ActQuant;

/// The rounding of a model's layers by a word.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// As the model was trained; where that says nothing, as the backend does it.
    Auto,
    /// As the model was trained.
    Trained,
    /// As asked for.
    Asked(ActQuant),
}

/// Words for [`EngineOptions::act_type`](super::EngineOptions::act_type).
const ACTS: [(&str, How); 5] = [
    ("auto", How::Auto),
    ("trained", How::Trained),
    ("f32", How::Asked(ActQuant::None)),
    ("i8", How::Asked(ActQuant::I8PerToken)),
    ("i8-block", How::Asked(ActQuant::I8PerBlock)),
];

/// The same words alone.
pub const ACT_TYPES: [&str; 5] = [ACTS[0].0, ACTS[1].0, ACTS[2].0, ACTS[3].0, ACTS[4].0];

/// Changes how the layers of a model round their inputs. Weights of floats never get rounded inputs, and a
/// layer that rounds each token stays so when blocks are asked for. `rounding` is what the backend does with
/// weights of a type by default.
///
/// # Errors
/// [`Error::Option`] for another word.
pub fn round(
    model: &mut Model,
    word: &str,
    rounding: impl Fn(&dyn QuantType) -> ActQuant,
) -> Result<(), Error> {
    let Some(&(_, how)) = ACTS.iter().find(|(known, _)| *known == word) else {
        let (option, want) = ("EngineOptions::act_type", format!("one of {}", ACT_TYPES.join(", ")));
        return Err(Error::Option { option, want, got: word.to_owned() });
    };
    let program = &mut model.program;
    let floats: [&dyn QuantType; 3] = [&types::F32, &types::F16, &types::Bf16];
    for linear in program.stages.iter_mut().flat_map(|(_, stage)| stage.linears_mut()) {
        let ty = program.weights[linear.w.0 as usize].ty;
        let of_floats = floats.iter().any(|float| ty.is(*float));
        linear.act = match (how, linear.act) {
            (How::Asked(ActQuant::None), _) => ActQuant::None,
            (_, trained) if of_floats => trained,
            (How::Auto, ActQuant::None) => rounding(ty),
            (How::Auto | How::Trained, trained) => trained,
            (How::Asked(ActQuant::I8PerBlock), ActQuant::I8PerToken) => ActQuant::I8PerToken,
            (How::Asked(act), _) => act,
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rounding_has_a_word() {
        for act in [ActQuant::None, ActQuant::I8PerToken, ActQuant::I8PerBlock] {
            assert_eq!(ACTS.iter().filter(|(_, how)| *how == How::Asked(act)).count(), 1, "{act:?}");
        }
        assert!(ACTS[0].1 == How::Auto, "the default");
    }
}
