"""Write harmless lines to a terminal, and ask on it. Ids, keys and data come from outside and are not trusted."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, OutputWrapper
from django.db import DatabaseError, InterfaceError

from django_delayq.core.errors import DelayqError
from django_delayq.core.lanes import split_lane
from django_delayq.support.sanitize import one_line
from django_delayq.support.timestamps import from_ms
from django_delayq.support.units import to_text


def to_iso(milliseconds: int | None) -> str | None:
    """Return ISO 8601 in UTC to the millisecond; None for None, and for an instant outside the years 1 to 9999."""
    if milliseconds is None:
        return None
    try:
        return from_ms(milliseconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:  # someone else wrote it
        return None


def end_words(until_ms: int | None, now_ms: int) -> str:
    """Return a text for people that says when a pause ends."""
    return "until it is resumed" if until_ms is None else f"until {to_words(until_ms, now_ms)}"


def to_words(milliseconds: int | None, now_ms: int) -> str:
    """Return a text for people that says when an instant is, and how far from now."""
    if milliseconds is None:
        return "-"
    shown = to_iso(milliseconds) or f"{milliseconds} ms"
    if milliseconds > now_ms:
        return f"{shown} (in {to_text(milliseconds - now_ms)})"
    return f"{shown} ({to_text(now_ms - milliseconds)} ago)"


def queue_words(lane: str) -> str:
    """Return the queue of a lane, and the priority if it is another than 0."""
    queue, priority = split_lane(lane)
    return f"{queue}, priority {priority}" if priority else queue


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
    """Ask, and return if the answer is yes.

    Raises `CommandError` for another answer, and if nobody is there to answer.
    """
    try:
        answer = input(f"{clean(question)} Type 'yes' to go on: ")
    except EOFError:
        raise CommandError("Nobody answered, so nothing was done; --no-input goes on without asking.") from None
    except KeyboardInterrupt:
        raise CommandError("Stopped; nothing was done.") from None
    if answer.strip().lower() != "yes":
        raise CommandError("Nothing was done.")


def leave_broken_pipe() -> NoReturn:
    """End quietly with exit code 1, because nobody reads the output any more, as after `| head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at its end
    raise SystemExit(1)


@contextmanager
def speaking(stdout: OutputWrapper, using: str) -> Iterator[Write]:
    """Yield a function that writes a line.

    An error of an alias, a database, a broker or a file in the block becomes a `CommandError`, in one line without a
    password. If nobody reads the output any more, the command ends quietly with exit code 1.
    """
    try:
        yield partial(_write, stdout)
        stdout.flush()
    except BrokenPipeError:
        leave_broken_pipe()
    except CommandError as error:
        raise CommandError(clean(str(error)), returncode=error.returncode) from error
    except ImproperlyConfigured as error:
        raise CommandError(clean(str(error))) from error
    except (DelayqError, OSError) as error:
        raise CommandError(clean(f"{using}: {error}")) from error
    except (DatabaseError, InterfaceError) as error:  # it may be away; what follows the first line may quote data
        first_line = str(error).strip().partition("\n")[0]
        raise CommandError(clean(f"{using}: {type(error).__name__}: {first_line}")) from error


def _write(stdout: OutputWrapper, line: str) -> None:
    stdout.write(clean(line, getattr(stdout, "encoding", None) or "utf-8"))
