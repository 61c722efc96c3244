"""What goes wrong, in the engine's words."""

from __future__ import annotations

import json
from typing import Any, Optional


class Error(Exception):
    """Any error of the engine."""


class LoadError(Error):
    """A model that could not be loaded: a file that is missing or broken, an option, no memory."""


class RequestError(Error, ValueError):
    """A request that is wrong: a parameter, a prompt that is too long, a schema that is none."""

    #: The parameter that is meant, if it is one.
    param: Optional[str] = None
    #: Word for programs, such as `context_length_exceeded`.
    code: Optional[str] = None


class EngineError(Error, RuntimeError):
    """The engine or its device failed, or was closed."""


def of_status(status: int, body: bytes) -> Error:
    """The error of an answer that was refused."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        error = {"message": body.decode(errors="replace")}
    return of_object(error, status)


def of_object(error: dict[str, Any], status: int = 500) -> Error:
    """The same of the object that says it."""
    message = str(error.get("message"))
    if status >= 500:
        return EngineError(message)
    refused = RequestError(message)
    refused.param, refused.code = error.get("param"), error.get("code")
    return refused
