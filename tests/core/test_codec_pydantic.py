"""Data that is a pydantic model, or has some in it."""

import math
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field, field_validator

from django_delayq import Message, delay_execute
from django_delayq.core.codec import decode_data, encode_data, fields_of
from django_delayq.core.errors import DataMismatch

SECRET = "hush-hush"  # what no error may quote


class Line(BaseModel):
    sku: str
    count: int

    @field_validator("sku")
    @classmethod
    def _check_sku(cls, sku: str) -> str:
        if sku == SECRET:
            raise ValueError(f"{sku} is not sold")
        return sku


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    number: int = Field(alias="orderNumber")
    paid_at: datetime | None = None
    total: Decimal = Decimal(0)
    rate: float | None = None
    lines: list[Line] = []

    @computed_field  # type: ignore[prop-decorator]
    @property
    def size(self) -> int:
        return len(self.lines)


ORDER = Order(
    orderNumber=7, paid_at=datetime(2026, 1, 1, tzinfo=UTC), total=Decimal("1.10"), lines=[Line(sku="a", count=2)]
)


@pytest.mark.parametrize(
    ("data", "data_type"),
    [
        (ORDER, Order),
        (ORDER, Order | None),
        (None, Order | None),
        ([ORDER], list[Order]),
        ({"a": ORDER}, dict[str, Order]),
    ],
)
def test_a_model_arrives_as_it_was_sent(data: Any, data_type: Any) -> None:
    assert decode_data(encode_data(data, data_type), data_type) == data


@pytest.mark.usefixtures("registry")
def test_a_handler_takes_a_model_or_its_plain_values() -> None:
    @delay_execute("order.ship")
    def ship(message: Message[Order]) -> Order:
        return message.data

    assert ship.run(ORDER) == ORDER
    assert ship.run({"orderNumber": 7}).number == 7  # type: ignore[arg-type]
    assert fields_of(ship.data_type) == frozenset({"orderNumber", "paid_at", "total", "rate", "lines"})


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"orderNumber": SECRET}, "`orderNumber` is refused as int_type"),
        ({"orderNumber": 7, "lines": [{"sku": SECRET, "count": 1}]}, r"`lines\[0\]\.sku` is refused as value_error"),
        ({"orderNumber": 7, "lines": [{"sku": "a"}]}, r"`lines\[0\]\.count` is refused as missing"),
        ([SECRET], "it is refused as model_type"),
        (Order.model_construct(number=SECRET), "`orderNumber` is refused as int_type"),
    ],
)
def test_an_error_names_the_path_and_the_kind_and_no_value(data: Any, why: str) -> None:
    with pytest.raises(TypeError, match=rf"^data doesn't fit Order: {why}$"):
        encode_data(data, Order)


def test_what_fits_no_more_at_delivery_is_a_mismatch_without_its_value() -> None:
    class Angry(BaseModel):
        name: str

        @field_validator("name")
        @classmethod
        def _check(cls, name: str) -> str:
            raise LookupError(name)

    with pytest.raises(DataMismatch, match=r"^The data doesn't fit Line: `count` is refused as int_parsing$"):
        decode_data(b'{"sku":"a","count":"hush-hush"}', Line)
    with pytest.raises(DataMismatch, match=r"^The data doesn't fit Angry: a check raised LookupError$"):
        decode_data(b'{"name":"hush-hush"}', Angry)


def test_nan_in_a_model_is_refused() -> None:
    with pytest.raises(TypeError, match="NaN or infinity"):
        encode_data(Order(orderNumber=7, rate=math.nan), Order)


def test_pydantic_is_not_imported_for_sites_without_it() -> None:
    told = "import sys, django_delayq; from django_delayq.core import codec; codec.encode_data([1], list[int])"
    subprocess.run([sys.executable, "-c", f"{told}; assert 'pydantic' not in sys.modules"], check=True)
