"""Log lines that nobody forges: ids, keys, errors and tracebacks come from outside."""

import logging

from django_delayq.printable import lines, one_line


class Safe(logging.Filter):
    """Makes each record of a logger one harmless line, its traceback harmless lines.

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
            record.exc_text = lines(logging.Formatter().formatException(record.exc_info))
        return True


def keep_safe(name: str) -> None:
    """Have a logger's own records made safe. Again is harmless."""
    logger = logging.getLogger(name)
    if not any(isinstance(known, Safe) for known in logger.filters):
        logger.addFilter(Safe())
