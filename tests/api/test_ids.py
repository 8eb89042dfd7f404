"""Made-up ids."""

import os
from collections.abc import Callable

import pytest

from django_delayq.api.send import new_id, new_ids


@pytest.fixture(params=["one at a time", "many"])
def make_id(request: pytest.FixtureRequest) -> Callable[[], str]:
    return new_id if request.param == "one at a time" else new_ids().__next__


def test_ids_are_22_letters_and_digits_and_each_is_another(make_id: Callable[[], str]) -> None:
    ids = [make_id() for _ in range(10_000)]
    assert {len(id) for id in ids} == {22}
    assert all(id.isascii() and id.isalnum() for id in ids)
    assert len({id[8:] for id in ids}) == 10_000, "the random parts alone differ"


def test_ids_sort_by_the_millisecond_they_were_made_in(make_id: Callable[[], str]) -> None:
    moments = sorted({62**digits + step for digits in range(1, 8) for step in (-1, 0)} | {0, 62**8 - 1})
    ids = [id_made_at(moment, make_id) for moment in moments]
    assert ids == sorted(ids)


def id_made_at(milliseconds: int, make_id: Callable[[], str]) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time_ns", lambda: milliseconds * 1_000_000)
        return make_id()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # the child only answers
def test_ids_differ_between_forks() -> None:
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
