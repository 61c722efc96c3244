"""Models of Sterna for `llm`."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, Optional

import click
import llm
import sterna

#: Name of the model that is built in.
DEMO = "sterna-world"


def _path() -> pathlib.Path:
    return llm.user_dir() / "sterna.json"


def _models() -> dict[str, dict[str, Any]]:
    """Options of `sterna.Engine` by name."""
    path = _path()
    return {DEMO: {}} | (json.loads(path.read_text()) if path.exists() else {})


@functools.lru_cache(maxsize=1)
def _engine(options: str) -> sterna.Engine:
    """The engine with these options. One at a time is in memory."""
    return sterna.Engine(**json.loads(options))


class Sterna(llm.Model):
    """A model for texts."""

    can_stream = True
    supports_schema = True

    class Options(llm.Options):
        """Options of a prompt."""

        max_tokens: Optional[int] = None
        temperature: Optional[float] = None
        top_p: Optional[float] = None
        top_k: Optional[int] = None
        min_p: Optional[float] = None
        seed: Optional[int] = None

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.model_id, self._options = name, json.dumps(options)

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.Response,
        conversation: Optional[llm.Conversation],
    ) -> Iterator[str]:
        """Yields the answer in pieces."""
        messages = []
        for earlier in conversation.responses if conversation else []:
            answer = {"role": "assistant", "content": earlier.text_or_raise()}
            messages += [*_messages(earlier.prompt), answer]
        messages += _messages(prompt)
        options = prompt.options.model_dump(exclude_none=True)
        text = _engine(self._options).chat(messages, schema=prompt.schema, **options)
        yield from text
        usage = text.usage or {}
        response.set_usage(input=usage.get("prompt_tokens"), output=usage.get("completion_tokens"))
        response.response_json = {"finish_reason": text.finish_reason, "timings": text.timings}


def _messages(prompt: llm.Prompt) -> list[dict[str, str]]:
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    return [*system, {"role": "user", "content": prompt.prompt or ""}]


class SternaEmbeddings(llm.EmbeddingModel):
    """A model for embeddings."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.model_id, self._options = name, json.dumps(options)

    def embed_batch(self, items: Iterable[Any]) -> Iterator[list[float]]:
        """Yields a vector per text."""
        for vector in _engine(self._options).embed(list(items)):
            yield [float(x) for x in vector]


@llm.hookimpl
def register_models(register: Any) -> None:
    """Registers the named models, and the built-in one."""
    for name, options in _models().items():
        register(Sterna(name, options))


@llm.hookimpl
def register_embedding_models(register: Any) -> None:
    """Registers the same models for embeddings."""
    for name, options in _models().items():
        register(SternaEmbeddings(name, options))


@llm.hookimpl
def register_commands(cli: click.Group) -> None:
    """Registers `llm sterna`."""

    @cli.group(name="sterna")
    def group() -> None:
        """Models of Sterna"""

    @group.command()
    @click.argument("name")
    @click.argument("model")
    @click.option("--n-ctx", type=int, help="Maximum positions of a text")
    @click.option("--backend", help="cpu, cuda or wgpu")
    def add(name: str, model: str, n_ctx: Optional[int], backend: Optional[str]) -> None:
        """Name a GGUF file, or a repository of the hub"""
        options = {"model": model, "n_ctx": n_ctx, "backend": backend}
        own = _models() | {name: {key: value for key, value in options.items() if value is not None}}
        _path().write_text(json.dumps(own, indent=2))

    @group.command()
    @click.argument("name")
    def remove(name: str) -> None:
        """Forget a name"""
        models = _models()
        if name == DEMO or models.pop(name, None) is None:
            raise click.ClickException(f"there is no {name} to be removed")
        _path().write_text(json.dumps(models, indent=2))

    @group.command(name="list")
    def list_models() -> None:
        """List the names"""
        for name, options in _models().items():
            click.echo(f"{name}: {options.get('model', 'built in')}")
