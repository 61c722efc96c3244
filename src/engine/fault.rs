//! Why a sequence fails while others go on.

use std::fmt;

use super::constraint::ConstraintError;

/// Reason why a sequence failed, while others go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Its grammar.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// The model, or what runs it.
    #[error(transparent)]
    BrokenLogits(#[from] BrokenLogits),
}

/// Weights that a message names.
const MOST_NAMES: usize = 8;

/// No token can be picked: a logit is NaN or infinite, or all are minus infinity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenLogits {
    /// The position that they stand behind.
    pub position: usize,
    /// The first stage of its step with a result that is no finite number; `None` where the step could not
    /// be run again, or had finite results then.
    pub origin: Option<Box<BrokenStage>>,
}

/// A stage with a result that is no finite number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenStage {
    /// Its label in the program: `3.ffn_in`.
    pub label: String,
    /// The first position that has such a result.
    pub position: usize,
    /// The weights that it reads. Attention reads the keys and values of earlier positions too.
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
                    weights if weights.len() <= MOST_NAMES => f.write_str(&weights.join(", ")),
                    weights => {
                        let (named, others) = weights.split_at(MOST_NAMES);
                        write!(f, "{} and {} more weights", named.join(", "), others.len())
                    }
                }
            }
        }
    }
}

impl std::error::Error for BrokenLogits {}
