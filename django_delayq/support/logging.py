"""Log lines that nobody forges, from a logger that never raises: what a line holds, and what a site hangs on its
loggers, comes from outside.
"""

import logging
import sys
import textwrap
from collections.abc import MutableMapping
from typing import Any

from django_delayq.support.redaction import lines, one_line
from django_delayq.support.tracebacks import text_of


class Safe(logging.Filter):
    """Makes each record of a logger one harmless line, its traceback harmless lines: indented, so that none of them
    can pass for a record, shortened, and without passwords.

    A filter and no formatter: it holds whatever handlers and formatters the site has chosen. `exc_info` stays as it
    is, for what groups errors by it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Changes the record in place, and passes it."""
        text = record.getMessage()
        if not text.isprintable():
            record.msg, record.args = one_line(text), ()
        if record.exc_info and not record.exc_text:
            # Formatters take this for what they would make of `exc_info` themselves.
            _, exception, frames = record.exc_info
            record.exc_text = textwrap.indent(lines(text_of(exception, frames).rstrip("\n")), "    ")
        return True


class Enduring(logging.LoggerAdapter[logging.Logger]):
    """A logger that goes on when a filter of the site's raises, as `logging` itself does when a handler raises.

    Who logs is often about to settle a message, or a thread that all others wait for.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log, or say on standard error why not."""
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the caller's line, not this one
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a filter is the site's code
            if logging.raiseExceptions and sys.stderr is not None:
                reason = one_line(f"{type(error).__name__}: {error}")
                print(f"A log line is lost, since a logging filter raised {reason}", file=sys.stderr)  # noqa: T201

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """As they are: a line's `extra` is its own."""
        return msg, kwargs


logger = Enduring(logging.getLogger("django_delayq"))
"""The logger of all that this package tells."""


def keep_safe() -> None:
    """Have the logger's own records made safe. Again is harmless."""
    if not any(isinstance(known, Safe) for known in logger.logger.filters):
        logger.logger.addFilter(Safe())
