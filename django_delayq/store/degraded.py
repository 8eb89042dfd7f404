"""Degraded mode: the timer has been away for so long that workers go on from the tables alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from django_delayq.core.errors import PartlyUnavailable
from django_delayq.support.logging import logger
from django_delayq.support.units import to_text


class Degraded:
    """Tells how long the timer has been away, and whether that is too long. It is told of each call of the timer.

    An answer in between ends a short absence. Once `on`, only `end` ends it, because there may be a rebuild to do. The
    parts of the timer that answer meanwhile are asked beside the tables.
    """

    def __init__(self, after_ms: float) -> None:
        self._after_ms = after_ms
        self._away_since: float | None = None
        self._partly_since: float | None = None
        self.on = False

    @property
    def away(self) -> bool:
        """Return whether the last call of the timer failed, a part of it is away, or degraded mode is still on."""
        return self.on or self._since is not None

    @property
    def is_silent(self) -> bool:
        """Return whether the last call of the timer failed: not even a part of it answered."""
        return self._away_since is not None

    @property
    def is_alone(self) -> bool:
        """Return whether there are only the tables to ask."""
        return self.on and self.is_silent

    @property
    def _since(self) -> float | None:
        return min((since for since in (self._away_since, self._partly_since) if since is not None), default=None)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Note how a call of the timer, the block, went."""
        began_at = monotonic()
        try:
            yield
        except PartlyUnavailable as error:
            self._away_since = None
            self.hear(str(error))
            raise
        except Exception:
            if self._away_since is None:
                self._away_since = began_at
            raise
        self._away_since = None

    def hear(self, away: str) -> None:
        """Note what the timer, which answered, says of a part of it that is away. '' for none: only upkeep can tell."""
        if not away:
            self._partly_since = None
        elif self._partly_since is None:
            self._partly_since = monotonic()

    def begin_if_due(self) -> None:
        """Go on from the tables alone when the timer, or a part of it, has been away for long enough."""
        since = self._since
        if self.on or since is None or monotonic() - since < self._after_ms / 1000:
            return
        self.on = True
        away, tables = ("away", "the tables alone") if self.is_silent else ("away in part", "the tables too")
        logger.warning(
            "Degraded: the broker has been %s for over %s. Going on from %s, up to a second later.",
            away,
            to_text(self._after_ms),
            tables,
        )

    def end(self) -> None:
        """End degraded mode: the timer answers, and has every alarm."""
        self.on = False
        self._away_since = self._partly_since = None
        logger.warning("No longer degraded: the broker answers and has its alarms.")
