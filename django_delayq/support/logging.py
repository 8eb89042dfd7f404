"""Log lines that nobody can forge, from a logger that never raises.

What a line says comes from outside, and so do the filters and handlers that a site adds to its loggers.
"""

import logging
import sys
import textwrap
from collections.abc import MutableMapping
from typing import Any

from django_delayq.support.texts import lines, one_line, text_of

TRACEBACK = "delayq_traceback"
"""The key in `extra=` for the text of a record's traceback, from a caller that has one. The record does not keep it."""


class Safe(logging.Filter):
    """Makes each record of a logger one harmless line, and its traceback harmless lines.

    The lines of a traceback are shortened and have no passwords. They are indented, so that none can pass for a record.

    It is a filter and not a formatter, so it works with whatever handlers and formatters the site has chosen.
    `exc_info` stays as it is, for tools that group errors by it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Make the record safe in place, and let it pass."""
        text = record.getMessage()
        if not text.isprintable():
            record.msg, record.args = one_line(text), ()
        made = record.__dict__.pop(TRACEBACK, "")
        if record.exc_info and not record.exc_text:
            # Formatters use this in place of the text that they would make of `exc_info`.
            _, exception, frames = record.exc_info
            record.exc_text = textwrap.indent(lines((made or text_of(exception, frames)).rstrip("\n")), "    ")
        return True


class Enduring(logging.LoggerAdapter[logging.Logger]):
    """A logger that goes on when a filter of the site's raises, as `logging` itself does when a handler raises.

    The caller is often about to settle a message, or is a thread that all others wait for.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log, or say on standard error why not."""
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the caller's line, not this one
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a filter is the site's code
            if logging.raiseExceptions and sys.stderr is not None:
                reason = one_line(f"{type(error).__name__}: {error}")
                print(f"A log line is lost, because a logging filter raised {reason}", file=sys.stderr)  # noqa: T201

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Return both unchanged, so that a line keeps the `extra` that it was given."""
        return msg, kwargs


logger = Enduring(logging.getLogger("django_delayq"))
"""The logger of this package."""


def keep_safe() -> None:
    """Make the logger's own records safe. Calling it again is harmless."""
    if not any(isinstance(known, Safe) for known in logger.logger.filters):
        logger.logger.addFilter(Safe())
