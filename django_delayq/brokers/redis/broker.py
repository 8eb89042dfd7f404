"""The Redis broker: a timer for the tables, or a queue of its own. Every transition is a Lua script."""

from functools import partial
from typing import ClassVar

from django_delayq.brokers.base import ServerReport
from django_delayq.brokers.redis.access import Access
from django_delayq.brokers.redis.client import Operation, Reply, colocated, parse_location
from django_delayq.brokers.redis.limiter import RedisLimiter
from django_delayq.brokers.redis.presence import RedisPresence
from django_delayq.brokers.redis.queue import RedisQueue
from django_delayq.brokers.redis.report import leftover_warnings, merge_reports, on_each_server, report_on
from django_delayq.brokers.redis.timer import RedisTimer
from django_delayq.conf import Alias


class RedisBroker:
    """See `Broker` and `Backend` in brokers/base.py."""

    needs_store: ClassVar[bool] = False
    store = database = None

    def __init__(self, alias: Alias) -> None:
        self.alias = alias
        self._access = Access(alias)
        self.queue = RedisQueue(self._access)
        self.timer = self.alarm_index = RedisTimer(self._access)
        self.presence = RedisPresence(self._access)
        self.limiter = RedisLimiter(self._access)

    @classmethod
    def check(cls, alias: Alias) -> None:
        parse_location(alias.location)

    @classmethod
    def places(cls, alias: Alias) -> frozenset[str]:
        return frozenset(f"{server} {alias.options.prefix}" for server in parse_location(alias.location).servers)

    def open(self) -> None:
        self._access.open()

    def close(self) -> None:
        self._access.close()

    def report(self) -> ServerReport:
        access = self._access
        servers = access.run(on_each_server(access.shards))
        reports = [report_on(partial(self._ask_beside, key), access.location.shown) for key in servers]
        report = merge_reports(reports)
        report.warnings.extend(access.location.warnings)
        if self.alias.store is not None:
            report.warnings.extend(access.run(leftover_warnings(access.shards)))
        return report

    def _ask_beside(self, key: str, *command: str) -> Reply:
        return self._access.run(_ask_beside(key, command))


def _ask_beside(key: str, command: tuple[str, ...]) -> Operation[Reply]:
    (reply,) = yield [colocated(key, *command)]
    return reply
