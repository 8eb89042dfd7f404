"""The columns of each source of rows."""

from collections.abc import Sequence

from pyspark.sql.types import (
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from django_delayq.spark.errors import SparkError
from django_delayq.support.validation import did_you_mean

WAITING = "waiting"
TABLES = {"ready": "delayq_ready", "finish": "delayq_finish", "error": "delayq_error"}

_TEXT, _INSTANT, _COUNT, _LONG, _FLAG = StringType(), TimestampType(), IntegerType(), LongType(), BooleanType()

_WAITING: dict[str, DataType] = {
    "id": _TEXT,
    "key": _TEXT,
    "queue": _TEXT,
    "data": _TEXT,
    "due_at": _INSTANT,
    "scheduled_at": _INSTANT,
    "sent_at": _INSTANT,
    "tag": _TEXT,
    "trace_id": _TEXT,
    "failures": _COUNT,
    "version": _COUNT,
}
_ROW: dict[str, DataType] = {
    "pk": _LONG,
    **_WAITING,
    "expires_at": _INSTANT,
    "max_attempts": _COUNT,
    "timeout_ms": _LONG,
    "at_most_once": _FLAG,
    "crashes": _COUNT,
    "error": _TEXT,
    "worker": _TEXT,
    "started_at": _INSTANT,
    "history": _TEXT,
    "share": _TEXT,
}
_SHAPES: dict[str, dict[str, DataType]] = {
    WAITING: _WAITING,
    "ready": {**_ROW, "lease_until": _INSTANT},
    "finish": {**_ROW, "outcome": _TEXT, "ended_at": _INSTANT},
    "error": {**_ROW, "detail": _TEXT, "fingerprint": _TEXT, "ended_at": _INSTANT},
}
SOURCES = tuple(_SHAPES)

_NAMES = {"pk": "id", "id": "message_id"}
"""The columns that have another name in the tables, and that name."""


def schema_of(source: str, columns: Sequence[str]) -> StructType:
    """Return the schema of a source: these columns, or all. Raises `SparkError` for a column that it does not have."""
    shape = _SHAPES[source]
    for name in columns:
        if name not in shape:
            raise SparkError(f"option columns: {source!r} has no column {name!r}: {did_you_mean(name, shape)}")
    return StructType([StructField(name, shape[name]) for name in columns or shape])


def column(name: str) -> str:
    """Return the SQL name of a column of the table."""
    return f'r."{_NAMES.get(name, name)}"'
