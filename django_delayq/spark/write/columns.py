"""Check that a DataFrame has the columns that messages are made of, before anything runs."""

from collections.abc import Sequence

from pyspark.sql.types import (
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from django_delayq.spark.errors import SparkError
from django_delayq.spark.write.options import WriteOptions
from django_delayq.support.validation import did_you_mean

COLUMNS = ("key", "data", "due_at", "delay", "id", "tag", "queue", "priority")

_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "key": ((StringType,), "text"),
    "id": ((StringType,), "text; cast it"),
    "tag": ((StringType, NullType), "text"),
    "queue": ((StringType, NullType), "text"),
    "priority": ((IntegralType, NullType), "a whole number"),
    "due_at": ((TimestampType, NullType), "a timestamp"),
    "delay": (
        (StringType, NumericType, DayTimeIntervalType, NullType),
        "seconds, a day-time interval, or text such as '30m'",
    ),
}
_ID_TYPES = (StringType, IntegralType, DateType, TimestampType, DecimalType)


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raise `SparkError` for a column that is missing, unknown or of a wrong type, with its name and the fix."""
    names = schema.fieldNames()
    if "key" not in names and options.key is None:
        raise SparkError("There is no column 'key'; add one, or give option('key', …) for all rows.")
    if "id" not in names and not options.id_columns:
        raise SparkError(
            "There is no column 'id': a task that Spark runs again would send its rows again. Add one, or give "
            "option('idColumns', 'customer_id,number'), which it is made of."
        )
    for path in options.id_columns:
        check_id_type(path, _type_at(schema, path.split("."), path))
    for name in names:
        if name not in COLUMNS and name not in options.id_columns:
            raise SparkError(f"Column {name!r} is no part of a message: {did_you_mean(name, COLUMNS)} Or drop it.")
    for field in schema.fields:
        _check_type(field.name, field.dataType)


def _check_type(name: str, found: DataType) -> None:
    if name not in _TYPES:
        return
    types, wanted = _TYPES[name]
    if isinstance(found, TimestampNTZType):
        raise SparkError(f"Column {name!r} has no time zone; make it an instant with to_utc_timestamp(…, zone).")
    if not isinstance(found, types):
        raise SparkError(f"Column {name!r} is {found.simpleString()}; give {wanted}.")


def check_id_type(path: str, found: DataType) -> None:
    """Raise `SparkError` for a column whose values can't be made into ids that stay the same."""
    if isinstance(found, FloatType | DoubleType) or not isinstance(found, _ID_TYPES):
        raise SparkError(f"Id column {path!r} is {found.simpleString()}; give text, whole numbers or dates.")


def _type_at(schema: StructType, parts: Sequence[str], path: str) -> DataType:
    """Return the type of a column, or of a field of one ("data.customer_id")."""
    if parts[0] not in schema.fieldNames():
        raise SparkError(f"idColumns: there is no {path!r}: {did_you_mean(parts[0], schema.fieldNames())}")
    found = schema[parts[0]].dataType
    if len(parts) == 1:
        return found
    if not isinstance(found, StructType):
        raise SparkError(f"idColumns: {path!r} looks into {parts[0]!r}, which is {found.simpleString()}, no struct.")
    return _type_at(found, parts[1:], path)
