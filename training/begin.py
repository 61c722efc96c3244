"""Initial weights of the demo model: attention that can almost copy."""

import math

import torch
from torch import Tensor

from bitnet import BitNet

SLOW, FAST = 0.006, 0.3
"""Angles of rotary pairs, in radians per position: for slower pairs all positions of a text look alike, for
faster ones not even neighbours do."""


@torch.no_grad()
def begin(model: BitNet, seed: int) -> None:
    """Initialises the weights with attention that can copy, but only weakly.

    From random weights this model did not learn to copy a word within six million tokens. So every head
    outputs what it attends to; head 0 of layer 0 attends to the previous token, and head 0 of layers 1 and 3
    to the token after an earlier occurrence of the current one (an induction head). All of this is set in
    dense real-valued matrices, and rounding to ternary barely changes it.
    """
    shape, generator = model.shape, torch.Generator().manual_seed(seed)
    dim, head, half = shape.dim, shape.head_dim, shape.head_dim // 2
    angles = [shape.rope_base ** (-pair / half) for pair in range(half)]
    matched = [pair for pair, angle in enumerate(angles) if angle < SLOW]

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    def without(rows: Tensor, direction: Tensor) -> Tensor:
        return rows - torch.outer(rows @ direction, direction) / dim

    # The component that all tokens share, and the individual component of each.
    common = normal(dim).sign()
    model.token_embd.copy_(0.3 * (normal(shape.n_vocab, dim) + common))
    model.output_norm.fill_(0.1)
    moved = None
    for number, layer in enumerate(model.layers):
        layer.attn_sub_norm.fill_(0.5)
        layer.ffn_sub_norm.fill_(0.1)
        for matrix in (layer.attn_q, layer.attn_k):
            matrix.copy_(normal(*matrix.shape) * 0.04)
        for h in range(shape.n_heads):
            kv = h * shape.n_kv_heads // shape.n_heads
            values = layer.attn_v[kv * head : (kv + 1) * head]
            layer.attn_output[:, h * head : (h + 1) * head] = values.T
        q, k = layer.attn_q[:head], layer.attn_k[:head]
        if number == 0:
            # Constant vectors that the rotary embedding rotates by one position: flipping this number of
            # signs of the common component gives the cosine.
            q.zero_()
            k.copy_(without(k, common) * 0.1)
            for pair, angle in enumerate(angles):
                if angle < FAST:
                    break
                for matrix, row, value in (
                    (k, pair, 1.0),
                    (q, pair, math.cos(angle)),
                    (q, pair + half, -math.sin(angle)),
                ):
                    flipped = torch.rand(dim, generator=generator) < (1 - value) / 2
                    matrix[row] = torch.where(flipped, -common, common) * 0.15
            output = layer.attn_output[:, :head]
            output.copy_(normal(dim, head) * 0.02)
            layer.attn_sub_norm[:head] = 2.0
            moved = rounded(output) @ rounded(layer.attn_v[:head])
        if number in (1, 3):
            # The key is what layer 0 copied from the previous token, the query is the current token.
            layer.attn_norm.fill_(5.0)
            layer.attn_sub_norm[:head] = 1.0
            q.zero_()
            rows = torch.tensor([*matched, *(pair + half for pair in matched)])
            keys = without(normal(len(rows), dim), common)
            queries = without(keys @ moved, common)
            k[rows], q[rows] = keys * 0.15, queries / queries.std() * 0.15


def rounded(w: Tensor) -> Tensor:
    """The codes -1, 0 and 1 of `w`, as in `bitnet.ternary`."""
    return (w / w.abs().mean().clamp(min=1e-5)).round().clamp(-1, 1)
