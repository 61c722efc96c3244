"""Measures held-out answers during training.

Greedy decoding gives an answer word for word exactly if each of its tokens is the first choice after the ones
before it, so one pass over the right answers measures it. The items are those of corpus/eval_demo.py, with
lengths that take seconds; needles are at most 200 words away. For stories, whose words are free, the measured
tokens are those that are also in the request, within the first 160 tokens of both.
"""

import sys
from pathlib import Path
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).with_name("corpus")))

import chat
import dialogue
import eval_demo
import lexicon as lex
import tasks

LONGEST = 512
OPENING = 160
MAKERS = {
    "sums": eval_demo.fact_items("total"),
    "opposites": eval_demo.fact_items("opposite"),
    "days": eval_demo.fact_items("day"),
    "copies": eval_demo.checked_items(tasks.copy_chat, "copy"),
    "said again": eval_demo.checked_items(chat.fact_chat, "again"),
    "JSON": eval_demo.checked_items(tasks.json_chat, "json"),
    "tool calls": eval_demo.checked_items(tasks.tool_chat, "tool"),
    "questions": eval_demo.checked_items(chat.story_chat, "question"),
    "needles": eval_demo.checked_items(lambda rng, split: tasks.retrieval_chat(rng, split, 200), "needle"),
    "stories": eval_demo.story_items,
}


def probe_sets(tok, marker, n: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Ids and marks of `n` items per measure, [items, positions]; only the last answer is marked."""
    sets = {}
    for name, make in MAKERS.items():
        rng, found = Random(f"probe {name}"), []
        while len(found) < n:
            for item in make(rng):
                messages = [*item.messages, {"role": "assistant", "content": item.own}]
                text = dialogue.render(dialogue.Chat(messages, item.tools)).strip()
                ids = np.array([tok.token_to_id("<|endoftext|>"), *tok.encode(text).ids])
                marks = marker.marks(ids)
                marks[: np.flatnonzero(ids == marker.start)[-1]] = 0
                if name == "stories":
                    ids, marks = ids[:OPENING], marks[:OPENING]
                if len(ids) <= LONGEST:
                    found.append((ids, marks))
        longest = max(len(ids) for ids, _ in found[:n])
        rows = [[np.pad(a, (0, longest - len(a))) for a in pair] for pair in found[:n]]
        ids, marks = (torch.from_numpy(np.stack(column).astype(np.int64)) for column in zip(*rows))
        sets[name] = ids, marks
    return sets


@torch.no_grad()
def probe(trunk, embedding: Tensor, sets: dict[str, tuple[Tensor, Tensor]], asked: int) -> dict[str, float]:
    """Share of answers that match word for word; for stories, of the tokens with mark `asked` or above."""
    shares = {}
    for name, (ids, marks) in sets.items():
        targets, learned = ids[:, 1:], marks[:, 1:] > 0
        with torch.autocast("cpu", torch.bfloat16):
            choices = F.linear(trunk(ids[:, :-1])[learned], embedding).argmax(-1)
        good = torch.zeros_like(learned)
        good[learned] = choices == targets[learned]
        if name == "stories":
            good = good[marks[:, 1:] >= asked]
        else:
            good = (good | ~learned).all(1)
        shares[name] = good.float().mean().item()
    return shares
