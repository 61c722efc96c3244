"""Doors for clients of OpenAI's API: in this process, or at a port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from ._errors import of_native
from ._mail import next_piece

if TYPE_CHECKING:
    from . import _sterna
    from ._engine import Engine

#: Headers of the connection, which there is not; and `host`, whose name a server would check.
OF_CONNECTIONS = {b"host", b"connection", b"content-length", b"transfer-encoding"}
#: The address that requests are written for.
BASE_URL = "http://sterna/v1"


def http_client(engine: Engine, **options: Any) -> Any:
    """An `httpx.Client` whose requests an engine answers inside this process, for clients of OpenAI's API:

        http_client = sterna.http_client(engine)
        client = openai.OpenAI(base_url="http://sterna/v1", api_key="-", http_client=http_client)

    `options` are those of `httpx.Client`. Needs httpx.
    """
    httpx = _httpx()

    class Transport(httpx.BaseTransport):  # type: ignore[misc, name-defined]
        def handle_request(self, request: Any) -> Any:
            answer = _begin(engine, request, request.read())
            status, headers = answer.read() or (500, [])
            return httpx.Response(status, headers=headers, stream=Stream(answer))

    class Stream(httpx.SyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, answer: _sterna.Answer) -> None:
            self._answer = answer

        def __iter__(self) -> Iterator[bytes]:
            while (piece := self._answer.read()) is not None:
                yield piece  # type: ignore[misc]

        def close(self) -> None:
            self._answer.cancel()

    return httpx.Client(transport=Transport(), **{"base_url": BASE_URL, "timeout": None} | options)


def async_http_client(engine: Engine, **options: Any) -> Any:
    """The same as an `httpx.AsyncClient`, for `openai.AsyncOpenAI`."""
    httpx = _httpx()

    class Transport(httpx.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        async def handle_async_request(self, request: Any) -> Any:
            answer = _begin(engine, request, await request.aread())
            head: Any = await next_piece(answer) or (500, [])
            return httpx.Response(head[0], headers=head[1], stream=Stream(answer))

    class Stream(httpx.AsyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, answer: _sterna.Answer) -> None:
            self._answer = answer

        async def __aiter__(self) -> AsyncIterator[bytes]:
            while (piece := await next_piece(self._answer)) is not None:
                yield piece  # type: ignore[misc]

        async def aclose(self) -> None:
            self._answer.cancel()

    return httpx.AsyncClient(transport=Transport(), **{"base_url": BASE_URL, "timeout": None} | options)


def _httpx() -> Any:
    try:
        import httpx
    except ImportError:
        raise ImportError("sterna.http_client needs httpx: pip install httpx") from None
    return httpx


def _begin(engine: Engine, request: Any, body: bytes) -> _sterna.Answer:
    headers = [
        (name.decode("ascii"), value.decode("latin-1"))
        for name, value in request.headers.raw
        if name.lower() not in OF_CONNECTIONS
    ]
    try:
        return engine._inner.request(request.method, request.url.raw_path.decode("ascii"), headers, body)
    except RuntimeError as err:
        of_native(err)


class Server:
    """A listener of an engine, on this machine. The end of a `with` block, or `close()`, closes it."""

    def __init__(self, engine: Engine, listening: _sterna.Listening) -> None:
        # Keeps the engine alive.
        self._engine, self._listening = engine, listening
        #: Its port.
        self.port: int = listening.port
        #: Its address, such as `http://127.0.0.1:8080`.
        self.url = f"http://127.0.0.1:{self.port}"
        #: Address for clients of OpenAI's API.
        self.base_url = f"{self.url}/v1"

    def close(self) -> None:
        """Closes it: requests that have begun are answered."""
        self._listening.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sterna.Server {self.url}>"
