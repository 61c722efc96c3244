#!/usr/bin/env python3
"""Trains a BitNet b1.58 on the small world of scripts/corpus: stories and conversations.

    python3 scripts/corpus/make_corpus.py --seed 1 --documents 420000 > world.txt
    python scripts/train_world.py --corpus world.txt --out run --steps 20000 --compile
    python scripts/export_demo.py run

The model and the straight-through rounding are those of train_demo.py: ternary from the first step. It
begins from weights that can nearly copy (begin.py). What a user says is read but not learned, and words of
an answer that bring back the question count several times as much as the rest (`WEIGHTS`).

Windows are short at first and hold little but conversations of one line and the beginnings of stories, where
an answer depends on what was asked; whole stories and long talk come later (`PHASES`), each document in a
window of about its size. Each worker is a process of one thread with its share of the windows. A token sees
its own document alone.

The run ends after `--minutes` of training, or after `--steps`; stopped before, the same command goes on
from the last checkpoint. With `--steps` the result depends on the flags and the library alone; with
`--minutes` on the machine's speed, too, and the number of steps is printed at the end.

The folder `run` then holds tokenizer.json, checkpoint.pt, validation.txt, loss.csv, probe.csv and loss.png.

Needs: torch, numpy, tokenizers, matplotlib. Written with torch 2.15.
"""

import argparse
import csv
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from begin import begin
from probe import lex, probe, probe_sets, tasks
from train_demo import END, BitNet, Shape, is_validation, plot, save

SPECIALS = [END, "<|im_start|>", "<|im_end|>"]
SHAPES = {
    "small": Shape(n_layers=4, dim=256, n_heads=4, n_kv_heads=4, head_dim=64, ffn_dim=768, n_ctx=2048),
    "heads": Shape(n_layers=6, dim=256, n_heads=4, n_kv_heads=4, head_dim=64, ffn_dim=768, n_ctx=2048),
    "tiny": Shape(n_layers=2, dim=128, n_heads=2, n_kv_heads=2, head_dim=64, ffn_dim=256, n_ctx=2048),
}
"""Columns of I2_S come in blocks of 128. All but `tiny`, which is for trying the scripts, fit in 6 MB."""

UNLEARNED, STORY, STORY_ASKED, ANSWER, ANSWER_ASKED = range(5)
"""What a token is: read only, of a story, of a story and in the question, of a short answer, of both."""
WEIGHTS = [0.0, 1.0, 4.0, 3.0, 4.0]
"""How much the loss of each counts."""
SHORT_ANSWER = 60
"""Tokens up to which an answer is no story."""
QUOTED = 300
"""How often each word of the world stands in the tokenizer's text in quotes, beside its documents."""
N_COMMON = 120
"""So many of the most frequent tokens, digits aside, are in most questions and bring nothing back."""


@dataclass(frozen=True)
class Phase:
    """What the windows of a part of the run hold."""

    until: float
    """Share of the run at which it ends."""
    sizes: tuple[int, ...]
    """Tokens of a window, from small to large: a document is read in the smallest that has room for it, and
    in the largest it is cut. A step has windows of one size."""
    conversations_alone: bool = False
    long: float = 1.0
    """Share of the documents longer than the largest window that are read."""
    cut: int | None = None
    """Tokens at which those are cut, if that is not where the window ends."""


PHASES = [
    Phase(0.3, (128,), conversations_alone=True, long=0.3, cut=100),
    Phase(0.55, (256, 512)),
    Phase(1.0, (256, 512, 1024, 2048)),
]


# Text


def documents(corpus: Path) -> tuple[list[str], list[str]]:
    every = [text.strip() for text in corpus.read_text().split(END)]
    every = [text for text in every if text]
    return [d for d in every if not is_validation(d)], [d for d in every if is_validation(d)]


def tokenizer(path: Path, texts: list[str], n_vocab: int):
    """The byte-level BPE at `path`, made of the first texts if it is not there yet.

    GGUF names its pre-tokenizer `smollm`: each digit is a piece, and so is a mark before a word. A word of
    the world is one token behind a quotation mark, too, where it has no space before it: so it is brought
    back from a question into JSON as one token, not as pieces that stand nowhere in the question.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if not path.exists():
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=n_vocab, special_tokens=SPECIALS, initial_alphabet=alphabet, min_frequency=3
        )
        quoted = [f'"{word}" {word}' for word in [*tasks.WORDS, *lex.GIRLS, *lex.BOYS]] * QUOTED
        made.train_from_iterator(texts[:40000] + quoted, trainer)
        made.save(str(path))
    return Tokenizer.from_file(str(path))


class Marker:
    """Says of each token of a document what it is to the loss (`WEIGHTS`)."""

    def __init__(self, tok, common: set[int]):
        self.start, self.stop = tok.token_to_id(SPECIALS[1]), tok.token_to_id(SPECIALS[2])
        self.answers = tok.encode("<|im_start|>assistant\n").ids
        self.common = common

    def marks(self, doc: np.ndarray) -> np.ndarray:
        out = np.full(len(doc), STORY, np.uint8)
        out[0] = UNLEARNED
        if len(doc) < 2 or doc[1] != self.start:
            return out
        out[:] = UNLEARNED
        asked: set[int] = set()
        for at in np.flatnonzero(doc == self.start):
            stops = np.flatnonzero(doc[at:] == self.stop)
            last = at + int(stops[0]) if len(stops) else len(doc) - 1
            first = at + len(self.answers)
            if list(doc[at:first]) == self.answers:
                body = doc[first : last + 1]
                brought = np.array([int(t) in asked for t in body], np.uint8)
                out[first : last + 1] = (ANSWER if len(body) <= SHORT_ANSWER else STORY) + brought
            else:
                asked |= {int(t) for t in doc[at + 3 : last]} - self.common
        return out


def common_tokens(tok, ids: np.ndarray) -> set[int]:
    counts = np.bincount(ids, minlength=tok.get_vocab_size())
    return set(np.argsort(-counts)[:N_COMMON].tolist()) - {tok.token_to_id(d) for d in "0123456789"}


class Text:
    """Documents as one array of ids, END before each, and the mark of each id."""

    def __init__(self, tok, texts: list[str], common: set[int] | None = None):
        end = tok.token_to_id(END)
        docs = []
        for first in range(0, len(texts), 4096):
            for text, encoded in zip(texts[first:], tok.encode_batch(texts[first : first + 4096])):
                # A story ends with END, so that a generation does.
                story = [] if text.startswith(SPECIALS[1]) else [end]
                docs.append(np.array([end, *encoded.ids, *story], np.uint16))
        self.common = common or common_tokens(tok, np.concatenate(docs[:20000]))
        marker = Marker(tok, self.common)
        self.ids = np.concatenate(docs)
        self.marks = np.concatenate([marker.marks(doc) for doc in docs])
        self.starts = np.cumsum([0, *map(len, docs)])

    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)


def prepare(corpus: Path, out: Path, n_vocab: int) -> tuple[Text, Text]:
    """Training and validation text, from the run's folder if they are there."""
    kept = out / "text.npz"
    names = ("ids", "marks", "starts")
    if not kept.exists():
        train, val = documents(corpus)
        tok = tokenizer(out / "tokenizer.json", train, n_vocab)
        assert tok.get_vocab_size() == n_vocab, f"{tok.get_vocab_size()} tokens: the corpus is too small"
        (out / "validation.txt").write_text(END.join(val[:300]))
        text = Text(tok, train)
        check = Text(tok, val[:600], text.common)
        arrays = {f"{part}_{n}": vars(t)[n] for part, t in (("train", text), ("val", check)) for n in names}
        np.savez(kept, bytes=corpus.stat().st_size, common=sorted(text.common), **arrays)
    state = np.load(kept)
    assert state["bytes"] == corpus.stat().st_size, f"{kept} was made of another corpus"
    texts = []
    for part in ("train", "val"):
        text = Text.__new__(Text)
        vars(text).update({n: state[f"{part}_{n}"] for n in names}, common=set(state["common"].tolist()))
        texts.append(text)
    return texts[0], texts[1]


class Windows:
    """Windows of one size, each of documents from their first token on; the last one is cut where the window
    ends.

    What comes next is a function of the phase, the seed and of how many were taken.
    """

    def __init__(self, text: Text, phase: Phase, size: int, begins: int, seed: int):
        self.text, self.n_ctx, self.seed = text, size, seed
        self.cut = phase.cut or size
        lengths = text.lengths()
        smaller = max((s for s in phase.sizes if s < size), default=0)
        long = lengths > size
        share = np.random.default_rng((seed, size)).random(len(lengths))
        chosen = (lengths > smaller) & (~long | (share < phase.long) & (size == phase.sizes[-1]))
        if phase.conversations_alone:
            chosen &= text.ids[text.starts[:-1] + 1] == begins
        self.chosen = np.flatnonzero(chosen)
        self.tokens = int(np.minimum(lengths[self.chosen], self.cut).sum())
        self.number, self.at, self.order = 0, 0, np.empty(0, int)

    def state(self) -> list[int]:
        return [self.number, self.at]

    def restore(self, state: list[int]) -> None:
        self.number, self.at = state
        if self.number:
            self.order = self._order(self.number - 1)

    def _order(self, number: int) -> np.ndarray:
        return np.random.default_rng((self.seed, self.n_ctx, number)).permutation(self.chosen)

    def _next(self) -> int:
        if self.at == len(self.order):
            self.order, self.at, self.number = self._order(self.number), 0, self.number + 1
        self.at += 1
        return self.order[self.at - 1]

    def _take(self) -> tuple[np.ndarray, np.ndarray]:
        size, ids, marks, filled = self.n_ctx + 1, [], [], 0
        while filled < size:
            i = self._next()
            a = self.text.starts[i]
            b = min(self.text.starts[i + 1], a + self.cut, a + size - filled)
            ids.append(self.text.ids[a:b])
            marks.append(self.text.marks[a:b])
            filled += b - a
        return np.concatenate(ids).astype(np.int64), np.concatenate(marks).astype(np.int64)

    def windows_of(self, tokens: int) -> int:
        """Windows of a batch of about so many tokens."""
        return max(1, tokens // self.n_ctx)

    def batch(self, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets and the targets' marks, each [windows, positions]."""
        pairs = [self._take() for _ in range(self.windows_of(tokens))]
        ids, marks = (torch.from_numpy(np.stack(t)) for t in zip(*pairs))
        return ids[:, :-1], ids[:, 1:], marks[:, 1:]


class Sizes:
    """The windows of a phase, of which each step takes those of one size: the same for all workers, and as
    often as every document is to be read equally often."""

    def __init__(self, text: Text, phase: Phase, begins: int, seed: int, rank: int):
        self.seed = (seed, phase.sizes[-1])
        self.windows = [Windows(text, phase, size, begins, seed + 1000 * rank) for size in phase.sizes]

    def state(self) -> list[list[int]]:
        return [w.state() for w in self.windows]

    def restore(self, state: list[list[int]]) -> None:
        for w, at in zip(self.windows, state):
            w.restore(at)

    def at(self, step: int, tokens: int) -> Windows:
        """The windows of a step in which a worker reads about so many tokens."""
        steps = np.array([w.tokens / (w.n_ctx * w.windows_of(tokens)) for w in self.windows])
        return np.random.default_rng((*self.seed, step)).choice(self.windows, p=steps / steps.sum())


# Training


class Trunk(nn.Module):
    """All of the model but the head, which is computed where something is learned."""

    def __init__(self, model: BitNet):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        # END, whose id is 0, stands before each document: none sees another.
        return self.model.hidden(ids, (ids == 0).cumsum(1))


def loss_of(trunk: nn.Module, model: BitNet, x: Tensor, y: Tensor, marks: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of the loss over the learned targets."""
    learned = marks > UNLEARNED
    logits = F.linear(trunk(x)[learned], model.token_embd).float()
    return (F.cross_entropy(logits, y[learned], reduction="none") * weights[marks[learned]]).sum()


def share_of_rate(step: int, progress: float, warmup: int, decay: float) -> float:
    """Share of the learning rate: a rise, a plateau, a straight way down to 0 in the last share of the
    run."""
    return max(0.0, min(1.0, (step + 1) / warmup, (1 - progress) / decay))


class Team:
    """The workers of a run, whose gradients are added up."""

    def __init__(self, rank: int, size: int, port: int):
        self.rank, self.size = rank, size
        if size > 1:
            dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)

    def add_up(self, tensors: list[Tensor]) -> None:
        if self.size > 1:
            flat = torch.cat([t.flatten() for t in tensors])
            dist.all_reduce(flat)
            for t, part in zip(tensors, flat.split([t.numel() for t in tensors])):
                t.copy_(part.view_as(t))

    def every(self, value: list) -> list[list]:
        """What each worker has."""
        out = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(out, value)
        return out

    def first(self, value: float) -> float:
        """The first worker's value, so that all agree on what the clock says."""
        if self.size > 1:
            told = torch.tensor([value], dtype=torch.float64)
            dist.broadcast(told, 0)
            value = told.item()
        return value


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", type=Path, required=True, help="text of make_corpus.py")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float, help="training time, over all starts of the run")
    budget.add_argument("--steps", type=int)
    parser.add_argument("--stop", type=int, help="stop after this step of the schedule")
    parser.add_argument("--shape", choices=SHAPES, default="heads")
    parser.add_argument("--batch", type=int, default=2048, help="tokens a step, of all workers")
    parser.add_argument(
        "--decay", type=float, default=0.9, help="last share of the run, in which the rate falls"
    )
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--port", type=int, default=29518, help="where the workers meet")
    parser.add_argument("--compile", action="store_true", help="torch.compile; needs a C++ compiler")
    parser.add_argument("--probes", type=int, default=48, help="items of a probe for each measure")
    parser.add_argument("--check-every", type=int, default=500, help="steps between probes")
    parser.add_argument("--save-every", type=int, default=100, help="steps between checkpoints")
    return parser.parse_args()


def optimiser(model: BitNet, lr: float) -> torch.optim.Adam:
    """Adam for all: with Muon and longer steps, runs brought back less of a question (assets/README.md)."""
    matrices = [p for layer in model.layers for p in layer.parameters() if p.ndim == 2]
    others = [model.token_embd, *(p for p in model.parameters() if p.ndim == 1)]
    groups = [
        {"params": matrices, "whole": lr, "betas": (0.9, 0.95)},
        {"params": others, "whole": 2 * lr, "betas": (0.9, 0.98)},
    ]
    return torch.optim.Adam(groups, lr=lr, eps=1e-10, fused=True)


def train(rank: int, args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    team = Team(rank, args.workers, args.port)
    shape = SHAPES[args.shape]
    text, val = prepare(args.corpus, args.out, shape.n_vocab)
    tok = tokenizer(args.out / "tokenizer.json", [], shape.n_vocab)
    marker = Marker(tok, text.common)
    model = BitNet(shape)
    begin(model, args.seed)
    opt = optimiser(model, args.lr)
    phases = [Sizes(text, phase, marker.start, args.seed, rank) for phase in PHASES]
    done, read, trained_s, rows, probes = 0, 0, 0.0, [], []
    checkpoint = args.out / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        assert state["shape"] == asdict(shape), "the checkpoint has another shape"
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["optimiser"])
        done, read, trained_s, rows, probes = (
            state[n] for n in ("step", "read", "trained_s", "rows", "probes")
        )
        for phase, at in zip(phases, state["windows"][rank]):
            phase.restore(at)
    checks, sets = [], {}
    if rank == 0:
        n_weights = sum(p.numel() for p in model.parameters())
        print(f"{len(text.starts) - 1} documents, {len(text.ids)} tokens; {n_weights} weights", flush=True)
        print(f"going on from step {done}, after {trained_s / 60:.1f} minutes" if done else "", flush=True)
        checks = [Windows(val, Phase(1.0, (512,)), 512, marker.start, 0).batch(4096) for _ in range(2)]
        sets = probe_sets(tok, marker, args.probes)

    trunk = Trunk(model)
    fast = torch.compile(trunk, dynamic=False) if args.compile else trunk
    weights = torch.tensor(WEIGHTS)
    began, first, before = time.monotonic(), read, trained_s
    while True:
        trained_s = team.first(before + time.monotonic() - began)
        progress = done / args.steps if args.steps else trained_s / (60 * args.minutes)
        if progress >= 1 or done == args.stop:
            break
        now = next(i for i, phase in enumerate(PHASES) if progress < phase.until)
        windows = phases[now].at(done, args.batch // args.workers)
        x, y, marks = windows.batch(args.batch // args.workers)
        total = weights[marks].sum()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(fast, model, x, y, marks, weights)
        loss.backward()
        grads = [p.grad for p in model.parameters()]
        sums = torch.stack([loss.detach(), total])
        team.add_up([*grads, sums])
        torch._foreach_div_(grads, sums[1].item())
        share = share_of_rate(done, progress, args.warmup, args.decay)
        for group in opt.param_groups:
            group["lr"] = group["whole"] * share
        opt.step()
        opt.zero_grad()
        done, read = done + 1, read + x.numel() * args.workers
        trained_s = team.first(before + time.monotonic() - began)
        last = done == args.stop or (done >= args.steps if args.steps else trained_s >= 60 * args.minutes)
        mean = (sums[0] / sums[1]).item()
        checked, saved = (last or done % n == 0 for n in (args.check_every, args.save_every))
        shown = ""
        if checked and rank == 0:
            shown = f"{validation(trunk, model, checks, weights):.4f}"
            found = probe(trunk, model.token_embd, sets, STORY_ASKED)
            probes.append([str(done), str(read), *(f"{v:.3f}" for v in found.values())])
            print("  ".join(f"{name} {v:.0%}" for name, v in found.items()), flush=True)
        rows.append([str(done), str(read), f"{share:.4f}", f"{mean:.4f}", shown])
        if rank == 0 and (checked or done % 20 == 0):
            speed = (read - first) / (time.monotonic() - began)
            print(
                f"step {done}  {trained_s / 60:.1f} min  windows of {windows.n_ctx}  rate {share:.2f}  "
                f"loss {mean:.4f}  validation {shown or '-'}  {speed:.0f} tokens/s",
                flush=True,
            )
        if checked or saved:
            places = team.every([phase.state() for phase in phases])
            if rank == 0:
                state = {"shape": asdict(shape), "step": done, "read": read, "trained_s": trained_s}
                state |= {"rows": rows, "probes": probes, "windows": places, "model": model.state_dict()}
                save(checkpoint, state | {"optimiser": opt.state_dict()})
                table(args.out / "loss.csv", ["step", "tokens", "rate", "loss", "validation"], rows)
                table(args.out / "probe.csv", ["step", "tokens", *sets], probes)
                plot(rows, args.out / "loss.png")
    if rank == 0:
        print(f"{done} steps, {read / 1e6:.1f} million tokens, {trained_s / 60:.1f} minutes")


@torch.no_grad()
def validation(trunk: nn.Module, model: BitNet, checks: list, weights: Tensor) -> float:
    """Mean weighted loss over the learned targets of some windows."""
    with torch.autocast("cpu", torch.bfloat16):
        found = [(loss_of(trunk, model, *c, weights).item(), weights[c[2]].sum().item()) for c in checks]
    return sum(f[0] for f in found) / sum(f[1] for f in found)


def table(path: Path, names: list[str], rows: list[list[str]]) -> None:
    with open(path, "w", newline="") as out:
        csv.writer(out).writerows([names, *rows])


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    prepare(args.corpus, args.out, SHAPES[args.shape].n_vocab)
    torch.multiprocessing.spawn(train, (args,), args.workers)


if __name__ == "__main__":
    main()
