"""Streamed texts, to be read with `for` or `async for`."""

from __future__ import annotations

import collections
import json
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Optional

from ._errors import EngineError, of_native, of_object, of_status
from ._mail import Piece, mailbox, next_piece
from ._values import plain

if TYPE_CHECKING:
    import asyncio

    from . import _sterna


class Logprob(NamedTuple):
    """A token and its log-probability."""

    #: Its id; `None` for a token of an echoed prompt.
    token: Optional[int]
    #: Its text; a part of a letter is U+FFFD.
    text: str
    #: Its natural logarithm; `None` for a prompt's first token.
    logprob: Optional[float]
    #: The most likely tokens by text, as many as were asked for.
    top: dict[str, float]


class Generation:
    """A text that is being generated. Generation has already started.

    Iterating over it, with `for` or `async for`, yields pieces of its text as they arrive, while other
    threads and tasks continue. `read()`, `await` or `str()` waits for the whole text. Pieces are kept until
    they are read; deleting it, or `cancel()`, stops it.
    """

    _object = "text_completion"

    def __init__(
        self,
        engine: _sterna.Engine,
        answer: _sterna.Answer,
        parse: Optional[Callable[[str], Any]] = None,
    ) -> None:
        # Keeps the engine alive until the end of its texts.
        self._engine, self._answer, self._parse = engine, answer, parse
        self._events: collections.deque[dict[str, Any]] = collections.deque()
        self._pieces: list[str] = []
        self._head: dict[str, Any] = {}
        self._status, self._refusal = 0, b""
        self._has_ended = self._is_cancelled = False
        self._waiting: Optional[asyncio.Lock] = None
        #: Reason of the end: `stop` (by the model or a stop string) or `length`; `None` until then.
        self.finish_reason: Optional[str] = None
        #: Token counts in OpenAI's format: `prompt_tokens`, `completion_tokens`; set at the end.
        self.usage: Optional[dict[str, Any]] = None
        #: Speeds in llama-server's format: `predicted_per_second` and others; set at the end.
        self.timings: Optional[dict[str, Any]] = None
        #: Tokens of the text so far, without one that only ends it.
        self.tokens: list[int] = []
        #: Log-probabilities of the tokens so far, if `logprobs` asks for them.
        self.logprobs: list[Logprob] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def cancel(self) -> None:
        """Stops it: the text so far is kept."""
        self._is_cancelled = True
        self._answer.cancel()

    def read(self) -> str:
        """Waits for the end, and returns the whole text."""
        for _ in self:
            pass
        return self.text

    @property
    def parsed(self) -> Any:
        """Waits for the end, and returns the value of a text with a schema: an instance of the class or type
        that was given, or the values of JSON. `None` without a schema.

        Raises `ValueError` if the text ended before its value did.
        """
        text = self.read()
        if self._parse is None:
            return None
        try:
            return self._parse(text)
        except ValueError as err:
            if self.finish_reason == "length":
                raise ValueError(
                    f"the text ended after {len(self.tokens)} tokens, before its value did"
                ) from err
            raise

    def to_openai(self) -> dict[str, Any]:
        """Waits for the end, and returns the answer in OpenAI's format: the openai package's `Completion` or
        `ChatCompletion`, as a dictionary."""
        self.read()
        choice = {"index": 0, "finish_reason": self.finish_reason, "logprobs": self._openai_logprobs()}
        return self._head | {
            "object": self._object,
            "choices": [choice | self._content()],
            "usage": self.usage,
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """The stream in OpenAI's format: about one object per token, with `choices` and additional data such
        as log-probabilities. Skips what has already been read as text."""
        while (event := self._next_event()) is not None:
            yield event

    async def aevents(self) -> AsyncIterator[dict[str, Any]]:
        """The async version of `events`."""
        while (event := await self._anext_event()) is not None:
            yield event

    def __str__(self) -> str:
        return self.read()

    def __repr__(self) -> str:
        text = self.text
        text = text if len(text) <= 40 else f"{text[:40]}..."
        state = self.finish_reason or ("cancelled" if self._is_cancelled else "not read to its end")
        return f"<sterna.{type(self).__name__} {text!r}: {len(self.tokens)} tokens, {state}>"

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while (event := self._next_event()) is not None:
            if piece := self._piece(event):
                return piece
        raise StopIteration

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        while (event := await self._anext_event()) is not None:
            if piece := self._piece(event):
                return piece
        raise StopAsyncIteration

    def __await__(self) -> Generator[Any, None, str]:
        return self._aread().__await__()

    async def _aread(self) -> str:
        async for _ in self:
            pass
        return self.text

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def _next_event(self) -> Optional[dict[str, Any]]:
        try:
            while not self._events and not self._has_ended:
                self._take(self._answer.read())
        except BaseException as err:
            # Also for Ctrl-C: a caller that stops waiting no longer needs the text.
            self._stop(err)
        return self._fold()

    async def _anext_event(self) -> Optional[dict[str, Any]]:
        import asyncio

        # Only one task at a time waits for a piece.
        self._waiting = self._waiting or asyncio.Lock()
        try:
            async with self._waiting:
                while not self._events and not self._has_ended:
                    self._take(await next_piece(self._answer))
        except BaseException as err:
            self._stop(err)
        return self._fold()

    def _advance(self) -> bool:
        """Takes what has arrived, without waiting. Returns true after the end."""
        box = mailbox()
        try:
            while not self._has_ended:
                piece: Any = self._answer.poll(box.mail, 0)
                if piece is False:
                    break
                self._take(piece)
            while self._events:
                self._fold()
        except BaseException as err:
            self._stop(err)
        return self._has_ended

    def _stop(self, err: BaseException) -> NoReturn:
        self.cancel()
        if type(err) is RuntimeError:
            of_native(err)
        raise err

    def _take(self, piece: Piece) -> None:
        """Parses a piece of the stream: whole events."""
        if piece is None:
            self._has_ended = True
            if self._status not in (0, 200):
                raise of_status(self._status, self._refusal)
            if self.usage is None and not self._is_cancelled:
                raise EngineError("the engine was closed")
            return
        if isinstance(piece, tuple):
            self._status = piece[0]
            return
        if self._status != 200:
            self._refusal += piece
            return
        for event in piece.decode().split("\n\n"):
            if event.startswith("data: ") and event != "data: [DONE]":
                told = json.loads(event[len("data: ") :])
                self.usage = told.get("usage") or self.usage
                self._events.append(told)

    def _fold(self) -> Optional[dict[str, Any]]:
        """Takes the next event, and records its data."""
        if not self._events:
            return None
        event = self._events.popleft()
        if "error" in event:
            self._has_ended = True
            raise of_object(event["error"])
        self._head = self._head or {name: event[name] for name in ("id", "created", "model")}
        self.timings = event.get("timings") or self.timings
        self._pieces.append(self._piece(event))
        for choice in event["choices"]:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            tokens = choice.get("token_ids") or []
            self.tokens += tokens
            if choice.get("logprobs"):
                self._score(choice["logprobs"], tokens)
            self._note(choice)
        return event

    def _score(self, logprobs: dict[str, Any], tokens: list[int]) -> None:
        """Records the log-probabilities of some tokens."""
        texts, of_tokens, tops = (logprobs[name] for name in ("tokens", "token_logprobs", "top_logprobs"))
        ids = tokens if len(tokens) == len(texts) else [None] * len(texts)
        for token, text, logprob, top in zip(ids, texts, of_tokens, tops):
            self.logprobs.append(Logprob(token, text, logprob, top or {}))

    def _content(self) -> dict[str, Any]:
        """The text in a choice of OpenAI's format."""
        return {"text": self.text}

    def _openai_logprobs(self) -> Optional[dict[str, Any]]:
        if not self.logprobs:
            return None
        offsets = [0]
        for of in self.logprobs:
            offsets.append(offsets[-1] + len(of.text))
        return {
            "tokens": [of.text for of in self.logprobs],
            "token_logprobs": [of.logprob for of in self.logprobs],
            "top_logprobs": [of.top for of in self.logprobs],
            "text_offset": offsets[:-1],
        }

    def _note(self, choice: dict[str, Any]) -> None:
        """Records the data of a choice besides its text."""

    def _piece(self, event: dict[str, Any]) -> str:
        """The text of an event."""
        return "".join(choice["text"] for choice in event["choices"])


class Chat(Generation):
    """An answer that is being generated in a conversation; its pieces are those of its content.

    `message` is the whole message, including thoughts and tool calls, to be appended to the conversation.
    """

    _object = "chat.completion"

    def __init__(
        self,
        engine: _sterna.Engine,
        answer: _sterna.Answer,
        parse: Optional[Callable[[str], Any]] = None,
        functions: Optional[dict[str, Callable[..., Any]]] = None,
    ) -> None:
        super().__init__(engine, answer, parse)
        self._functions = functions or {}
        self._thoughts: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._scored: list[dict[str, Any]] = []

    @property
    def message(self) -> dict[str, Any]:
        """The answer so far as a message: `role`, `content`, and if present `reasoning_content` and
        `tool_calls`."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        if self._calls:
            message["tool_calls"] = self.tool_calls
        return message

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Tool calls so far. Their `function` has a `name` and `arguments`, which are JSON in a text."""
        return [call for _, call in sorted(self._calls.items())]

    def call_tools(self) -> list[dict[str, Any]]:
        """Waits for the end, calls the functions that were given as `tools` with the arguments of the model,
        and returns a message per call, to be appended to the conversation after `message`. Results that are
        no texts are written as JSON.

        Raises `LookupError` for a call of a tool that was given without a function, and what a function
        raises.
        """
        self.read()
        results = []
        for call in self.tool_calls:
            name = call["function"]["name"]
            if name not in self._functions:
                raise LookupError(f"the tool {name!r} was given without a function")
            result = self._functions[name](**json.loads(call["function"]["arguments"]))
            content = (
                result if isinstance(result, str) else json.dumps(plain(result, name), ensure_ascii=False)
            )
            results.append({"role": "tool", "tool_call_id": call["id"], "name": name, "content": content})
        return results

    def _note(self, choice: dict[str, Any]) -> None:
        delta = choice["delta"]
        if thought := delta.get("reasoning_content"):
            self._thoughts.append(thought)
        for part in delta.get("tool_calls") or []:
            function = {"name": "", "arguments": ""}
            call = self._calls.setdefault(part["index"], {"id": "", "type": "function", "function": function})
            call["id"] = part.get("id") or call["id"]
            for name in function:
                call["function"][name] += (part.get("function") or {}).get(name) or ""

    def _score(self, logprobs: dict[str, Any], tokens: list[int]) -> None:
        entries = logprobs.get("content") or []
        ids = tokens if len(tokens) == len(entries) else [None] * len(entries)
        for token, of in zip(ids, entries):
            top = {other["token"]: other["logprob"] for other in of["top_logprobs"]}
            self.logprobs.append(Logprob(token, of["token"], of["logprob"], top))
        self._scored += entries

    def _content(self) -> dict[str, Any]:
        message = self.message
        has_text = message["content"] or "tool_calls" not in message
        return {"message": message | {"content": message["content"] if has_text else None, "refusal": None}}

    def _openai_logprobs(self) -> Optional[dict[str, Any]]:
        return {"content": self._scored, "refusal": None} if self._scored else None

    def _piece(self, event: dict[str, Any]) -> str:
        return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
