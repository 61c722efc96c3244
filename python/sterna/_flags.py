"""Parameters of `Engine` as flags of `sterna serve`."""

from __future__ import annotations

import functools
import os
import re
from typing import Any, NamedTuple

from . import _sterna
from ._errors import LoadError
from ._values import plain

#: Flags by parameter name, where they are called differently: llama-cpp-python's and vLLM's names.
FLAGS = {
    "n_ctx": "ctx-size",
    "n_threads": "threads",
    "n_batch": "batch-size",
    "type_k": "cache-type-k",
    "type_v": "cache-type-v",
    "chat_format": "chat-template",
}
#: What helps in place of a parameter that does not exist.
INSTEAD = {
    "verbose": "logging.getLogger('sterna') has the log",
    "port": "engine.serve(port=) serves the model over HTTP",
    "host": "engine.serve(port=) serves the model over HTTP",
    "model_path": "the model is the first argument",
    "embedding": "engine.embed works with every model",
    "logits_all": "engine.score has the log-probabilities of a text",
}


class Flag(NamedTuple):
    """A flag: its usual name without dashes, its minimum and maximum number of values, and its help, which
    flags of other programs do not have."""

    name: str
    least: int
    most: int
    help: str


@functools.lru_cache(maxsize=None)
def flags() -> dict[str, Flag]:
    """All flags by name, with underscores."""
    return {
        name.replace("-", "_"): Flag(names[0], least, most, help or "")
        for names, least, most, help in _sterna.flags()
        for name in names
    }


def arguments(given: dict[str, Any]) -> list[str]:
    """The command line of parameters.

    Raises `LoadError` for a name that does not exist, whatever its value, and a `True` or `False` that a flag
    does not have.
    """
    known, args = flags(), []
    for name, value in given.items():
        flag = known.get(FLAGS.get(name, name).replace("-", "_"))
        if flag is None:
            raise LoadError(f"Engine() has no parameter {name!r}{_instead(name, known)}")
        args += _argument(name, flag, value, known)
    return args


def _argument(name: str, flag: Flag, value: Any, known: dict[str, Flag]) -> list[str]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None:
        return []
    if value is True:
        if flag.least > 0:
            raise LoadError(f"{name}=True: want a value, or None for the default")
        return [f"--{flag.name}"]
    if value is False:
        if opposite := known.get(f"no_{flag.name.replace('-', '_')}"):
            return [f"--{opposite.name}"]
        if flag.most == 0:
            # Such a flag is off unless it is given.
            return []
        if flag.least == 0:
            return [f"--{flag.name}=off"]
        raise LoadError(f"{name}=False: want a value, or None for the default")
    if isinstance(value, (list, tuple)):
        return [f"--{flag.name}={','.join(str(plain(of, name)) for of in value)}"]
    return [f"--{flag.name}={os.fspath(value) if isinstance(value, os.PathLike) else plain(value, name)}"]


def _instead(name: str, known: dict[str, Flag]) -> str:
    if name in INSTEAD:
        return f": {INSTEAD[name]}"
    import difflib

    near = difflib.get_close_matches(name, [*FLAGS, *known], 1, 0.7)
    return f"; did you mean {near[0]!r}?" if near else ""


def in_python(message: str, given: dict[str, Any]) -> str:
    """A message about flags in terms of the parameters, as they were written."""
    known = flags()
    names = [name for name, value in given.items() if value is not None]
    written = {known[FLAGS.get(name, name).replace("-", "_")].name: name for name in names}

    def parameter(found: re.Match[str]) -> str:
        flag = known.get(found[1].replace("-", "_"))
        return f"{written.get(flag.name, found[1].replace('-', '_'))}=" if flag else found[0]

    return re.sub(r"(?<![\w-])--([a-z][a-z0-9-]*)(?!\w)", parameter, message)
