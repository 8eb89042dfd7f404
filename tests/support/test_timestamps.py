"""Instants: to the millisecond, before 1970 and in any zone."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from django_delayq.support.timestamps import from_ms, to_epoch_ms


@pytest.mark.parametrize("milliseconds", [0, 1, -1, 1_767_243_600_123, 253_402_300_799_999])
def test_milliseconds_come_back_as_they_went(milliseconds: int) -> None:
    assert from_ms(milliseconds).tzinfo is UTC
    assert to_epoch_ms(from_ms(milliseconds)) == milliseconds


@pytest.mark.parametrize(
    ("instant", "milliseconds"),
    [
        (datetime(1970, 1, 1, 0, 0, 0, 1_999, tzinfo=UTC), 1),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
    ],
)
def test_a_part_of_a_millisecond_is_rounded_down_in_whatever_zone(instant: datetime, milliseconds: int) -> None:
    assert to_epoch_ms(instant) == milliseconds
