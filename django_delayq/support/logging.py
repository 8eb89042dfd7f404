"""Write log lines that nobody can forge, with a logger that never raises.

The text of a line may come from outside, and the site may add filters and handlers that raise.
"""

import logging
import sys
import textwrap
from collections.abc import MutableMapping
from typing import Any

from django_delayq.support.sanitize import has_scrubs, lines, one_line, text_of

TRACEBACK = "delayq_traceback"
"""The key in `extra=` for a traceback that the caller has as text already. `Safe` removes it from the record."""


class Safe(logging.Filter):
    """A filter that makes each record one harmless line, and its traceback harmless lines.

    The traceback is shortened and has no passwords. Its lines are indented, so that none can pass for a record.

    It is a filter and not a formatter, so that it works with any handlers and formatters of the site. It keeps
    `exc_info`, by which some tools group errors. If the site has texts scrubbed, it removes `exc_info`, because such
    tools would send the exception itself.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Make the record safe in place, and let it pass the filter."""
        text = record.getMessage()
        if not text.isprintable():
            record.msg, record.args = one_line(text), ()
        made = record.__dict__.pop(TRACEBACK, "")
        if record.exc_info and not record.exc_text:
            # Formatters use `exc_text`, if it is set, instead of formatting `exc_info`.
            _, exception, frames = record.exc_info
            record.exc_text = textwrap.indent(lines((made or text_of(exception, frames)).rstrip("\n")), "    ")
            if has_scrubs():
                record.exc_info = None
        return True


class Enduring(logging.LoggerAdapter[logging.Logger]):
    """A logger that never raises, even if a filter of the site does: `logging` itself catches only errors of handlers.

    The caller may be about to settle a message, or be a thread that all others depend on.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log the message. If a filter raises, print the reason on standard error."""
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the caller's line, not this one
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a filter is the site's code
            if logging.raiseExceptions and sys.stderr is not None:
                reason = one_line(f"{type(error).__name__}: {error}")
                print(f"A log line is lost, because a logging filter raised {reason}", file=sys.stderr)  # noqa: T201

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Return both arguments unchanged. `LoggerAdapter` would drop the caller's `extra`."""
        return msg, kwargs


logger = Enduring(logging.getLogger("django_delayq"))
"""The logger of this package."""


def keep_safe() -> None:
    """Add the filter `Safe` to the logger. Calling it again is harmless."""
    if not any(isinstance(known, Safe) for known in logger.logger.filters):
        logger.logger.addFilter(Safe())
