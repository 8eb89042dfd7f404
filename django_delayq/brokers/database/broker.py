"""Offer the broker of a site that has no server but its database."""

from functools import cached_property
from typing import ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_delayq.brokers.base import Risk, ServerReport
from django_delayq.brokers.database.heartbeats import DatabaseHeartbeats
from django_delayq.conf import LOCATION, Alias
from django_delayq.store.database import Database
from django_delayq.store.notices import notice, notice_of_many
from django_delayq.store.timer import NOTICE_MS, DatabaseTimer
from django_delayq.support.translatable import text as _


class DatabaseBroker:
    """A `Broker` (brokers/base.py) without a server of its own: it needs a store, whose rows are the alarms."""

    needs_store: ClassVar[bool] = True
    queue = window = alarm_index = limiter = None

    def __init__(self, alias: Alias) -> None:
        self._alias = alias

    @cached_property
    def database(self) -> Database:
        database = Database(self._alias.name, self._alias.database)
        if database.vendor == "postgresql":
            database.notice = notice(database, NOTICE_MS)
            database.notice_of_many = notice_of_many(database, NOTICE_MS)
        return database

    @cached_property
    def timer(self) -> DatabaseTimer:
        return DatabaseTimer(self.database, lambda: self.presence.read_workers())

    @cached_property
    def presence(self) -> DatabaseHeartbeats:
        return DatabaseHeartbeats(self.database, self.timer)

    @classmethod
    def check(cls, alias: Alias) -> None:
        if alias.location != LOCATION:
            raise ImproperlyConfigured(
                "LOCATION is given, and DatabaseBroker connects to no server beside the database; leave it out, or name"
                " the broker that it is for in BROKER."
            )
        if alias.database in connections.settings:  # else E003 reports it
            Database(alias.name, alias.database).vendor  # noqa: B018 - raises where the store can't use it

    @classmethod
    def places(cls, alias: Alias) -> frozenset[str]:
        return frozenset()  # aliases share no rows: each row names its alias

    @classmethod
    def risks(cls, alias: Alias) -> list[Risk]:
        return []

    def open(self) -> None:
        with self.database.available():
            self.database.now_ms()

    def close(self) -> None:
        self.timer.close()

    def report(self) -> ServerReport:
        return ServerReport(_("the tables in database %(database)r alone", database=self.database.using), "")
