"""A hand and its child process, without a worker around them."""

import os
import select
import signal
from collections.abc import Iterator
from time import monotonic

import pytest

from django_delayq import Message
from django_delayq.brokers.base import Claimed, Header, Verb
from django_delayq.worker import child_hand, children
from django_delayq.worker.child_hand import ChildHand
from django_delayq.worker.lanes import Lane, Lease
from django_delayq.worker.outcome import Outcome
from tests.worker.processes import Site
from tests.worker.rig import make_handler


@pytest.fixture
def hand(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChildHand]:
    """A hand whose children know the handlers of the site."""
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(child_hand, "RESTART_PAUSE_S", 0)
    hand = ChildHand("worker", "default", Outcome("worker"), None)
    yield hand
    hand.close()


def lease_for(key: str, *, at_most_once: bool = False, held_s: float = 60) -> Lease:
    """A lease of a message for a handler of the site."""

    def func(message: Message[str]) -> None:
        """Never called: the child has its own."""

    claimed = Claimed("a", 1, 0, Header("default", key), b'""')
    now = monotonic()
    return Lease(claimed, Lane(make_handler(func, key, at_most_once=at_most_once), (), 1), now, now + held_s, 0.0)


def verb_of(hand: ChildHand, lease: Lease) -> tuple[Verb, str]:
    """How the hand ends a lease, and why."""
    settlement = hand.run(lease)
    assert settlement is not None
    return settlement.verb, settlement.error


def test_a_child_that_dies_of_its_message_is_a_crash_of_that_message(hand: ChildHand) -> None:
    assert verb_of(hand, lease_for("die")) == (Verb.CRASH, "its process died (signal 9)")
    assert verb_of(hand, lease_for("run")) == (Verb.FINISH, "")


def test_at_most_once_is_buried_by_the_death_of_its_child(hand: ChildHand) -> None:
    verb, error = verb_of(hand, lease_for("die", at_most_once=True))
    assert verb is Verb.BURY
    assert error == "its process died (signal 9); at_most_once: it may have run in part"


def test_a_child_that_died_idle_costs_the_next_message_nothing(hand: ChildHand, site: Site) -> None:
    assert verb_of(hand, lease_for("run")) == (Verb.FINISH, "")
    pid = site.line.next().pid
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([process], [], [])
    os.close(process)
    assert verb_of(hand, lease_for("run")) == (Verb.RELEASE, "")
    assert verb_of(hand, lease_for("run")) == (Verb.FINISH, "")


def test_a_child_that_can_not_take_a_message_costs_it_nothing(hand: ChildHand) -> None:
    assert verb_of(hand, lease_for("only the parent knows it")) == (Verb.RELEASE, "")


def test_a_child_that_is_never_ready_costs_its_message_nothing(
    hand: ChildHand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.worker.hanging_settings")
    monkeypatch.setattr(children, "START_S", 0.5)
    assert verb_of(hand, lease_for("run")) == (Verb.RELEASE, "")
    assert "it is not ready after 0.5 s" in caplog.text


def test_a_message_whose_child_is_killed_at_the_end_of_its_lease_is_charged_nothing(hand: ChildHand) -> None:
    assert verb_of(hand, lease_for("hold", held_s=0.1)) == (Verb.INTERRUPT, "")
