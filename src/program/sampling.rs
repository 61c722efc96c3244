//! How a token is picked from logits: the definition of the `Sample` stage, used by the CPU backend
//! and by the engine where it samples on the host.

/// How to pick one token from one row of logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 or below picks the largest logit (the lowest id among equals).
    pub temperature: f32,
    /// Keeps the `top_k` largest; 0 keeps all.
    pub top_k: u32,
    /// Locally typical sampling: keeps the most typical tokens up to this mass; 1 keeps all.
    pub typical_p: f32,
    /// Keeps the smallest set of largest tokens with at least this mass; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens of at least `min_p` times the largest probability; 0 keeps all.
    pub min_p: f32,
    /// Seed of the counter-based generator.
    pub seed: u64,
    /// Which number of that generator: the position of the token that is picked.
    pub counter: u64,
}

impl Sampling {
    /// Always the largest logit.
    pub const GREEDY: Self =
        Self { temperature: 0.0, top_k: 0, typical_p: 1.0, top_p: 1.0, min_p: 0.0, seed: 0, counter: 0 };
}
