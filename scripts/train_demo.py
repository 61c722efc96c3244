#!/usr/bin/env python3
"""Trains the demo model: a small BitNet b1.58 on public-domain stories.

The forward pass is the one that src/model/bitnet.rs writes down: ternary weights by absmean, int8 activations
per token, squared ReLU, sub-norms, rotary embedding in halves, grouped queries, tied embedding. Gradients
pass the two roundings unchanged (straight through).

    python scripts/train_demo.py --corpus stories.txt --out run --steps 3000

The folder `run` then holds tokenizer.json, checkpoint.pt, validation.txt, loss.csv and loss.png. Stopped at
any time, the same command goes on from the last checkpoint; the result depends on the seed and the flags
alone, not on where it was stopped. scripts/export_demo.py turns the checkpoint into a Hugging Face folder and
a GGUF.

Needs: torch, numpy, tokenizers, matplotlib.
"""

import argparse
import csv
import hashlib
import math
import os
import re
import struct
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

END = "<|endoftext|>"
"""Begins and ends every document; the only special token."""


@dataclass(frozen=True)
class Shape:
    """What stands in the file's metadata."""

    n_vocab: int = 4096
    n_layers: int = 4
    dim: int = 256
    n_heads: int = 2
    n_kv_heads: int = 1
    head_dim: int = 128
    ffn_dim: int = 768
    n_ctx: int = 1024
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
    """The rotary embedding of [.., positions, head_dim]: element i turns with element i + head_dim / 2."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


BLOCK = 512
"""Positions whose attention is computed at a time: those behind them need not be looked at."""


def attention(q: Tensor, k: Tensor, v: Tensor, unseen: Tensor) -> Tensor:
    """Attention of queries [sequences, heads, positions, head_dim] over keys and values of as many heads or
    fewer, each shared by neighbouring query heads. `unseen` says which keys a query does not see, all later
    ones among them.

    Plain products: PyTorch's fused attention took 40 % of a pass in bfloat16 on a CPU, and a pass with these
    was 1.1 times as fast.
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
    """Token ids [sequences, positions] to the mean loss a token of the ids that follow."""

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

    def hidden(self, ids: Tensor, document: Tensor | None = None) -> Tensor:
        """What the head sees of each token. With the number of each token's `document`, a token sees its own
        document alone."""
        n_pos = ids.shape[1]
        unseen = torch.ones(n_pos, n_pos, dtype=torch.bool, device=ids.device).triu(1)
        if document is not None:
            unseen = unseen | (document[:, None, :, None] != document[:, None, None, :])
        x = F.embedding(ids, self.token_embd)
        for layer in self.layers:
            x = layer(x, self.cos[:n_pos], self.sin[:n_pos], unseen)
        return F.rms_norm(x, x.shape[-1:], self.output_norm, self.shape.norm_eps)

    def logits(self, ids: Tensor) -> Tensor:
        return F.linear(self.hidden(ids), self.token_embd)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(ids).flatten(0, 1), targets.flatten())


# Data


def is_validation(document: str) -> bool:
    """2 % of the documents, by the hash of their text: independent of order, seed and corpus size."""
    return int.from_bytes(hashlib.sha256(document.encode()).digest()[:8], "big") % 50 == 0


def documents(corpus: Path) -> tuple[list[str], list[str]]:
    """Training and validation documents, in the order of the file."""
    every = [text.strip() for text in corpus.read_text().split(END)]
    every = [text for text in every if text]
    return [d for d in every if not is_validation(d)], [d for d in every if is_validation(d)]


def tokenizer(path: Path, texts: list[str], n_vocab: int):
    """The byte-level BPE at `path`, trained on `texts` first where it is not there yet."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if not path.exists():
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # GPT-2's expression
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=n_vocab, special_tokens=[END], initial_alphabet=alphabet)
        made.train_from_iterator(texts, trainer)
        made.save(str(path))
    return Tokenizer.from_file(str(path))


def encode(tok, texts: list[str]) -> list[np.ndarray]:
    """Ids of each document, END in front."""
    end = tok.token_to_id(END)
    return [np.array([end, *e.ids], dtype=np.uint16) for e in tok.encode_batch(texts)]


class Batches:
    """The training text as an endless stream: the documents of each pass in an order of its own.

    Batch `step` is a function of (seed, step) alone.
    """

    def __init__(self, docs: list[np.ndarray], tokens: int, seed: int):
        self.docs, self.tokens, self.seed = docs, tokens, seed
        self.pass_tokens = sum(map(len, docs))
        self.current = (-1, np.empty(0, dtype=np.uint16))

    def at(self, step: int, n_ctx: int) -> tuple[Tensor, Tensor]:
        start = step * self.tokens
        pieces, want = [], self.tokens + 1
        while want:
            number, offset = divmod(start, self.pass_tokens)
            piece = self._pass(number)[offset : offset + want]
            pieces.append(piece)
            start, want = start + len(piece), want - len(piece)
        ids = torch.from_numpy(np.concatenate(pieces).astype(np.int64))
        return ids[:-1].view(-1, n_ctx), ids[1:].view(-1, n_ctx)

    def _pass(self, number: int) -> np.ndarray:
        if self.current[0] != number:
            order = np.random.default_rng((self.seed, number)).permutation(len(self.docs))
            self.current = (number, np.concatenate([self.docs[i] for i in order]))
        return self.current[1]


def simple(docs: list[str], share: float) -> list[bool]:
    """Whether each document is of the `share` in simplest words: most of them among the text's 1500 most
    frequent.
    """
    words = [re.findall("[a-z']+", d.lower()) for d in docs]
    common = {w for w, _ in Counter(w for d in words for w in d).most_common(1500)}
    known = [sum(w in common for w in d) / max(1, len(d)) for d in words]
    limit = sorted(known, reverse=True)[round(share * (len(docs) - 1))]
    return [k >= limit for k in known]


# Beginning from a published file


def read_gguf(path: Path) -> dict[str, Tensor]:
    """The tensors of a GGUF of F32, F16 and I2_S (code - 1 times the tensor's scale), all as f32."""
    return gguf_parts(path)[1]


def gguf_parts(path: Path) -> tuple[dict, dict[str, Tensor]]:
    """The keys of a GGUF, and its tensors as `read_gguf` has them."""
    data = path.read_bytes()
    at = 0

    def take(form: str):
        nonlocal at
        (value,) = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize(form)
        return value

    def text() -> str:
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n : at].decode()

    def value(kind: int):
        if kind == 8:
            return text()
        if kind == 9:
            kind, n = take("I"), take("Q")
            return [value(kind) for _ in range(n)]
        return take("BbHhIif?__Qqd"[kind])

    magic, _, n_tensors, n_keys = take("I"), take("I"), take("Q"), take("Q")
    assert magic == 0x46554747, f"{path} is no GGUF"
    keys = {}
    for _ in range(n_keys):
        name = text()
        keys[name] = value(take("I"))
    infos = []
    for _ in range(n_tensors):
        name, shape = text(), [take("Q") for _ in range(take("I"))][::-1]
        infos.append((name, shape, take("I"), take("Q")))
    start = -(-at // 32) * 32
    found = {}
    for name, shape, kind, offset in infos:
        n, offset = math.prod(shape), start + offset
        if kind == 36:
            codes = np.frombuffer(data, np.uint8, n // 4, offset).reshape(-1, 1, 32)
            codes = codes >> np.array([6, 4, 2, 0], np.uint8).reshape(1, 4, 1) & 3
            values = (codes.astype(np.float32) - 1) * np.frombuffer(data, "<f4", 1, offset + n // 4)
        else:
            values = np.frombuffer(data, {0: "<f4", 1: "<f2"}[kind], n, offset).astype(np.float32)
        found[name] = torch.from_numpy(values.reshape(shape).copy())
    return keys, found


def real_valued(ternary: Tensor) -> Tensor:
    """Weights of a normal distribution that round to about `ternary`, with its scale.

    Where within its code a weight stood is lost in a ternary file; it is drawn anew.
    """
    w = ternary.double()
    zero, scale = w == 0, w.abs().max()
    edge = zero.double().mean() / 2
    u = torch.rand_like(w)
    z = torch.where(
        zero,
        torch.special.ndtri(0.5 + (2 * u - 1) * edge),
        torch.special.ndtri(0.5 + edge + u * (0.5 - edge)),
    )
    z = torch.where(zero, z, z * w.sign())
    return (z * (scale / z.abs().mean())).float()


def begin_from(path: Path, model: BitNet) -> None:
    """Sets the weights of `model` to those of the GGUF at `path`, which has its shape."""
    found = read_gguf(path)
    for name, weight in model.named_parameters():
        value = found[name.replace("layers.", "blk.") + ".weight"]
        assert value.shape == weight.shape, (
            f"{name}: {tuple(value.shape)} in {path}, {tuple(weight.shape)} here"
        )
        inner = weight.ndim == 2 and name != "token_embd"
        weight.data.copy_(real_valued(value) if inner else value)


# Training


class Muon(torch.optim.Optimizer):
    """Momentum whose matrix is made orthogonal by Newton and Schulz's iteration, scaled to the size of an
    Adam step.

    Keller Jordan's method with Moonlight's scale (arXiv:2502.16982). PyTorch's own class iterates in
    bfloat16, which processors without such instructions emulate slowly; this one uses float32.
    """

    def __init__(self, matrices: list[nn.Parameter], lr: float, momentum: float = 0.95):
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for w in group["params"]:
                mean = self.state[w].setdefault("mean", torch.zeros_like(w))
                mean.lerp_(w.grad, 1 - group["momentum"])
                ahead = w.grad.lerp(mean, group["momentum"])
                w.add_(orthogonal(ahead), alpha=-0.2 * max(w.shape) ** 0.5 * group["lr"])


def orthogonal(g: Tensor) -> Tensor:
    """About U V^T of g = U S V^T: five steps of a quintic that drives every singular value towards 1."""
    x = g / (g.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if tall else x


def optimisers(model: BitNet, lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the ternary matrices, Adam for the embedding and the norms."""
    matrices = [p for layer in model.layers for p in layer.parameters() if p.ndim == 2]
    others = [model.token_embd, *(p for p in model.parameters() if p.ndim == 1)]
    return [Muon(matrices, lr), torch.optim.Adam(others, lr, betas=(0.9, 0.98), eps=1e-10)]


def rate(step: int, steps: int, warmup: int, decay: int) -> float:
    """Share of the learning rate: a rise, a plateau, a straight way down to 0 in the last `decay` steps."""
    return min(1.0, (step + 1) / warmup, (steps - step) / decay)


@torch.no_grad()
def validation_loss(model: BitNet, docs: list[np.ndarray], n_ctx: int, rows: int) -> float:
    """Mean loss a token over the validation text, cut into windows of `n_ctx` tokens."""
    ids = torch.from_numpy(np.concatenate(docs).astype(np.int64))
    device = next(model.parameters()).device
    windows = (len(ids) - 1) // n_ctx // rows * rows
    x = ids[: windows * n_ctx].view(-1, rows, n_ctx)
    y = ids[1 : windows * n_ctx + 1].view(-1, rows, n_ctx)
    return sum(model(a.to(device), b.to(device)).item() for a, b in zip(x, y)) / len(x)


def save(path: Path, state: dict) -> None:
    """Writes beside `path` and renames, so that a checkpoint is whole or absent."""
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
    axes.set(xlabel="million tokens", ylabel="loss (nats a token)", ylim=(None, 6))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", type=Path, required=True, help="documents, each ended by " + END)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--decay", type=int, default=0, help="last steps, in which the rate falls [a third]")
    parser.add_argument("--stop", type=int, help="stop after this step of the schedule")
    parser.add_argument("--batch", type=int, default=8192, help="tokens a step")
    parser.add_argument(
        "--context", type=int, default=512, help="tokens of a sequence on the plateau; in the decay n_ctx"
    )
    parser.add_argument(
        "--init", type=Path,
        help="GGUF of this shape to begin from, with its tokens, instead of random weights",
    )
    parser.add_argument(
        "--simple", type=float, default=1.0,
        help="share of the documents, those in simplest words, that the decay uses",
    )
    parser.add_argument(
        "--bf16", action="store_true",
        help="products in bfloat16: faster where the processor has instructions for it",
    )
    parser.add_argument(
        "--part", type=int, default=2048, help="tokens of one forward pass; a step adds up its parts"
    )
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--compile", action="store_true",
        help="torch.compile: passes 1.5 times as fast on two cores, needs a C++ compiler",
    )
    parser.add_argument("--check-every", type=int, default=250, help="steps between validations")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    decay = args.decay or max(1, args.steps // 3)
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)

    shape = Shape()
    train_texts, val_texts = documents(args.corpus)
    tok = tokenizer(args.out / "tokenizer.json", train_texts, shape.n_vocab)
    (args.out / "validation.txt").write_text(END.join(val_texts))
    train, val = encode(tok, train_texts), encode(tok, val_texts)
    batches = Batches(train, args.batch, args.seed)
    chosen = [ids for ids, easy in zip(train, simple(train_texts, args.simple)) if easy]
    last_batches = Batches(chosen, args.batch, args.seed)
    print(
        f"{len(train)} documents, {batches.pass_tokens} tokens; in the decay {len(chosen)}, "
        f"{last_batches.pass_tokens}; validation {len(val)}, {sum(map(len, val))}",
        flush=True,
    )

    model = BitNet(shape).to(args.device)
    print(f"{sum(p.numel() for p in model.parameters())} weights", flush=True)
    if args.init:
        begin_from(args.init, model)
    opts = optimisers(model, args.lr)
    first, rows = 0, []
    checkpoint = args.out / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=args.device, weights_only=True)
        assert state["shape"] == asdict(shape), "the checkpoint has another shape"
        model.load_state_dict(state["model"])
        for opt, saved in zip(opts, state["optimisers"]):
            opt.load_state_dict(saved)
        first, rows = state["step"], state["rows"]
        print(f"going on from step {first}", flush=True)

    mean_loss = torch.compile(model) if args.compile else model
    began, last = time.monotonic(), args.stop or args.steps
    for step in range(first, last):
        falling = step >= args.steps - decay
        n_ctx = shape.n_ctx if falling else args.context
        share = rate(step, args.steps, args.warmup, decay)
        text = last_batches if falling else batches
        x, y = (t.to(args.device).split(args.part // n_ctx) for t in text.at(step, n_ctx))
        loss = 0.0
        for a, b in zip(x, y):
            with torch.autocast(args.device, torch.bfloat16, enabled=args.bf16):
                part = mean_loss(a, b) / len(x)
            part.backward()
            loss += part.item()
        for opt in opts:
            for group in opt.param_groups:
                group["lr"] = args.lr * share
            opt.step()
            opt.zero_grad()
        done = step + 1
        checked = done % args.check_every == 0 or done == last
        with torch.autocast(args.device, torch.bfloat16, enabled=args.bf16):
            val_loss = validation_loss(mean_loss, val, n_ctx, args.part // n_ctx) if checked else None
        shown = f"{val_loss:.4f}" if checked else ""
        rows.append([str(done), str(done * args.batch), f"{share:.4f}", f"{loss:.4f}", shown])
        if checked or done % 10 == 0:
            speed = (done - first) * args.batch / (time.monotonic() - began)
            print(
                f"step {done}  loss {loss:.4f}  validation {shown or '-'}  {speed:.0f} tokens/s", flush=True
            )
        if checked or done % args.save_every == 0:
            state = {"shape": asdict(shape), "step": done, "rows": rows}
            state |= {"model": model.state_dict(), "optimisers": [opt.state_dict() for opt in opts]}
            save(checkpoint, state)
            with open(args.out / "loss.csv", "w", newline="") as out:
                csv.writer(out).writerows([["step", "tokens", "rate", "loss", "validation"], *rows])
            plot(rows, args.out / "loss.png")
    if rows and rows[-1][4]:
        print(f"validation perplexity {math.exp(float(rows[-1][4])):.2f} a token")


if __name__ == "__main__":
    main()
