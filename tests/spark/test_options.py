"""What is asked of a write is checked before anything runs: each wrong thing is named, with the fix."""

import pytest
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from django_delayq.spark.errors import SparkError, reason_of
from django_delayq.spark.write.columns import check_columns
from django_delayq.spark.write.options import WriteOptions

SITE = {"settings": "tests.settings"}
TYPES: dict[str, DataType] = {
    "bigint": LongType(),
    "boolean": BooleanType(),
    "date": DateType(),
    "double": DoubleType(),
    "int": IntegerType(),
    "string": StringType(),
    "struct": StructType([StructField("a", LongType())]),
    "timestamp_ntz": TimestampNTZType(),
}


def schema_of(columns: str) -> StructType:
    """A schema as SQL writes it. Spark itself would start Java for that."""
    named = [column.split() for column in columns.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in named])


def test_the_settings_are_those_of_the_environment_unless_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "a.settings")
    assert WriteOptions.of({}).settings == "a.settings"
    assert WriteOptions.of({"settings": "b.settings"}).settings == "b.settings"
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")
    with pytest.raises(SparkError, match="Which site"):
        WriteOptions.of({})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"idcolumn": "a"}, "option 'idcolumn' is unknown: did you mean 'idColumns'?"),
        ({"onBadRow": "quarantaine"}, "did you mean 'quarantine'?"),
        ({"onBadRow": "quarantine"}, "give quarantinePath"),
        ({"patience": "soon"}, "option patience='soon'"),
        ({"priority": "101"}, "option priority='101': priority=101 is too large; give 100 or less."),
        ({"tag": "a\nb"}, "leave out control characters"),
    ],
)
def test_a_wrong_option_is_named_with_the_fix(given: dict[str, str], told: str) -> None:
    with pytest.raises(SparkError) as failure:
        WriteOptions.of(SITE | given)
    assert told in str(failure.value)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("id string", "no column 'key'"),
        ("key string", "no column 'id': a task that Spark runs again would send its rows again"),
        ("key string, id bigint", "Column 'id' is bigint; give text; cast it."),
        ("key string, id string, due date", "Column 'due' is no part of a message: did you mean 'due_at'?"),
        ("key string, id string, due_at date", "Column 'due_at' is date; give a timestamp."),
        ("key string, id string, due_at timestamp_ntz", "has no time zone"),
        ("key string, id string, delay boolean", "Column 'delay' is boolean; give seconds"),
        ("key string, id string, priority string", "Column 'priority' is string; give a whole number."),
        ("key int, id string", "Column 'key' is int; give text."),
    ],
)
def test_a_column_that_is_missing_or_wrong_is_named(columns: str, told: str) -> None:
    with pytest.raises(SparkError) as failure:
        check_columns(schema_of(columns), WriteOptions.of(SITE))
    assert told in str(failure.value)


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("customer", "there is no 'customer': did you mean 'customer_id'?"),
        ("amount", "'amount' is double; give text, whole numbers or dates."),
        ("data.x", "there is no 'data.x'"),
        ("key.x", "looks into 'key', which is string, no struct"),
    ],
)
def test_a_column_that_no_id_can_be_made_of_is_named(named: str, told: str) -> None:
    schema = schema_of("key string, customer_id bigint, amount double, data struct")
    with pytest.raises(SparkError) as failure:
        check_columns(schema, WriteOptions.of(SITE | {"idColumns": named}))
    assert told in str(failure.value)


def test_the_reason_of_a_failure_is_without_the_tracebacks_of_sparks_processes() -> None:
    told = """[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):
  File "/somewhere/writer.py", line 1, in write
django_delayq.core.errors.UnknownKey: No handler has the key 'remond'.

The above exception was the direct cause of the following exception:

django_delayq.spark.errors.SparkError: Column 'id' is bigint; give text; cast it.
    at org.apache.spark.Somewhere.scala:1
"""
    assert reason_of(Exception(told)) == "Column 'id' is bigint; give text; cast it."
