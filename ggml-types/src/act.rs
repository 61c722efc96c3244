//! Numerics of a linear layer that belong to the model: the quantisation of its input, and the activation
//! function of its output. Kernels and programs share them, so they are part of the vocabulary of types.

/// Quantisation of a linear layer's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActQuant {
    /// None: the product is of real numbers, accumulated in f32 or better.
    None,
    /// BitNet's: per row, `s = f32(127 / max(absmax, 1e-5))`, `q = clamp(round_half_even(x s), -128, 127)`,
    /// and the product is `sum(w q) / s`. The sum over ternary codes is an exact integer.
    I8PerToken,
    /// Per [`BLOCK`](Self::BLOCK) inputs, `q = round_half_even(x 127 / absmax)` and `s = absmax / 127`, both
    /// in f32, and 0 if `absmax` is below [`NOTHING`](Self::NOTHING). The product is of real numbers, with
    /// `q s` in place of `x`. This is close to what llama.cpp does before it multiplies quantised weights.
    I8PerBlock,
}

impl ActQuant {
    /// Inputs that [`I8PerBlock`](Self::I8PerBlock) quantises together. The last block of a row may be
    /// shorter.
    pub const BLOCK: usize = 32;
    /// [`I8PerBlock`](Self::I8PerBlock) quantises blocks with a largest magnitude below this to 0.
    pub const NOTHING: f32 = 1e-30;
}

/// Activation function of the feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    /// `max(x, 0)^2`.
    Relu2,
    /// `x / (1 + exp(-x))`.
    Silu,
    /// GELU, `x / 2 * (1 + erf(x / sqrt(2)))`.
    Gelu,
    /// GPT-2's tanh approximation of GELU.
    GeluTanh,
    /// GPT-OSS's, of a gate `g` and its factor `u`, which is modified too: with `m = min(g, 7)`,
    /// `m / (1 + exp(-1.702 m)) * (clamp(u, -7, 7) + 1)`. It requires a gate.
    ClampedSwiglu,
    /// xIELU, whose numbers are trained.
    Xielu(Xielu),
}

/// Numbers of xIELU: `positive x^2 + beta x` above 0, else `negative (exp(min(x, eps)) - 1 - x) + beta x`.
///
/// Source: "Deriving Activation Functions Using Integration", <https://arxiv.org/abs/2411.13010>.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xielu {
    /// Factor on the square of positive inputs.
    pub positive: f32,
    /// Factor on the curve of negative ones.
    pub negative: f32,
    /// Slope at 0.
    pub beta: f32,
    /// Bound on the input of the exponential.
    pub eps: f32,
}

impl Act {
    /// Bound of the clamp of [`ClampedSwiglu`](Self::ClampedSwiglu).
    pub const CLAMP: f32 = 7.0;
    /// Factor on the gate within the exponential of [`ClampedSwiglu`](Self::ClampedSwiglu).
    pub const ALPHA: f32 = 1.702;
}
