"""The lines that a worker logs when it starts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.db import connections

from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import ServerReport
from django_delayq.conf import DEFAULT_QUEUE, Alias
from django_delayq.support.units import to_text
from django_delayq.support.validation import did_you_mean
from django_delayq.worker.capacity import (
    STORE_CONNECTIONS,
    SUSPECTS_CHILD,
    concurrency_of,
    database_connections,
    pooled_connections,
    queues_of,
    slots_of,
    tasks_of,
)
from django_delayq.worker.db_pool import pool_warning
from django_delayq.worker.options import Options

BROKER_CONNECTIONS = 4
"""One each for claims, settlements, renewals and wake-ups."""
SUPERVISOR_CONNECTIONS = 2
"""One each for the settlements and renewals of what a dead worker leaves; to the store too, and one to look there."""


def banner(
    alias: Alias, report: ServerReport, handlers: Mapping[str, Handler[Any, Any]], options: Options
) -> list[str]:
    """Return the lines: the connection, the handlers, what a crash can lose, and the most connections it opens."""
    registered = list(dict.fromkeys(handlers.values()))
    queues = queues_of(registered, options)
    return [
        f"delayq {alias.name!r} on {report.server}",
        f"Durability: {report.durability}",
        f"Queues: {_queues_text(queues, options)}; lease {to_text(alias.options.lease)}",
        *_handler_lines(registered, queues, options),
        _connections_line(registered, options) + (_of_store(alias, options) if alias.store else ""),
        *(
            f"Warning: {warning}"
            for warning in [
                *report.warnings,
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
    return f"  {handler.key}{former}: queue {handler.queue}, {kind}, {at_once} at once"


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


def _connections_line(handlers: Sequence[Handler[Any, Any]], options: Options) -> str:
    own = BROKER_CONNECTIONS * max(options.processes, 1)
    if options.processes:
        own += SUPERVISOR_CONNECTIONS
    sending = _in_all(lambda each: slots_of(handlers, each) + tasks_of(handlers, each) + SUSPECTS_CHILD, options)
    to_databases = _in_all(lambda each: database_connections(handlers, each), options)
    return (
        f"Connections at most: {own + sending} to the broker ({own} while no handler sends), "
        f"{to_databases} to each database"
    )


def _in_all(of_one: Callable[[Options], int], options: Options) -> int:
    """Return a figure of one worker for all that the options start."""
    return sum(of_one(replace(options, index=index)) for index in range(max(options.processes, 1)))
