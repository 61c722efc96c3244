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
#: A JSON schema, or a class that has one, such as pydantic's.
Schema = Union["dict[str, Any]", Any]

#: Flags by parameter name.
FLAGS = {"n_ctx": "ctx-size", "n_threads": "threads", "n_batch": "batch-size"}
#: Request parameters that this package sets itself.
OWN = {"model", "prompt", "messages", "input", "stream", "stream_options", "n"}


class Engine:
    """A loaded model, shared by any number of threads and tasks: their texts are generated in one batch, and
    texts with the same beginning share its KV cache.

    `model` is a GGUF file, or a Hugging Face repository such as `user/repo` or `user/repo:Q4_K_M`, which is
    downloaded once; the default is the demo model. Further parameters are flags of `sterna serve`:
    `kv_cache_type="turboquant"`, `backend="cpu"`, `gpu_layers="auto"`, `parallel=16` texts at a time,
    `pooling="mean"`, `chat_template="chatml"`. `True` sets a flag without a value.

    Raises `LoadError`. The end of a `with` block, or `close()`, frees the model.
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
        """Starts to generate the text after a prompt, and returns it as a stream.

        `schema` is a JSON schema for the text. Defaults are those recommended by the model. Further
        parameters are those of the server's `/v1/completions`, such as `repeat_penalty`, `logit_bias`,
        `logprobs`, `grammar` (GBNF), `guided_regex`, `ignore_eos` and `cache_prompt`.

        Iterating over the result raises `RequestError` for an invalid parameter or prompt.
        """
        sampling: dict[str, Any] = dict(max_tokens=max_tokens, temperature=temperature, top_p=top_p)
        sampling |= dict(top_k=top_k, min_p=min_p, seed=seed, stop=stop)
        if not isinstance(prompt, str) and not all(isinstance(token, int) for token in prompt):
            raise TypeError("prompt: want a text, or the tokens of one; call it once per prompt")
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
        """Starts to answer in a conversation, and returns the answer as a stream.

        `messages` are those of OpenAI's chat API, or the text of a user's message. `tools` are its tools;
        calls are in the answer's `tool_calls`. `schema` is a JSON schema for the answer. Further parameters
        are those of the server's `/v1/chat/completions`, such as `tool_choice`, `chat_template_kwargs`,
        `reasoning_effort`, `logprobs` and `top_logprobs`.
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
        """Returns the embeddings of texts, in order; for a single text, a list of one.

        Parameters are those of the server's `/v1/embeddings`, such as `dimensions`, `normalize` and
        `truncate_prompt_tokens`.
        """
        return self._vectors(self._whole(self._embedding(texts, parameters)))

    async def aembed(self, texts: Union[Prompt, Sequence[Prompt]], **parameters: Any) -> list[list[float]]:
        """The async version of `embed`."""
        return self._vectors(await self._awhole(self._embedding(texts, parameters)))

    def rerank(self, query: str, documents: Sequence[str], **parameters: Any) -> list[dict[str, Any]]:
        """Scores documents by relevance to a query, best first: each with its `index` and its
        `relevance_score`. Requires a reranking model."""
        asked = {"query": query, "documents": list(documents)}
        answer = self._whole(self._ask("/v1/rerank", asked, parameters))
        return answer["results"]

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Returns the tokens of a text, with the model's begin and end tokens, and with control tokens where
        the text contains their names."""
        asked = {"content": text, "add_special": add_special, "parse_special": parse_special}
        return self._whole(self._ask("/tokenize", asked, {}))["tokens"]

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens."""
        return self._whole(self._ask("/detokenize", {"tokens": list(tokens)}, {}))["content"]

    def apply_template(self, messages: Iterable[dict[str, Any]], **parameters: Any) -> str:
        """Renders a conversation with the chat template."""
        return self._whole(self._ask("/apply-template", {"messages": list(messages)}, parameters))["prompt"]

    @property
    def n_ctx(self) -> int:
        """Maximum positions of a text."""
        return self.properties["default_generation_settings"]["n_ctx"]

    @property
    def properties(self) -> dict[str, Any]:
        """The model and its defaults, in the format of llama-server's `/props`."""
        return self._whole(self._request("/props"))

    def close(self) -> None:
        """Ends running texts, and frees the model."""
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
        """Sends a request to an endpoint, after checking the names of its parameters."""
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
        """The names of an endpoint's parameters, from the engine's OpenAPI document."""
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
    """The properties of an object's schema, including those of schemas that it refers to."""
    if "$ref" in schema:
        yield from _properties(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    yield from schema.get("properties", ())
    for part in schema.get("allOf", ()):
        yield from _properties(part, schemas)
