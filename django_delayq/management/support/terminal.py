"""Write to a terminal, and ask on it. Ids, keys and data come from outside and are not trusted."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from django.core.management.base import CommandError

from django_delayq.support.redaction import one_line

Write = Callable[[str], None]
"""A function that writes one line."""


def clean(text: str, encoding: str = "utf-8") -> str:
    """Return `text` on one line. Control characters, and characters that `encoding` lacks, become escapes."""
    return one_line(text).encode(encoding, "backslashreplace").decode(encoding)


def write_table(write: Write, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write columns as wide as their widest cell; nothing if there are no rows."""
    if not rows:
        return
    cells = [head, *([clean(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def counted(count: int, noun: str) -> str:
    """Return the count with its noun: 1 message, 2 messages."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def confirm(question: str) -> None:
    """Return if the answer is yes. Raises `CommandError` for any other answer, and if nobody is there to answer."""
    try:
        answer = input(f"{clean(question)} Type 'yes' to go on: ")
    except EOFError:
        raise CommandError("Nobody answered, so nothing was done; --no-input goes on without asking.") from None
    except KeyboardInterrupt:
        raise CommandError("Stopped; nothing was done.") from None
    if answer.strip().lower() != "yes":
        raise CommandError("Nothing was done.")


def leave_broken_pipe() -> NoReturn:
    """End quietly with 1, because nobody reads the output any more, as after `| head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at its end
    raise SystemExit(1)
