"""Text from outside, made harmless to a terminal and to who reads it. Pure functions."""

import unicodedata

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that move the cursor, reorder or hide text, or that no terminal can show."""


def one_line(text: str) -> str:
    """`text` on one line: control characters, and what reorders or hides text, as escapes."""
    return text if text.isprintable() else "".join(map(_harmless, text))


def lines(text: str) -> str:
    """As `one_line`, but lines stay lines."""
    return "\n".join(map(one_line, text.split("\n")))


def _harmless(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE:
        return character
    return character.encode("unicode_escape").decode("ascii")
