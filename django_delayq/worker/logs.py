"""Log lines on a terminal, for sites that have not configured the logger "django_delayq" themselves."""

import logging

LEVELS = {0: logging.ERROR, 1: logging.INFO}
"""Level by --verbosity; above these it is DEBUG."""


def level_of(verbosity: int) -> int:
    """Return the level for a --verbosity."""
    return LEVELS.get(verbosity, logging.DEBUG)


def start(level: int) -> None:
    """Log from `level` on, to standard error unless the site sends the lines elsewhere."""
    logger = logging.getLogger("django_delayq")
    logger.setLevel(level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
