"""Say what a worker has before it starts: its server, queues, handlers and connections, with warnings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.db import connections

from django_delayq.api.handlers import Handler
from django_delayq.api.registry import WHERE_HANDLERS_ARE
from django_delayq.brokers import broker_class
from django_delayq.brokers.base import ServerReport
from django_delayq.conf import DEFAULT_QUEUE, Alias
from django_delayq.support.units import to_text
from django_delayq.support.validation import OWN, did_you_mean
from django_delayq.worker.options import Options
from django_delayq.worker.plan import Handlers, concurrency_of, queues_of, slots_of, tasks_of

BROKER_CONNECTIONS = 4
"""A connection each for claims, settlements, renewals and wake-ups."""
SUPERVISOR_CONNECTIONS = 2
"""A connection each for settling and for renewing what a dead worker leaves.

With a store there is one more, to look up what was committed.
"""
STORE_CONNECTIONS = 4
"""A connection each for claims, settlements, renewals and the maintenance of the tables."""
SUSPECTS_CHILD = 1
"""The connection of the child process in which suspects run, whatever the options of the worker."""
MIN_SIZE = 4
"""The default of psycopg_pool for `min_size`; `max_size` defaults to `min_size`."""


def database_connections(handlers: Handlers, options: Options) -> int:
    """Return how many connections a worker's handlers open to each database at most; the store's come on top."""
    async_thread = int(tasks_of(handlers, options) > 0)  # async handlers share one
    return slots_of(handlers, options) + async_thread + SUSPECTS_CHILD


def pooled_connections(handlers: Handlers, options: Options) -> int:
    """Return `database_connections` of the worker's own process alone: the suspects' child has a pool of its own."""
    return database_connections(handlers, options) - SUSPECTS_CHILD


def pool_warning(database: str, needed: int) -> str:
    """Return a warning if a database's pool has fewer connections than one process of a worker needs; '' if not."""
    size = _size_of_pool(database)
    if size is None or size >= needed:
        return ""
    return (
        f"One worker may hold {needed} connections to database {database!r} at once, whose pool has {size}: handlers "
        "and the renewal of leases then wait for one another, and messages run twice. Give "
        f'DATABASES["{database}"]["OPTIONS"]["pool"] a "max_size" of at least {needed}, or the worker fewer --threads.'
    )


def _size_of_pool(database: str) -> int | None:
    pool = connections.settings[database]["OPTIONS"].get("pool")
    if not pool or connections[database].vendor != "postgresql":
        return None
    given = {} if pool is True else pool
    return int(given.get("max_size") or given.get("min_size", MIN_SIZE))


def banner(
    alias: Alias, report: ServerReport, handlers: Mapping[str, Handler[Any, Any]], options: Options
) -> list[str]:
    """Return the first lines of a worker's log: server, durability, queues, handlers, connections, and warnings."""
    registered = list(dict.fromkeys(handlers.values()))
    queues = queues_of(registered, options)
    return [
        f"delayq {alias.name!r} on {report.server}",
        f"Durability: {report.durability}",
        f"Queues: {_queues_text(queues, options)}; lease {to_text(alias.options.lease)}",
        *_handler_lines(registered, queues, options),
        _connections_line(alias, registered, options) + (_of_store(alias, options) if alias.store else ""),
        *(
            f"Warning: {warning}"
            for warning in [
                *report.warnings,
                *_handler_warnings(registered),
                *_pool_warnings(alias, registered, options),
                *_queue_warnings(registered, queues),
            ]
        ),
    ]


def _queues_text(queues: Sequence[str], options: Options) -> str:
    if len(options.queues) < 2:
        return ", ".join(queues)
    return f"{', '.join(map(str, options.queues))}, in this order{_by_weight(options)}"


def _by_weight(options: Options) -> str:
    return " and by weight" if any(queue.weight for queue in options.queues) else ""


def _of_store(alias: Alias, options: Options) -> str:
    supervisor = SUPERVISOR_CONNECTIONS + 1 if options.processes else 0
    count = STORE_CONNECTIONS * max(options.processes, 1) + supervisor
    return f", and {count} to {alias.database!r} for the store"


def _handler_lines(handlers: Sequence[Handler[Any, Any]], queues: Sequence[str], options: Options) -> list[str]:
    at_home = [handler for handler in handlers if handler.queue in queues]
    lines = [_handler_line(handler, options) for handler in at_home]
    if guests := len(handlers) - len(at_home):
        lines.append(f"  and what is sent into these queues for {guests} handler(s) of other queues")
    return lines


def _handler_line(handler: Handler[Any, Any], options: Options) -> str:
    kind = "async" if handler.is_async else "process" if options.processes else "thread"
    at_once = _in_all(lambda each: concurrency_of(handler, each), options)
    former = f", also {', '.join(handler.former_keys)}" if handler.former_keys else ""
    again = f", {handler.every}" if handler.every else ""
    return f"  {handler.key}{former}: queue {handler.queue}, {kind}, {at_once} at once{again}"


def _handler_warnings(handlers: Sequence[Handler[Any, Any]]) -> list[str]:
    """Return a warning if the site has no handlers: those of django-delayq itself are there all the same."""
    is_any = any(not handler.key.startswith(OWN) for handler in handlers)
    return [] if is_any else [f"This site has no handlers. {WHERE_HANDLERS_ARE}"]


def _pool_warnings(alias: Alias, handlers: Sequence[Handler[Any, Any]], options: Options) -> list[str]:
    stores = {alias.database: STORE_CONNECTIONS} if alias.store else {}
    needed = pooled_connections(handlers, options)
    warnings = [pool_warning(name, needed + stores.get(name, 0)) for name in connections]
    return [warning for warning in warnings if warning]


def _queue_warnings(handlers: Sequence[Handler[Any, Any]], queues: Sequence[str]) -> list[str]:
    known = {DEFAULT_QUEUE} | {handler.queue for handler in handlers}
    return [
        f"No handler names the queue {queue!r}, so only what is sent with queue={queue!r} waits there: "
        f"{did_you_mean(queue, known)}"
        for queue in queues
        if queue not in known
    ]


def _connections_line(alias: Alias, handlers: Sequence[Handler[Any, Any]], options: Options) -> str:
    to_databases = _in_all(lambda each: database_connections(handlers, each), options)
    if not broker_class(alias).places(alias):  # there is no other server
        return f"Connections at most: {to_databases} to each database"
    own = BROKER_CONNECTIONS * max(options.processes, 1)
    if options.processes:
        own += SUPERVISOR_CONNECTIONS
    sending = _in_all(lambda each: slots_of(handlers, each) + tasks_of(handlers, each) + SUSPECTS_CHILD, options)
    return (
        f"Connections at most: {own + sending} to the broker ({own} while no handler sends), "
        f"{to_databases} to each database"
    )


def _in_all(of_one: Callable[[Options], int], options: Options) -> int:
    """Return the sum of a figure over all workers that the options start."""
    return sum(of_one(replace(options, index=index)) for index in range(max(options.processes, 1)))
