"""Which filters a read takes from Spark, and that it takes none that it can't do exactly."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db.models import Model
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)
from pyspark.sql.types import StringType

from django_delayq.models import ErrorMessage, FinishMessage
from django_delayq.models.fields import NameField
from django_delayq.spark.read.filters import Wanted, push
from django_delayq.spark.read.shapes import schema_of

SCHEMA = schema_of("finish", ())
SECOND = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
A_BIT_LATER = SECOND + timedelta(microseconds=1)
DUE = ("due_at",)


def pushed(*filters: Filter) -> Wanted:
    """Return what is wanted, when all of these are taken."""
    wanted = Wanted()
    assert list(push(filters, SCHEMA, wanted)) == []
    return wanted


@pytest.mark.parametrize(
    ("one", "span"),
    [
        (EqualTo(DUE, SECOND), (1000, 1000)),
        (GreaterThan(DUE, SECOND), (1001, None)),
        (GreaterThanOrEqual(DUE, SECOND), (1000, None)),
        (LessThan(DUE, SECOND), (None, 999)),
        (LessThanOrEqual(DUE, SECOND), (None, 1000)),
        (GreaterThan(DUE, A_BIT_LATER), (1001, None)),
        (GreaterThanOrEqual(DUE, A_BIT_LATER), (1001, None)),
        (LessThan(DUE, A_BIT_LATER), (None, 1000)),
        (LessThanOrEqual(DUE, A_BIT_LATER), (None, 1000)),
    ],
)
def test_an_instant_is_compared_by_its_milliseconds(one: Filter, span: tuple[int | None, int | None]) -> None:
    wanted = pushed(one)
    assert (wanted.first.get("due_at"), wanted.last.get("due_at")) == span


def test_no_instant_to_the_millisecond_equals_one_between_two() -> None:
    wanted = pushed(EqualTo(DUE, A_BIT_LATER))
    assert wanted.first["due_at"] > wanted.last["due_at"]


def test_filters_on_one_column_must_all_hold() -> None:
    day = timedelta(days=1)
    wanted = pushed(
        GreaterThan(DUE, SECOND), GreaterThan(DUE, SECOND - day), LessThan(DUE, SECOND + day), LessThan(DUE, SECOND)
    )
    assert (wanted.first["due_at"], wanted.last["due_at"]) == (1001, 999)
    assert pushed(In(("key",), ("a", "b")), EqualTo(("key",), "b")).names == {"key": {"b"}}


def test_pks_are_cut_to_a_range() -> None:
    wanted = pushed(GreaterThan(("pk",), 7), LessThanOrEqual(("pk",), 9))
    assert (wanted.first["pk"], wanted.last["pk"]) == (8, 9)


@pytest.mark.parametrize(("source", "model"), [("finish", FinishMessage), ("error", ErrorMessage)])
def test_a_text_that_a_database_may_compare_by_its_own_rules_is_compared_by_spark_too(
    source: str, model: type[Model]
) -> None:
    schema = schema_of(source, ())
    texts = {each.name for each in schema.fields if isinstance(each.dataType, StringType)}
    exact = {each.name for each in model._meta.get_fields() if isinstance(each, NameField)} | {"id"}
    for name in texts:
        for one in (EqualTo((name,), "a"), In((name,), ("a",))):
            wanted = Wanted()
            assert list(push([one], schema, wanted)) == ([] if name in exact else [one])
            assert wanted.names == {name: {"a"}}


def test_what_is_never_null_needs_no_look() -> None:
    assert pushed(IsNotNull(("key",)), IsNotNull(DUE)) == Wanted()


@pytest.mark.parametrize(
    "one",
    [
        Not(EqualTo(("key",), "a")),
        StringContains(("key",), "a"),
        IsNotNull(("tag",)),
        EqualTo(("failures",), 1),
        EqualTo(("data", "a"), "b"),
        GreaterThan(("key",), "a"),
        LessThan(DUE, datetime(1970, 1, 1)),  # naive: of which zone?
        In(("key",), ("a", None)),
    ],
)
def test_what_can_not_be_done_exactly_is_left_to_spark(one: Filter) -> None:
    wanted = Wanted()
    assert list(push([one], SCHEMA, wanted)) == [one]
    assert wanted == Wanted()
