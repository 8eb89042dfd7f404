"""What comes from outside can't act on a terminal."""

from io import StringIO

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, OutputWrapper
from django.db import OperationalError

from django_delayq import BrokerUnavailable
from django_delayq.management.support.terminal import clean, speaking, write_table


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"),
        ("a\u202eb\u2066", r"a\u202eb\u2066"),
        ("\u2028", r"\u2028"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_moves_the_cursor_or_reorders_text_is_shown_as_an_escape(hostile: str, shown: str) -> None:
    assert clean(hostile) == shown


def test_ordinary_text_of_any_script_is_left_as_it_is() -> None:
    assert clean("Łódź 北京 ☕ a\u00a0b") == "Łódź 北京 ☕ a\u00a0b"


def test_what_the_terminal_can_not_encode_is_shown_as_an_escape() -> None:
    assert clean("é☕", "latin-1") == "é\\u2615"


def test_columns_are_as_wide_as_what_is_shown() -> None:
    lines: list[str] = []
    write_table(lines.append, ("A", "B"), [("\x1b", "1"), ("x", "2")])
    assert lines == ["A     B", r"\x1b  1", "x     2"]


def test_what_a_command_writes_is_harmless() -> None:
    out = StringIO()
    with speaking(OutputWrapper(out), "mail") as write:
        write("a\x1b[2J\nb")
    assert out.getvalue() == "a\\x1b[2J\\nb\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (CommandError("no\x1b", returncode=2), r"no\x1b"),
        (ImproperlyConfigured("no\x1b"), r"no\x1b"),
        (BrokerUnavailable("away\x1b"), r"mail: away\x1b"),
        (FileNotFoundError("there is no 'a\x1b'"), r"mail: there is no 'a\x1b'"),
        (OperationalError("gone\x1b\nDETAIL: (secret)\n"), r"mail: OperationalError: gone\x1b"),
    ],
)
def test_what_goes_wrong_is_said_in_one_harmless_line(error: Exception, line: str) -> None:
    with pytest.raises(CommandError) as failure, speaking(OutputWrapper(StringIO()), "mail"):
        raise error
    assert str(failure.value) == line
    assert failure.value.returncode == getattr(error, "returncode", 1)
