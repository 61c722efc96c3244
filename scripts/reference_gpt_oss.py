#!/usr/bin/env python3
"""Creates a tiny random GPT-OSS model and the logits that transformers computes with its weights.

    pip install torch transformers gguf
    scripts/reference_gpt_oss.py tests/data/golden/gpt-oss

The experts are MXFP4, everything else is F16 or F32; transformers computes in f32 with the dequantised
weights.
"""

import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from transformers import GptOssConfig, GptOssForCausalLM

DIM, HEADS, KV_HEADS, HEAD_DIM, FFN, EXPERTS, USED, LAYERS, VOCAB = 64, 4, 2, 16, 32, 6, 3, 3, 96
WINDOW, ORIGINAL, FACTOR, POSITIONS = 8, 16, 4.0, 40


def main(folder: Path) -> None:
    torch.manual_seed(16)
    config = GptOssConfig(
        num_hidden_layers=LAYERS, num_local_experts=EXPERTS, num_experts_per_tok=USED, vocab_size=VOCAB,
        hidden_size=DIM, intermediate_size=FFN, head_dim=HEAD_DIM, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, sliding_window=WINDOW, tie_word_embeddings=False,
        max_position_embeddings=ORIGINAL * int(FACTOR), rms_norm_eps=1e-5, attn_implementation="eager",
        layer_types=["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(LAYERS)],
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 150000.0, "factor": FACTOR,
            "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": ORIGINAL, "truncate": True,
        },
    )
    model = GptOssForCausalLM(config).float().eval()
    writer = gguf.GGUFWriter(folder / "tiny-mxfp4.gguf", "gpt-oss")
    writer.add_name("tiny random GPT-OSS")
    writer.add_context_length(ORIGINAL * int(FACTOR))
    writer.add_embedding_length(DIM)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_expert_feed_forward_length(FFN)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_sliding_window(WINDOW)
    writer.add_rope_freq_base(150000.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(FACTOR)
    writer.add_rope_scaling_orig_ctx_len(ORIGINAL)

    def fill(parameter, deviation, mean=0.0):
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape) * deviation + mean)
        return parameter

    def f32(name, parameter, deviation, mean=0.0):
        writer.add_tensor(name, fill(parameter, deviation, mean).detach().numpy())

    def f16(name, parameter, deviation):
        with torch.no_grad():
            parameter.copy_(fill(parameter, deviation).half().float())
        writer.add_tensor(name, parameter.detach().half().numpy())

    def mxfp4(name, parameter, deviation, part=slice(None)):
        """transformers stores experts as [experts, inputs, outputs], files as [experts, outputs, inputs]."""
        values = (torch.randn(parameter[..., part].shape) * deviation).transpose(1, 2).contiguous().numpy()
        kind = gguf.GGMLQuantizationType.MXFP4
        packed = quantize(values, kind)
        with torch.no_grad():
            parameter[..., part] = torch.from_numpy(dequantize(packed, kind)).transpose(1, 2)
        writer.add_tensor(name, packed, raw_dtype=kind)

    f16("token_embd.weight", model.model.embed_tokens.weight, 1.0)
    f16("output.weight", model.lm_head.weight, 0.3)
    f32("output_norm.weight", model.model.norm.weight, 0.1, 1.0)
    for i, layer in enumerate(model.model.layers):
        attention, mlp, blk = layer.self_attn, layer.mlp, f"blk.{i}"
        f32(f"{blk}.attn_norm.weight", layer.input_layernorm.weight, 0.1, 1.0)
        f32(f"{blk}.post_attention_norm.weight", layer.post_attention_layernorm.weight, 0.1, 1.0)
        for name, linear in [("q", attention.q_proj), ("k", attention.k_proj), ("v", attention.v_proj),
                             ("output", attention.o_proj)]:
            f16(f"{blk}.attn_{name}.weight", linear.weight, 0.25)
            f32(f"{blk}.attn_{name}.bias", linear.bias, 0.3)
        f32(f"{blk}.attn_sinks.weight", attention.sinks, 1.0)
        f32(f"{blk}.ffn_gate_inp.weight", mlp.router.weight, 0.3)
        f32(f"{blk}.ffn_gate_inp.bias", mlp.router.bias, 0.5)
        # transformers interleaves gates and ups. Some of their outputs must be clamped.
        experts = mlp.experts
        for name, part in [("gate", slice(0, None, 2)), ("up", slice(1, None, 2))]:
            mxfp4(f"{blk}.ffn_{name}_exps.weight", experts.gate_up_proj, 0.5, part)
            bias = torch.randn(EXPERTS, FFN)
            with torch.no_grad():
                experts.gate_up_proj_bias[:, part] = bias
            writer.add_tensor(f"{blk}.ffn_{name}_exps.bias", bias.numpy())
        mxfp4(f"{blk}.ffn_down_exps.weight", experts.down_proj, 0.1)
        f32(f"{blk}.ffn_down_exps.bias", experts.down_proj_bias, 0.3)

    tokens = np.random.default_rng(16).integers(0, VOCAB, POSITIONS)
    with torch.no_grad():
        logits = model(torch.tensor(tokens)[None]).logits[0].numpy()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    np.save(folder / "mxfp4.tokens.npy", tokens.astype(np.float32))
    np.save(folder / "mxfp4.hf-fp32.logits.npy", logits.astype(np.float32))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
