"""Turn the data of rows into JSON: a whole column at once where Arrow can do it, and otherwise a value at a time."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import compute as pc

from django_delayq.core import codec

_ESCAPED = r'["\\\x00-\x1f]'
"""The characters that JSON escapes in a text."""


def by_arrow(values: pa.Array) -> list[bytes] | None:
    """Return each value as JSON, like `codec.encode_data`.

    Return None if Arrow can't do it exactly, so that Python must.
    """
    texts = None if _is_text(values.type) else _texts(values)
    if texts is None:
        return None
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:  # no UTF-8
        return None
    found: list[bytes] = texts.cast(pa.large_binary()).to_pylist()
    return found


def _texts(values: pa.Array) -> pa.Array | None:
    kind = values.type
    if pa.types.is_struct(kind):
        texts = _objects(values)
    elif _is_text(kind):
        texts = _strings(values)
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
        texts = values.cast(pa.large_string())
    else:
        return None
    return None if texts is None else texts.fill_null("null")


def _strings(values: pa.Array) -> pa.Array | None:
    values = values.cast(pa.large_string())
    if pc.any(pc.match_substring_regex(values, _ESCAPED)).as_py():
        return None
    return _joined('"', values, '"')


def _objects(values: pa.StructArray) -> pa.Array | None:
    names = [field.name for field in values.type]
    fields = [_texts(each) for each in values.flatten()]
    if not names or len(set(names)) < len(names) or any(each is None for each in fields):
        return None
    parts: list[Any] = []
    for before, name, texts in zip("{" + "," * len(names), names, fields, strict=False):
        parts += [f"{before}{codec.dumps(name).decode()}:", texts]
    joined = _joined(*parts, "}")
    return pc.if_else(values.is_valid(), joined, None) if values.null_count else joined


def _joined(*parts: Any) -> pa.Array:
    kind = pa.large_string()
    given = [pa.scalar(part, kind) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*given, pa.scalar("", kind))


def reader_of(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return a function that turns a column value into data. It parses text as JSON; a map arrives as pairs."""
    return _from_json if _is_text(kind) else _plain_reader(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _same(value: Any) -> Any:
    return value


def _from_json(text: str | None) -> Any:
    try:
        return None if text is None else codec.loads(text)
    except ValueError as error:
        raise ValueError(f"data is no JSON ({error}); use to_json() for text.") from error


def _plain_reader(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_map(kind):
        item = _plain_reader(kind.item_type)
        return lambda pairs: None if pairs is None else {key: item(value) for key, value in pairs}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = _plain_reader(kind.value_type)
        return _same if item is _same else lambda items: None if items is None else [item(value) for value in items]
    if pa.types.is_struct(kind):
        readers = {field.name: _plain_reader(field.type) for field in kind}
        if all(reader is _same for reader in readers.values()):
            return _same
        return lambda fields: None if fields is None else {name: readers[name](fields[name]) for name in readers}
    return _same
