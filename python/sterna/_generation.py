"""Streamed texts, to be read with `for` or `async for`."""

from __future__ import annotations

import collections
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Optional

from ._errors import EngineError, of_object, of_status

if TYPE_CHECKING:
    import asyncio

    from . import _sterna

#: A piece from the native part: an HTTP status, and bytes.
Piece = Optional["tuple[int, bytes]"]


async def next_piece(answer: _sterna.Answer) -> Piece:
    """Waits for the next piece of an answer without blocking the event loop."""
    import asyncio

    loop = asyncio.get_running_loop()
    while True:
        came = loop.create_future()

        def settle(came: asyncio.Future[None] = came) -> None:
            if not came.done():
                came.set_result(None)

        def wake(settle: Callable[[], None] = settle) -> None:
            # A closed loop has no waiting task.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle)

        piece = answer.poll(wake)
        if piece is not False:
            return piece
        await came


class Generation:
    """A text that is being generated. Generation has already started.

    Iterating over it, with `for` or `async for`, yields pieces of its text as they arrive, while other
    threads and tasks continue. `read()`, or `await`, waits for the whole text. If it is not read for long,
    generation pauses; deleting it, or `cancel()`, stops it.
    """

    def __init__(self, engine: _sterna.Engine, answer: _sterna.Answer) -> None:
        # Keeps the engine alive until the end of its texts.
        self._engine, self._answer = engine, answer
        self._events: collections.deque[dict[str, Any]] = collections.deque()
        self._pieces: list[str] = []
        self._has_ended = self._is_cancelled = False
        self._waiting: Optional[asyncio.Lock] = None
        #: Reason of the end: `stop` (by the model or a stop string) or `length`; `None` until then.
        self.finish_reason: Optional[str] = None
        #: Token counts in OpenAI's format: `prompt_tokens`, `completion_tokens`; set at the end.
        self.usage: Optional[dict[str, Any]] = None
        #: Speeds in llama-server's format: `predicted_per_second` and others; set at the end.
        self.timings: Optional[dict[str, Any]] = None

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

    def events(self) -> Iterator[dict[str, Any]]:
        """The stream in OpenAI's format: about one object per token, with `choices` and additional data such
        as log-probabilities. Skips what has already been read as text."""
        while (event := self._next_event()) is not None:
            yield event

    async def aevents(self) -> AsyncIterator[dict[str, Any]]:
        """The async version of `events`."""
        while (event := await self._anext_event()) is not None:
            yield event

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
        except BaseException:
            # Also for Ctrl-C: a caller that stops waiting no longer needs the text.
            self.cancel()
            raise
        return self._fold()

    async def _anext_event(self) -> Optional[dict[str, Any]]:
        import asyncio

        # Only one task at a time waits for a piece.
        self._waiting = self._waiting or asyncio.Lock()
        try:
            async with self._waiting:
                while not self._events and not self._has_ended:
                    self._take(await next_piece(self._answer))
        except BaseException:
            self.cancel()
            raise
        return self._fold()

    def _take(self, piece: Piece) -> None:
        """Parses a piece of the stream: whole events."""
        if piece is None:
            self._has_ended = True
            if self.usage is None and not self._is_cancelled:
                raise EngineError("the engine was closed")
            return
        status, data = piece
        if status != 200:
            self._has_ended = True
            raise of_status(status, data)
        for event in data.decode().split("\n\n"):
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
        self.timings = event.get("timings") or self.timings
        self._pieces.append(self._piece(event))
        for choice in event["choices"]:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self._note(choice)
        return event

    def _note(self, choice: dict[str, Any]) -> None:
        """Records the data of a choice besides its text."""

    def _piece(self, event: dict[str, Any]) -> str:
        """The text of an event."""
        return "".join(choice["text"] for choice in event["choices"])


class Chat(Generation):
    """An answer that is being generated in a conversation; its pieces are those of its content.

    `message` is the whole message, including thoughts and tool calls, to be appended to the conversation.
    """

    def __init__(self, engine: _sterna.Engine, answer: _sterna.Answer) -> None:
        super().__init__(engine, answer)
        self._thoughts: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}

    @property
    def message(self) -> dict[str, Any]:
        """The answer so far as a message: `role`, `content`, and if present `reasoning_content` and
        `tool_calls`."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        if self._calls:
            message["tool_calls"] = [call for _, call in sorted(self._calls.items())]
        return message

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Tool calls so far. Their `function` has a `name` and `arguments`, which are JSON in a text."""
        return self.message.get("tool_calls", [])

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

    def _piece(self, event: dict[str, Any]) -> str:
        return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
