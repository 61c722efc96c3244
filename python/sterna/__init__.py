"""Runs language models from GGUF files, inside this process.

    import sterna

    engine = sterna.Engine()                      # the demo model; or a file, or a hub repository
    for piece in engine.generate("Once upon a time", max_tokens=60):
        print(piece, end="", flush=True)

Start at `Engine`.
"""

from ._engine import Engine, Score
from ._errors import EngineError, Error, LoadError, RequestError
from ._generation import Chat, Generation, Logprob
from ._http import Server, async_http_client, http_client
from ._sterna import VERSION as __version__

__all__ = [
    "Chat",
    "Engine",
    "EngineError",
    "Error",
    "Generation",
    "LoadError",
    "Logprob",
    "RequestError",
    "Score",
    "Server",
    "__version__",
    "async_http_client",
    "http_client",
]
