"""The model in PyTorch: BitNet b1.58 as in src/model/bitnet.rs.

Ternary weights by absmean, int8 activations per token, squared ReLU, sub-norms, rotary embedding in halves,
grouped-query attention, tied embedding. Gradients pass both roundings unchanged (straight-through).

Needs: torch.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, as in the file's metadata. The defaults are the published model's, before whole words
    are added to the vocabulary."""

    n_vocab: int = 4096
    n_layers: int = 6
    dim: int = 256
    n_heads: int = 4
    n_kv_heads: int = 4
    head_dim: int = 64
    ffn_dim: int = 768
    n_ctx: int = 2048
    rope_base: float = 10000.0
    norm_eps: float = 1e-5


def ternary(w: Tensor) -> Tensor:
    """`w` rounded to {-s, 0, s}, s = mean |w|; the gradient passes."""
    s = w.abs().mean().clamp(min=1e-5)
    return w + ((w / s).round().clamp(-1, 1) * s - w).detach()


def int8(x: Tensor) -> Tensor:
    """Each row rounded to 255 steps of its largest magnitude; the gradient passes."""
    s = 127 / x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-5)
    return x + ((x * s).round().clamp(-128, 127) / s - x).detach()


class Layer(nn.Module):
    """One block. Weights have GGUF's names."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        dim, ffn = shape.dim, shape.ffn_dim
        q_dim, kv_dim = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
        self.attn_norm, self.attn_sub_norm = (nn.Parameter(torch.ones(n)) for n in (dim, q_dim))
        self.ffn_norm, self.ffn_sub_norm = (nn.Parameter(torch.ones(n)) for n in (dim, ffn))
        matrix = lambda rows, cols: nn.Parameter(torch.randn(rows, cols) * 0.02)
        self.attn_q, self.attn_k, self.attn_v = matrix(q_dim, dim), matrix(kv_dim, dim), matrix(kv_dim, dim)
        self.attn_output = matrix(dim, q_dim)
        self.ffn_gate, self.ffn_up, self.ffn_down = matrix(ffn, dim), matrix(ffn, dim), matrix(dim, ffn)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], weight, self.shape.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, unseen: Tensor) -> Tensor:
        s, (n_seqs, n_pos, _) = self.shape, x.shape
        heads = lambda t, n: t.view(n_seqs, n_pos, n, s.head_dim).transpose(1, 2)
        n = int8(self.norm(x, self.attn_norm))
        q = rotate(heads(F.linear(n, ternary(self.attn_q)), s.n_heads), cos, sin)
        k = rotate(heads(F.linear(n, ternary(self.attn_k)), s.n_kv_heads), cos, sin)
        v = heads(F.linear(n, ternary(self.attn_v)), s.n_kv_heads)
        y = attention(q, k, v, unseen)
        y = int8(self.norm(y.transpose(1, 2).reshape(n_seqs, n_pos, -1), self.attn_sub_norm))
        x = x + F.linear(y, ternary(self.attn_output))
        n = int8(self.norm(x, self.ffn_norm))
        h = F.linear(n, ternary(self.ffn_gate)).relu().square() * F.linear(n, ternary(self.ffn_up))
        return x + F.linear(int8(self.norm(h, self.ffn_sub_norm)), ternary(self.ffn_down))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [.., positions, head_dim]: element i is rotated with element i + head_dim / 2."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


BLOCK = 512
"""Number of positions whose attention is computed at a time, so that later positions can be skipped."""


def attention(q: Tensor, k: Tensor, v: Tensor, unseen: Tensor) -> Tensor:
    """Attention of queries [sequences, heads, positions, head_dim] over keys and values with as many heads or
    fewer, each shared by neighbouring query heads. `unseen` masks the keys that a query does not attend to,
    including all later ones.

    Plain matrix products: PyTorch's fused attention took 40 % of a pass in bfloat16 on a CPU, and a pass with
    these was 1.1 times as fast.
    """
    n_pos = q.shape[2]
    if n_pos <= BLOCK:
        return attention_of(q, k, v, unseen)
    parts = []
    for first in range(0, n_pos, BLOCK):
        end = min(first + BLOCK, n_pos)
        seen = (k[:, :, :end], v[:, :, :end], unseen[..., first:end, :end])
        parts.append(attention_of(q[:, :, first:end], *seen))
    return torch.cat(parts, dim=2)


def attention_of(q: Tensor, k: Tensor, v: Tensor, unseen: Tensor) -> Tensor:
    n_seqs, n_heads, n_queries, dim = q.shape
    n_kv, n_keys = k.shape[1:3]
    grouped = (n_seqs, n_kv, n_heads // n_kv * n_queries, dim)
    scores = q.reshape(grouped) @ k.transpose(2, 3)
    scores = scores.view(n_seqs, n_heads, n_queries, n_keys).float() * dim**-0.5
    share = scores.masked_fill(unseen, -math.inf).softmax(-1).to(v.dtype)
    return (share.view(*grouped[:3], n_keys) @ v).view(n_seqs, n_heads, n_queries, dim)


class BitNet(nn.Module):
    """Weights and forward pass. Logits are `hidden` times the embedding."""

    def __init__(self, shape: Shape):
        super().__init__()
        assert shape.n_heads % shape.n_kv_heads == 0, "each key head serves as many query heads"
        self.shape = shape
        self.token_embd = nn.Parameter(torch.randn(shape.n_vocab, shape.dim) * 0.02)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.n_layers))
        self.output_norm = nn.Parameter(torch.ones(shape.dim))
        freq = shape.rope_base ** (-torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim)
        angle = torch.outer(torch.arange(shape.n_ctx, dtype=torch.float64), freq)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def hidden(self, ids: Tensor, document: Tensor) -> Tensor:
        """The head's input for each token of `ids` [sequences, positions]. `document` is the number of each
        token's document: tokens only attend to their own document."""
        n_pos = ids.shape[1]
        unseen = torch.ones(n_pos, n_pos, dtype=torch.bool, device=ids.device).triu(1)
        unseen = unseen | (document[:, None, :, None] != document[:, None, None, :])
        x = F.embedding(ids, self.token_embd)
        for layer in self.layers:
            x = layer(x, self.cos[:n_pos], self.sin[:n_pos], unseen)
        return F.rms_norm(x, x.shape[-1:], self.output_norm, self.shape.norm_eps)
