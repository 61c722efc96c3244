"""A loaded model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Optional, TypeVar, Union

from . import _sterna
from ._errors import EngineError, LoadError, of_native, of_status
from ._flags import arguments, in_python
from ._generation import Chat, Generation
from ._http import Server
from ._many import Shown, Text, afinished, finished
from ._mail import Piece, close_at_exit, mailbox, next_piece
from ._progress import Progress, counted, downloads
from ._values import Schema, encoded, format_of, function_name, response_format, tokens_of, tool_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._types import ChatParameters, Flags, ManyChatParameters, ManyTextParameters, TextParameters

#: A text, or its tokens: a list, or an array of numpy.
Prompt = Union[str, "Sequence[int]", Any]
#: A JSON schema, or a type: a class of pydantic, a dataclass, `list[...]`, a `Literal`, an `Enum`.
Kind = Union["dict[str, Any]", Any]
#: A message in OpenAI's format, as a dictionary or as an object of pydantic, or an answer that has ended.
Message = Union["dict[str, Any]", Chat, Any]
#: Messages, or the text of a user's message.
Messages = Union[str, "Iterable[Message]"]

Value = TypeVar("Value")

#: Request parameters that this package sets itself.
OWN = {"model", "prompt", "messages", "input", "stream", "stream_options", "n"}
#: What helps in place of a parameter that a method does not have.
INSTEAD = {
    "stream": "every text streams: iterate over the result",
    "n": "generate_many([prompt], n=2) and chat_many([messages], n=2) give several texts",
    "max_new_tokens": "did you mean 'max_tokens'?",
    "max_length": "did you mean 'max_tokens'?",
    "num_beams": "there is no beam search",
    "logits_processor": "logit_bias, grammar and schema change what may be generated",
    "stopping_criteria": "stop and stop_token_ids end a text, and so does leaving the loop that reads it",
}
JSON = [("content-type", "application/json")]


class Score(NamedTuple):
    """How likely a text is after another one."""

    #: Sum of the log-probabilities of its tokens.
    logprob: float
    #: True if each of its tokens is the most likely one.
    is_greedy: bool


class Engine:
    """A loaded model, shared by any number of threads and tasks: their texts are generated in one batch, and
    texts with the same beginning share its KV cache.

    `model` is a GGUF file, or a Hugging Face repository such as `user/repo` or `user/repo:Q4_K_M`, which is
    downloaded once; the default is the demo model. Further parameters are flags of `sterna serve`:
    `kv_cache_type="turboquant"`, `backend="cpu"`, `gpu_layers="auto"`, `parallel=32` texts at a time (16 if
    not given, which share the KV cache of 4 texts of full length), `pooling="mean"`,
    `chat_template="chatml"`. `True` sets a flag without a value, `False` clears it.

    `progress` is about downloads: `True` for a progress bar (the default on a terminal), `False` for none, or
    a function that is called with the file, its bytes so far and its bytes in total.

    Raises `LoadError`. The end of a `with` block, or `close()`, frees the model; so does the end of the
    process. A forked child cannot use it, but can load its own.
    """

    def __init__(
        self,
        model: Union[str, bytes, os.PathLike[str], None] = None,
        *,
        n_ctx: Optional[int] = None,
        n_threads: Optional[int] = None,
        n_batch: Optional[int] = None,
        n_gpu_layers: Union[int, str, None] = None,
        kv_cache_type: Optional[str] = None,
        backend: Optional[str] = None,
        progress: Progress = None,
        **others: Unpack[Flags],
    ) -> None:
        self._known: dict[str, set[str]] = {}
        flags: dict[str, Any] = {
            **others,
            "n_ctx": n_ctx,
            "n_threads": n_threads,
            "n_batch": n_batch,
            "n_gpu_layers": n_gpu_layers,
        }
        flags |= {"kv_cache_type": kv_cache_type, "backend": backend}
        args, repository = arguments(flags), None
        if model is not None:
            path = os.path.expanduser(os.fsdecode(model))
            is_file = os.path.exists(path) or path.endswith(".gguf") or path.count("/") != 1
            repository = None if is_file else path
            args.append(f"--model={path}" if is_file else f"--hf-repo={path}")
        box = mailbox()
        box.update_level()
        try:
            with downloads(progress, box) as tick:
                self._inner = _sterna.open(args, tick)
        except ValueError as err:
            no_file = f"there is no file {repository}, and as a repository of the hub: " if repository else ""
            raise LoadError(no_file + in_python(str(err), flags)) from None
        finally:
            box.deliver()
        close_at_exit(self._inner)

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
        schema: Optional[Kind] = None,
        **parameters: Unpack[TextParameters],
    ) -> Generation:
        """Starts to generate the text after a prompt, and returns it as a stream.

        `schema` is a JSON schema for the text, or a type; the result's `parsed` is then a value of it.
        Defaults are those recommended by the model. Further parameters are those of the server's
        `/v1/completions`, such as `repeat_penalty`, `logit_bias`, `logprobs`, `grammar` (GBNF),
        `guided_regex`, `ignore_eos` and `cache_prompt`.

        Iterating over the result raises `RequestError` for an invalid parameter or prompt.
        """
        sampling: dict[str, Any] = dict(max_tokens=max_tokens, temperature=temperature, top_p=top_p)
        sampling |= dict(top_k=top_k, min_p=min_p, seed=seed, stop=stop)
        begun = self._begun(prompt) if isinstance(prompt, str) else tokens_of(prompt, "prompt")
        if begun is None:
            raise TypeError("prompt: want a text, or the tokens of one; generate_many takes several prompts")
        asked: dict[str, Any] = {"prompt": begun}
        answer, parse = self._stream("generate", "/v1/completions", asked, sampling, schema, {**parameters})
        return Generation(self._inner, answer, parse)

    def chat(
        self,
        messages: Messages,
        *,
        tools: Optional[Sequence[Union[dict[str, Any], Callable[..., Any], Any]]] = None,
        schema: Optional[Kind] = None,
        max_tokens: Optional[int] = None,
        temperature: Optional[float] = None,
        top_p: Optional[float] = None,
        top_k: Optional[int] = None,
        min_p: Optional[float] = None,
        seed: Optional[int] = None,
        stop: Union[str, Sequence[str], None] = None,
        **parameters: Unpack[ChatParameters],
    ) -> Chat:
        """Starts to answer in a conversation, and returns the answer as a stream.

        `messages` are those of OpenAI's chat API, or the text of a user's message; objects of pydantic and
        earlier answers are messages, too. `tools` are its tools, or functions with types and documentation;
        calls are in the answer's `tool_calls`, and `call_tools()` makes them. `schema` is a JSON schema for
        the answer, or a type; the answer's `parsed` is then a value of it. Further parameters are those of
        the server's `/v1/chat/completions`, such as `tool_choice`, `chat_template_kwargs`,
        `reasoning_effort`, `logprobs` and `top_logprobs`.
        """
        sampling: dict[str, Any] = dict(max_tokens=max_tokens, temperature=temperature, top_p=top_p)
        sampling |= dict(top_k=top_k, min_p=min_p, seed=seed, stop=stop)
        functions = {}
        if tools is not None:
            tools = [tools] if isinstance(tools, dict) or callable(tools) else list(tools)
            functions = {function_name(tool): tool for tool in tools if callable(tool)}
            sampling["tools"] = [tool_of(tool) for tool in tools]
        asked = {"messages": _messages(messages)}
        answer, parse = self._stream("chat", "/v1/chat/completions", asked, sampling, schema, {**parameters})
        return Chat(self._inner, answer, parse, functions)

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        *,
        n: int = 1,
        progress: Shown = False,
        **same: Unpack[ManyTextParameters],
    ) -> list[Generation]:
        """Generates the text after each of many prompts, in one batch, and returns them when all have ended,
        in the order of the prompts; with `n`, that many texts of each, one after another, whose seeds are
        `seed`, `seed + 1`, and so on.

        `progress` shows a progress bar, by tqdm if it is installed. Other parameters are those of `generate`.
        An interrupt, or an error of one of them, which is raised, cancels all.
        """
        return finished(self._start(self.generate, _several(prompts, "prompts"), n, {**same}), progress)

    async def agenerate_many(
        self,
        prompts: Iterable[Prompt],
        *,
        n: int = 1,
        progress: Shown = False,
        **same: Unpack[ManyTextParameters],
    ) -> list[Generation]:
        """The async version of `generate_many`."""
        return await afinished(
            self._start(self.generate, _several(prompts, "prompts"), n, {**same}), progress
        )

    def chat_many(
        self,
        conversations: Iterable[Messages],
        *,
        n: int = 1,
        progress: Shown = False,
        **same: Unpack[ManyChatParameters],
    ) -> list[Chat]:
        """Answers in each of many conversations, as `generate_many` does. Each is the messages of one, or the
        text of a user's message; other parameters are those of `chat`."""
        return finished(
            self._start(self.chat, _several(conversations, "conversations"), n, {**same}), progress
        )

    async def achat_many(
        self,
        conversations: Iterable[Messages],
        *,
        n: int = 1,
        progress: Shown = False,
        **same: Unpack[ManyChatParameters],
    ) -> list[Chat]:
        """The async version of `chat_many`."""
        started = self._start(self.chat, _several(conversations, "conversations"), n, {**same})
        return await afinished(started, progress)

    def embed(
        self,
        texts: Union[Prompt, Sequence[Prompt]],
        *,
        normalize: Optional[bool] = None,
        dimensions: Optional[int] = None,
        **parameters: Any,
    ) -> Any:
        """Returns the embeddings of texts, in order; for a single text, a list of one: an array of numpy,
        float32 `[texts, dimensions]`, if numpy is installed, otherwise lists. With `encoding_format`,
        OpenAI's parameter, they are always lists.

        `normalize` is whether vectors have the length 1, which is the default; `dimensions` keeps the first
        ones. Further parameters are those of the server's `/v1/embeddings`, such as `embd_normalize` and
        `truncate_prompt_tokens`.
        """
        asked = self._embedding(texts, normalize, dimensions, parameters)
        return _vectors(self._whole(asked), "encoding_format" not in parameters)

    async def aembed(
        self,
        texts: Union[Prompt, Sequence[Prompt]],
        *,
        normalize: Optional[bool] = None,
        dimensions: Optional[int] = None,
        **parameters: Any,
    ) -> Any:
        """The async version of `embed`."""
        asked = self._embedding(texts, normalize, dimensions, parameters)
        return _vectors(await self._awhole(asked), "encoding_format" not in parameters)

    def encode(
        self,
        sentences: Union[str, Sequence[str]],
        *,
        normalize_embeddings: bool = False,
        batch_size: int = 32,
        show_progress_bar: Shown = False,
        **parameters: Any,
    ) -> Any:
        """Returns the embeddings of sentences, as sentence-transformers' `encode` does: an array, float32
        `[sentences, dimensions]`, or `[dimensions]` for a single text. Without numpy, lists. `batch_size`
        sentences are asked for at a time. Further parameters are those of `embed`."""
        is_one = isinstance(sentences, str)
        texts = [sentences] if is_one else list(sentences)
        if batch_size < 1:
            raise ValueError(f"batch_size: want at least 1, got {batch_size}")
        shown = counted(len(texts), show_progress_bar, "sentences")
        parts = []
        for at in range(0, len(texts), batch_size):
            batch = texts[at : at + batch_size]
            parts.append(self.embed(batch, normalize=normalize_embeddings, **parameters))
            shown.update(len(batch))
        shown.close()
        if is_one:
            return parts[0][0]
        return _joined(parts)

    def score(self, context: Prompt, continuation: Prompt) -> Score:
        """Returns how likely a text is after another one: the sum of the log-probabilities of its tokens, and
        whether each of them is the most likely one.

        Two texts are tokenized as one; where a token crosses the border, or one of them is a list of tokens,
        they are tokenized apart. An empty context is the model's token for beginnings, or for ends.

        Raises `RequestError` for a text that is too long.
        """
        return self.score_many([(context, continuation)])[0]

    def score_many(self, pairs: Iterable[tuple[Prompt, Prompt]], *, progress: Shown = False) -> list[Score]:
        """Scores many pairs of a context and a continuation, in one batch, see `score`."""
        started: list[tuple[Generation, int]] = []
        try:
            for context, continuation in pairs:
                before, after = self._split(context, continuation)
                if not after:
                    raise ValueError("continuation: want at least one token")
                # The tokens of the prompt are scored, and none is generated.
                same: dict[str, Any] = {"max_tokens": 0, "logprobs": 1, "echo": True}
                started.append((self.generate(before + after, **same), len(before)))
        except BaseException:
            for text, _ in started:
                text.cancel()
            raise
        finished([text for text, _ in started], progress and (progress if progress is not True else "scores"))
        return [_score(text, n_before) for text, n_before in started]

    def _split(self, context: Prompt, continuation: Prompt) -> tuple[list[int], list[int]]:
        """Tokens of a context and of its continuation."""
        before, after = tokens_of(context, "context"), tokens_of(continuation, "continuation")
        if isinstance(context, str) and isinstance(continuation, str):
            # Spaces at the end of the context belong to the first word of the continuation.
            n_spaces = len(context) - len(context.rstrip())
            if n_spaces:
                context, continuation = context[:-n_spaces], context[-n_spaces:] + continuation
            whole = self.tokenize(context + continuation, parse_special=False)
            before = self.tokenize(context, parse_special=False)
            if whole[: len(before)] == before and len(whole) > len(before):
                after = whole[len(before) :]
        if before is None:
            before = self.tokenize(context)
        if after is None:
            after = self.tokenize(continuation, add_special=False, parse_special=False)
        if not before:
            special = self.special_tokens
            first = special["eos"] if special["bos"] is None else special["bos"]
            if first is None:
                raise ValueError("context: want at least one token: the model has none for beginnings")
            before = [first]
        return before, after

    def rerank(self, query: str, documents: Sequence[str], **parameters: Any) -> list[dict[str, Any]]:
        """Scores documents by relevance to a query, best first: each with its `index` and its
        `relevance_score`. Requires a reranking model, loaded with `reranking=True` or one whose file says
        so."""
        asked = {"query": query, "documents": list(documents)}
        results: list[dict[str, Any]]
        results = self._whole(self._ask("rerank", "/v1/rerank", asked, parameters))["results"]
        return results

    def tokenize(self, text: Any, *, add_special: bool = True, parse_special: bool = True) -> Any:
        """Returns the tokens of a text, with the model's begin and end tokens, and with control tokens where
        the text contains their names; of a list of texts, a list per text."""
        if not isinstance(text, str) and hasattr(text, "__iter__"):
            return [self.tokenize(of, add_special=add_special, parse_special=parse_special) for of in text]
        asked: dict[str, Any] = {"content": text, "add_special": add_special, "parse_special": parse_special}
        return self._whole(self._ask("tokenize", "/tokenize", asked, {}))["tokens"]

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens. An incomplete letter is U+FFFD."""
        answer = self._whole(self._ask("detokenize", "/detokenize", {"tokens": _ids(tokens)}, {}))
        return str(answer["content"])

    def detokenize_bytes(self, tokens: Sequence[int]) -> bytes:
        """Returns the bytes of tokens, including those of control tokens."""
        return b"".join(_native(lambda: self._inner.token_bytes(_ids(tokens))))

    def apply_template(self, messages: Iterable[Message], **parameters: Any) -> str:
        """Renders a conversation with the chat template."""
        asked = {"messages": _messages(messages)}
        answer = self._whole(self._ask("apply_template", "/apply-template", asked, parameters))
        return str(answer["prompt"])

    def save_prompt(self, prompt: Prompt, path: Union[str, os.PathLike[str]]) -> int:
        """Computes a prompt, and saves its KV cache to a file, from which `restore_prompt` takes it: a system
        prompt, or a long document, is then not computed again in another process. Returns the number of
        tokens in the file: whole pages of 64.

        Raises `RequestError` for a prompt of fewer than 64 tokens, and a file that cannot be written.
        """
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else _ids(prompt)
        self.generate(tokens, max_tokens=1).read()
        return _native(lambda: self._inner.save_prompt(tokens, os.path.expanduser(os.fspath(path))))

    def restore_prompt(self, path: Union[str, os.PathLike[str]]) -> int:
        """Takes the KV cache of a prompt from a file, for texts that begin with this prompt. Returns the
        number of its tokens. The file must be of the same model and KV cache type.

        Raises `RequestError` for a file that cannot be read, or is of another model.
        """
        return _native(lambda: self._inner.restore_prompt(os.path.expanduser(os.fspath(path))))

    @property
    def n_ctx(self) -> int:
        """Maximum positions of a text."""
        return int(self.properties["default_generation_settings"]["n_ctx"])

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return _native(self._inner.n_vocab)

    @property
    def special_tokens(self) -> dict[str, Optional[int]]:
        """Ids of the tokens `bos` (begins a text), `eos` (ends it), `eot` (ends a turn), `cls` and `sep`;
        `None` for those that the model does not have."""
        return _native(self._inner.special_tokens)

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the model's file by GGUF key, without arrays of more than 256 elements."""
        return dict(_native(self._inner.metadata))

    @property
    def device(self) -> str:
        """Name of the device that the model runs on."""
        return _native(self._inner.device)

    @property
    def properties(self) -> dict[str, Any]:
        """Properties of the model, as in llama-server's `/props`."""
        properties: dict[str, Any] = self._whole(self._request("/props"))
        return properties

    def serve(self, port: int = 8080) -> Server:
        """Serves the model over HTTP at a port of this machine, too; 0 picks a free one. The result is the
        listener: its `url`, `base_url` for clients of OpenAI's API, and `close()`. There are no keys; the
        command line `sterna serve` listens for other machines."""
        try:
            return Server(self, self._inner.listen(port))
        except RuntimeError as err:
            of_native(err)

    def close(self) -> None:
        """Ends running texts, and frees the model."""
        self._inner.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        try:
            properties = self.properties
            about = f"{properties['model_alias']}, n_ctx {properties['default_generation_settings']['n_ctx']}"
            return f"<sterna.Engine {about}, {self.device}>"
        except EngineError as err:
            return f"<sterna.Engine: {err}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a sterna.Engine cannot be pickled: each process loads its own")

    def _start(
        self, begin: Callable[..., Text], inputs: list[Any], n: int, same: dict[str, Any]
    ) -> list[Text]:
        """Starts `n` texts of each input."""
        if n < 1:
            raise ValueError(f"n: want at least 1, got {n}")
        seed, texts = same.get("seed"), []
        try:
            for of in inputs:
                for at in range(n):
                    own = same if seed is None else same | {"seed": seed + at}
                    texts.append(begin(of, **own))
        except BaseException:
            for text in texts:
                text.cancel()
            raise
        return texts

    def _begun(self, prompt: str) -> Prompt:
        """The prompt, or the model's end token for an empty one if the model has no token for beginnings."""
        if prompt:
            return prompt
        special = self.special_tokens
        return prompt if special["bos"] is not None or special["eos"] is None else [special["eos"]]

    def _request(self, path: str, body: Optional[dict[str, Any]] = None) -> _sterna.Answer:
        mailbox().update_level()
        data = b"" if body is None else encoded(body)
        try:
            return self._inner.request("GET" if body is None else "POST", path, JSON if data else [], data)
        except RuntimeError as err:
            of_native(err)

    def _ask(
        self, method: str, path: str, asked: dict[str, Any], parameters: dict[str, Any]
    ) -> _sterna.Answer:
        """Sends a request to an endpoint, after checking the names of its parameters."""
        if parameters:
            known = self._parameters(path) - OWN
            for name in parameters:
                if name not in known:
                    raise TypeError(f"{method}() has no parameter {name!r}{_instead(name, known, asked)}")
        given = {name: value for name, value in parameters.items() if value is not None}
        return self._request(path, asked | given)

    def _stream(
        self,
        method: str,
        path: str,
        asked: dict[str, Any],
        sampling: dict[str, Any],
        schema: Optional[Kind],
        parameters: dict[str, Any],
    ) -> tuple[_sterna.Answer, Optional[Callable[[str], Any]]]:
        """Starts a text. Returns its stream, and the function that parses it."""
        asked |= {name: value for name, value in sampling.items() if value is not None}
        asked |= {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
        parse = None
        if parameters.get("response_format") is not None:
            parameters = dict(parameters)
            parameters["response_format"], parse = response_format(parameters["response_format"])
        if schema is not None:
            of = Schema.of(schema, "schema")
            asked["response_format"], parse = format_of(of), of.parse
        return self._ask(method, path, asked, parameters), parse

    def _embedding(
        self, texts: Any, normalize: Optional[bool], dimensions: Optional[int], parameters: dict[str, Any]
    ) -> _sterna.Answer:
        texts = texts.tolist() if hasattr(texts, "tolist") else texts
        asked: dict[str, Any] = {"input": texts if isinstance(texts, str) else list(texts)}
        if normalize is not None:
            # llama-server's numbers: -1 is none, 2 the Euclidean length.
            asked["embd_normalize"] = 2 if normalize else -1
        if dimensions is not None:
            asked["dimensions"] = dimensions
        parameters = {name: value for name, value in parameters.items() if name != "encoding_format"}
        return self._ask("embed", "/v1/embeddings", asked | {"encoding_format": "base64"}, parameters)

    def _parameters(self, path: str) -> set[str]:
        """The names of an endpoint's parameters, from the engine's OpenAPI document."""
        if path not in self._known:
            document = self._whole(self._request("/openapi.json"))
            body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            self._known[path] = set(_properties(body, document["components"]["schemas"]))
        return self._known[path]

    @staticmethod
    def _whole(answer: _sterna.Answer) -> Any:
        whole = _Whole()
        try:
            while (piece := answer.read()) is not None:
                whole.add(piece)
        except RuntimeError as err:
            of_native(err)
        finally:
            mailbox().deliver()
        return whole.value()

    @staticmethod
    async def _awhole(answer: _sterna.Answer) -> Any:
        whole = _Whole()
        try:
            while (piece := await next_piece(answer)) is not None:
                whole.add(piece)
        except RuntimeError as err:
            of_native(err)
        return whole.value()


class _Whole:
    """An answer that is one JSON document."""

    def __init__(self) -> None:
        self.status, self.data = 0, b""

    def add(self, piece: Piece) -> None:
        if isinstance(piece, tuple):
            self.status = piece[0]
        elif piece is not None:
            self.data += piece

    def value(self) -> Any:
        if self.status not in (0, 200):
            raise of_status(self.status, self.data)
        if not self.data:
            raise EngineError("the engine was closed")
        return json.loads(self.data)


def _native(call: Callable[[], Value]) -> Value:
    try:
        return call()
    except (RuntimeError, ValueError) as err:
        of_native(err)


def _several(inputs: Iterable[Any], name: str) -> list[Any]:
    if isinstance(inputs, (str, bytes, dict)):
        raise TypeError(f"{name}: want a list of them")
    return list(inputs)


def _messages(messages: Messages) -> list[Any]:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return [messages] if isinstance(messages, dict) else list(messages)


def _ids(tokens: Any) -> list[int]:
    ids = tokens_of([tokens] if isinstance(tokens, int) else tokens, "tokens")
    if ids is None:
        raise TypeError("tokens: want a list or an array of whole numbers")
    return ids


def _vectors(answer: dict[str, Any], as_array: bool) -> Any:
    """Embeddings from the answer of the endpoint: float32 in base64."""
    import base64
    import struct

    all_bytes = [base64.b64decode(entry["embedding"]) for entry in answer["data"]]
    if as_array:
        try:
            import numpy
        except ImportError:
            pass
        else:
            return numpy.array([numpy.frombuffer(of, "<f4") for of in all_bytes], numpy.float32)
    return [list(struct.unpack(f"<{len(of) // 4}f", of)) for of in all_bytes]


def _joined(parts: list[Any]) -> Any:
    """Embeddings of several batches as those of one."""
    if parts and hasattr(parts[0], "shape"):
        import numpy

        return numpy.concatenate(parts)
    return [vector for part in parts for vector in part]


def _score(text: Generation, n_before: int) -> Score:
    """The score of an echoed prompt after its first tokens."""
    of = [(scored.logprob, scored.top) for scored in text.logprobs[n_before:] if scored.logprob is not None]
    logprob = sum(logprob for logprob, _ in of)
    # Two tokens may have the same text, so log-probabilities are compared.
    is_greedy = all(logprob >= max(top.values()) for logprob, top in of)
    return Score(logprob, is_greedy)


def _instead(name: str, known: set[str], asked: dict[str, Any]) -> str:
    if name in INSTEAD:
        return f": {INSTEAD[name]}"
    import difflib

    near = difflib.get_close_matches(name, [*known, "max_tokens", "temperature"], 1, 0.7)
    return f"; did you mean {near[0]!r}?" if near else ""


def _properties(schema: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    """The properties of an object's schema, including those of schemas that it refers to."""
    if "$ref" in schema:
        yield from _properties(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    yield from schema.get("properties", ())
    for part in schema.get("allOf", ()):
        yield from _properties(part, schemas)
