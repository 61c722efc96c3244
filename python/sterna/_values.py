"""Values of Python as those of requests: numbers of numpy, objects of pydantic, types as schemas, functions
as tools."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Optional, Union

from ._errors import RequestError


def encoded(body: Mapping[str, Any]) -> bytes:
    """A request's body.

    Raises `TypeError` or `RequestError` for a value that no request can have, and names its parameter.
    """
    try:
        return json.dumps(body, default=_plain, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError):
        # Slower: it finds the parameter, and converts keys, too.
        body = {name: plain(value, name) for name, value in body.items()}
        return json.dumps(body, allow_nan=False, ensure_ascii=False).encode()


def plain(value: Any, name: str) -> Any:
    """The value of the parameter `name` as one of JSON."""
    if value is None or isinstance(value, (bool, int)) and type(value) in (bool, int):
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value, name)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as err:
            raise _refused(name, f"character {err.start} of the text is a lone surrogate") from None
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _refused(name, f"want a finite number, got {float(value)}")
        return float(value)
    if isinstance(value, Mapping):
        return {_key(key, name): plain(of, name) for key, of in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(of, name) for of in value]
    try:
        return plain(_plain(value), name)
    except TypeError as err:
        raise TypeError(f"{name}: {err}") from None


def _refused(name: str, why: str) -> RequestError:
    refused = RequestError(f"{name}: {why}")
    refused.param = name
    return refused


def _key(key: Any, name: str) -> str:
    key = plain(key, name)
    return key if isinstance(key, str) else json.dumps(key)


def _plain(value: Any) -> Any:
    """A value that JSON does not have as one that it may have."""
    if isinstance(value, enum.Enum):
        return value.value
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_none=True)
    if hasattr(value, "message") and hasattr(value, "tool_calls"):
        return value.message
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__index__"):
        return value.__index__()
    if hasattr(value, "__float__"):
        return float(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "__iter__") and not isinstance(value, (bytes, bytearray)):
        return list(value)
    raise TypeError(f"cannot use a value of type {type(value).__name__}")


def tokens_of(value: Any, name: str) -> Optional[list[int]]:
    """The tokens in a list or an array; `None` if it is none of tokens."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        return None
    try:
        return [token.__index__() for token in value]
    except AttributeError:
        return None


class Schema:
    """A JSON schema, and the function that makes a value of a text that follows it."""

    def __init__(self, schema: dict[str, Any], parse: Callable[[str], Any]) -> None:
        self.schema, self.parse = schema, parse

    @classmethod
    def of(cls, kind: Any, name: str) -> Schema:
        """The schema of a type: a JSON schema, a class of pydantic, a `TypeAdapter`, or with pydantic any
        type: a dataclass, a `TypedDict`, an `Enum`, a `Literal`, `list[...]`.

        Raises `TypeError` for other values, and where pydantic is not installed.
        """
        if isinstance(kind, Mapping):
            return cls(dict(kind), json.loads)
        if hasattr(kind, "model_json_schema"):
            return cls(kind.model_json_schema(), getattr(kind, "model_validate_json", json.loads))
        if hasattr(kind, "json_schema") and hasattr(kind, "validate_json"):
            return cls(kind.json_schema(), kind.validate_json)
        taken = "a JSON schema, a class of pydantic, a TypeAdapter or a type"
        if not isinstance(kind, type) and typing.get_origin(kind) is None:
            raise TypeError(f"{name}: want {taken}, got {kind!r:.100}")
        try:
            import pydantic
        except ImportError:
            raise TypeError(
                f"{name}: a type such as {kind!r:.100} needs pydantic; without it {taken}"
            ) from None
        try:
            adapter: Any = pydantic.TypeAdapter(kind)
            return cls(adapter.json_schema(), adapter.validate_json)
        except pydantic.errors.PydanticUserError as err:
            raise TypeError(f"{name}: {err}") from None


def response_format(value: Any) -> tuple[dict[str, Any], Optional[Callable[[str], Any]]]:
    """The format of an answer, with the schema of a type in place of the type."""
    if isinstance(value, Mapping):
        kind = value.get("type")
        return dict(value), json.loads if kind in ("json_schema", "json_object") else None
    schema = Schema.of(value, "response_format")
    return format_of(schema), schema.parse


def format_of(schema: Schema) -> dict[str, Any]:
    """OpenAI's `response_format` of a schema."""
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema.schema, "strict": True},
    }


#: JSON types of Python's.
KINDS = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array"}


def tool_of(value: Any) -> Any:
    """A tool in OpenAI's format: of a function, its name, its documentation and the types of its parameters;
    of a class of pydantic, its schema; other values as they are."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, type) and hasattr(value, "model_json_schema"):
        schema = value.model_json_schema()
        description = schema.pop("description", None)
        return _tool(value.__name__, description, schema)
    if callable(value) and not hasattr(value, "model_dump"):
        return _tool(function_name(value), _description(value), _parameters(value))
    return value


def function_name(function: Callable[..., Any]) -> str:
    """The name of a function as a tool."""
    return getattr(function, "__name__", type(function).__name__)


def _tool(name: str, description: Optional[str], parameters: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "parameters": parameters}
    if description:
        function["description"] = description
    return {"type": "function", "function": function}


#: Beginnings of the documentation's parts after the description.
PARTS = re.compile(r"^\s*(Args|Arguments|Parameters|Returns|Yields|Raises|Examples?):?\s*$|^\s*:\w+", re.M)


def _documentation(function: Callable[..., Any]) -> str:
    import inspect

    return inspect.getdoc(function) or ""


def _description(function: Callable[..., Any]) -> str:
    doc = _documentation(function)
    end = PARTS.search(doc)
    return doc[: end.start() if end else None].strip()


def _described(function: Callable[..., Any], name: str) -> Optional[str]:
    """What the documentation says of a parameter, in Google's or Sphinx' style."""
    doc = _documentation(function)
    google = rf"^[ ]+{name}(?:[ ]*\([^)\n]*\))?:[ ]*(.+(?:\n[ ]{{6,}}\S.*)*)"
    sphinx = rf"^:param(?:[ ]\w+)?[ ]{name}:[ ]*(.+(?:\n[ ]+\S.*)*)"
    found = re.search(google, doc, re.M) or re.search(sphinx, doc, re.M)
    return " ".join(found[1].split()) if found else None


def _parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """A JSON schema of a function's parameters."""
    import inspect

    hints = (
        typing.get_type_hints(function, include_extras=True) if hasattr(function, "__annotations__") else {}
    )
    properties: dict[str, Any] = {}
    required = []
    definitions: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        schema = _schema_of_hint(hints.get(name, str), f"{function_name(function)}({name})")
        definitions |= schema.pop("$defs", {})
        if described := _described(function, name):
            schema.setdefault("description", described)
        properties[name] = schema
        if parameter.default is parameter.empty:
            required.append(name)
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return schema | ({"$defs": definitions} if definitions else {})


def _schema_of_hint(hint: Any, name: str) -> dict[str, Any]:
    """A schema of the usual types; of others by pydantic."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if hint in KINDS:
        return {"type": KINDS[hint]}
    if origin in (list, set, tuple) and len([arg for arg in args if arg is not ...]) == 1:
        return {"type": "array", "items": _schema_of_hint(args[0], name)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of_hint(args[1], name)}
    if origin is typing.Literal:
        return {"enum": list(args)}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [of.value for of in hint]}
    unions = (Union, getattr(types, "UnionType", Union))
    if origin in unions and len(args) == 2 and type(None) in args:
        (other,) = (arg for arg in args if arg is not type(None))
        return _schema_of_hint(other, name)
    return dict(Schema.of(hint, name).schema)
