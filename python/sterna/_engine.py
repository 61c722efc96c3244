"""A loaded model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional, Union

from . import _sterna
from ._errors import EngineError, LoadError, of_status
from ._generation import Chat, Generation, next_piece

#: A text, or its tokens.
Prompt = Union[str, "list[int]"]
#: A schema of JSON, or a class that has one, as those of pydantic do.
Schema = Union["dict[str, Any]", Any]

#: Flags by the names that parameters have.
FLAGS = {"n_ctx": "ctx-size", "n_threads": "threads", "n_batch": "batch-size"}
#: Parameters of requests that this sets itself.
OWN = {"model", "prompt", "messages", "input", "stream", "stream_options", "n"}


class Engine:
    """A loaded model, which any number of threads and tasks may ask at a time: their texts are generated
    together, and those that begin alike share what was computed.

    `model` is a GGUF file, or a repository of the Hugging Face hub such as `user/repo` or `user/repo:Q4_K_M`,
    which is downloaded once; without it this is the demo model. Further parameters are the flags of
    `sterna serve` by their names: `kv_cache_type="turboquant"`, `backend="cpu"`, `gpu_layers="auto"`,
    `parallel=16` texts at a time, `pooling="mean"`, `chat_template="chatml"`. `True` sets a flag that has no
    value.

    Raises `LoadError`. A `with` block, or `close()`, frees the model at its end.
    """

    def __init__(
        self,
        model: Union[str, os.PathLike[str], None] = None,
        *,
        n_ctx: Optional[int] = None,
        n_threads: Optional[int] = None,
        n_batch: Optional[int] = None,
        n_gpu_layers: Union[int, str, None] = None,
        kv_cache_type: Optional[str] = None,
        backend: Optional[str] = None,
        **flags: Any,
    ) -> None:
        flags |= {"n_ctx": n_ctx, "n_threads": n_threads, "n_batch": n_batch, "n_gpu_layers": n_gpu_layers}
        flags |= {"kv_cache_type": kv_cache_type, "backend": backend}
        args = []
        if model is not None:
            path = os.fspath(model)
            is_file = os.path.exists(path) or path.endswith(".gguf") or path.count("/") != 1
            args += [f"--model={path}" if is_file else f"--hf-repo={path}"]
        for name, value in flags.items():
            flag = "--" + FLAGS.get(name, name.replace("_", "-"))
            if value is True:
                args.append(flag)
            elif value is not None and value is not False:
                is_list = isinstance(value, (list, tuple))
                args.append(f"{flag}={','.join(map(str, value)) if is_list else value}")
        try:
            self._inner = _sterna.open(args)
        except ValueError as err:
            raise LoadError(str(err)) from None
        self._known: dict[str, set[str]] = {}

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: Optional[int] = None,
        temperature: Optional[float] = None,
        top_p: Optional[float] = None,
        top_k: Optional[int] = None,
        min_p: Optional[float] = None,
        seed: Optional[int] = None,
        stop: Union[str, Sequence[str], None] = None,
        schema: Optional[Schema] = None,
        **parameters: Any,
    ) -> Generation:
        """Begins to generate a text behind a prompt, and returns it while it comes.

        `schema` is a JSON schema that the text follows. What is left out is as the model recommends it.
        Further parameters are those of the server's `/v1/completions`, such as `repeat_penalty`,
        `logit_bias`, `logprobs`, `grammar` (GBNF), `guided_regex`, `ignore_eos` and `cache_prompt`.

        Iterating over it raises `RequestError` for a parameter or a prompt that is wrong.
        """
        sampling: dict[str, Any] = dict(max_tokens=max_tokens, temperature=temperature, top_p=top_p)
        sampling |= dict(top_k=top_k, min_p=min_p, seed=seed, stop=stop)
        if not isinstance(prompt, str) and not all(isinstance(token, int) for token in prompt):
            raise TypeError("prompt: want a text, or the tokens of one; each of several is asked for alone")
        answer = self._stream("/v1/completions", {"prompt": prompt}, sampling, schema, parameters)
        return Generation(self._inner, answer)

    def chat(
        self,
        messages: Union[str, Iterable[dict[str, Any]]],
        *,
        tools: Optional[Sequence[dict[str, Any]]] = None,
        schema: Optional[Schema] = None,
        max_tokens: Optional[int] = None,
        temperature: Optional[float] = None,
        top_p: Optional[float] = None,
        top_k: Optional[int] = None,
        min_p: Optional[float] = None,
        seed: Optional[int] = None,
        stop: Union[str, Sequence[str], None] = None,
        **parameters: Any,
    ) -> Chat:
        """Begins to answer in a conversation, and returns the answer while it comes.

        `messages` are those of OpenAI's chat, or a text that the user says. `tools` are its tools: the
        answer's `tool_calls` has the calls. `schema` is a JSON schema that the answer follows. Further
        parameters are those of the server's `/v1/chat/completions`, such as `tool_choice`,
        `chat_template_kwargs`, `reasoning_effort`, `logprobs` and `top_logprobs`.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        sampling: dict[str, Any] = dict(max_tokens=max_tokens, temperature=temperature, top_p=top_p)
        sampling |= dict(top_k=top_k, min_p=min_p, seed=seed, stop=stop)
        sampling["tools"] = None if tools is None else list(tools)
        asked = {"messages": list(messages)}
        answer = self._stream("/v1/chat/completions", asked, sampling, schema, parameters)
        return Chat(self._inner, answer)

    def embed(self, texts: Union[Prompt, Sequence[Prompt]], **parameters: Any) -> list[list[float]]:
        """The vectors of texts, in their order; of one text, a list of one.

        Parameters are those of the server's `/v1/embeddings`, such as `dimensions`, `normalize` and
        `truncate_prompt_tokens`.
        """
        return self._vectors(self._whole(self._embedding(texts, parameters)))

    async def aembed(self, texts: Union[Prompt, Sequence[Prompt]], **parameters: Any) -> list[list[float]]:
        """The same, for tasks."""
        return self._vectors(await self._awhole(self._embedding(texts, parameters)))

    def rerank(self, query: str, documents: Sequence[str], **parameters: Any) -> list[dict[str, Any]]:
        """Scores documents by what they say of a query, best first: each with its `index` and its
        `relevance_score`. The model has to be one that ranks."""
        asked = {"query": query, "documents": list(documents)}
        answer = self._whole(self._ask("/v1/rerank", asked, parameters))
        return answer["results"]

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The tokens of a text: with those that begin and end texts of this model, and with control tokens
        where they are spelled in it."""
        asked = {"content": text, "add_special": add_special, "parse_special": parse_special}
        return self._whole(self._ask("/tokenize", asked, {}))["tokens"]

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        return self._whole(self._ask("/detokenize", {"tokens": list(tokens)}, {}))["content"]

    def apply_template(self, messages: Iterable[dict[str, Any]], **parameters: Any) -> str:
        """A conversation as the chat template writes it."""
        return self._whole(self._ask("/apply-template", {"messages": list(messages)}, parameters))["prompt"]

    @property
    def n_ctx(self) -> int:
        """Positions that one text may have."""
        return self.properties["default_generation_settings"]["n_ctx"]

    @property
    def properties(self) -> dict[str, Any]:
        """The model and its defaults, as llama-server's `/props` tells them."""
        return self._whole(self._request("/props"))

    def close(self) -> None:
        """Ends the texts that are being generated, and frees the model."""
        self._inner.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self, path: str, body: Optional[dict[str, Any]] = None) -> _sterna.Answer:
        try:
            return self._inner.request(path, None if body is None else json.dumps(body))
        except ValueError as err:
            raise EngineError(str(err)) from None

    def _ask(self, path: str, asked: dict[str, Any], parameters: dict[str, Any]) -> _sterna.Answer:
        """Asks an endpoint that is here, with parameters that it has."""
        if unknown := parameters.keys() - (self._parameters(path) - OWN if parameters else set()):
            raise TypeError(f"{path} has no parameter {', '.join(sorted(unknown))}")
        given = {name: value for name, value in parameters.items() if value is not None}
        return self._request(path, asked | given)

    def _stream(
        self,
        path: str,
        asked: dict[str, Any],
        sampling: dict[str, Any],
        schema: Optional[Schema],
        parameters: dict[str, Any],
    ) -> _sterna.Answer:
        asked |= {name: value for name, value in sampling.items() if value is not None}
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
        if schema is not None:
            schema = schema.model_json_schema() if hasattr(schema, "model_json_schema") else schema
            strict = {"name": "answer", "schema": schema, "strict": True}
            asked["response_format"] = {"type": "json_schema", "json_schema": strict}
        return self._ask(path, asked, parameters)

    def _embedding(self, texts: Any, parameters: dict[str, Any]) -> _sterna.Answer:
        asked = {"input": texts if isinstance(texts, str) else list(texts)}
        return self._ask("/v1/embeddings", asked, parameters)

    @staticmethod
    def _vectors(answer: dict[str, Any]) -> list[list[float]]:
        return [entry["embedding"] for entry in answer["data"]]

    def _parameters(self, path: str) -> set[str]:
        """The parameters that an endpoint has, as the engine describes them."""
        if path not in self._known:
            document = self._whole(self._request("/openapi.json"))
            body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            self._known[path] = set(_properties(body, document["components"]["schemas"]))
        return self._known[path]

    @staticmethod
    def _whole(answer: _sterna.Answer) -> Any:
        data = b""
        while (piece := answer.read()) is not None:
            data += _checked(piece)
        return _parsed(data)

    @staticmethod
    async def _awhole(answer: _sterna.Answer) -> Any:
        data = b""
        while (piece := await next_piece(answer)) is not None:
            data += _checked(piece)
        return _parsed(data)


def _checked(piece: tuple[int, bytes]) -> bytes:
    status, data = piece
    if status != 200:
        raise of_status(status, data)
    return data


def _parsed(data: bytes) -> Any:
    if not data:
        raise EngineError("the engine was closed")
    return json.loads(data)


def _properties(schema: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    """The properties of an object, with those of the objects that it includes."""
    if "$ref" in schema:
        yield from _properties(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    yield from schema.get("properties", ())
    for part in schema.get("allOf", ()):
        yield from _properties(part, schemas)
