"""What comes from outside can't act on a terminal."""

import pytest

from django_delayq.management.delayq.terminal import clean, write_table


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
