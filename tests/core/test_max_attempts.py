"""How often a message may start."""

import pytest

from django_delayq.brokers.base import Header
from django_delayq.core.transitions import is_at_most_once, max_attempts


def terms(number: int | None = None, *, once: bool = False) -> Header:
    return Header("q", "k", at_most_once=once, max_attempts=number)


@pytest.mark.parametrize(
    ("sent", "handler", "most"),
    [
        (terms(2), terms(4), 2),
        (terms(), terms(4), 4),
        (None, terms(4), 4),
        (terms(2), None, 2),
        (terms(), None, None),
        (None, None, None),
        (terms(9, once=True), terms(4), 1),
        (terms(9), terms(4, once=True), 1),
    ],
)
def test_a_message_has_its_own_number_else_its_handlers_and_one_where_either_says_once(
    sent: Header | None, handler: Header | None, most: int | None
) -> None:
    assert max_attempts(sent, handler) == most
    assert is_at_most_once(sent, handler) == (most == 1)
