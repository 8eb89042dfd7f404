"""Offer the Redis broker: a timer for the tables, or a queue of its own. Lua scripts make every change of a message."""

import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from django_delayq.brokers.addresses import has_password, is_this_machine
from django_delayq.brokers.base import Risk, ServerReport
from django_delayq.brokers.redis.access import Access
from django_delayq.brokers.redis.client import (
    Operation,
    TransientError,
    as_written,
    ask,
    clock_ms,
    colocated,
    embedded_directory,
    gather_available,
    parse_location,
    plain,
    split,
)
from django_delayq.brokers.redis.limiter import RedisLimiter
from django_delayq.brokers.redis.presence import RedisPresence
from django_delayq.brokers.redis.queue import RedisQueue
from django_delayq.brokers.redis.shards import Shards
from django_delayq.brokers.redis.timer import RedisTimer
from django_delayq.conf import Alias, Store
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable
from django_delayq.support.translatable import text as _


class RedisBroker:
    """A `Broker` that is also the `Backend` of an alias without a store (brokers/base.py)."""

    needs_store: ClassVar[bool] = False
    store = database = None

    def __init__(self, alias: Alias) -> None:
        self.alias = alias
        self._access = Access(alias)
        self.queue = RedisQueue(self._access)
        self.timer = self.window = self.alarm_index = RedisTimer(self._access)
        self.presence = RedisPresence(self._access, alias.store)
        self.limiter = RedisLimiter(self._access)

    @classmethod
    def check(cls, alias: Alias) -> None:
        parse_location(alias.location)

    @classmethod
    def places(cls, alias: Alias) -> frozenset[str]:
        return frozenset(f"{server} {alias.options.prefix}" for server in parse_location(alias.location).servers)

    @classmethod
    def risks(cls, alias: Alias) -> list[Risk]:
        location = parse_location(alias.location)
        is_remote = not all(map(is_this_machine, location.hosts))
        found = {
            Risk.PASSWORD_IN_URL: has_password(as_written(alias.location)),
            Risk.CLEARTEXT: is_remote and not location.is_encrypted,
            Risk.UNVERIFIED: is_remote and location.is_encrypted and not location.is_verified,
            Risk.FOR_DEVELOPMENT: embedded_directory(alias.location) is not None,
        }
        return [risk for risk, is_there in found.items() if is_there]

    def open(self) -> None:
        self._access.open()

    def close(self) -> None:
        self._access.close()

    def report(self) -> ServerReport:
        access, servers = self._access, [self._access.shards.first.msg]
        if len(access.shards.all) > 1:
            servers = access.run(_on_each_server(access.shards))
        reports = [
            report_on(lambda *command, key=key: access.run(ask(colocated(key, *command))), access.location.shown)
            for key in servers
        ]
        report = _merge_reports(reports)
        if cache := access.location.cache:
            report.warnings.append(_cache_warning(cache, self.alias.store))
        if self.alias.store is not None:
            report.warnings.extend(access.run(_leftover_warnings(access.shards)))
        return report


# The report for a worker's start: whether the server is fit, and what its crash would lose.

OLDEST = (6, 2)
"""The first version of Redis that has all commands of the scripts."""

Run = Callable[..., Any]
Info = dict[str, str]


def report_on(run: Run, shown: str) -> ServerReport:
    """Check one server. `run("INFO", …)` runs a command on it, and returns the raw RESP2 reply.

    `shown` is its address without the password. If the server refuses CONFIG, the report is less exact. Raises
    `BrokerUnavailable` while the server loads its data.
    """
    info = _info(run)
    if info.get("loading", "0") != "0":  # until then Redis says that it has no append-only file
        raise BrokerUnavailable(_("%(server)s is loading its data.", server=_server(info, shown)))
    return ServerReport(
        server=_server(info, shown),
        durability=_durability(run, info),
        warnings=[*_warnings(info), *_warnings_of_node(run, info)],
        problems=_problems(info),
        now_ms=clock_ms(run("TIME")),
    )


def _on_each_server(shards: Shards) -> Operation[list[str]]:
    """Return one key of each server that has a shard and can be reached. A call with that key goes to that server."""
    infos = yield from gather_available([ask(colocated(keys.msg, "INFO", "server")) for keys in shards.all])
    keys_of = {}
    for keys, info in zip(shards.all, infos, strict=True):
        if not isinstance(info, TransientError):
            found = re.search(rb"^run_id:(\w+)", info, re.MULTILINE)
            keys_of[found and found[1]] = keys.msg
    split(infos)  # raises if none answered
    return list(keys_of.values())


def _cache_warning(location: str, store: Store | None) -> str:
    """Return what happens if the site clears the cache that shares the database of Redis."""
    if store is None:
        return _(
            "%(location)s: cache.clear() empties the database and so removes all messages; give them one of their own.",
            location=location,
        )
    return _(
        "%(location)s: cache.clear() empties the database and so removes the alarms, which workers restore within "
        "seconds, and the permits of limits; better give them one of their own.",
        location=location,
    )


def _leftover_warnings(shards: Shards) -> Operation[list[str]]:
    """Return a warning if Redis holds messages that only workers without a store would run."""
    found, _away = split((yield from gather_available([ask(plain("HLEN", keys.msg)) for keys in shards.all])))
    if not sum(found):
        return []
    return [
        _(
            "%(number)d message(s) lie in Redis from before the store, and no worker runs them: start one with the old "
            'settings ("STORE": None) until they have run.',
            number=sum(found),
        )
    ]


def _info(run: Run) -> Info:
    text = run("INFO").decode(errors="replace")
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _server(info: Info, shown: str) -> str:
    return f"{_name(info)} ({shown})"


def _name(info: Info) -> str:
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    if "redis_version" in info:
        return f"Redis {info['redis_version']}"
    return _("Redis of unknown version")


def _problems(info: Info) -> list[str]:
    problems: list[str] = []
    if _version(info) < OLDEST:
        problems.append(_("%(server)s is too old; use Redis 6.2 or newer, or Valkey.", server=_name(info)))
    policy = info.get("maxmemory_policy", "")
    if policy.startswith("allkeys-"):
        problems.append(
            _(
                "maxmemory-policy is %(policy)s: a full Redis would throw waiting messages away. "
                "Set it to noeviction, or use a Redis of its own.",
                policy=policy,
            )
        )
    if info.get("role", "master") != "master":
        primary = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
        problems.append(
            _("This Redis is a replica and can't be written to; use its primary, %(primary)s.", primary=primary)
        )
    if _mode(info) == "sentinel":
        problems.append(_("This is a sentinel; name it with redis+sentinel:// in LOCATION."))
    return problems


def _version(info: Info) -> tuple[int, ...]:
    # For Valkey this is the version of Redis that it is compatible with.
    return tuple(int(part) for part in info.get("redis_version", "0").split(".")[:2] if part.isdigit())


def _mode(info: Info) -> str:
    return info.get("redis_mode") or info.get("server_mode", "standalone")  # Valkey's name, from 9 on


def _warnings(info: Info) -> list[str]:
    warnings: list[str] = []
    if "maxmemory_policy" not in info:
        warnings.append(_("maxmemory-policy is not known: with allkeys-*, a full Redis throws waiting messages away."))
    if info.get("aof_last_write_status", "ok") != "ok":
        warnings.append(_("Redis failed to append to its file: see its log; it may refuse writes until that works."))
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        warnings.append(_("Redis failed to save a snapshot: see its log; it may refuse writes until that works."))
    return warnings


def _warnings_of_node(run: Run, info: Info) -> list[str]:
    if _mode(info) != "cluster" or _config(run, "cluster-require-full-coverage") != "yes":
        return []
    return [
        _(
            "cluster-require-full-coverage is yes: when one node is gone, the whole cluster is down. "
            "Set it to no, and the others go on."
        )
    ]


def _durability(run: Run, info: Info) -> str:
    if info.get("aof_enabled") == "1":
        return _APPENDS.get(_config(run, "appendfsync") or "", _APPENDS_PERHAPS)
    save = _config(run, "save")
    if save == "":
        return _KEEPS_NOTHING
    if save is None:
        return _(
            "snapshots at most: a crash of Redis loses what was sent, and repeats what was done, since the last one"
        )
    return _("snapshots only: a crash of Redis loses what was sent, and repeats what was done, since the last one")


_APPENDS = {
    "always": _("append-only file synced at each write: a crash loses nothing"),
    "everysec": _("append-only file synced each second: a crash can lose the last second or two"),
    "no": _("append-only file synced by the system: a crash of the machine can lose half a minute"),
}
_KEEPS_NOTHING = _("no persistence: a crash or a restart of Redis loses every message")
_APPENDS_PERHAPS = _(
    "append-only file synced each second: a crash can lose the last second or two (if not set otherwise)"
)


def _config(run: Run, name: str) -> str | None:
    try:
        found = run("CONFIG", "GET", name)
    except BrokerRefused:  # forbidden, as it often is with a hosted Redis
        return None
    return found[1].decode() if found else None


def _merge_reports(servers: Sequence[ServerReport]) -> ServerReport:
    """Return the first report with the problems and warnings of all reports, each once."""
    first = servers[0]
    first.problems = list(dict.fromkeys(problem for report in servers for problem in report.problems))
    first.warnings = list(dict.fromkeys(warning for report in servers for warning in report.warnings))
    return first
