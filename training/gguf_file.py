"""Reads the published file: a GGUF of F32, F16 and I2_S.

Needs: torch, numpy.
"""

import math
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def read_gguf(path: Path) -> dict[str, Tensor]:
    """The tensors of a GGUF of F32, F16 and I2_S (code - 1 times the tensor's scale), all as f32."""
    return gguf_parts(path)[1]


def gguf_parts(path: Path) -> tuple[dict, dict[str, Tensor]]:
    """The metadata of a GGUF, and its tensors in the format of `read_gguf`."""
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
    assert magic == 0x46554747, f"{path} is not a GGUF file"
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
