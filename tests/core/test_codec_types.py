"""Data with a type: converted by msgspec, checked at send and at delivery."""

import dataclasses
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypedDict
from zoneinfo import ZoneInfo

import msgspec
import pytest
from django.contrib.auth.models import User
from django.db.models import TextChoices

from django_delayq.core.codec import decode_data, decoder_for, encode_data
from django_delayq.core.errors import DataMismatch


class Color(TextChoices):
    RED = "red"


@dataclasses.dataclass
class Parcel:
    order: int
    weight: Decimal | None = None
    tags: tuple[str, ...] = ()
    color: Color | None = None


class Address(TypedDict):
    street: str


class Point(msgspec.Struct):
    x: float
    y: float | None = None


@pytest.mark.parametrize(
    ("data", "data_type"),
    [
        (5, int),
        ("a", str),
        (None, None),
        ("red", str),
        (Parcel(1, Decimal("0.10"), ("a", "b")), Parcel),
        ([Parcel(1)], list[Parcel]),
        ({"street": "x"}, Address),
        (Point(1.5), Point),
        (datetime(2026, 1, 1, 12, 0, 0, 1, UTC), datetime),
        (date(2026, 1, 1), date),
        (timedelta(minutes=5), timedelta),
        (uuid.UUID(int=5), uuid.UUID),
        (Decimal("1.10"), Decimal),
        (Color.RED, Color),
        (Parcel(1, color=Color.RED), Parcel),
        ({1: "a"}, dict[int, str]),
        ({1, 2}, set[int]),
        ((1, "a"), tuple[int, str]),
        (b"\x00\x1e", bytes),
        ({"a": [1, None]}, dict[str, Any]),
        (None, dict[str, Any] | None),
    ],
)
def test_typed_data_arrives_as_its_type(data: Any, data_type: Any) -> None:
    arrived = decode_data(encode_data(data, data_type), data_type)
    assert arrived == data
    assert type(arrived) is type(data)


def test_the_hour_that_exists_twice_keeps_its_instant() -> None:
    second = datetime(2013, 11, 3, 1, 30, tzinfo=ZoneInfo("America/New_York"), fold=1)
    assert decode_data(encode_data(second, datetime), datetime).timestamp() == second.timestamp()


def test_plain_data_is_converted_where_the_type_cannot_be_imported() -> None:
    assert decode_data(encode_data({"order": 1}, Parcel), Parcel) == Parcel(1)


@pytest.mark.parametrize(
    ("data", "data_type", "message"),
    [
        ("5", int, r"^data doesn't fit int: Expected `int`, got `str`"),
        (True, int, r"data doesn't fit int"),
        (None, int, r"data doesn't fit int"),
        ({"order": "x"}, Parcel, r"doesn't fit Parcel: Expected `int`, got `str` - at `data\.order`"),
        ("blue", Color, r"doesn't fit Color: Invalid enum value$"),
        ({}, Parcel, r"missing required field `order`"),
        (float("nan"), float | None, r"contains NaN or infinity"),
        (Point(1.0, float("inf")), Point, r"contains NaN or infinity"),
        ([{"a": (float("nan"),)}], list[dict[str, tuple[float | None]]], r"contains NaN or infinity"),
        (object(), int, r"can't be carried as int: Encoding objects of type object is unsupported"),
        ("\ud800", str, r"can't be carried as str: .*surrogates"),
        ({"a": (1,)}, dict[str, Any], r"data\.a is of type tuple: the handler would receive a list"),
        ([Decimal(1)], list, r"data\[0\] is of type Decimal"),
        ({1: 1}, dict, r"data has a key of type int"),
    ],
)
def test_what_does_not_fit_is_refused_at_send(data: Any, data_type: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        encode_data(data, data_type)


@pytest.mark.parametrize(("body", "data_type"), [(b'"5"', int), (b"{}", Parcel), (b"null", float)])
def test_what_fits_no_more_at_delivery_is_a_mismatch(body: bytes, data_type: Any) -> None:
    with pytest.raises(DataMismatch, match=r"^The data doesn't fit (int|Parcel|float): "):
        decode_data(body, data_type)


@pytest.mark.parametrize("data_type", [Any, Parcel])
def test_what_is_no_json_is_told_as_that_whatever_the_type(data_type: Any) -> None:
    with pytest.raises(DataMismatch, match=r"^The data is no JSON: JSON is malformed: .* \(byte 1\)$"):
        decode_data(b"{a: 1}", data_type)


def test_a_type_whose_own_code_raises_at_delivery_is_a_mismatch() -> None:
    @dataclasses.dataclass
    class Strict:
        size: int

        def __post_init__(self) -> None:
            raise RuntimeError("never fits")

    with pytest.raises(DataMismatch, match="never fits"):
        decode_data(b'{"size":1}', Strict)


@pytest.mark.parametrize("data_type", [User, object, "int"])
def test_a_type_that_cannot_be_converted_is_refused(data_type: Any) -> None:
    with pytest.raises(TypeError):
        decoder_for(data_type)
