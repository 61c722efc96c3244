#!/usr/bin/env python3
"""Trains a BitNet b1.58 on the small world of scripts/corpus: stories and conversations.

    python3 scripts/corpus/make_corpus.py --seed 1 --documents 420000 > world.txt
    python scripts/train_world.py --corpus world.txt --out run --steps 3600 --compile --bf16
    python scripts/export_demo.py run

The model, the optimisers and the straight-through rounding are those of train_demo.py: ternary from the
first step. It begins from weights that can nearly copy (begin.py). Documents are packed whole into windows,
what a user says is read but not learned, digits are tokens of their own, and in some windows random tokens
come twice or more often, so that the model learns to bring back what it has seen.

The run ends after `--minutes` of training, or after `--steps`; stopped before, the same command goes on
from the last checkpoint. With `--steps` the result depends on the flags and the library alone; with
`--minutes` on the machine's speed, too, and the number of steps is printed at the end.

The folder `run` then holds tokenizer.json, checkpoint.pt, validation.txt, loss.csv and loss.png.

Needs: torch, numpy, tokenizers, matplotlib. Written with torch 2.15.
"""

import argparse
import csv
import math
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from begin import begin
from train_demo import END, BitNet, Shape, is_validation, optimisers, plot, save

SPECIALS = [END, "<|im_start|>", "<|im_end|>"]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""The pre-tokenizer that GGUF names `qwen2`: each digit is a piece."""
REPEATS = (0.5, 0.1)
"""Shares of windows that are repeats, in tenths: while copying is learned, and later."""
IGNORED = -100
"""A target that adds nothing to the loss."""

SHAPES = {
    "deep": Shape(n_layers=6, dim=256, n_heads=2, n_kv_heads=2, head_dim=128, ffn_dim=768, n_ctx=2048),
    "heads": Shape(n_layers=6, dim=256, n_heads=4, n_kv_heads=4, head_dim=64, ffn_dim=768, n_ctx=2048),
    "tiny": Shape(n_layers=2, dim=128, n_heads=1, n_kv_heads=1, head_dim=128, ffn_dim=256, n_ctx=2048),
}
"""Columns of I2_S come in blocks of 128. All but `tiny`, which is for trying the scripts, fit in 6 MB."""


# Text


def documents(corpus: Path) -> tuple[list[str], list[str]]:
    every = [text.strip() for text in corpus.read_text().split(END)]
    every = [text for text in every if text]
    return [d for d in every if not is_validation(d)], [d for d in every if is_validation(d)]


def tokenizer(path: Path, texts: list[str], n_vocab: int):
    """The byte-level BPE at `path`, made of the first texts if it is not there yet."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    if not path.exists():
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(SPLIT), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=n_vocab, special_tokens=SPECIALS, initial_alphabet=alphabet, min_frequency=3
        )
        made.train_from_iterator(texts[:40000], trainer)
        made.save(str(path))
    return Tokenizer.from_file(str(path))


class Text:
    """Documents as one array of ids, END before each, and for each id whether it is learned.

    In a conversation only what the assistant says is, its end of turn included.
    """

    def __init__(self, tok, texts: list[str]):
        end, start, stop = (tok.token_to_id(s) for s in SPECIALS)
        answers = tok.encode("<|im_start|>assistant\n").ids
        ids, learned, self.starts = [], [], [0]
        for first in range(0, len(texts), 4096):
            for encoded in tok.encode_batch(texts[first : first + 4096]):
                doc = np.array([end, *encoded.ids], dtype=np.uint16)
                if len(doc) > 1 and doc[1] == start:
                    mask = np.zeros(len(doc), dtype=bool)
                    for at in np.flatnonzero(doc == start):
                        if list(doc[at : at + len(answers)]) == answers:
                            last = at + int(np.argmax(doc[at:] == stop))
                            mask[at + len(answers) : last + 1] = True
                else:
                    # A story ends with END, so that a generation does.
                    doc = np.append(doc, np.uint16(end))
                    mask = np.ones(len(doc), dtype=bool)
                    mask[0] = False
                ids.append(doc)
                learned.append(mask)
                self.starts.append(self.starts[-1] + len(doc))
        self.ids, self.learned = np.concatenate(ids), np.concatenate(learned)

        self.starts = np.array(self.starts)

    def __len__(self) -> int:
        return len(self.starts) - 1


def prepare(corpus: Path, out: Path, n_vocab: int) -> tuple[Text, Text]:
    """Training and validation text, from the run's folder if they are there."""
    kept = out / "text.pt"
    if not kept.exists():
        train, val = documents(corpus)
        tok = tokenizer(out / "tokenizer.json", train, n_vocab)
        assert tok.get_vocab_size() == n_vocab, f"{tok.get_vocab_size()} tokens: the corpus is too small"
        (out / "validation.txt").write_text(END.join(val[:300]))
        texts = [vars(Text(tok, train)), vars(Text(tok, val[:600]))]
        arrays = [{name: torch.from_numpy(array) for name, array in text.items()} for text in texts]
        save(kept, {"bytes": corpus.stat().st_size, "texts": arrays})
    state = torch.load(kept, weights_only=True)
    assert state["bytes"] == corpus.stat().st_size, f"{kept} was made of another corpus"
    texts = []
    for arrays in state["texts"]:
        text = Text.__new__(Text)
        vars(text).update({name: array.numpy() for name, array in arrays.items()})
        texts.append(text)
    return texts[0], texts[1]


class Windows:
    """Endless windows of `n_ctx` + 1 ids, each of whole documents (the last one is cut where none fits).

    What comes next is a function of the seed and of how many were taken.
    """

    def __init__(self, text: Text, n_ctx: int, chosen: np.ndarray, seed: int, specials: int):
        self.text, self.n_ctx, self.chosen, self.seed, self.specials = text, n_ctx, chosen, seed, specials
        self.n_vocab = int(text.ids.max()) + 1
        self.taken, self.number, self.order, self.at = 0, 0, np.empty(0, int), 0

    def state(self) -> list[int]:
        return [self.taken, self.number, self.at]

    def restore(self, state: list[int]) -> None:
        self.taken, self.number, self.at = state
        if self.number:
            self.order = self._order(self.number - 1)

    def _order(self, number: int) -> np.ndarray:
        return np.random.default_rng((self.seed, self.n_ctx, number)).permutation(self.chosen)

    def _next(self) -> int:
        if self.at == len(self.order):
            self.order, self.at, self.number = self._order(self.number), 0, self.number + 1
        self.at += 1
        return self.order[self.at - 1]

    def take(self, needles: bool, repeats: bool) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of one window: of documents, with needles in them or not, or of repeats."""
        size = self.n_ctx + 1
        rng = np.random.default_rng((self.seed, self.n_ctx, 7, self.taken))
        self.taken += 1
        if repeats:
            ids, mask = self._repeats(size, rng)
            return ids[:-1], np.where(mask, ids, IGNORED)[1:]
        parts, learned, filled = [], [], 0
        room = size
        inserted = rng.integers(self.n_ctx // 128, self.n_ctx // 64) if needles else 0
        room -= inserted * 16
        while filled < room:
            i = self._next()
            a, b = self.text.starts[i], min(self.text.starts[i + 1], self.text.starts[i] + room - filled)
            parts.append(self.text.ids[a:b])
            learned.append(self.text.learned[a:b])
            filled += b - a
        ids, mask = np.concatenate(parts).astype(np.int64), np.concatenate(learned)
        if inserted:
            ids, mask = self._with_needles(ids, mask, int(inserted), rng)
        return ids[:-1], np.where(mask, ids, IGNORED)[1:]

    def _repeats(self, size: int, rng) -> tuple[np.ndarray, np.ndarray]:
        """Some runs of random ids, over and over in any order; what comes again is learned."""
        most = self.n_ctx // 512
        n = int(rng.choice([1, 1, 2, 3, 6, 10])) * most
        runs = [rng.integers(self.specials, self.n_vocab, rng.integers(4, 33)) for _ in range(n)]
        seen, parts, masks, filled = set(), [], [], 0
        while filled < size:
            which = int(rng.integers(n))
            mask = np.full(len(runs[which]), which in seen)
            # Nobody can tell which run begins.
            mask[0] = False
            seen.add(which)
            parts.append(runs[which])
            masks.append(mask)
            filled += len(mask)
        return np.concatenate(parts)[:size], np.concatenate(masks)[:size]

    def _with_needles(self, ids, mask, n: int, rng) -> tuple[np.ndarray, np.ndarray]:
        """Each of `n` runs of eight random ids stands in the window twice; what follows its first ids the
        second time is learned."""
        runs = rng.integers(self.specials, self.n_vocab, (n, 8))
        places = np.sort(rng.integers(1, len(ids), 2 * n))
        order = rng.permutation(2 * n).reshape(n, 2)
        firsts, seconds = order.min(1), order.max(1)
        pieces, masks, at = [], [], 0
        owner = {int(p): (r, False) for r, p in enumerate(firsts)} | {
            int(p): (r, True) for r, p in enumerate(seconds)
        }
        for number, place in enumerate(places):
            run, again = owner[number]
            pieces += [ids[at:place], runs[run]]
            masks += [mask[at:place], np.array([False] * 2 + [again] * 6)]
            at = place
        return np.concatenate([*pieces, ids[at:]]), np.concatenate([*masks, mask[at:]])


def batch(windows: Windows, n: int, needles: float, step: int, repeats: float = 0) -> tuple[Tensor, Tensor]:
    turns = [(step * 7 + i) % 10 / 10 for i in range(n)]
    pairs = [windows.take(turn < needles, turn >= 1 - repeats) for turn in turns]
    return tuple(torch.from_numpy(np.stack(t)) for t in zip(*pairs))


# Training


def loss_of(model: BitNet, ids: Tensor, targets: Tensor) -> Tensor:
    """Sum of the loss over the learned targets: parts of a batch hold different numbers of them."""
    return F.cross_entropy(
        model.logits(ids).flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )


class Loss(torch.nn.Module):
    def __init__(self, model: BitNet):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        return loss_of(self.model, ids, targets)


@torch.no_grad()
def validation(loss_fn: nn.Module, x: Tensor, y: Tensor, args: argparse.Namespace) -> float:
    """Mean loss over the learned targets."""
    n = args.part // args.context
    with torch.autocast(args.device, torch.bfloat16, enabled=args.bf16):
        sums = [
            loss_fn(a.to(args.device), b.to(args.device)).item() for a, b in zip(x.split(n), y.split(n))
        ]
    return sum(sums) / int((y != IGNORED).sum())


def rate(step: int, progress: float, warmup: int, decay: float) -> float:
    """Share of the learning rate: a rise, a plateau, a straight way down to 0 in the last share of the
    run."""
    return max(0.0, min(1.0, (step + 1) / warmup, (1 - progress) / decay))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", type=Path, required=True, help="text of make_corpus.py")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float, help="training time, over all starts of the run")
    budget.add_argument("--steps", type=int)
    parser.add_argument("--stop", type=int, help="stop after this step of the schedule")
    parser.add_argument("--shape", choices=SHAPES, default="heads")
    parser.add_argument("--batch", type=int, default=8192, help="tokens a step")
    parser.add_argument("--context", type=int, default=512, help="tokens of a short window")
    parser.add_argument(
        "--long-every",
        type=int,
        default=6,
        help="of so many steps one has windows of all positions, after a quarter of the run",
    )
    parser.add_argument(
        "--copying",
        type=float,
        default=0.03,
        help="first share of the run, in which half of the windows are repeats of random tokens",
    )
    parser.add_argument("--needles", type=float, default=0.3, help="share of windows with random runs twice")
    parser.add_argument(
        "--decay", type=float, default=0.4, help="last share of the run, in which the rate falls"
    )
    parser.add_argument("--part", type=int, default=8192, help="tokens of one forward pass")
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile; needs a C++ compiler")
    parser.add_argument("--bf16", action="store_true", help="products in bfloat16")
    parser.add_argument("--check-every", type=int, default=250, help="steps between validations")
    parser.add_argument("--save-every", type=int, default=100, help="steps between checkpoints")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    shape = SHAPES[args.shape]

    text, val = prepare(args.corpus, args.out, shape.n_vocab)
    lengths = np.diff(text.starts)
    every = np.arange(len(text))
    short = Windows(text, args.context, every[lengths <= args.context], args.seed, len(SPECIALS))
    long = Windows(text, shape.n_ctx, every, args.seed, len(SPECIALS))
    check = Windows(val, args.context, np.arange(len(val)), 0, len(SPECIALS))
    val_x, val_y = batch(check, 32, 0, 0)
    copy_x, copy_y = batch(check, 8, 0, 0, 1)
    print(
        f"{len(text)} documents, {len(text.ids)} tokens, {text.learned.mean():.0%} learned, "
        f"{(lengths > args.context).mean():.1%} longer than {args.context}",
        flush=True,
    )

    model = BitNet(shape)
    begin(model, args.seed)
    model.to(args.device)
    print(f"{sum(p.numel() for p in model.parameters())} weights", flush=True)
    opts = optimisers(model, args.lr)
    done, trained_s, rows = 0, 0.0, []
    checkpoint = args.out / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=args.device, weights_only=True)
        assert state["shape"] == asdict(shape), "the checkpoint has another shape"
        model.load_state_dict(state["model"])
        for opt, saved in zip(opts, state["optimisers"]):
            opt.load_state_dict(saved)
        done, trained_s, rows = state["step"], state["trained_s"], state["rows"]
        print(f"going on from step {done}, after {trained_s / 60:.1f} minutes", flush=True)
        short.restore(state["short"])
        long.restore(state["long"])

    loss_fn = torch.compile(Loss(model), dynamic=False) if args.compile else Loss(model)
    began, began_tokens, before = time.monotonic(), done, trained_s
    while True:
        trained_s = before + time.monotonic() - began
        progress = done / args.steps if args.steps else trained_s / (60 * args.minutes)
        if progress >= 1 or done == args.stop:
            break
        is_long = progress > 0.25 and done % args.long_every == args.long_every - 1
        windows = long if is_long else short
        repeats = REPEATS[progress >= args.copying]
        x, y = batch(windows, args.batch // windows.n_ctx, args.needles, done, repeats)
        share = rate(done, progress, args.warmup, args.decay)
        n_learned, total = int((y != IGNORED).sum()), 0.0
        rows_a_part = max(1, args.part // windows.n_ctx)
        for a, b in zip(x.split(rows_a_part), y.split(rows_a_part)):
            with torch.autocast(args.device, torch.bfloat16, enabled=args.bf16):
                part = loss_fn(a.to(args.device), b.to(args.device)) / n_learned
            part.backward()
            total += part.item()
        for opt in opts:
            for group in opt.param_groups:
                group["lr"] = args.lr * share
            with torch.autocast(args.device, torch.bfloat16, enabled=args.bf16):
                opt.step()
            opt.zero_grad()
        done += 1
        trained_s = before + time.monotonic() - began
        last = done == args.stop or (done >= args.steps if args.steps else trained_s >= 60 * args.minutes)
        checked = last or done % args.check_every == 0
        shown = copied = ""
        if checked:
            shown = f"{validation(loss_fn, val_x, val_y, args):.4f}"
            copied = f"  repeats {validation(loss_fn, copy_x, copy_y, args):.4f}"
        rows.append([str(done), str(done * args.batch), f"{share:.4f}", f"{total:.4f}", shown])
        if checked or done % 10 == 0:
            speed = (done - began_tokens) * args.batch / (time.monotonic() - began)
            print(
                f"step {done}  {trained_s / 60:.1f} min  rate {share:.2f}  "
                f"loss {total:.4f}{' long' * is_long}  "
                f"validation {shown or '-'}{copied}  {speed:.0f} tokens/s",
                flush=True,
            )
        if checked or done % args.save_every == 0:
            state = {"shape": asdict(shape), "step": done, "trained_s": trained_s, "rows": rows}
            state |= {"short": short.state(), "long": long.state(), "model": model.state_dict()}
            save(checkpoint, state | {"optimisers": [opt.state_dict() for opt in opts]})
            with open(args.out / "loss.csv", "w", newline="") as out:
                csv.writer(out).writerows([["step", "tokens", "rate", "loss", "validation"], *rows])
            plot(rows, args.out / "loss.png")
    print(f"{done} steps, {done * args.batch / 1e6:.1f} million tokens, {trained_s / 60:.1f} minutes")
    if rows and rows[-1][4]:
        print(f"validation perplexity {math.exp(float(rows[-1][4])):.3f} a learned token")


if __name__ == "__main__":
    main()
