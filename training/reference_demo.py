#!/usr/bin/env python3
"""Runs the demo model with transformers' BitNet class in float32 on the CPU: independent reference values.

    python training/reference_demo.py run/hf --golden tests/data/demo
    python training/reference_demo.py run/hf --perplexity run/validation.txt --context 512

--golden reads FOLDER/tokens.txt, one sequence of ids per line, and writes FOLDER/logits.npy, f32 [all
positions, n_vocab]. --perplexity scores a text like `sterna perplexity --special` (its help describes which
positions count).

Needs: torch, numpy, tokenizers, transformers, accelerate.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM


def golden(model, folder: Path) -> None:
    sequences = [
        [int(id) for id in line.split()] for line in (folder / "tokens.txt").read_text().splitlines()
    ]
    logits = [model(torch.tensor([ids])).logits[0] for ids in sequences]
    np.save(folder / "logits.npy", torch.cat(logits).numpy())


def perplexity(model, tok: Tokenizer, text: Path, n_ctx: int) -> None:
    bos = model.config.bos_token_id
    ids = torch.tensor([bos, *tok.encode(text.read_text()).ids])
    chunks = ids[: len(ids) // n_ctx * n_ctx].view(-1, n_ctx).clone()
    chunks[:, 0] = bos
    scored = slice(n_ctx // 2 + 1, n_ctx)
    losses = []
    for chunk in chunks:
        logits = model(chunk[None]).logits[0, scored.start - 1 : scored.stop - 1]
        losses.append(F.cross_entropy(logits, chunk[scored], reduction="none"))
    losses = torch.cat(losses)
    print(f"{len(chunks)} chunks of {n_ctx}, {len(losses)} tokens scored, PPL {losses.mean().exp():.4f}")


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("hf", type=Path, help="folder of export_demo.py")
    parser.add_argument("--golden", type=Path, metavar="FOLDER")
    parser.add_argument("--perplexity", type=Path, metavar="TEXT")
    parser.add_argument("--context", type=int, default=512)
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.hf, dtype=torch.float32)
    if args.golden:
        golden(model, args.golden)
    if args.perplexity:
        perplexity(model, Tokenizer.from_file(str(args.hf / "tokenizer.json")), args.perplexity, args.context)


if __name__ == "__main__":
    main()
