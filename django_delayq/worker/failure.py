"""Record a failure: one line, a traceback, a fingerprint."""

import inspect
import re
import sysconfig
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any

from django_delayq.support.sanitize import clean, keep_first_lines, one_line, text_of
from django_delayq.support.validation import MAX_NAME

MAX_LINE = 300

_LIBRARIES = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def line(exception: BaseException) -> str:
    """Return the exception in one line of at most `MAX_LINE` printable characters, without secrets."""
    try:
        keep_first_lines(exception)
        text = str(exception)
    except BaseException:  # noqa: BLE001 - a handler's exception may be anything, its __str__ too
        text = "(its text can't be shown)"
    return _line_of(exception, text)


def first_line(exception: Exception) -> str:
    """Return `line()` of a database error's first line: the rest may quote a row with its data."""
    return _line_of(exception, str(exception).strip().partition("\n")[0])


def _line_of(exception: BaseException, text: str) -> str:
    name = type(exception).__qualname__
    told = f"{name}: {clean(text)}" if text else name
    return shorten(one_line(_CONTROL.sub(" ", _encodable(told))), MAX_LINE)


def traceback_of(exception: BaseException, handler: Callable[..., Any]) -> str:
    """Return the traceback, as short as `text_of` makes it.

    If there are no frames, because the process was killed, it ends with the handler's name and where it is defined.
    """
    frames = exception.__traceback__.tb_next if exception.__traceback__ else None  # the first frame is ours
    text = text_of(exception, frames)
    return _encodable(text if exception.__traceback__ else f"{text}  in {_place_of(handler)}\n")


def _place_of(handler: Callable[..., Any]) -> str:
    name = f"{handler.__module__}.{handler.__qualname__}"
    code = getattr(inspect.unwrap(handler), "__code__", None)
    return name if code is None else f'{name}, File "{code.co_filename}", line {code.co_firstlineno}'


def fingerprint(exception: BaseException, handler: Callable[..., Any]) -> str:
    """Return a text that is the same for failures of one kind: the exception's type and the site's innermost function.

    The site's code is what belongs neither to a library nor to this package. If none of it was running, the handler
    takes its place.
    """
    place = f"{handler.__module__}.{handler.__qualname__}"
    package = handler.__module__.partition(".")[0]  # a site may be installed as a library
    frames: TracebackType | None = exception.__traceback__
    while frames is not None:
        module = frames.tb_frame.f_globals.get("__name__", "")
        if module.partition(".")[0] == package or _is_of_the_site(module, frames.tb_frame.f_code):
            place = f"{module}.{frames.tb_frame.f_code.co_qualname}"
        frames = frames.tb_next
    return shorten(_CONTROL.sub(" ", _encodable(f"{type(exception).__qualname__} in {place}")), MAX_NAME)


def _is_of_the_site(module: str, code: CodeType) -> bool:
    if module.partition(".")[0] == "django_delayq" or code.co_filename.startswith(("<", *_LIBRARIES)):
        return False
    return "/site-packages/" not in code.co_filename and "/dist-packages/" not in code.co_filename


def shorten(text: str, length: int) -> str:
    """Return `text` in at most `length` characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def to_ascii(text: str) -> str:
    """Return `text` with non-ASCII characters escaped: a database's character set may lack some, such as emoji."""
    return text.encode("ascii", "backslashreplace").decode()


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
