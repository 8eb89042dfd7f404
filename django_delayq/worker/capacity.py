"""Say what a worker has: a buffer for each handler, slots that run at once, and database connections."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import ExecutorInfo, Pair
from django_delayq.conf import DEFAULT_QUEUE
from django_delayq.worker.executors.asyncio import CONCURRENCY
from django_delayq.worker.options import Options
from django_delayq.worker.prefetch import PrefetchBuffer

Handlers = Iterable[Handler[Any, Any]]

STORE_CONNECTIONS = 4
"""One each for claims, settlements, renewals and the relay."""
SUSPECTS_CHILD = 1
"""The child process that runs suspects, in every mode."""


def queues_of(handlers: Handlers, options: Options) -> list[str]:
    """Return the queues to serve: those asked for, else the default one and every one that a handler names."""
    return [queue.name for queue in options.queues] or sorted({DEFAULT_QUEUE} | {handler.queue for handler in handlers})


def buffers_of(handlers: Handlers, queues: Sequence[str], options: Options) -> list[PrefetchBuffer]:
    """Return a buffer for each handler. Any key may wait in any queue, because `send` takes a queue too."""
    return [
        PrefetchBuffer(
            handler,
            [(queue, key) for queue in queues for key in (handler.key, *handler.former_keys)],
            concurrency_of(handler, options),
        )
        for handler in dict.fromkeys(handlers)
    ]


def served_of(handlers: Mapping[str, Handler[Any, Any]], options: Options) -> set[Pair]:
    """Return the (queue, key) pairs that workers with these options claim from; `handlers` by key."""
    return {(queue, key) for queue in queues_of(handlers.values(), options) for key in handlers}


def concurrency_of(handler: Handler[Any, Any], options: Options) -> int:
    """Return how many messages of a handler run at once in this worker.

    The workers of one supervisor share what the handler says; a remainder falls to different ones for different keys.
    """
    if handler.concurrency is None:
        return CONCURRENCY if handler.is_async else options.threads
    workers = max(options.processes, 1)
    place = (options.index + crc32(handler.key.encode())) % workers
    return (handler.concurrency + workers - 1 - place) // workers


def slots_of(handlers: Handlers, options: Options) -> int:
    """Return how many sync handlers run at once at most."""
    sync = sum(concurrency_of(handler, options) for handler in handlers if not handler.is_async)
    return min(sync, options.max_threads)


def tasks_of(handlers: Handlers, options: Options) -> int:
    """Return how many async handlers run at once at most."""
    return sum(concurrency_of(handler, options) for handler in handlers if handler.is_async)


def executor_infos(handlers: Mapping[str, Handler[Any, Any]], options: Options) -> list[ExecutorInfo]:
    """Return the heartbeat's facts on the threads, and on the tasks; `handlers` by key."""

    def of(*, is_async: bool) -> dict[str, int]:
        return {
            key: concurrency_of(handler, options) for key, handler in handlers.items() if handler.is_async is is_async
        }

    each = set(handlers.values())  # one that has former keys once
    return [
        ExecutorInfo(slots_of(each, options), of(is_async=False)),
        ExecutorInfo(tasks_of(each, options), of(is_async=True)),
    ]


def database_connections(handlers: Handlers, options: Options) -> int:
    """Return how many connections a worker's handlers open to each database at most; the store's come on top."""
    async_thread = int(tasks_of(handlers, options) > 0)  # async handlers share one
    return slots_of(handlers, options) + async_thread + SUSPECTS_CHILD


def pooled_connections(handlers: Handlers, options: Options) -> int:
    """Return `database_connections` of the worker's own process alone: the suspects' child has a pool of its own."""
    return database_connections(handlers, options) - SUSPECTS_CHILD
