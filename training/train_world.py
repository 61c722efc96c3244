#!/usr/bin/env python3
"""Trains a BitNet b1.58 on the small world of training/corpus: stories and conversations.

    python3 training/corpus/make_corpus.py --seed 1 --documents 330000 > world.txt
    python training/train_world.py --corpus world.txt --out run --minutes 180 --compile
    python training/export_demo.py run

The model is bitnet.py: ternary from the first step. It starts from weights that can almost copy (begin.py).
The user's messages are read but not learned, and words of an answer that repeat the question have several
times the weight of the rest (`WEIGHTS`).

Windows are short at first and contain mostly one-line conversations and beginnings of stories, where an
answer depends on the question; whole stories and long conversations come later (`PHASES`), each document in a
window of about its size. Each worker is a process with one thread and its share of the windows. A token only
attends to its own document.

A run with `--init RUN` starts from the weights and the tokenizer of another, and skips the first phase. With
`--init FILE.gguf` it starts from exactly the ternary weights of a published file, and has long windows from
the first step.

The run ends after `--minutes` of training, or after `--steps`; if stopped before, the same command resumes
from the last checkpoint. With `--steps` the result only depends on the flags and the library; with
`--minutes` also on the machine's speed, and the number of steps is printed at the end. The folder `run` then
contains tokenizer.json, checkpoint.pt, validation.txt, loss.csv, probe.csv and loss.png.

Needs: torch, numpy, tokenizers, matplotlib. Written with torch 2.15.
"""

import argparse
import csv
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from begin import begin
from bitnet import BitNet, Shape, ternary
from corpus.template import END
from gguf_file import read_gguf
from probe import probe, probe_sets
from world_text import STORY_ASKED, UNLEARNED, Marker, Text, documents, spaced, tokenizer

SHAPES = {
    "heads": Shape(),
    "small": Shape(n_layers=4),
    "tiny": Shape(n_layers=2, dim=128, n_heads=2, n_kv_heads=2, ffn_dim=256),
}
"""Columns of I2_S come in blocks of 128. `heads` is the published model, `tiny` is for trying the scripts."""

WEIGHTS = [0.0, 0.4, 2.0, 4.0, 3.0, 4.0, 10.0, 4.0, 10.0]
"""Loss weight of each token class (world_text.py)."""
RIVAL = 10.0
"""Weight of the penalty on the hero's name or kind when another character is introduced. At a low temperature
it is picked there even if each other name is only slightly less likely."""


@dataclass(frozen=True)
class Phase:
    """Windows of a part of the run."""

    until: float
    """Share of the run at which the phase ends."""
    sizes: tuple[int, ...]
    """Window sizes in tokens, ascending: a document is read in the smallest window that fits it, and
    truncated to the largest. All windows of a step have the same size."""
    conversations_alone: bool = False
    long: float = 1.0
    """Share of the documents longer than the largest window that are used."""
    cut: int | None = None
    """Length in tokens to truncate them to, if not the window's."""


PHASES = [
    Phase(0.3, (128,), conversations_alone=True, long=0.3, cut=100),
    Phase(0.55, (256, 512)),
    Phase(1.0, (256, 512, 1024, 2048)),
]


def prepare(corpus: Path, out: Path, n_vocab: int, init: Path | None = None) -> tuple[Text, Text]:
    """Training and validation text, loaded from the run's folder if present."""
    kept = out / "text.npz"
    names = ("ids", "marks", "rivals", "starts")
    if not kept.exists():
        train, val = documents(corpus)
        begun = init / "tokenizer.json" if init and init.is_dir() else init
        tok = tokenizer(out / "tokenizer.json", train, n_vocab, begun)
        assert tok.get_vocab_size() >= n_vocab, f"{tok.get_vocab_size()} tokens: the corpus is too small"
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
    """Windows of one size, each with documents from their first token on; the last one is truncated at the
    end of the window.

    The sequence only depends on the phase, the seed and the number of windows taken.
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

    def _take(self) -> list[np.ndarray]:
        size, parts, filled = self.n_ctx + 1, [], 0
        while filled < size:
            i = self._next()
            a = self.text.starts[i]
            b = min(self.text.starts[i + 1], a + self.cut, a + size - filled)
            parts.append([of[a:b] for of in (self.text.ids, self.text.marks, self.text.rivals)])
            filled += b - a
        return [np.concatenate(column).astype(np.int64) for column in zip(*parts)]

    def windows_of(self, tokens: int) -> int:
        """Number of windows in a batch of about `tokens` tokens."""
        return max(1, tokens // self.n_ctx)

    def batch(self, tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Inputs, targets, and the targets' marks and rivals, each [windows, positions]."""
        taken = [self._take() for _ in range(self.windows_of(tokens))]
        ids, marks, rivals = (torch.from_numpy(np.stack(t)) for t in zip(*taken))
        return ids[:, :-1], ids[:, 1:], marks[:, 1:], rivals[:, 1:]


class Sizes:
    """The windows of a phase. Each step uses one size, the same for all workers, with a frequency that reads
    every document equally often."""

    def __init__(self, text: Text, phase: Phase, begins: int, seed: int, rank: int):
        self.seed = (seed, phase.sizes[-1])
        self.windows = [Windows(text, phase, size, begins, seed + 1000 * rank) for size in phase.sizes]

    def state(self) -> list[list[int]]:
        return [w.state() for w in self.windows]

    def restore(self, state: list[list[int]]) -> None:
        for w, at in zip(self.windows, state):
            w.restore(at)

    def at(self, step: int, tokens: int) -> Windows:
        """The windows of a step in which a worker reads about `tokens` tokens."""
        steps = np.array([w.tokens / (w.n_ctx * w.windows_of(tokens)) for w in self.windows])
        return np.random.default_rng((*self.seed, step)).choice(self.windows, p=steps / steps.sum())


# Training


class Trunk(nn.Module):
    """The model without the head, which is only computed for learned positions."""

    def __init__(self, model: BitNet):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        # END, whose id is 0, precedes each document: no document sees another.
        return self.model.hidden(ids, (ids == 0).cumsum(1))


def loss_of(
    trunk: nn.Module, model: BitNet, x: Tensor, y: Tensor, marks: Tensor, rivals: Tensor, weights: Tensor
) -> Tensor:
    """Weighted sum of the loss over the learned targets, and of -log(1 - p) over the rivals."""
    learned = marks > UNLEARNED
    logits = F.linear(trunk(x)[learned], model.token_embd).float()
    loss = (F.cross_entropy(logits, y[learned], reduction="none") * weights[marks[learned]]).sum()
    rivals = rivals[learned]
    apart = rivals > 0
    if apart.any():
        # At most 0.99, so that a certain mistake has a finite loss.
        share = logits[apart].softmax(-1).gather(1, rivals[apart][:, None]) * 0.99
        loss = loss - RIVAL * torch.log1p(-share).sum()
    return loss


def share_of_rate(step: int, progress: float, warmup: int, decay: float) -> float:
    """Learning rate factor: warmup, a plateau, and a linear decay to 0 in the last share of the run."""
    return max(0.0, min(1.0, (step + 1) / warmup, (1 - progress) / decay))


@torch.no_grad()
def take_over(model: BitNet, init: Path, tok) -> None:
    """The weights of another run. A new token starts as the same word after a space."""
    weights = torch.load(init / "checkpoint.pt", weights_only=True)["model"]
    known = weights["token_embd"]
    like = torch.from_numpy(spaced(tok))[len(known) :]
    new = torch.where((like < len(known))[:, None], known[like.clamp(max=len(known) - 1)], known.mean(0))
    model.load_state_dict(weights | {"token_embd": torch.cat([known, new])})


@torch.no_grad()
def take_ternary(model: BitNet, path: Path) -> None:
    """The exact weights of a published file: its codes times s / f, where f is the nonzero share of a matrix,
    have the mean magnitude s, so they round to the file's codes and scale s. The exact values within their
    codes are not in the file: all start in the middle."""
    found = read_gguf(path)
    for name, weight in model.named_parameters():
        value = found[name.replace("layers.", "blk.") + ".weight"]
        if weight.ndim == 2 and name != "token_embd":
            weight.copy_(value / (value != 0).double().mean())
            differs = (ternary(weight) - value).abs().max() / value.abs().max()
            # The mean of about 100000 equal values, in f32.
            assert differs < 1e-5, f"{name} is not that of the file: {differs}"
        else:
            weight.copy_(value)


class Team:
    """The workers of a run, whose gradients are summed."""

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
        """The values of all workers."""
        out = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(out, value)
        return out

    def first(self, value: float) -> float:
        """The first worker's value, so that all workers agree on the time."""
        if self.size > 1:
            told = torch.tensor([value], dtype=torch.float64)
            dist.broadcast(told, 0)
            value = told.item()
        return value


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", type=Path, required=True, help="text from make_corpus.py")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float, help="training time, over all starts of the run")
    budget.add_argument("--steps", type=int)
    parser.add_argument("--stop", type=int, help="stop after this step of the schedule")
    parser.add_argument("--init", type=Path, help="start from the weights of this run's folder or GGUF")
    parser.add_argument("--shape", choices=SHAPES, default="heads")
    parser.add_argument("--batch", type=int, default=2048, help="tokens per step, over all workers")
    parser.add_argument(
        "--decay", type=float, default=0.9, help="final share of the run with a falling learning rate"
    )
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--port", type=int, default=29518, help="port for the workers to connect")
    parser.add_argument("--compile", action="store_true", help="torch.compile; needs a C++ compiler")
    parser.add_argument("--probes", type=int, default=48, help="probe items per measure")
    parser.add_argument("--check-every", type=int, default=500, help="steps between probes")
    parser.add_argument("--save-every", type=int, default=100, help="steps between checkpoints")
    return parser.parse_args()


def optimiser(model: BitNet, lr: float) -> torch.optim.Adam:
    """Adam for all parameters: with Muon and longer steps, answers repeated less of a question
    (README.md)."""
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
    shape = replace(shape, n_vocab=tok.get_vocab_size())
    marker = Marker(tok, text.common)
    model = BitNet(shape)
    begin(model, args.seed)
    opt = optimiser(model, args.lr)
    phases = [Sizes(text, phase, marker.start, args.seed, rank) for phase in PHASES]
    done, read, trained_s, rows, probes = 0, 0, 0.0, [], []
    skipped = 0.0
    if args.init and args.init.is_file():
        take_ternary(model, args.init)
        skipped = PHASES[-2].until
    elif args.init:
        take_over(model, args.init, tok)
        skipped = PHASES[0].until
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
        print(f"resuming from step {done}, after {trained_s / 60:.1f} minutes" if done else "", flush=True)
        checks = [Windows(val, Phase(1.0, (512,)), 512, marker.start, 0).batch(4096) for _ in range(2)]
        sets = probe_sets(tok, marker, args.probes)

    trunk = Trunk(model)
    fast = torch.compile(trunk, dynamic=False) if args.compile else trunk
    weights = torch.tensor(WEIGHTS)
    if rank == 0 and args.init and not done:
        found = probe(trunk, model.token_embd, sets, STORY_ASKED)
        probes.append(["0", "0", *(f"{v:.3f}" for v in found.values())])
        print(f"step 0  validation {validation(trunk, model, checks, weights):.4f}", flush=True)
        print("  ".join(f"{name} {v:.0%}" for name, v in found.items()), flush=True)
    began, first, before = time.monotonic(), read, trained_s
    while True:
        trained_s = team.first(before + time.monotonic() - began)
        progress = done / args.steps if args.steps else trained_s / (60 * args.minutes)
        if progress >= 1 or done == args.stop:
            break
        place = skipped + (1 - skipped) * progress
        now = next(i for i, phase in enumerate(PHASES) if place < phase.until)
        windows = phases[now].at(done, args.batch // args.workers)
        x, y, marks, rivals = windows.batch(args.batch // args.workers)
        total = weights[marks].sum()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(fast, model, x, y, marks, rivals, weights)
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


def save(path: Path, state: dict) -> None:
    """Writes to a temporary file and renames it, so that a checkpoint is complete or absent."""
    part = path.with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)


def plot(rows: list[list[str]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    tokens = [int(r[1]) / 1e6 for r in rows]
    axes.plot(tokens, [float(r[3]) for r in rows], linewidth=0.8, label="training")
    checked = [(t, float(r[4])) for t, r in zip(tokens, rows) if r[4]]
    axes.plot([t for t, _ in checked], [v for _, v in checked], "o-", markersize=3, label="validation")
    axes.set(xlabel="million tokens", ylabel="loss (nats per token)", ylim=(None, 6))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def table(path: Path, names: list[str], rows: list[list[str]]) -> None:
    with open(path, "w", newline="") as out:
        csv.writer(out).writerows([names, *rows])


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    prepare(args.corpus, args.out, SHAPES[args.shape].n_vocab, args.init)
    torch.multiprocessing.spawn(train, (args,), args.workers)


if __name__ == "__main__":
    main()
