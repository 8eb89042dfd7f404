"""The message that a handler receives, and the table of legal moves."""

from datetime import UTC, datetime, timedelta

import pytest

from django_delayq.core.errors import LeaseLost
from django_delayq.core.message import Message, State
from django_delayq.core.transitions import MOVES

MESSAGE = Message(
    id="a", key="k", data=1, due_ms=1_700_000_000_001, sent_ms=1_600_000_000_000, started_ms=1_700_000_000_251
)


def test_times_are_datetimes_in_utc_to_the_millisecond() -> None:
    assert MESSAGE.due_at == datetime(2023, 11, 14, 22, 13, 20, 1_000, UTC)
    assert MESSAGE.sent_at == datetime(2020, 9, 13, 12, 26, 40, tzinfo=UTC)


def test_lateness_is_from_due_to_start() -> None:
    assert MESSAGE.lateness == timedelta(milliseconds=250)


def test_ensure_held_raises_once_the_lease_is_lost() -> None:
    held = [True]
    message = Message("a", "k", 1, 0, 0, 0, is_held=lambda: held[0])
    message.ensure_held()
    held[0] = False
    with pytest.raises(LeaseLost, match=r"'a' \(key 'k'\)"):
        message.ensure_held()


def test_only_a_claim_leads_to_running() -> None:
    into_running = {move: starts for move, (starts, ends) in MOVES.items() if State.RUNNING in ends}
    stays = {"interrupt": {State.RUNNING}, "ask to cancel": {State.RUNNING}}
    assert into_running == {"claim": {State.READY}, **stays}


def test_what_ended_is_never_moved_again() -> None:
    ended = {State.FINISHED, State.CANCELLED, State.GONE}
    assert not [move for move, (starts, _) in MOVES.items() if starts & ended]


def test_only_running_messages_finish() -> None:
    assert MOVES["finish"] == (frozenset({State.RUNNING}), frozenset({State.FINISHED}))
