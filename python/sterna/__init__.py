"""Runs language models from GGUF files, inside this process.

    import sterna

    engine = sterna.Engine()                      # the demo model; or a file, or a hub repository
    for piece in engine.generate("Once upon a time", max_tokens=60):
        print(piece, end="", flush=True)

Start at `Engine`.
"""

from ._engine import Engine
from ._errors import EngineError, Error, LoadError, RequestError
from ._generation import Chat, Generation
from ._sterna import VERSION as __version__

__all__ = ["Chat", "Engine", "EngineError", "Error", "Generation", "LoadError", "RequestError", "__version__"]
