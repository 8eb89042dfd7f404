"""What a worker says when it starts."""

from collections.abc import Mapping, Sequence
from typing import Any

from django_delayq.brokers.base import ServerReport
from django_delayq.conf import Alias
from django_delayq.durations import to_text
from django_delayq.handlers import Handler
from django_delayq.worker.options import Options
from django_delayq.worker.plan import concurrency_of, queues_of

BROKER_CONNECTIONS = 4
"""Claims, settlements, renewals, wake-ups."""


def banner(
    alias: Alias, report: ServerReport, handlers: Mapping[str, Handler[Any, Any]], options: Options
) -> list[str]:
    """The lines: what is connected, which handlers, what a crash can lose, how many connections at most."""
    registered = list(dict.fromkeys(handlers.values()))
    return [
        f"delayq {alias.name!r} on {report.server}",
        f"A crash of the broker: {report.durability}",
        f"Queues: {', '.join(queues_of(registered, options))}; lease {to_text(alias.options.lease)}",
        *(_handler_line(handler, options) for handler in registered),
        _connections_line(registered, options),
        *(f"Warning: {warning}" for warning in report.warnings),
    ]


def _handler_line(handler: Handler[Any, Any], options: Options) -> str:
    kind = "async" if handler.is_async else "process" if options.processes else "thread"
    former = f", also {', '.join(handler.former_keys)}" if handler.former_keys else ""
    return f"  {handler.key}{former}: queue {handler.queue}, {kind}, {concurrency_of(handler, options)} at once"


def _connections_line(handlers: Sequence[Handler[Any, Any]], options: Options) -> str:
    sync = sum(concurrency_of(handler, options) for handler in handlers if not handler.is_async)
    hands = min(sync, options.processes or options.max_threads)
    loops = int(any(handler.is_async for handler in handlers))  # async handlers share one database thread
    return (
        f"Connections at most: {BROKER_CONNECTIONS} to the broker, and one for each handler that sends; "
        f"{hands + loops} to each database"
    )
