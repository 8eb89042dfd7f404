"""What is kept of a failure, whatever was raised."""

import json

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_delayq.conf import get_alias
from django_delayq.core.errors import HandlerTimeout
from django_delayq.support.validation import MAX_NAME
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
        (ValueError("\u202egnp.exe\u200b"), r"ValueError: \u202egnp.exe\u200b"),
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


def test_a_failure_is_kept_without_the_passwords_in_its_text() -> None:
    exception = raised(ValueError("url=https://u:hunter2@h/ password=hunter2"))
    for text in (failure.line(exception), failure.traceback_of(exception, raised)):
        assert "ValueError: url=https://u:***@h/ password=***" in text
        assert "hunter2" not in text


def test_a_traceback_of_what_cannot_be_shown_or_encoded() -> None:
    assert "Unspeakable" in failure.traceback_of(raised(Unspeakable()), raised)
    failure.traceback_of(raised(ValueError("\udc80")), raised).encode()


def handler() -> None:
    """Stands for a handler."""


def test_a_fingerprint_names_the_type_and_the_innermost_function_of_the_site() -> None:
    def parse() -> None:
        json.loads("{")  # raises in the standard library

    with pytest.raises(ValueError, match="Expecting") as raised:
        parse()
    text = failure.fingerprint(raised.value, handler)
    name = "test_a_fingerprint_names_the_type_and_the_innermost_function_of_the_site.<locals>.parse"
    assert text == f"JSONDecodeError in {__name__}.{name}"


def test_a_failure_outside_of_the_site_has_the_fingerprint_of_its_handler() -> None:
    assert failure.fingerprint(KeyError("x"), handler) == f"KeyError in {__name__}.handler"


def test_a_fingerprint_passes_by_libraries_and_this_package() -> None:
    def fail() -> None:
        get_alias("nowhere")

    with pytest.raises(ImproperlyConfigured) as raised:
        fail()
    assert failure.fingerprint(raised.value, handler).endswith("fail")


def test_a_fingerprint_fits_its_column_and_one_line() -> None:
    kind = type("Long\n" + "x" * 300, (Exception,), {})
    text = failure.fingerprint(kind(), handler)
    assert len(text) <= MAX_NAME
    assert text.isprintable()


def test_a_failure_without_frames_tells_which_handler_failed() -> None:
    text = failure.traceback_of(HandlerTimeout("Its process was killed."), raised)
    assert (
        text.splitlines()[-1]
        == f'  in tests.worker.test_failure.raised, File "{__file__}", line {raised.__code__.co_firstlineno}'
    )
