"""The history of attempts stays small, and keeps what says most."""

from django_delayq.core.history import MOST, MOST_BYTES, NOTHING, Ended, PastAttempt, add, read


def attempt(number: int, traceback: str = "") -> PastAttempt:
    return PastAttempt(number, 1_000 * number, 1_000 * number + 5, "w", Ended.FAILED, "ValueError: é\x00", traceback)


def history_of(*attempts: PastAttempt) -> str:
    history = NOTHING
    for each in attempts:
        history = add(history, each)
    return history


def test_attempts_are_read_as_they_were_added_oldest_first() -> None:
    attempts = [attempt(1, "Traceback…"), attempt(2)]
    assert read(history_of(*attempts)) == attempts
    assert read(NOTHING) == []


def test_of_many_attempts_the_first_and_the_last_are_kept() -> None:
    kept = read(history_of(*(attempt(number) for number in range(1, 2 * MOST))))
    assert [each.attempt for each in kept] == [1, *range(MOST + 1, 2 * MOST)]
    assert len(kept) == MOST


def test_tracebacks_between_the_first_and_the_last_go_first_when_room_is_short() -> None:
    history = history_of(*(attempt(number, "é" * (MOST_BYTES // 8)) for number in range(1, MOST + 1)))
    assert len(history.encode()) <= MOST_BYTES
    kept = read(history)
    assert [each.attempt for each in kept] == list(range(1, MOST + 1))
    with_traceback = [each.attempt for each in kept if each.traceback]
    assert with_traceback == [1, MOST - 1, MOST]


def test_what_can_never_fit_keeps_its_line() -> None:
    (kept,) = read(history_of(attempt(1, "x" * MOST_BYTES)))
    assert (kept.error, kept.traceback) == ("ValueError: é\x00", "")


def test_what_someone_else_wrote_is_no_history_and_stops_nothing() -> None:
    for garbage in ("", "{}", '[{"attempt": "x"}]', "[", "null"):
        assert read(garbage) == []
        assert read(add(garbage, attempt(1))) == [attempt(1)]
