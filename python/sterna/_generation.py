"""Texts while they come, to be read with `for` or with `async for`."""

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

#: A piece as the native half has it: a status of HTTP, and bytes.
Piece = Optional["tuple[int, bytes]"]


async def next_piece(answer: _sterna.Answer) -> Piece:
    """The next piece of an answer, while the event loop does other things."""
    import asyncio

    loop = asyncio.get_running_loop()
    while True:
        came = loop.create_future()

        def settle(came: asyncio.Future[None] = came) -> None:
            if not came.done():
                came.set_result(None)

        def wake(settle: Callable[[], None] = settle) -> None:
            # Where the loop is closed, nothing waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle)

        piece = answer.poll(wake)
        if piece is not False:
            return piece
        await came


class Generation:
    """A text that is being generated. It has begun already.

    Iterating over it, with `for` or `async for`, gives the pieces of its text as they come. Other threads and
    tasks go on meanwhile. `read()`, or `await`, waits for the whole text. Leaving it unread for long lets it
    rest; deleting it, or `cancel()`, ends it.
    """

    def __init__(self, engine: _sterna.Engine, answer: _sterna.Answer) -> None:
        # An engine that nothing else refers to stays until the end of its texts.
        self._engine, self._answer = engine, answer
        self._events: collections.deque[dict[str, Any]] = collections.deque()
        self._pieces: list[str] = []
        self._has_ended = self._is_cancelled = False
        self._waiting: Optional[asyncio.Lock] = None
        #: Why it ended: `stop` at its own end or a stop string, `length`; `None` until then.
        self.finish_reason: Optional[str] = None
        #: Tokens, as OpenAI's APIs count them: `prompt_tokens`, `completion_tokens`; once it has ended.
        self.usage: Optional[dict[str, Any]] = None
        #: Speeds, as llama-server's `timings`: `predicted_per_second` and others; once it has ended.
        self.timings: Optional[dict[str, Any]] = None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def cancel(self) -> None:
        """Ends it: what has come stays, and nothing more comes."""
        self._is_cancelled = True
        self._answer.cancel()

    def read(self) -> str:
        """Waits for the end, and returns the whole text."""
        for _ in self:
            pass
        return self.text

    def events(self) -> Iterator[dict[str, Any]]:
        """The stream as OpenAI's APIs have it: an object per token or so, with `choices` and what was asked
        for beside them, such as log-probabilities. For what has not been read as text yet."""
        while (event := self._next_event()) is not None:
            yield event

    async def aevents(self) -> AsyncIterator[dict[str, Any]]:
        """The same, for tasks."""
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
            # Ctrl-C, too: whoever does not wait for it does not want it.
            self.cancel()
            raise
        return self._fold()

    async def _anext_event(self) -> Optional[dict[str, Any]]:
        import asyncio

        # One task at a time waits for a piece.
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
        """Reads a piece of the stream: whole events."""
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
        """Takes the next event, and notes what it says."""
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
        """Notes more of a choice than its text."""

    def _piece(self, event: dict[str, Any]) -> str:
        """The text of an event."""
        return "".join(choice["text"] for choice in event["choices"])


class Chat(Generation):
    """An answer in a conversation that is being generated; its pieces are those of its content.

    `message` has all of it, thoughts and calls of tools included, to be put behind the messages before it.
    """

    def __init__(self, engine: _sterna.Engine, answer: _sterna.Answer) -> None:
        super().__init__(engine, answer)
        self._thoughts: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}

    @property
    def message(self) -> dict[str, Any]:
        """The answer so far, as a message: `role`, `content`, and if there are any `reasoning_content` and
        `tool_calls`."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        if self._calls:
            message["tool_calls"] = [call for _, call in sorted(self._calls.items())]
        return message

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Calls of tools so far, whose `function` has a `name` and `arguments`, which are JSON in a text."""
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
