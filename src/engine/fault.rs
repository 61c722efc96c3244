//! Faults: one sequence fails while the others continue.

use std::fmt;

use super::constraint::ConstraintError;

/// Reason why one sequence failed while the others continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Its grammar.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// The logits are NaN or infinite: a fault of the model, or of the backend.
    #[error(transparent)]
    BrokenLogits(#[from] BrokenLogits),
}

/// Maximum number of weight names in a message.
const MAX_NAMES: usize = 8;

/// No token can be sampled: a logit is NaN or infinite, or all are minus infinity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenLogits {
    /// The position whose logits are broken.
    pub position: usize,
    /// The first stage with a result that is NaN or infinite; `None` if the step could not be run again, or
    /// gave finite results then.
    pub origin: Option<Box<BrokenStage>>,
}

/// A stage with a result that is NaN or infinite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenStage {
    /// Its label in the program, such as `3.ffn_in`.
    pub label: String,
    /// The first position with such a result.
    pub position: usize,
    /// The weights that it reads. Attention also reads the keys and values of earlier positions.
    pub weights: Vec<String>,
}

impl fmt::Display for BrokenLogits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { position, origin } = self;
        write!(f, "the model's logits at position {position} are NaN or infinite: ")?;
        match origin.as_deref() {
            None => f.write_str(
                "no stage had such a result when the step was run again; the cpu backend finds the stage",
            ),
            Some(BrokenStage { label, position, weights }) => {
                write!(
                    f,
                    "the first such result came from stage {label} at position {position}, which reads "
                )?;
                match &weights[..] {
                    [] => f.write_str("the keys and values up to there"),
                    weights if weights.len() <= MAX_NAMES => f.write_str(&weights.join(", ")),
                    weights => {
                        let (named, others) = weights.split_at(MAX_NAMES);
                        write!(f, "{} and {} more weights", named.join(", "), others.len())
                    }
                }
            }
        }
    }
}

impl std::error::Error for BrokenLogits {}
