"""Made-up ids."""

import os

import pytest

from django_delayq.sending.ids import new_id


def test_ids_are_22_letters_and_digits() -> None:
    id = new_id()
    assert len(id) == 22
    assert id.isascii()
    assert id.isalnum()


def test_ids_sort_by_the_millisecond_they_were_made_in() -> None:
    moments = sorted({62**digits + step for digits in range(1, 8) for step in (-1, 0)} | {0, 62**8 - 1})
    ids = [id_made_at(moment) for moment in moments]
    assert ids == sorted(ids)


def id_made_at(milliseconds: int) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time_ns", lambda: milliseconds * 1_000_000)
        return new_id()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # the child only answers
def test_ids_differ_within_a_millisecond_and_between_forks() -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, new_id().encode())
        os._exit(0)
    os.waitpid(pid, 0)
    theirs = os.read(reader, 22).decode()
    os.close(reader)
    os.close(writer)
    assert theirs not in {new_id() for _ in range(1_000)}
    assert len({new_id() for _ in range(10_000)}) == 10_000
