"""Convert data to JSON bytes and back. No other module knows msgspec, or that there is pydantic.

A pydantic model is known by its methods. So pydantic is imported only by sites that define one.

Errors name paths and types, never a value: they are logged, and kept for people who may not see the data. So they also
have no cause, because msgspec's texts quote values.

The bytes are compact JSON, which never contains a control character. So brokers may use one as a separator.
"""

import math
import re
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from django_delayq.core.errors import DataMismatch
from django_delayq.support.timestamps import LAST_MS
from django_delayq.support.translatable import text as _
from django_delayq.support.validation import short_repr

T = TypeVar("T")

DEEPEST = 100
"""How deep untyped data may be nested."""
MAX_PATH = 120
"""The most characters that an error shows of the path to a wrong value."""

Instant = Annotated[int, msgspec.Meta(ge=0, le=LAST_MS)]
"""Epoch ms that can be shown as a date. Reading JSON into a field of this type refuses any other number."""
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A whole number from 0 to 2**53, which every JSON reader keeps exact."""

_LEAST_INT, _MOST_INT = -(2**63), 2**64 - 1
_ALWAYS_PLAIN = frozenset({str, bool, type(None)})
_LEAVES = frozenset({str, int, float, bool, type(None)})

_OPEN_TYPES = (
    msgspec.inspect.AnyType,
    msgspec.inspect.DictType,
    msgspec.inspect.UnionType,
    msgspec.inspect.RawType,
    msgspec.inspect.CustomType,
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def dumps(value: object) -> bytes:
    """Return any value that msgspec knows (dataclasses too) as compact JSON."""
    return _encode(value)


def loads(body: bytes | str) -> Any:
    """Return JSON as plain Python values. Raises `ValueError` for anything else."""
    return read(body, Any)


def read(body: bytes | str, data_type: type[T]) -> T:
    """Return JSON, whoever wrote it, as a value of the type. Raises `ValueError` if it is no JSON, or doesn't fit."""
    try:
        return decoder_for(data_type).decode(body)  # type: ignore[no-any-return, arg-type]
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error


def encode_data(data: object, data_type: Any = Any) -> bytes:
    """Return the data of a message as JSON bytes.

    With `Any` the handler receives exactly what was sent, so data must be a value that JSON carries unchanged. With a
    type, data may be any value that msgspec converts to it. Raises `TypeError` naming the path, the type and the fix.
    """
    if data_type is Any:
        return _encode_plain(data)
    body = _encode_plain(data) if _is_open(data_type) else _encode_typed(data, data_type)
    try:
        decoder_for(data_type).decode(body)
    except ValueError as error:
        raise TypeError(f"data doesn't fit {type_name(data_type)}: {_reason(error)}") from None
    return body


def all_fit(bodies: Iterable[bytes], data_type: Any) -> bool:
    """Return whether each of `bodies`, which `encode_data` made, fits the type."""
    if data_type is Any:
        return True
    try:
        decoder_for(list[data_type]).decode(b"[" + b",".join(bodies) + b"]")
    except ValueError:
        return False
    return True


def decode_data(body: bytes, data_type: Any = Any) -> Any:
    """Return the data as a handler receives it. Raises `DataMismatch` if it is not JSON or doesn't fit the type."""
    try:
        return _decode(body) if data_type is Any else decoder_for(data_type).decode(body)
    except Exception as error:  # noqa: BLE001 - a type may raise anything in its own checks
        if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
            why = _("The data is no JSON: %(reason)s", reason=_reason(error))
        else:
            why = _("The data doesn't fit %(type)s: %(reason)s", type=type_name(data_type), reason=_reason(error))
        raise DataMismatch(why) from None


@lru_cache(maxsize=1024)
def decoder_for(data_type: Any) -> "msgspec.json.Decoder[Any]":
    """Return the decoder of one type. Raises `TypeError` for a type that msgspec can't convert."""
    # `inspect` does not know Django's choices, a kind of enum, but the decoder does.
    is_enum = isinstance(data_type, type) and issubclass(data_type, Enum)
    is_custom = isinstance(msgspec.inspect.type_info(data_type), msgspec.inspect.CustomType)
    if is_custom and not is_enum and not _is_model(data_type):
        raise TypeError(f"{type_name(data_type)} is no type that msgspec converts.")
    return msgspec.json.Decoder(data_type, dec_hook=_load_model)


def fields_of(data_type: Any) -> frozenset[str] | None:
    """Return the names that the fields of a type have in JSON; empty for a type without fields, such as `int`.

    Return None if the type does not say which fields its values have, as with `dict` or a union.
    """
    if _is_model(data_type):
        return frozenset(field.serialization_alias or name for name, field in data_type.model_fields.items())
    found = msgspec.inspect.type_info(data_type)
    if isinstance(found, _OPEN_TYPES):
        return None
    return frozenset(field.encode_name for field in getattr(found, "fields", ()))


def _encode_plain(data: object) -> bytes:
    try:
        if _is_plain(data, DEEPEST):
            return _encode(data)
    except UnicodeEncodeError:
        pass  # a lone surrogate: `_fault` says where it is
    raise TypeError(_fault(data, "data", DEEPEST))


def _encode_typed(data: object, data_type: Any) -> bytes:
    try:
        body = _encode_with_models(data)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        fix = "; send its pk and load it in the handler" if hasattr(data, "pk") else ""
        raise TypeError(f"data can't be carried as {type_name(data_type)}: {error}{fix}") from None
    # msgspec writes NaN and infinity as null, which a handler with an optional float would take for None.
    if b"null" in body and _has_unfinite(msgspec.to_builtins(data, enc_hook=_dump_model)):
        raise TypeError("data contains NaN or infinity, which JSON can't carry; send None or a number.")
    return body


def _has_unfinite(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_unfinite, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_unfinite, value))


@lru_cache(maxsize=1024)
def _is_open(data_type: Any) -> bool:
    """Return whether a type accepts any JSON, or any JSON in a part of it, like `Any`, `dict` and `list[Any]`.

    Decoding with such a type doesn't notice a value that JSON has changed, so its data must be a value that JSON
    carries unchanged.
    """
    origin, parts = get_origin(data_type), get_args(data_type)
    if origin is list:
        return _is_open(parts[0])
    if origin is dict:
        return parts[0] in (str, Any) and _is_open(parts[1])
    if origin in (Union, UnionType):
        return any(map(_is_open, parts)) and all(part in _LEAVES or _is_open(part) for part in parts)
    return data_type in (Any, dict, list)


def _is_plain(value: Any, depth: int) -> bool:
    """Return whether JSON carries `value` unchanged, to `depth` levels. It leaves half a surrogate pair to the encoder.

    It runs at each send, so it builds no path for an error. Where it returns False, `_fault` builds one.
    """
    kind = type(value)
    if kind is dict and depth:
        for key, item in value.items():
            kind = type(item)
            # Leaves are checked here, because a call for each costs more.
            is_leaf = kind in _ALWAYS_PLAIN or (kind is int and _LEAST_INT <= item <= _MOST_INT)
            if type(key) is not str or not (is_leaf or _is_plain(item, depth - 1)):
                return False
        return True
    if kind in _ALWAYS_PLAIN:
        return True
    if kind is int:
        return bool(_LEAST_INT <= value <= _MOST_INT)
    if kind is float:
        return math.isfinite(value)
    return kind is list and depth > 0 and all(_is_plain(item, depth - 1) for item in value)


def _fault(value: Any, path: str, depth: int) -> str | None:
    """Return why JSON can't carry `value` unchanged (its path, its type and the fix); None if it can."""
    kind = type(value)
    if kind is str:
        return _fault_of_text(value, path)
    if kind in (dict, list) and depth == 0:
        return f"{_short(path)} lies over {DEEPEST} levels deep; send flatter data, or its id."
    if kind is dict:
        return next(filter(None, (_fault_of_item(key, item, path, depth) for key, item in value.items())), None)
    if kind is list:
        faults = (_fault(item, f"{path}[{index}]", depth - 1) for index, item in enumerate(value))
        return next(filter(None, faults), None)
    if _is_plain(value, depth):
        return None
    return f"{_short(path)} is of type {kind.__name__}: {_advice(value)}"


def _fault_of_item(key: Any, item: Any, path: str, depth: int) -> str | None:
    if type(key) is not str:
        return f"{_short(path)} has a key of type {type(key).__name__}: JSON keys are str; send str(key)."
    inner = f"{path}.{key}" if key.isidentifier() else f"{path}[{short_repr(key)}]"
    return _fault_of_text(key, f"a key of {path}") or _fault(item, inner, depth - 1)


def _fault_of_text(text: str, path: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"{_short(path)} holds half of a surrogate pair, which UTF-8 can't carry; mend the text."
    return None


def _short(path: str) -> str:
    """Return a path; if it is long, only its beginning and end, because data may be deep and its keys long."""
    return path if len(path) <= MAX_PATH else f"{path[: MAX_PATH // 2]}…{path[-MAX_PATH // 2 :]}"


def _advice(value: Any) -> str:
    name = type(value).__name__
    if isinstance(value, float):
        return "JSON has no NaN and no infinity; send None or a number."
    if type(value) is int:
        return "JSON readers lose integers beyond 64 bits; send it as str."
    if isinstance(value, str):
        return f"the handler would receive a plain str instead of {name}; send str(value)."
    if isinstance(value, tuple):
        return "the handler would receive a list; send a list."
    if hasattr(value, "pk"):
        return f"send the pk of the {name} and load it in the handler."
    return f"JSON can't carry {name} unchanged; annotate the handler with Message[{name}], or send what JSON carries."


def type_name(data_type: Any) -> str:
    """Return the name of a type, as its author wrote it."""
    return data_type.__name__ if isinstance(data_type, type) and not get_args(data_type) else str(data_type)


def _reason(error: Exception) -> str:
    return _WRONG_VALUE.sub(r"\1\2", str(error)).replace("`$", "`data")


# How msgspec quotes a wrong value of an enum, or of the tag of a type: Invalid enum value 'blue' - at `$.color`.
_WRONG_VALUE = re.compile(r"^(Invalid (?:enum )?value) .*?((?: - at `[^`]*`)?)$", re.DOTALL)


# Pydantic


def _is_model(data_type: Any) -> bool:
    """Return whether a type is a pydantic model."""
    return hasattr(data_type, "model_validate_json")


def _dump_model(value: Any) -> Any:
    """Return a pydantic model as the plain values from which JSON, and then the same model, can be made.

    `warnings` are off because they quote values. What a model may not hold is refused when it is read again.
    """
    if not _is_model(type(value)):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return value.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)


_encode_with_models = msgspec.json.Encoder(enc_hook=_dump_model).encode


def _load_model(data_type: Any, value: Any) -> Any:
    """Return the pydantic model for plain values. A value for another class is returned for msgspec to judge."""
    if not _is_model(data_type):
        return value
    try:
        return data_type.model_validate_json(_encode(value))
    except Exception as error:  # noqa: BLE001 - a model may raise anything in its own checks
        raise ValueError(_reason_of_model(error)) from None


def _reason_of_model(error: Any) -> str:
    """Return the path and the kind of the first fault. The texts of pydantic and of a site's checks quote values."""
    if not hasattr(error, "errors"):
        return f"a check raised {type(error).__name__}"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).removeprefix(".")
    return f"`{_short(path)}` is refused as {first['type']}" if path else f"it is refused as {first['type']}"
