"""Check the databases of stores: `manage.py check --deploy --database default`.

This needs `--deploy`, because a site is also checked before it is migrated.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db.models import Count

from django_delayq.api.handlers import handlers_by_key
from django_delayq.api.registry import WHERE_HANDLERS_ARE
from django_delayq.brokers import get_backend
from django_delayq.conf import Alias, valid_aliases
from django_delayq.core.errors import DelayqError, ForeignMark, StoreUnavailable
from django_delayq.models import ReadyMessage
from django_delayq.store import backend
from django_delayq.store.database import Database, skew, skew_warnings
from django_delayq.worker.banner import STORE_CONNECTIONS, database_connections, pool_warning, pooled_connections
from django_delayq.worker.options import Options

_MOST_CONNECTIONS = {
    "postgresql": (
        "SELECT least(current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,"
        " nullif(d.datconnlimit, -1), nullif(r.rolconnlimit, -1))"
        " FROM pg_database d, pg_roles r WHERE d.datname = current_database() AND r.rolname = session_user"
    ),
    "mysql": "SELECT @@max_connections",
}


def check_stores(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check each alias with a store in one of `databases`.

    - E006: tables or columns are missing, or the database can't be used.
    - E012: atomic handlers could not end at the isolation level of the database.
    - W002: a SQLite file has settings that suit only one process.
    - W003: messages wait for a key without a handler.
    - W004: one worker may need more connections than the database or its pool has.
    - W005: the clocks of the database and the broker differ.
    - W014: the broker is marked as another site's.
    """
    stores = [alias for alias in valid_aliases() if alias.store is not None and alias.database in (databases or ())]
    return [message for alias in stores for message in _check_store(alias)]


def _check_store(alias: Alias) -> Iterable[CheckMessage]:
    database = Database(alias.name, alias.database)
    try:
        if problems := backend.problems(database):
            return [_unfit(problem) for problem in problems]
        return [
            *_check_isolation(database),
            *_check_settings(database),
            *_check_keys(alias),
            *_check_connections(alias, database),
            *_check_pool(alias),
            *_check_clocks(alias),
            *_check_mark(alias),
        ]
    except (StoreUnavailable, ImproperlyConfigured) as error:
        return [_unfit(str(error))]


def _unfit(text: str) -> CheckMessage:
    return Error(text, hint="Without its tables nothing can be sent, and no worker starts.", id="delayq.E006")


def _check_isolation(database: Database) -> Iterator[CheckMessage]:
    for text in backend.isolation_problems(database):
        yield Error(
            text,
            hint='Set "isolation_level" in its OPTIONS, or the default of the server, the database and the role. Until '
            "then no worker starts.",
            id="delayq.E012",
        )


def _check_settings(database: Database) -> Iterator[CheckMessage]:
    for text in backend.warnings(database):
        yield Warning(
            text, hint="Readers then go on beside one writer, and writers wait for one another.", id="delayq.W002"
        )


def _check_keys(alias: Alias) -> Iterator[CheckMessage]:
    waiting = ReadyMessage.objects.using(alias.database).filter(alias=alias.name)
    unknown = waiting.exclude(key__in=list(handlers_by_key(alias.name))).values("key").annotate(count=Count("pk"))
    for found in unknown.order_by("key"):
        yield Warning(
            f"{found['count']} message(s) of alias {alias.name!r} wait for key {found['key']!r}, which has no handler.",
            hint=f"{WHERE_HANDLERS_ARE} If it has one, import it there; or name the key in the former_keys of the "
            f"handler that took over; or remove the messages: manage.py delayq purge --key {found['key']}",
            id="delayq.W003",
        )


def _check_connections(alias: Alias, database: Database) -> Iterator[CheckMessage]:
    sql = _MOST_CONNECTIONS.get(database.connection.vendor)
    if sql is None:
        return
    ((most,),) = database.rows(sql)
    handlers = set(handlers_by_key(alias.name).values())
    needed = database_connections(handlers, Options()) + STORE_CONNECTIONS
    if needed > most:
        yield Warning(
            f"One worker of alias {alias.name!r} may open {needed} connections to database {alias.database!r}, "
            f"which allows {most} in all.",
            hint="Run workers with fewer --threads or --max-threads, or raise max_connections, or the "
            "CONNECTION LIMIT of the database or of its user, whichever is the least.",
            id="delayq.W004",
        )


def _check_pool(alias: Alias) -> Iterator[CheckMessage]:
    handlers = set(handlers_by_key(alias.name).values())
    needed = pooled_connections(handlers, Options()) + STORE_CONNECTIONS
    if text := pool_warning(alias.database, needed):
        yield Warning(
            text, hint="Or leave the pool to the site, and give workers settings without it.", id="delayq.W004"
        )


def _check_clocks(alias: Alias) -> Iterator[CheckMessage]:
    store = get_backend(alias.name).store
    if store is None:
        return
    before_ms = store.database.now_ms()
    try:
        now_ms = store.broker.report().now_ms
    except DelayqError:
        return  # a broker that is away has no clock to compare, and must not fail a deploy
    skew_ms = 0 if now_ms is None else skew(now_ms, before_ms, store.database.now_ms())
    for text in skew_warnings(skew_ms):
        yield Warning(text, hint="Let both servers follow one source of time (NTP).", id="delayq.W005")


def _check_mark(alias: Alias) -> Iterator[CheckMessage]:
    store = get_backend(alias.name).store
    if store is None:
        return
    try:
        store.mark.check()
    except ForeignMark as error:
        yield Warning(
            str(error),
            hint="Workers of a store that has worked there go on from the tables alone, and those of any other don't "
            "start. No alarm is written there.",
            id="delayq.W014",
        )
    except DelayqError:
        return  # a broker that is away must not fail a deploy
