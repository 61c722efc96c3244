#!/usr/bin/env python3
"""Exports a run of train_world.py to a Hugging Face folder and a GGUF of real-valued weights.

    python training/export_demo.py run           # makes run/hf and run/world-f32.gguf
    sterna quantize --type i2_s run/world-f32.gguf assets/world.gguf

`sterna quantize` and transformers round the same weights to ternary themselves. The embedding is rounded to
f16 in both exports, as in the published file.

Needs: torch, numpy, gguf, safetensors.
"""

import argparse
import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from bitnet import Shape
from corpus.template import END, TEMPLATE, TURN_BEGINS, TURN_ENDS

ARCHITECTURE = "bitnet-b1.58"
NAME = "sterna-world"
"""Must be the same as in src/demo.rs."""
DESCRIPTION = (
    "A BitNet b1.58 for a small simulated world: it tells stories, answers questions about them, works out "
    "small sums, fills in JSON and calls tools"
)
HF_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_sub_norm": "self_attn.attn_sub_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_sub_norm": "mlp.ffn_sub_norm",
    "ffn_down": "mlp.down_proj",
}


def vocabulary(run: Path) -> dict[str, int]:
    """Token -> id. Some versions of the file store special tokens next to the merges."""
    file = json.loads((run / "tokenizer.json").read_text())
    return file["model"]["vocab"] | {t["content"]: t["id"] for t in file["added_tokens"]}


def load(run: Path) -> tuple[Shape, dict[str, torch.Tensor]]:
    """Shape and weights of a checkpoint, the embedding rounded to f16; all f32."""
    state = torch.load(run / "checkpoint.pt", map_location="cpu", weights_only=True)
    weights = {name: value.float() for name, value in state["model"].items()}
    weights["token_embd"] = weights["token_embd"].half().float()
    return Shape(**state["shape"]), weights


def hugging_face(folder: Path, run: Path, shape: Shape, weights: dict[str, torch.Tensor]) -> None:
    """Writes config.json, model.safetensors and tokenizer.json."""
    folder.mkdir(exist_ok=True)
    ids = vocabulary(run)
    named = {"model.embed_tokens.weight": weights["token_embd"], "model.norm.weight": weights["output_norm"]}
    for layer in range(shape.n_layers):
        for ours, theirs in HF_NAMES.items():
            named[f"model.layers.{layer}.{theirs}.weight"] = weights[f"layers.{layer}.{ours}"]
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["BitNetForCausalLM"],
        "model_type": "bitnet",
        "vocab_size": shape.n_vocab,
        "hidden_size": shape.dim,
        "intermediate_size": shape.ffn_dim,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "relu2",
        "max_position_embeddings": shape.n_ctx,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_base},
        "rms_norm_eps": shape.norm_eps,
        "tie_word_embeddings": True,
        "bos_token_id": ids[END],
        "eos_token_id": [ids[END], ids[TURN_ENDS]],
        "torch_dtype": "float32",
        "quantization_config": {
            "quant_method": "bitnet",
            "linear_class": "autobitlinear",
            "quantization_mode": "online",
        },
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    shutil.copy(run / "tokenizer.json", folder)


def write_gguf(path: Path, run: Path, shape: Shape, weights: dict[str, torch.Tensor]) -> None:
    """Writes the same model as GGUF: matrices in f32, embedding in f16."""
    bpe = json.loads((run / "tokenizer.json").read_text())["model"]
    ids = vocabulary(run)
    tokens = sorted(ids, key=ids.get)
    control = {END, TURN_BEGINS, TURN_ENDS}
    merges = [m if isinstance(m, str) else " ".join(m) for m in bpe["merges"]]
    end = ids[END]
    kinds = [gguf.TokenType.CONTROL if token in control else gguf.TokenType.NORMAL for token in tokens]

    out = gguf.GGUFWriter(path, ARCHITECTURE)
    out.add_type("model")
    out.add_name(NAME)
    out.add_basename(NAME)
    out.add_size_label(gguf.size_label(sum(w.numel() for w in weights.values()), 0, 0, 0))
    out.add_description(DESCRIPTION)
    out.add_license("MIT OR Apache-2.0")
    out.add_vocab_size(shape.n_vocab)
    out.add_context_length(shape.n_ctx)
    out.add_embedding_length(shape.dim)
    out.add_block_count(shape.n_layers)
    out.add_feed_forward_length(shape.ffn_dim)
    out.add_head_count(shape.n_heads)
    out.add_head_count_kv(shape.n_kv_heads)
    out.add_key_length(shape.head_dim)
    out.add_value_length(shape.head_dim)
    out.add_rope_dimension_count(shape.head_dim)
    out.add_rope_freq_base(shape.rope_base)
    out.add_layer_norm_rms_eps(shape.norm_eps)
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("smollm")
    out.add_token_list(tokens)
    out.add_token_types(kinds)
    out.add_token_merges(merges)
    out.add_bos_token_id(end)
    out.add_eos_token_id(end)
    out.add_add_bos_token(True)
    out.add_chat_template(TEMPLATE)
    out.add_eot_token_id(ids[TURN_ENDS])
    # llama.cpp's key. No penalty, because names must recur, and sums may contain a digit twice.
    out.add_float32("general.sampling.temp", 0.2)

    out.add_tensor("token_embd.weight", weights["token_embd"].numpy().astype(np.float16))
    for layer in range(shape.n_layers):
        for name in HF_NAMES:
            out.add_tensor(f"blk.{layer}.{name}.weight", weights[f"layers.{layer}.{name}"].numpy())
    out.add_tensor("output_norm.weight", weights["output_norm"].numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="folder of train_world.py")
    args = parser.parse_args()
    shape, weights = load(args.run)
    hugging_face(args.run / "hf", args.run, shape, weights)
    write_gguf(args.run / "world-f32.gguf", args.run, shape, weights)


if __name__ == "__main__":
    main()
