"""JSON that Arrow writes is what the codec would write, or is left to the codec."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from django_delayq.core.codec import encode_data
from django_delayq.spark.write.bodies import by_arrow

TEXT = st.none() | st.text(st.characters(exclude_categories=["Cs"]))
KIND = pa.struct(
    {"a b": pa.int64(), 'q"': pa.string(), "t": pa.bool_(), "o": pa.struct({"é": pa.int16(), "s": pa.string()})}
)
INNER = st.none() | st.fixed_dictionaries({"é": st.none() | st.integers(-(2**15), 2**15 - 1), "s": TEXT})
ROW = st.none() | st.fixed_dictionaries(
    {"a b": st.none() | st.integers(-(2**63), 2**63 - 1), 'q"': TEXT, "t": st.none() | st.booleans(), "o": INNER}
)


@given(st.lists(ROW, max_size=5))
def test_arrow_writes_what_the_codec_writes_or_nothing(rows: list[Any]) -> None:
    values = pa.array(rows, KIND)
    bodies = by_arrow(values)
    assert bodies is None or bodies == [encode_data(value) for value in values.to_pylist()]


def test_what_needs_no_escapes_is_written_by_arrow_also_of_a_slice() -> None:
    rows = [{"a b": 1, 'q"': "\N{SNOWMAN} \x7f/", "t": None, "o": {"é": 2, "s": ""}}, None, {"o": None}]
    expected = [encode_data(row) for row in pa.array(rows, KIND).to_pylist()]
    assert by_arrow(pa.array([*rows, *rows], KIND).slice(3)) == expected
    assert by_arrow(pa.array([1, None])) == [b"1", b"null"]


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["{}"]),  # text is JSON already
        pa.array([0.5]),
        pa.array([{"a": ['"']}]),
        pa.array([{"a": 'say "no"'}]),
        pa.array([{"a": "line\n"}]),
        pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]),
        pa.StructArray.from_arrays([pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())], names=["a"]),
    ],
)
def test_what_arrow_would_write_otherwise_is_left_to_the_codec(values: pa.Array) -> None:
    assert by_arrow(values) is None
