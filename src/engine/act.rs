//! How the inputs of linear layers are rounded, where that is not to be the model's own way.

use ggml_types::{QuantType, types};

use super::error::Error;
use crate::model::Model;
use crate::program::ActQuant;

/// Words for [`EngineOptions::act_type`](super::EngineOptions::act_type), and what they make of a layer's
/// rounding; the first leaves it as the model has it.
const ACTS: [(&str, Option<ActQuant>); 4] = [
    ("auto", None),
    ("f32", Some(ActQuant::None)),
    ("i8", Some(ActQuant::I8PerToken)),
    ("i8-block", Some(ActQuant::I8PerBlock)),
];

/// The same words alone.
pub const ACT_TYPES: [&str; 4] = [ACTS[0].0, ACTS[1].0, ACTS[2].0, ACTS[3].0];

/// Changes how the layers of a model round their inputs. Weights of floats never get rounded inputs, and a
/// layer that rounds each token stays so when blocks are asked for.
///
/// # Errors
/// [`Error::Option`] for another word.
pub fn round(model: &mut Model, word: &str) -> Result<(), Error> {
    let Some(&(_, act)) = ACTS.iter().find(|(known, _)| *known == word) else {
        let (option, want) = ("EngineOptions::act_type", format!("one of {}", ACT_TYPES.join(", ")));
        return Err(Error::Option { option, want, got: word.to_owned() });
    };
    let Some(act) = act else { return Ok(()) };
    let program = &mut model.program;
    let floats: [&dyn QuantType; 3] = [&types::F32, &types::F16, &types::Bf16];
    for linear in program.stages.iter_mut().flat_map(|(_, stage)| stage.linears_mut()) {
        let ty = program.weights[linear.w.0 as usize].ty;
        let of_floats = floats.iter().any(|float| ty.is(*float));
        if act == ActQuant::None
            || !of_floats && (act, linear.act) != (ActQuant::I8PerBlock, ActQuant::I8PerToken)
        {
            linear.act = act;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rounding_has_a_word() {
        for act in [ActQuant::None, ActQuant::I8PerToken, ActQuant::I8PerBlock] {
            assert_eq!(ACTS.iter().filter(|(_, of)| *of == Some(act)).count(), 1, "{act:?}");
        }
        assert_eq!(ACTS[0].1, None);
    }
}
