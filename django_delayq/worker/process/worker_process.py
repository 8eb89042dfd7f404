"""One of the worker processes of `run_delayq --processes N`: a whole worker, which its supervisor starts and ends.

It is started as `python -m django_delayq.worker.process.worker_process JOURNAL CONTROL PID ORDER`: the descriptors of
the journal's memory and of a socket, the supervisor's process id, and an `Order` as JSON. The first byte on the socket
stops the worker, the second interrupts its handlers.
"""

import gc
import os
import socket
import sys
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import django

from django_delayq.api.handlers import handlers_by_key
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Transition
from django_delayq.conf import get_alias
from django_delayq.core import codec
from django_delayq.core.errors import DelayqError
from django_delayq.support.logging import logger
from django_delayq.worker import logs
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.leases import Lease
from django_delayq.worker.lifecycle import INTERRUPTED, exit_at_once, taken_signals
from django_delayq.worker.options import Options
from django_delayq.worker.plan import concurrency_of
from django_delayq.worker.process.journal import Journal
from django_delayq.worker.process.sandboxed import LEASE_ENDED
from django_delayq.worker.process.spawn import die_with_parent

if TYPE_CHECKING:
    from django_delayq.worker.worker import Worker

FULL = 75
"""The exit code of a worker that ended in good order because it took more than `--max-memory`."""


@dataclass(frozen=True, slots=True)
class Order:
    """The options of one worker, its alias, and the level to log from."""

    using: str
    level: int
    options: Options


class JournaledEvents(AttemptEvents):
    """Attempt events that are noted in the journal before they are reported."""

    def __init__(self, worker: str, journal: Journal) -> None:
        super().__init__(worker)
        self._journal = journal

    def starting(self, lease: Lease, deadline: float = 0.0) -> None:
        if deadline:  # nothing else can stop the handler
            lease.cancel = partial(_leave, lease)
        self._journal.start(lease, deadline)
        if deadline and lease.lost:  # it was lost before `cancel` was set
            _leave(lease)

    def settling(self, lease: Lease, transition: Transition) -> None:
        lease.cancel = None
        self._journal.end(lease, transition)


def main(journal_fd: int, control_fd: int, parent: int, order: Order) -> None:
    """Run a worker until it is told to stop, or has a reason to."""
    die_with_parent(parent)
    with taken_signals(_leave_to_supervisor):
        for fd in (journal_fd, control_fd):
            os.set_inheritable(fd, False)
        django.setup()
        from django_delayq.worker.worker import Worker, name_worker  # these import models, so the apps must be ready

        logs.start(order.level)
        options = order.options
        alias = get_alias(order.using)
        handlers = {
            key: handler for key, handler in handlers_by_key(alias.name).items() if concurrency_of(handler, options)
        }
        name = name_worker()
        journal = Journal(journal_fd, name)
        backend = get_backend(alias.name)
        gc.freeze()  # the site's code and settings stay for good, so no collection needs to visit them again
        try:
            worker = Worker(
                alias, backend, handlers, options,
                name=name, events=JournaledEvents(name, journal), lease_log=journal, tell=journal.beat,
                supervisor=parent,
            )  # fmt: skip
            worker.settler.counts = journal.counts()
            control = socket.socket(fileno=control_fd)
            threading.Thread(target=_listen, args=(control, worker), daemon=True).start()
            ended_well = worker.run()
        except DelayqError as error:
            logger.error("%s", error)
            sys.exit(1)
        finally:
            backend.close()
        if not ended_well:
            logger.warning(INTERRUPTED)
            exit_at_once(0)
        if worker.exceeds_memory:
            sys.exit(FULL)


def _listen(control: socket.socket, worker: "Worker") -> None:
    for act in (worker.stop, worker.hurry, worker.hurry):
        if not control.recv(1):
            os._exit(1)  # the supervisor is gone
        act()
        logger.debug("Worker process %d was told to %s.", os.getpid(), act.__name__)


def _leave(lease: Lease) -> None:
    """End this process because a handler lost its lease and nothing else can stop it.

    The supervisor ends the other leases. If the worker winds down and has cut the lease short itself, do nothing.
    """
    if not lease.interrupted:  # otherwise this worker is ending, and cuts its leases short itself
        os._exit(LEASE_ENDED)


def _leave_to_supervisor(signum: int) -> None:
    """Ignore the signal: the supervisor ends its workers, and a signal to all processes must not end them earlier."""


if __name__ == "__main__":
    journal_fd, control_fd, parent = map(int, sys.argv[1:4])
    main(journal_fd, control_fd, parent, codec.decode_data(sys.argv[4].encode(), Order))
