"""The backend of an alias with a store: the tables, with a broker beside them as their timer."""

import math

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_delayq.brokers.base import Broker, ServerReport
from django_delayq.conf import Alias, Store
from django_delayq.store import identity, report
from django_delayq.store.database import Database
from django_delayq.store.degraded import Degraded
from django_delayq.store.limiter import DatabaseLimiter
from django_delayq.store.presence import DatabasePresence
from django_delayq.store.queue import DatabaseQueue
from django_delayq.support.validation import did_you_mean


class DatabaseBackend:
    """See `Backend` in brokers/base.py."""

    def __init__(self, alias: Alias, settings: Store, broker: Broker) -> None:
        self.check(alias)
        self.database = broker.database or Database(alias.name, alias.database)
        # Where the rows are the alarms, there is nothing to go on from alone.
        self.degraded = Degraded(settings.degraded_after if broker.database is None else math.inf)
        self.broker = broker
        self.queue = self.store = DatabaseQueue(alias, settings, self.database, broker, self.degraded)
        self.presence = DatabasePresence(alias, self.database, broker, self.degraded)
        self.limiter = DatabaseLimiter(self.database, broker.limiter, self.degraded)
        self.alias = alias
        self._is_fit = False

    @staticmethod
    def check(alias: Alias) -> None:
        """Raise `ImproperlyConfigured` unless the alias's database exists and commits by itself."""
        database = connections.settings.get(alias.database)
        if database is None:
            known = did_you_mean(alias.database, connections.settings)
            raise ImproperlyConfigured(
                f'DELAYQ["{alias.name}"]["DATABASE"]={alias.database!r} is not in DATABASES; {known}'
            )
        if not database["AUTOCOMMIT"]:
            raise ImproperlyConfigured(
                f'DATABASES["{alias.database}"]["AUTOCOMMIT"] is False: nothing that the store of '
                f'DELAYQ["{alias.name}"] does there would be committed. Leave AUTOCOMMIT out, or name in '
                f'DELAYQ["{alias.name}"]["DATABASE"] another entry of DATABASES, without it.'
            )

    def open(self) -> None:
        self.broker.open()

    def close(self) -> None:
        self.broker.close()

    def report(self) -> ServerReport:
        with self.database.available():
            found = report.report(self.broker, self.degraded, self.database)
        if not self._is_fit:  # tables that were there once are not looked for again
            found.problems += report.problems(self.database) or report.isolation_problems(self.database)
            self._is_fit = not found.problems
        if self._is_fit and not self.degraded.on:
            identity.own(self.database, self.alias, self.broker.timer)
        return found
