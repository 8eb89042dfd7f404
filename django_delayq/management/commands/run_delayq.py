"""`manage.py run_delayq`: run the handlers of the messages that are due."""

import argparse
import dataclasses
import gc
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_delayq.api.handlers import handlers_by_key
from django_delayq.api.registry import WHERE_HANDLERS_ARE
from django_delayq.api.schedules import sync_delay_schedules
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend, Pause, SetCount, SettleAction, covering
from django_delayq.conf import DEFAULT_ALIAS
from django_delayq.core.errors import DelayqError
from django_delayq.core.lanes import queue_of
from django_delayq.management.support.arguments import USAGE, checked, whole_number
from django_delayq.support.logging import logger
from django_delayq.support.units import to_bytes
from django_delayq.worker import logs
from django_delayq.worker.banner import banner
from django_delayq.worker.lifecycle import Runnable, check_path, run_reloading, run_until_signalled
from django_delayq.worker.maintenance import check_limit
from django_delayq.worker.options import Options, served_queues
from django_delayq.worker.process.supervisor import Supervisor
from django_delayq.worker.worker import Worker, ask_report

EVERY_S = 0.2
DRAIN_PATIENCE_S = 30.0
"""How long a drain that has just started waits for servers that are away.

A timer may start another one every minute, and they must not pile up.
"""
_WHOLE, _POSITIVE = whole_number(0), whole_number(1)
_QUEUES = checked(served_queues)
_SIZE = checked(partial(to_bytes, name="--max-memory"))
Sets = set[tuple[str, str]]


class Command(BaseCommand):
    """The command `run_delayq`: it checks the options, and runs a worker."""

    help = "Runs the handlers of delayed messages that are due, until it is stopped."
    requires_system_checks = "__all__"
    is_process = False
    """Whether this process runs only this command, and not a program that calls it among other things."""

    def run_from_argv(self, argv: list[str]) -> None:
        self.is_process = True
        super().run_from_argv(argv)

    def add_arguments(self, parser: CommandParser) -> None:
        default = Options()
        add = parser.add_argument
        add("--queues", type=_QUEUES, default=default.queues, metavar="A,B:N",
            help="serve only these queues, the first before the next; those with a weight, such as "
            "critical,default:3,bulk:1, share by it (default: all, in no order)")  # fmt: skip
        add("--using", default=DEFAULT_ALIAS, metavar="ALIAS", help="the alias in DELAYQ (default: %(default)s)")
        add("--threads", type=_POSITIVE, metavar="N",
            help="messages of one key to run at once, if its handler doesn't say "
            f"(default: {default.threads}; 1 in each of --processes)")  # fmt: skip
        add("--max-threads", type=_POSITIVE, metavar="N",
            help=f"threads for all keys (default: {default.max_threads}, or --threads if that is more; "
            "as --threads with --processes)")  # fmt: skip
        add("--processes", type=_WHOLE, default=default.processes, metavar="N",
            help="run N workers, each in a process: for CPU work and hard time-outs")  # fmt: skip
        add("--shutdown-timeout", type=_seconds, default=default.shutdown_timeout, metavar="S",
            help="seconds that running handlers have to end when the worker stops (default: %(default)s)")  # fmt: skip
        add("--drain", action="store_true", help="run all that is due, then exit")
        add("--reload", action=argparse.BooleanOptionalAction, default=False, help="restart when code changes")
        add("--heartbeat-file", metavar="PATH", help="touch this file while the worker is alive")
        add("--max-messages", type=_POSITIVE, metavar="N", help="stop after N messages")
        add("--max-memory", type=_SIZE, metavar="SIZE",
            help="stop when the worker takes more after a message, such as 512MiB")  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        _check_together(options)
        logs.start(logs.level_of(options["verbosity"]))
        try:
            backend = get_backend(options["using"])
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        chosen = _chosen(options)
        make_worker = partial(self._make_worker, backend, chosen, options["verbosity"])
        try:
            if options["reload"]:
                run_reloading(make_worker)
            elif chosen.drain:
                run_until_signalled(make_worker, partial(self._drain, backend))
            else:
                run_until_signalled(make_worker)
        except DelayqError as error:
            raise CommandError(str(error)) from error
        finally:
            backend.close()

    def _make_worker(self, backend: Backend, options: Options, verbosity: int) -> Runnable:
        alias = backend.alias
        handlers = handlers_by_key(alias.name)
        if not handlers:
            raise CommandError(f"Alias {alias.name!r} has no handlers. {WHERE_HANDLERS_ARE}")
        if options.heartbeat_file is not None:
            check_path(Path(options.heartbeat_file))
        if options.max_memory is not None:
            check_limit(options.max_memory)
        report = ask_report(backend, DRAIN_PATIENCE_S if options.drain else math.inf)
        if verbosity > 0:
            self.stdout.write("\n".join(banner(alias, report, handlers, options)))
            self.stdout.flush()
        _write_schedules(backend)
        if self.is_process:
            gc.freeze()  # the site's code and settings stay for good, so no collection needs to visit them again
        if options.processes:
            return Supervisor(alias, backend, handlers, options, logs.level_of(verbosity))
        return Worker(alias, backend, handlers, options)

    def _drain(self, backend: Backend, worker: Runnable) -> bool:
        with progress(backend, lambda: worker.counts, worker.served):
            ended_well = worker.run()
        self.stdout.write(summary(backend, worker.counts, worker.served))
        return ended_well


def _write_schedules(backend: Backend) -> None:
    """Write the schedules of the code, if the alias has a store, and put what is due of all schedules.

    A drain may end before its maintenance looks at them. After an error the worker starts all the same.
    """
    if backend.store is None:
        return
    try:
        sync_delay_schedules(using=backend.alias.name)
        backend.store.put_occurrences()
    except Exception as error:  # noqa: BLE001 - messages must not wait until somebody mends it
        logger.error("Not every schedule of the code could be written; one that was not goes on as before: %s", error)


def _chosen(options: dict[str, Any]) -> Options:
    """Return the workers' options.

    With --processes, each worker runs one sync handler at a time unless an option says otherwise.
    """
    default = Options()
    processes = options["processes"]
    threads = options["threads"] or (1 if processes else default.threads)
    most = options["max_threads"] or (threads if processes else max(threads, default.max_threads))
    given = {field.name: options[field.name] for field in dataclasses.fields(Options) if field.name != "index"}
    return Options(**given | {"threads": threads, "max_threads": most})


def _check_together(options: dict[str, Any]) -> None:
    for ending in ("drain", "max_messages", "max_memory"):
        if options["reload"] and options[ending]:
            option = "--" + ending.replace("_", "-")
            raise CommandError(f"{option} ends, and --reload starts again: leave one of them out.", returncode=USAGE)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds; write 0 or more, such as 30 or 2.5")
    return seconds


def summary(backend: Backend, ended: Counter[SettleAction], served: Sets) -> str:
    """Return a line that says how messages ended, and how many are left.

    If the drain was stopped early, some of these are due.
    """
    counts, pauses = backend.queue.counts(), backend.presence.pauses()
    waiting = counts.waiting
    not_due = sum(count.pending for count in waiting)
    ours = _served(waiting, served)
    parked = sum(count.ready for count in waiting) - sum(count.ready for count in ours)
    paused = sum(count.ready for count in ours if covering(pauses, *count.pair))
    return (
        f"Drained: {ended[SettleAction.FINISH]} finished, {ended[SettleAction.RETRY]} to retry,"
        f" {ended[SettleAction.SNOOZE]} snoozed, {ended[SettleAction.BURY]} failed."
        f" Left: {_due(ours, pauses)} due, {not_due} not due, {parked} parked,"
        f" {paused} paused, {counts.running} running elsewhere."
    )


@contextmanager
def progress(backend: Backend, ended_so_far: Callable[[], Counter[SettleAction]], served: Sets) -> Iterator[None]:
    """Show a progress bar for the block, if standard error is a terminal and tqdm is installed."""
    try:
        from tqdm import tqdm  # type: ignore[import-untyped]  # of the extra `progress`
    except ImportError:
        yield
        return
    if not sys.stderr.isatty():
        yield
        return
    due = _due(_served(backend.queue.counts().waiting, served), backend.presence.pauses())
    ended = threading.Event()
    with tqdm(total=due, unit=" messages") as bar:

        def show() -> None:
            while not ended.wait(EVERY_S):
                bar.update(ended_so_far().total() - bar.n)

        thread = threading.Thread(target=show, name="delayq-progress")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            bar.update(ended_so_far().total() - bar.n)


def _due(ours: list[SetCount], pauses: Iterable[Pause]) -> int:
    """Return how many messages of these counts may start now."""
    return sum(count.ready for count in ours if not covering(pauses, *count.pair))


def _served(waiting: list[SetCount], served: Sets) -> list[SetCount]:
    """Return the counts of the (queue, key) pairs in `served`, and of the lanes of their queues."""
    return [one for one in waiting if one.pair in served or (queue_of(one.queue), one.key) in served]
