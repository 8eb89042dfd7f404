"""Offer a check for django-health-check 4 (https://codingjoe.dev/django-health-check/), which the site must install."""

from dataclasses import dataclass, field
from datetime import timedelta

from django.db import DatabaseError
from health_check.base import HealthCheck
from health_check.exceptions import HealthCheckException, ServiceUnavailable, ServiceWarning

from django_delayq.conf import DEFAULT_ALIAS
from django_delayq.core.errors import DelayqError
from django_delayq.monitor import Status, kept_status
from django_delayq.support.logging import logger
from django_delayq.support.units import to_text


@dataclass
class Delayq(HealthCheck):  # type: ignore[misc]  # untyped
    """A check that an alias works: it can be read, its broker answers, a worker is alive, and no message is too late.

    `max_lag` is how late the oldest ready message may be; None allows any lag. `needs_worker` says whether a worker
    must be alive. If the alias has a store, a broker that is away, or is marked as another site's, is only a warning,
    because workers go on from the tables.

    The answer may be shown to anybody: it has a fixed text, without names and numbers. The log has the rest.
    """

    alias: str = field(default=DEFAULT_ALIAS, repr=False)  # the answer shows what repr shows
    max_lag: timedelta | None = field(default=None, repr=False)
    needs_worker: bool = field(default=True, repr=False)

    def run(self) -> None:
        """Raise `ServiceUnavailable` or `ServiceWarning` if something is wrong."""
        seen = self._status()
        if self.max_lag is not None and seen.lag_ms > self.max_lag / timedelta(milliseconds=1):
            late = f"It is {to_text(seen.lag_ms)} late."
            raise self._said(ServiceUnavailable("The oldest ready message is too late."), late)
        if seen.server.foreign:
            raise self._said(ServiceWarning("The broker is marked as another site's."), seen.server.foreign)
        if seen.broker_away:
            raise self._said(ServiceWarning("The broker is away; workers go on from the tables."))
        if self.needs_worker and not seen.workers:
            raise self._said(ServiceUnavailable("No worker is alive."))

    def _status(self) -> Status:
        try:
            return kept_status(self.alias)
        except DelayqError as error:
            raise self._said(ServiceUnavailable("The figures are not available."), str(error)) from None
        except DatabaseError as error:  # its text may hold data
            raise self._said(ServiceUnavailable("The figures are not available."), type(error).__name__) from None

    def _said(self, error: HealthCheckException, more: str = "") -> HealthCheckException:
        """Log what is wrong, including `more`, which the answer leaves out. Return the error."""
        logger.warning("Health of %r: %s %s", self.alias, error.message, more)
        return error
