#!/usr/bin/env python3
"""Writes sterna/_types.py: types of parameters of `Engine` and of its methods, from the tables of flags and
of requests that the engine itself has. The package must be installed. A test compares the file with what this
would write."""

import pathlib

import sterna
from sterna import _engine, _flags, _sterna

PATH = pathlib.Path(__file__).parent / "sterna" / "_types.py"
HEAD = '''"""Types of parameters, for type checkers. Written by python/generate_types.py."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Union

#: The value of a flag.
Value = Union[str, int, float, bool, "os.PathLike[str]", "Sequence[Union[str, int, float]]", None]
'''
TYPES = {
    "boolean": "bool",
    "integer": "int",
    "number": "float",
    "string": "str",
    "array": "Sequence[Any]",
    "object": "Mapping[str, Any]",
}
#: Parameters in the signatures of methods.
SAMPLING = {
    "max_tokens": "int",
    "temperature": "float",
    "top_p": "float",
    "top_k": "int",
    "min_p": "float",
    "seed": "int",
    "stop": "Union[str, Sequence[str]]",
    "schema": "Any",
}
CHAT = SAMPLING | {"tools": "Sequence[Any]"}
#: Parameters in the signature of `Engine`, and flags that it sets itself.
OF_ENGINE = {"n_ctx", "n_threads", "n_batch", "n_gpu_layers", "kv_cache_type", "backend", "model", "hf_repo"}


def type_of(schema, schemas):
    """The type of a value that follows a JSON schema."""
    if "$ref" in schema:
        return type_of(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    found = [TYPES[kind] for kind in kinds if kind in TYPES]
    return found[0] if len(found) == 1 and len(set(kinds) - {"null"}) == 1 else "Any"


def parameters(engine, path, own):
    """The parameters of an endpoint with their types, without those that a method has itself."""
    document = engine._whole(engine._request("/openapi.json"))
    schemas = document["components"]["schemas"]
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    found = {}

    def collect(schema):
        if "$ref" in schema:
            collect(schemas[schema["$ref"].rpartition("/")[2]])
        for name, of in schema.get("properties", {}).items():
            found[name] = type_of(of, schemas)
        for part in schema.get("allOf", ()):
            collect(part)

    collect(body)
    return {name: of for name, of in sorted(found.items()) if name not in own and name not in _engine.OWN}


def type_of_flag(flag):
    """The type of a flag's value."""
    return "bool" if flag.most == 0 else "Value"


def flags():
    """The flags, also those of other programs, and further names of theirs, with their types."""
    known = _flags.flags()
    names = known | {name: known[flag.replace("-", "_")] for name, flag in _flags.FLAGS.items()}
    names = {name: of for name, of in sorted(names.items()) if name.isidentifier()}
    return {name: type_of_flag(of) for name, of in names.items() if name not in OF_ENGINE}


def written(name, base, doc, fields):
    """The text of a class."""
    lines = [f'\n\nclass {name}({base}, total=False):\n    """{doc}"""\n']
    for field, of in fields.items():
        of = (
            of
            if of in ("Any", "Value")
            else f"{of}, None"
            if of.startswith("Union")
            else f"Union[{of}, None]"
        )
        of = of.replace("Union[str, Sequence[str]], None", "Union[str, Sequence[str], None]")
        lines.append(f"    {field}: {of}")
    return "\n".join(lines)


def text(engine):
    """The text of the file."""
    completion = parameters(engine, "/v1/completions", {*SAMPLING, "return_token_ids"})
    chat = parameters(engine, "/v1/chat/completions", {*CHAT, "return_token_ids"})
    completion["response_format"] = chat["response_format"] = "Any"
    classes = [
        ("Flags", "TypedDict", "Flags of `Engine` that are not in its signature.", flags()),
        (
            "TextParameters",
            "TypedDict",
            "Parameters of `generate` that are not in its signature.",
            completion,
        ),
        ("ChatParameters", "TypedDict", "Parameters of `chat` that are not in its signature.", chat),
        ("ManyTextParameters", "TextParameters", "Parameters of `generate_many`.", SAMPLING),
        ("ManyChatParameters", "ChatParameters", "Parameters of `chat_many`.", CHAT),
    ]
    return HEAD + "\n".join(written(*of) for of in classes) + "\n"


if __name__ == "__main__":
    with sterna.Engine(backend="cpu", n_ctx=512) as engine:
        PATH.write_text(text(engine))
    print(f"{PATH}: {len(_sterna.flags())} flags")
