"""What is kept of a failure, whatever was raised."""

import pytest

from django_delayq.worker import failure


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def raised(exception: BaseException) -> BaseException:
    try:
        raise exception
    except BaseException as caught:  # noqa: BLE001
        return caught


@pytest.mark.parametrize(
    ("exception", "line"),
    [
        (ValueError("plain"), "ValueError: plain"),
        (ValueError(), "ValueError"),
        (ValueError("two\r\nlines\x1b[31m\x00"), "ValueError: two lines [31m "),
        (ValueError("half \udc80"), "ValueError: half \\udc80"),
        (Unspeakable(), "Unspeakable: (its text can't be shown)"),
    ],
)
def test_a_failure_in_one_printable_line(exception: BaseException, line: str) -> None:
    assert failure.line(exception) == line


def test_a_long_text_is_shortened() -> None:
    line = failure.line(ValueError("x" * 10_000))
    assert len(line) == failure.MAX_LINE
    assert line.endswith("…")


def test_a_traceback_keeps_its_cause_and_its_end() -> None:
    error = ValueError("x" * 50_000 + "the end")
    error.__cause__ = raised(KeyError("cause"))
    text = failure.traceback_of(raised(error))
    assert len(text) <= failure.MAX_TRACEBACK + 20
    assert text.rstrip().endswith("the end")


def test_a_traceback_of_what_cannot_be_shown_or_encoded() -> None:
    assert "Unspeakable" in failure.traceback_of(raised(Unspeakable()))
    failure.traceback_of(raised(ValueError("\udc80"))).encode()


def test_endless_recursion_has_a_short_traceback() -> None:
    def recurse() -> None:
        recurse()

    try:
        recurse()
    except RecursionError as error:
        text = failure.traceback_of(error)
    assert "RecursionError" in text
    assert "more times" in text
