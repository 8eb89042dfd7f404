"""Degraded mode: the timer has been away for so long that workers go on from the tables alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from django_delayq.core.errors import PartlyUnavailable
from django_delayq.support.logging import logger
from django_delayq.support.units import to_text


class Degraded:
    """Decides when workers go on from the tables alone, from how each call of the timer went.

    While that mode is not `on` yet, an answer of the timer ends the absence. Once it is, only `end` ends it, after a
    pass over the window. If only a part of the timer is away, the others are asked too.
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
        """Note whether the block, which is a call of the timer, succeeds or fails."""
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
        """Note why a part of the timer is away, though the timer answered; '' if all of it answers.

        Only maintenance can tell that all of it answers.
        """
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
