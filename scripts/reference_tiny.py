#!/usr/bin/env python3
"""Creates a tiny random model of each architecture, and the results that numpy computes with its weights in
float64.

    pip install numpy
    scripts/reference_tiny.py write tests/data/golden     tiny/NAME.gguf, NAME.tokens.npy, NAME.np-fp64.npy
    scripts/reference_tiny.py check MODEL.gguf PROMPTS.txt LOGITS.npy

`check` compares this forward pass with the logits that transformers computed for a larger model. It agrees
with the files of `shared/golden` to 1e-5; so a new architecture is first checked there, and then written
here.
"""

import math
import struct
import sys
from pathlib import Path

import numpy as np

F32, F16, I2_S = 0, 1, 36
DIM, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, TOKENS = 32, 2, 1, 16, 32, 64, 24
FORMATS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}


def read(path):
    """Metadata, and the tensors in float64, rows first."""
    data = memoryview(Path(path).read_bytes())
    at = 4

    def take(form):
        nonlocal at
        (value,) = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        return value

    def text():
        nonlocal at
        n = take("<Q")
        at += n
        return bytes(data[at - n : at]).decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, n = take("<I"), take("<Q")
            return [value(inner) for _ in range(n)]
        return take(FORMATS[kind])

    take("<I")
    n_tensors, n_keys = take("<Q"), take("<Q")
    keys = {}
    for _ in range(n_keys):
        key = text()
        keys[key] = value(take("<I"))
    infos = []
    for _ in range(n_tensors):
        name = text()
        dims = [take("<Q") for _ in range(take("<I"))]
        infos.append((name, dims[::-1], take("<I"), take("<Q")))
    align = keys.get("general.alignment", 32)
    start = (at + align - 1) // align * align
    tensors = {}
    for name, dims, kind, offset in infos:
        n = math.prod(dims)
        if kind == I2_S:
            packed = np.frombuffer(data, np.uint8, n // 4, start + offset).reshape(-1, 32)
            codes = np.stack([packed >> shift & 3 for shift in (6, 4, 2, 0)], axis=1)
            (scale,) = struct.unpack_from("<f", data, start + offset + n // 4)
            tensors[name] = ((codes.astype(np.float64) - 1).reshape(dims), scale)
        else:
            of = {F32: np.float32, F16: np.float16}[kind]
            tensors[name] = np.frombuffer(data, of, n, start + offset).reshape(dims).astype(np.float64)
    return keys, tensors


def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def layer_norm(x, weight, bias, eps):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight + bias


def rope(x, base, dims, adjacent, factors=None, scale=1.0):
    """`x` is [tokens, heads, head_dim]."""
    pairs = dims // 2
    freq = base ** (-2.0 * np.arange(pairs) / dims) / (1.0 if factors is None else factors) / scale
    angle = np.arange(len(x))[:, None, None] * freq
    first = np.arange(pairs) * 2 if adjacent else np.arange(pairs)
    second = first + 1 if adjacent else first + pairs
    out = x.copy()
    out[..., first] = x[..., first] * np.cos(angle) - x[..., second] * np.sin(angle)
    out[..., second] = x[..., first] * np.sin(angle) + x[..., second] * np.cos(angle)
    return out


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_tanh(x):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def product(x, weight):
    """Matrix product. BitNet's product quantises its input to int8, each row by its largest magnitude."""
    if isinstance(weight, tuple):
        codes, factor = weight
        scale = 127 / np.maximum(np.abs(x).max(-1, keepdims=True), 1e-5)
        return np.clip(np.rint(x * scale), -128, 127) @ codes.T / scale * factor
    return x @ weight.T


def forward(keys, t, tokens):
    """Logits of every token; for an encoder the normalised rows."""
    arch = keys["general.architecture"]
    key = lambda name, default=None: keys.get(f"{arch}.{name}", default)
    bert, gemma, gpt2 = arch in ("bert", "nomic-bert"), arch.startswith("gemma"), arch == "gpt2"
    dim, n_heads = key("embedding_length"), key("attention.head_count")
    head_dim = key("attention.key_length", None) or dim // n_heads
    eps = key("attention.layer_norm_rms_epsilon", key("attention.layer_norm_epsilon"))
    adjacent = arch in ("llama", "smollm3", "minicpm")
    causal = key("attention.causal", True)
    n = len(tokens)
    pos = np.arange(n)
    window, pattern = key("attention.sliding_window"), key("attention.sliding_window_pattern", 6)
    act = {"gpt2": gelu_tanh, "bert": gelu}.get(arch, gelu_tanh if gemma else silu)
    if arch in ("bitnet-b1.58", "bitnet-25"):
        act = lambda x: np.maximum(x, 0) ** 2

    def linear(name, x):
        y = product(x, t[f"{name}.weight"])
        return y + t[f"{name}.bias"] if f"{name}.bias" in t else y

    def norm(name, x):
        if f"{name}.bias" in t:
            return layer_norm(x, t[f"{name}.weight"], t[f"{name}.bias"], eps)
        return rms(x, t[f"{name}.weight"], eps)

    x = t["token_embd.weight"][tokens] * (math.sqrt(dim) if gemma else 1.0)
    if "position_embd.weight" in t:
        x = x + t["position_embd.weight"][pos]
    if "token_types.weight" in t:
        x = x + t["token_types.weight"][0]
    if bert:
        x = norm("token_embd_norm", x)
    for layer in range(key("block_count")):
        blk = f"blk.{layer}"
        # Files may have an array, one value per layer.
        each = [key("attention.head_count"), key("attention.head_count_kv", key("attention.head_count"))]
        n_heads, n_kv = (number[layer] if isinstance(number, list) else number for number in each)
        slides = window is not None and layer % pattern != pattern - 1
        into = x if bert else norm(f"{blk}.attn_norm", x)
        if f"{blk}.attn_qkv.weight" in t:
            cuts = [n_heads * head_dim, (n_heads + n_kv) * head_dim]
            parts = np.split(linear(f"{blk}.attn_qkv", into), cuts, -1)
        else:
            parts = [linear(f"{blk}.attn_{which}", into) for which in "qkv"]
        q, k, v = (part.reshape(n, -1, head_dim) for part in parts)
        if f"{blk}.attn_q_norm.weight" in t:
            q, k = norm(f"{blk}.attn_q_norm", q), norm(f"{blk}.attn_k_norm", k)
        if not (arch in ("gpt2", "bert") or (arch == "smollm3" and layer % 4 == 3)):
            base = key("rope.freq_base_swa", 10000.0) if slides else key("rope.freq_base", 10000.0)
            scale = 1.0 if slides else key("rope.scaling.factor", 1.0)
            dims = key("rope.dimension_count", head_dim)
            q, k = (rope(part, base, dims, adjacent, t.get("rope_freqs.weight"), scale) for part in (q, k))
        k, v = (np.repeat(part, n_heads // n_kv, 1) for part in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(head_dim)
        ahead = pos[None, :] - pos[:, None]
        seen = ahead <= 0 if causal else np.full((n, n), True)
        if slides:
            seen = seen & (-ahead < window) if causal else np.abs(ahead) <= window // 2
        scores = np.where(seen, scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        y = np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v).reshape(n, -1)
        if f"{blk}.attn_sub_norm.weight" in t:
            y = norm(f"{blk}.attn_sub_norm", y)
        y = linear(f"{blk}.attn_output", y)
        x = x + (norm(f"{blk}.post_attention_norm", y) if gemma else y)
        if bert:
            x = norm(f"{blk}.attn_output_norm", x)
        into = x if bert else norm(f"{blk}.ffn_norm", x)
        if f"{blk}.ffn_gate_exps.weight" in t:
            x = x + mixture(t, blk, into, key("expert_used_count"))
            continue
        hidden = linear(f"{blk}.ffn_up", into)
        if f"{blk}.ffn_gate.weight" in t:
            hidden = act(linear(f"{blk}.ffn_gate", into)) * hidden
        else:
            hidden = act(hidden)
        if f"{blk}.ffn_sub_norm.weight" in t:
            hidden = norm(f"{blk}.ffn_sub_norm", hidden)
        y = linear(f"{blk}.ffn_down", hidden)
        x = x + (norm(f"{blk}.post_ffw_norm", y) if gemma else y)
        if bert:
            x = norm(f"{blk}.layer_output_norm", x)
    if bert:
        return x
    x = norm("output_norm", x)
    return x @ t.get("output.weight", t["token_embd.weight"]).T if causal else x


def mixture(t, blk, n, n_used):
    router = n @ t[f"{blk}.ffn_gate_inp.weight"].T
    out = np.zeros_like(n)
    for row in range(len(n)):
        chosen = np.argsort(-router[row], kind="stable")[:n_used]
        p = np.exp(router[row][chosen] - router[row][chosen].max())
        for share, expert in zip(p / p.sum(), chosen):
            gate, up, down = (t[f"{blk}.ffn_{name}_exps.weight"][expert] for name in ("gate", "up", "down"))
            out[row] += share * (down @ (silu(gate @ n[row]) * (up @ n[row])))
    return out


class Writer:
    """A GGUF file of random weights."""

    def __init__(self, arch, seed, **keys):
        self.random = np.random.default_rng(seed)
        self.arch, self.keys, self.tensors = arch, [], []
        self.key("general.architecture", arch)
        self.key("general.name", f"tiny random {arch}")
        for name, value in keys.items():
            self.key(f"{arch}.{name.replace('__', '.')}", value)

    def key(self, name, value):
        kinds = {str: 8, bool: 7, int: 4, float: 6, list: 9}
        kind = kinds[type(value)]
        if kind == 9 and isinstance(value[0], str):
            encoded = struct.pack("<IQ", 8, len(value)) + b"".join(map(text, value))
        elif kind == 9:
            encoded = struct.pack(f"<IQ{len(value)}I", 4, len(value), *value)
        else:
            encoded = text(value) if kind == 8 else struct.pack(FORMATS[kind], value)
        self.keys.append(text(name) + struct.pack("<I", kind) + encoded)

    def add(self, name, shape, kind, data):
        self.tensors.append((name, shape, kind, data))

    def matrix(self, name, *shape, deviation=None):
        deviation = deviation or 1.5 / math.sqrt(shape[-1])
        values = self.random.standard_normal(shape) * deviation
        self.add(name, shape, F16, values.astype(np.float16).tobytes())

    def ternary(self, name, rows, cols):
        codes = self.random.integers(0, 3, (rows * cols // 128, 4, 32)).astype(np.uint8)
        packed = codes[:, 0] << 6 | codes[:, 1] << 4 | codes[:, 2] << 2 | codes[:, 3]
        scale = np.float32(1.5 / math.sqrt(cols))
        self.add(name, (rows, cols), I2_S, packed.tobytes() + scale.tobytes() + bytes(28))

    def vector(self, name, n, mean=0.0):
        self.add(name, (n,), F32, (self.random.standard_normal(n) * 0.2 + mean).astype(np.float32).tobytes())

    def norm(self, name, n, bias=False):
        self.vector(f"{name}.weight", n, 1.0)
        if bias:
            self.vector(f"{name}.bias", n)

    def write(self, path):
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys)) + b"".join(self.keys)
        body = b""
        for name, shape, kind, data in self.tensors:
            dims = b"".join(struct.pack("<Q", n) for n in shape[::-1])
            head += text(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", kind, len(body))
            body += data + bytes(-len(data) % 32)
        Path(path).write_bytes(head + bytes(-len(head) % 32) + body)


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def layered(seed):
    """A Llama whose two layers have different heads and widths."""
    heads, kv_heads, widths = [2, 4], [1, 2], [32, 48]
    m = Writer(
        "llama", seed, block_count=2, context_length=32, embedding_length=DIM, feed_forward_length=widths,
        attention__head_count=heads, attention__head_count_kv=kv_heads, attention__key_length=HEAD_DIM,
        attention__value_length=HEAD_DIM, attention__layer_norm_rms_epsilon=1e-5,
        rope__dimension_count=HEAD_DIM,
    )
    m.matrix("token_embd.weight", VOCAB, DIM, deviation=1.0)
    for layer, (n_heads, n_kv, width) in enumerate(zip(heads, kv_heads, widths)):
        blk, q = f"blk.{layer}", n_heads * HEAD_DIM
        m.norm(f"{blk}.attn_norm", DIM)
        for name, rows, cols in [("q", q, DIM), ("k", n_kv * HEAD_DIM, DIM), ("v", n_kv * HEAD_DIM, DIM),
                                 ("output", DIM, q)]:
            m.matrix(f"{blk}.attn_{name}.weight", rows, cols)
        m.norm(f"{blk}.ffn_norm", DIM)
        for name, rows, cols in [("gate", width, DIM), ("up", width, DIM), ("down", DIM, width)]:
            m.matrix(f"{blk}.ffn_{name}.weight", rows, cols)
    m.norm("output_norm", DIM)
    return m


def model(arch, seed):
    """A model of `arch` with random weights."""
    bert, gemma, gpt2 = arch in ("bert", "nomic-bert"), arch.startswith("gemma"), arch == "gpt2"
    bitnet, layer_norm = arch.startswith("bitnet"), arch in ("bert", "nomic-bert", "gpt2")
    # I2_S has blocks of 128.
    dim, head_dim, ffn = (128, 64, 128) if bitnet else (DIM, HEAD_DIM, FFN)
    n_kv = HEADS if layer_norm else KV_HEADS
    n_layers = {"smollm3": 4, "gemma3": 3, "gemma-embedding": 3}.get(arch, 2)
    epsilon = "attention__layer_norm_epsilon" if layer_norm else "attention__layer_norm_rms_epsilon"
    keys = {
        "block_count": n_layers, "context_length": 32, "embedding_length": dim, "feed_forward_length": ffn,
        "attention__head_count": HEADS, "attention__head_count_kv": n_kv, epsilon: 1e-5,
    }
    if not layer_norm:
        keys |= {"attention__key_length": head_dim, "attention__value_length": head_dim}
        keys |= {"rope__dimension_count": head_dim, "rope__freq_base": 5000.0}
    if gemma:
        keys |= {"attention__sliding_window": 6, "attention__sliding_window_pattern": 2}
    if arch == "qwen3moe":
        keys |= {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 16}
    if bert or arch == "gemma-embedding":
        keys |= {"attention__causal": False, "pooling_type": 0}
    m = Writer(arch, seed, **keys)
    if bert or arch == "gemma-embedding":
        # Texts of an encoder end with a token of its vocabulary.
        m.key("tokenizer.ggml.model", "bert")
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        m.key("tokenizer.ggml.tokens", [*special, *(f"w{i}" for i in range(4, VOCAB))])
        for name, token in [("unknown", 1), ("cls", 2), ("seperator", 3)]:
            m.key(f"tokenizer.ggml.{name}_token_id", token)
    matrix = m.ternary if bitnet else m.matrix
    m.matrix("token_embd.weight", VOCAB, dim, deviation=1.0)
    if arch in ("gpt2", "bert"):
        m.matrix("position_embd.weight", 32, dim, deviation=1.0)
    if bert:
        m.matrix("token_types.weight", 2, dim, deviation=1.0)
        m.norm("token_embd_norm", dim, True)
    for layer in range(n_layers):
        blk = f"blk.{layer}"
        biased = arch in ("gpt2", "bert")
        if not bert:
            m.norm(f"{blk}.attn_norm", dim, gpt2)
        outputs = {"q": HEADS * head_dim, "k": n_kv * head_dim, "v": n_kv * head_dim}
        if arch in ("gpt2", "nomic-bert"):
            outputs = {"qkv": sum(outputs.values())}
        for which, rows in outputs.items():
            matrix(f"{blk}.attn_{which}.weight", rows, dim)
            if biased or arch == "qwen2":
                m.vector(f"{blk}.attn_{which}.bias", rows)
        if arch.startswith("qwen3") or gemma:
            m.norm(f"{blk}.attn_q_norm", head_dim)
            m.norm(f"{blk}.attn_k_norm", head_dim)
        if bitnet:
            m.norm(f"{blk}.attn_sub_norm", HEADS * head_dim)
        matrix(f"{blk}.attn_output.weight", dim, HEADS * head_dim)
        if biased:
            m.vector(f"{blk}.attn_output.bias", dim)
        if gemma:
            m.norm(f"{blk}.post_attention_norm", dim)
        m.norm(f"{blk}.attn_output_norm" if bert else f"{blk}.ffn_norm", dim, layer_norm)
        if arch == "qwen3moe":
            m.matrix(f"{blk}.ffn_gate_inp.weight", 4, dim)
            for name, rows, cols in [("gate", 16, dim), ("up", 16, dim), ("down", dim, 16)]:
                m.matrix(f"{blk}.ffn_{name}_exps.weight", 4, rows, cols)
            continue
        for name, rows, cols in [("gate", ffn, dim), ("up", ffn, dim), ("down", dim, ffn)]:
            if name == "down" and bitnet:
                m.norm(f"{blk}.ffn_sub_norm", ffn)
            if name != "gate" or not biased:
                matrix(f"{blk}.ffn_{name}.weight", rows, cols)
            if name != "gate" and biased:
                m.vector(f"{blk}.ffn_{name}.bias", rows)
        if gemma:
            m.norm(f"{blk}.post_ffw_norm", dim)
        if bert:
            m.norm(f"{blk}.layer_output_norm", dim, True)
    if not bert:
        m.norm("output_norm", dim, gpt2)
    return m


ARCHITECTURES = [
    "llama", "qwen2", "qwen3", "qwen3moe", "gpt2", "gemma3", "smollm3", "gemma-embedding", "bert",
    "nomic-bert", "bitnet", "bitnet-25", "bitnet-b1.58",
]


def write(folder):
    folder = Path(folder) / "tiny"
    folder.mkdir(exist_ok=True)
    for seed, arch in enumerate([*ARCHITECTURES, "llama-layers"]):
        path = folder / f"{arch}.gguf"
        made = layered(seed) if arch == "llama-layers" else model(arch, 20261129 + seed)
        made.write(path)
        tokens = np.random.default_rng(seed).integers(0, VOCAB, TOKENS)
        result = forward(*read(path), tokens)
        np.save(folder / f"{arch}.tokens.npy", tokens.astype(np.float32))
        np.save(folder / f"{arch}.np-fp64.npy", result.astype(np.float32))
        print(f"{arch}: {path.stat().st_size} bytes, {result.shape}, deviation {result.std():.2f}")


def check(path, prompts, logits):
    keys, tensors = read(path)
    texts = [np.array(line.split(), int) for line in Path(prompts).read_text().splitlines()]
    got = np.concatenate([forward(keys, tensors, text) for text in texts if len(text)])
    off = np.abs(got - np.load(logits))
    print(f"{path}: {off.mean():.1e} in the mean, {off.max():.1e} at most")


if __name__ == "__main__":
    {"write": write, "check": check}[sys.argv[1]](*sys.argv[2:])
