"""What a worker knows of the queues and keys that claims left something behind in."""

from django_delayq.worker.plan import SEEN_FOR_S, Backlog

A, B, C = ("q1", "a"), ("q1", "b"), ("q2", "a")
NOW = 100.0
LATER = NOW + SEEN_FOR_S


def seen() -> Backlog:
    """A backlog after a look."""
    backlog = Backlog()
    backlog.see([A, B, C], NOW)
    return backlog


def test_a_worker_that_starts_looks_first() -> None:
    assert Backlog().needs_look


def test_nothing_is_looked_for_while_something_is_known_to_be_due() -> None:
    assert not seen().needs_look


def test_what_a_claim_emptied_is_not_asked_for_again() -> None:
    backlog = seen()
    backlog.note_claim([A, B], [A], found=True, now=NOW)
    assert backlog.pairs == {B, C}


def test_a_look_serves_until_each_pair_was_asked_for() -> None:
    backlog = seen()
    backlog.note_claim([A, B], [A], found=True, now=NOW)
    backlog.note_claim([C], [], found=True, now=NOW)
    assert backlog.pairs == set()
    assert backlog.needs_look


def test_a_look_serves_for_a_moment() -> None:
    backlog = seen()
    backlog.note_claim([A], [], found=True, now=LATER)
    assert backlog.pairs == set()
    assert backlog.needs_look


def test_after_a_claim_in_vain_a_look_serves_until_it_is_used_up_and_no_other_follows() -> None:
    backlog = seen()
    backlog.note_claim([A, B], [A, B], found=False, now=LATER)
    assert backlog.pairs == {C}
    backlog.note_claim([C], [C], found=False, now=LATER)
    assert backlog.pairs == set()
    assert not backlog.needs_look


def test_what_all_claims_left_nothing_behind_of_is_not_looked_for() -> None:
    backlog = Backlog()
    backlog.note_claim_of_all(more_available=False)
    assert not backlog.needs_look


def test_after_a_claim_of_all_that_left_something_behind_a_look_follows() -> None:
    backlog = Backlog()
    backlog.note_claim_of_all(more_available=True)
    assert backlog.needs_look


def test_what_is_due_and_could_not_be_asked_for_is_looked_for_again() -> None:
    backlog = seen()  # but no slot was free for it
    backlog.note_claim_of_all(more_available=False)
    assert (backlog.pairs, backlog.needs_look) == (set(), True)
