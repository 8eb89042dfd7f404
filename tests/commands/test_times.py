"""Instants as people and programs read them, also those that someone else wrote."""

from django_delayq.management.support.shapes import instant
from django_delayq.management.support.terminal import to_words

NOW_MS = 1_800_000_000_000  # 2027-01-15T08:00:00Z


def test_an_instant_is_told_with_its_distance_from_now() -> None:
    assert to_words(NOW_MS + 90_000, NOW_MS) == "2027-01-15T08:01:30.000Z (in 1m30s)"
    assert to_words(NOW_MS - 1, NOW_MS) == "2027-01-15T07:59:59.999Z (1ms ago)"


def test_no_instant_is_a_dash_and_null() -> None:
    assert to_words(None, NOW_MS) == "-"
    assert instant("due", None) == {"due_at": None, "due_ms": None}


def test_an_instant_that_no_calendar_has_is_shown_in_milliseconds() -> None:
    beyond_ms = 10**18
    assert to_words(beyond_ms, NOW_MS).startswith(f"{beyond_ms} ms (in ")
    assert instant("due", beyond_ms) == {"due_at": None, "due_ms": beyond_ms}
