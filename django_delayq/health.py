"""A check for django-health-check 4 (https://codingjoe.dev/django-health-check/), which the site has to install."""

from dataclasses import dataclass
from datetime import timedelta

from django.db import DatabaseError
from health_check.base import HealthCheck
from health_check.exceptions import ServiceUnavailable, ServiceWarning

from django_delayq.conf import DEFAULT_ALIAS
from django_delayq.core.errors import DelayqError
from django_delayq.monitor import Status, closed_after, status
from django_delayq.support.units import to_text

PATIENCE_S = 1.0


@dataclass
class Delayq(HealthCheck):  # type: ignore[misc]  # untyped
    """A check that an alias works: it can be read, its broker answers, a worker is alive, and no message is too late.

    `max_lag` is how late the oldest ready message may be; None allows any lag. `needs_worker` says whether a worker
    must be alive. If the alias has a store, a broker that is away is only a warning, because workers go on from the
    tables.
    """

    alias: str = DEFAULT_ALIAS
    max_lag: timedelta | None = None
    needs_worker: bool = True

    def run(self) -> None:
        """Raise `ServiceUnavailable` or `ServiceWarning` if something is wrong."""
        seen = self._status()
        if seen.broker_away:
            raise ServiceWarning(f"The broker of {self.alias!r} is away; workers go on from the tables.")
        if self.needs_worker and not seen.workers:
            raise ServiceUnavailable(f"No worker of {self.alias!r} is alive.")
        if self.max_lag is not None and seen.lag_ms > self.max_lag / timedelta(milliseconds=1):
            raise ServiceUnavailable(f"The oldest ready message of {self.alias!r} is {to_text(seen.lag_ms)} late.")

    def _status(self) -> Status:
        try:
            with closed_after(self.alias):  # the checks run in threads that end
                return status(self.alias, patience_s=PATIENCE_S)
        except DelayqError as error:
            raise ServiceUnavailable(str(error)) from error
        except DatabaseError as error:
            raise ServiceUnavailable(f"The database of {self.alias!r} can't be asked.") from error
