"""Tracebacks of a bounded length: what they keep of a failure."""

import pytest

from django_delayq.support.sanitize import MAX_TRACEBACK, text_of


def text_after(exception: BaseException, depth: int = 0) -> str:
    """The traceback of an exception that was raised so many calls further in."""

    def outer(left: int) -> None:
        inner(left)

    def inner(left: int) -> None:
        if left:
            outer(left - 1)
        the_place_of_the_failure()

    def the_place_of_the_failure() -> None:
        raise exception

    try:
        outer(depth)
    except BaseException as caught:  # noqa: BLE001
        return text_of(caught, caught.__traceback__)
    raise AssertionError("nothing was raised")


def test_a_long_text_leaves_room_for_the_place_and_the_cause() -> None:
    error = ValueError("it begins " + "x" * 200_000 + " the end")
    error.__cause__ = KeyError("cause " + "y" * 200_000)
    error.add_note("note\n" * 50_000)
    text = text_after(error)
    assert len(text) <= MAX_TRACEBACK
    for words in ("KeyError: 'cause ", "direct cause", ", in the_place_of_the_failure", "ValueError: it begins x"):
        assert words in text
    assert text.count("(shortened)") == 2


def test_of_many_frames_those_nearest_to_the_failure_are_kept() -> None:
    text = text_after(ValueError("the end"), depth=100)
    assert len(text) <= MAX_TRACEBACK
    assert text.startswith("… (shortened)")
    assert text.endswith("ValueError: the end\n")
    assert ", in the_place_of_the_failure" in text


def test_endless_recursion_has_a_short_traceback() -> None:
    def recurse() -> None:
        recurse()

    with pytest.raises(RecursionError) as raised:
        recurse()
    text = text_of(raised.value, raised.tb)
    assert "RecursionError" in text
    assert "more times" in text


def test_passwords_in_a_text_are_not_shown_wherever_it_is_cut() -> None:
    text = text_after(ValueError("x" * 2_000 + "password='" + "hunter2 " * 10_000 + "'"))
    assert "hunter2" not in text
    assert "password=***" in text


def test_an_exception_that_cannot_be_formatted_is_named() -> None:
    class Odd(Exception):
        @property
        def __cause__(self) -> BaseException | None:  # type: ignore[override]
            raise RuntimeError("no")

    assert text_of(Odd(), None).endswith("Odd (its traceback can't be shown)\n")


def test_no_exception_at_all_is_said() -> None:
    assert text_of(None, None) == "NoneType: None\n"
