"""Data without a type: it arrives exactly as it was sent, or the send says where it would change."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import IntegerChoices, TextChoices
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from hypothesis import given, strategies as st

from django_delayq.core.codec import DEEPEST, decode_data, dumps, encode_data, loads
from django_delayq.core.errors import DataMismatch


class Color(TextChoices):
    RED = "red"


class Size(IntegerChoices):
    LARGE = 1


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


def types_of(value: Any) -> Any:
    """The types in a value, since 1 == 1.0 == True."""
    if isinstance(value, dict):
        return {key: types_of(item) for key, item in value.items()}
    return [types_of(item) for item in value] if isinstance(value, list) else type(value)


@given(JSON)
def test_what_is_accepted_arrives_unchanged(data: Any) -> None:
    arrived = decode_data(encode_data(data))
    assert arrived == data
    assert types_of(arrived) == types_of(data)


@given(JSON)
def test_the_bytes_hold_no_control_character(data: Any) -> None:
    assert min(encode_data(data)) >= 0x20


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"items": [0, 0, 0, {"price": Decimal("9.90")}]},
            r"data\.items\[3\]\.price is of type Decimal: .*Message\[",
        ),
        ((1, 2), r"data is of type tuple: the handler would receive a list"),
        ({"a b": {1: 2}}, r"data\['a b'\] has a key of type int: .* send str\(key\)"),
        ([float("nan")], r"data\[0\] is of type float: .* send None or a number"),
        ([float("-inf")], r"data\[0\] is of type float: JSON has no NaN and no infinity"),
        (2**64, r"data is of type int: .* beyond 64 bits; send it as str"),
        (-(2**63) - 1, r"data is of type int: .* beyond 64 bits"),
        (
            Color.RED,
            r"data is of type Color: the handler would receive a plain str instead of Color; send str\(value\)",
        ),
        (mark_safe("x"), r"plain str instead of SafeString"),
        (Size.LARGE, r"data is of type Size: JSON can't carry Size unchanged"),
        (gettext_lazy("name"), r"data is of type __proxy__: JSON can't carry __proxy__ unchanged"),
        ({1, 2}, r"data is of type set: JSON can't carry set unchanged"),
        (b"x", r"data is of type bytes: JSON can't carry bytes unchanged"),
        (
            datetime(2026, 1, 1, tzinfo=UTC),
            r"JSON can't carry datetime unchanged; annotate the handler with Message\[datetime\]",
        ),
        ({"name": "\ud800"}, r"data\.name holds half of a surrogate pair"),
        ({"\ud800": 1}, r"a key of data holds half of"),
    ],
)
def test_what_would_change_is_refused_with_its_path_and_the_fix(data: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        encode_data(data)


def test_a_model_is_refused_for_its_pk() -> None:
    with pytest.raises(
        TypeError, match=r"data\.user is of type User: send the pk of the User and load it in the handler"
    ):
        encode_data({"user": User()})


def test_data_is_at_most_so_deep() -> None:
    def nested(levels: int) -> Any:
        return [nested(levels - 1)] if levels else 1

    assert decode_data(encode_data(nested(DEEPEST))) == nested(DEEPEST)
    with pytest.raises(TypeError, match=rf"^data[\[\]0]+…[\[\]0]+ lies over {DEEPEST} levels deep") as raised:
        encode_data(nested(DEEPEST + 1))
    assert len(str(raised.value)) < 200


def test_data_that_contains_itself_is_refused() -> None:
    data: list[Any] = []
    data.append(data)
    with pytest.raises(TypeError, match="levels deep"):
        encode_data(data)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'"\xff"', b"[" * 100_000, b"1 2"])
def test_what_is_no_json_is_a_mismatch(body: bytes) -> None:
    with pytest.raises(DataMismatch):
        decode_data(body)


def test_dumps_and_loads_are_each_others_reverse() -> None:
    assert loads(dumps({"a": [1, None, "é"]})) == {"a": [1, None, "é"]}
