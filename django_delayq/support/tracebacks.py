"""Format a traceback as text of bounded length that keeps the place of the failure and shows no password."""

import itertools
import traceback
from collections.abc import Iterator
from types import TracebackType

from django_delayq.support.redaction import masked

MAX_TRACEBACK = 16_000
MAX_TEXT = 3_000
"""The most characters that stand between the frames of two exceptions: an exception's text, its notes."""
_CUT = "… (shortened) …"
_FRAME = 'File "'


def text_of(exception: BaseException | None, frames: TracebackType | None) -> str:
    """Return the traceback, without the values of variables, in at most `MAX_TRACEBACK` characters.

    Texts are shortened first, then the frames that are farthest from the failure go. Raises nothing.
    """
    try:
        parts = traceback.format_exception(None, exception, frames)
    except BaseException:  # noqa: BLE001 - an exception may be anything, its notes and its cause too
        return f"{type(exception).__qualname__} (its traceback can't be shown)\n"
    text = "".join(_bounded(parts))
    return text if len(text) <= MAX_TRACEBACK else f"{_CUT}\n{text[len(_CUT) + 1 - MAX_TRACEBACK :]}"


def _bounded(parts: list[str]) -> Iterator[str]:
    for are_frames, group in itertools.groupby(parts, _is_frame):
        if are_frames:
            yield from (_shortened(masked(part)) for part in group)  # a line of source may be anything
        else:
            yield _shortened(masked("".join(group)))


def _is_frame(part: str) -> bool:
    return part.lstrip(" |").startswith(_FRAME)


def _shortened(text: str) -> str:
    """Return the beginning and the end of a text: the type of an exception, and where the next one begins."""
    if len(text) <= MAX_TEXT:
        return text
    end = MAX_TEXT // 3
    return f"{text[: MAX_TEXT - end - len(_CUT)]}{_CUT}{text[-end:]}"
