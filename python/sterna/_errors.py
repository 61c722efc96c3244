"""Errors, with the engine's messages."""

from __future__ import annotations

import json
from typing import Any, NoReturn, Optional


class Error(Exception):
    """Any error of the engine."""


class LoadError(Error):
    """A model could not be loaded: a missing or invalid file, an invalid option, too little memory."""


class RequestError(Error, ValueError):
    """An invalid request: a parameter, a prompt that is too long, an invalid schema."""

    #: The invalid parameter, if it is one.
    param: Optional[str] = None
    #: Error code, such as `context_length_exceeded`.
    code: Optional[str] = None


class EngineError(Error, RuntimeError):
    """The engine or its device failed, or was closed, or belongs to another process."""


def of_status(status: int, body: bytes) -> Error:
    """The error of a request that was refused."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        error = {"message": body.decode(errors="replace")}
    return of_object(error, status)


def of_object(error: dict[str, Any], status: int = 500) -> Error:
    """The error from an error object."""
    message = str(error.get("message")).replace("start the server with", "load the Engine with")
    if status >= 500:
        return EngineError(message)
    refused = RequestError(message)
    refused.param, refused.code = error.get("param"), error.get("code")
    return refused


def of_native(err: Exception) -> NoReturn:
    """Raises an error of the native part as one of the package."""
    raise (RequestError if isinstance(err, ValueError) else EngineError)(str(err)) from None
