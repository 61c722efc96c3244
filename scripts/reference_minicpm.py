#!/usr/bin/env python3
"""Creates a tiny random MiniCPM model and the logits that transformers computes with its weights.

    pip install torch transformers gguf
    scripts/reference_minicpm.py tests/data/golden/minicpm

transformers has no MiniCPM; its Granite is the same graph with other names for the factors, and scores
divided by the root of the head dimension. Matrices are random bytes of NVFP4 with a factor per tensor, or
F16; the down projection of each layer has another codebook type. The gguf package decodes the bytes.
"""

import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from transformers import GraniteConfig, GraniteForCausalLM

DIM, HEADS, KV_HEADS, FFN, VOCAB, POSITIONS = 64, 4, 2, 256, 96, 40
POINTS = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M"]
LAYERS = len(POINTS)
EMBEDDING, RESIDUAL, LOGITS = 12.0, 1.4 / LAYERS**0.5, 2.5


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(16)
    config = GraniteConfig(
        num_hidden_layers=LAYERS, vocab_size=VOCAB, hidden_size=DIM, intermediate_size=FFN,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, tie_word_embeddings=False,
        max_position_embeddings=128, rms_norm_eps=1e-5, attn_implementation="eager",
        embedding_multiplier=EMBEDDING, residual_multiplier=RESIDUAL, logits_scaling=LOGITS,
        attention_multiplier=(DIM // HEADS) ** -0.5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    model = GraniteForCausalLM(config).float().eval()
    random = np.random.default_rng(16)
    writer = gguf.GGUFWriter(folder / "tiny-points.gguf", "minicpm")
    writer.add_name("tiny random MiniCPM")
    writer.add_context_length(128)
    writer.add_embedding_length(DIM)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_embedding_scale(EMBEDDING)
    writer.add_residual_scale(RESIDUAL)
    writer.add_logit_scale(LOGITS)

    def norm(name, parameter):
        with torch.no_grad():
            parameter.copy_(1.0 + 0.1 * torch.randn(parameter.shape))
        writer.add_tensor(f"{name}.weight", parameter.detach().numpy())

    def permuted(values, heads):
        """Rows of queries and keys in the order of this architecture's files: RoPE rotates neighbours."""
        if heads is None:
            return values
        return values.reshape(heads, 2, -1, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)

    def f16(name, parameter, deviation, heads=None):
        with torch.no_grad():
            parameter.copy_((torch.randn(parameter.shape) * deviation).half().float())
        writer.add_tensor(f"{name}.weight", permuted(parameter.detach().half().numpy(), heads))

    def packed(name, parameter, kind, packed, factor, heads=None):
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(dequantize(packed, kind) * factor))
        writer.add_tensor(f"{name}.weight", permuted(packed, heads), raw_dtype=kind)
        writer.add_tensor(f"{name}.scale", np.array([factor]))

    def nvfp4(name, parameter, heads=None):
        """Groups of 16 with 8-bit scales, times a factor per tensor."""
        rows, cols = parameter.shape
        blocks = random.integers(0, 256, (rows, cols // 64, 36), dtype=np.uint8)
        blocks[..., :4] = random.integers(0x28, 0x38, (rows, cols // 64, 4))
        kind = gguf.GGMLQuantizationType.NVFP4
        packed(name, parameter, kind, blocks.reshape(rows, -1), np.float32(0.15), heads)

    def points(name, parameter, kind):
        rows, cols = parameter.shape
        n_bytes = gguf.GGML_QUANT_SIZES[kind][1]
        blocks = random.integers(0, 256, (rows * cols // 256, n_bytes), dtype=np.uint8)
        scales = random.uniform(0.5, 1.0, len(blocks)).astype(np.float16).view(np.uint16)
        if kind == gguf.GGMLQuantizationType.IQ1_M:
            # The scale is in the top bits of the last four words.
            for i in range(4):
                high = blocks[:, 49 + 2 * i]
                high[:] = (high & 15) | ((scales >> (4 * i) & 15) << 4).astype(np.uint8)
        else:
            blocks[:, :2] = scales.view(np.uint8).reshape(-1, 2)
        blocks = blocks.reshape(rows, -1)
        factor = np.float32(0.25 / dequantize(blocks, kind).std())
        packed(name, parameter, kind, blocks, factor)

    f16("token_embd", model.model.embed_tokens.weight, 0.1)
    f16("output", model.lm_head.weight, 0.5)
    norm("output_norm", model.model.norm.weight)
    for i, layer in enumerate(model.model.layers):
        attention, mlp, blk = layer.self_attn, layer.mlp, f"blk.{i}"
        norm(f"{blk}.attn_norm", layer.input_layernorm.weight)
        norm(f"{blk}.ffn_norm", layer.post_attention_layernorm.weight)
        nvfp4(f"{blk}.attn_q", attention.q_proj.weight, HEADS)
        f16(f"{blk}.attn_k", attention.k_proj.weight, 0.25, KV_HEADS)
        nvfp4(f"{blk}.attn_v", attention.v_proj.weight)
        nvfp4(f"{blk}.attn_output", attention.o_proj.weight)
        nvfp4(f"{blk}.ffn_gate", mlp.gate_proj.weight)
        nvfp4(f"{blk}.ffn_up", mlp.up_proj.weight)
        points(f"{blk}.ffn_down", mlp.down_proj.weight, gguf.GGMLQuantizationType[POINTS[i]])

    tokens = random.integers(0, VOCAB, POSITIONS)
    with torch.no_grad():
        logits = model(torch.tensor(tokens)[None]).logits[0].numpy()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    np.save(folder / "points.tokens.npy", tokens.astype(np.float32))
    np.save(folder / "points.hf-fp32.logits.npy", logits.astype(np.float32))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
