"""`--drain`: what was done, what is left, and a progress bar on a terminal."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django_delayq.brokers.base import Broker, Claims, SetCount, Verb, covering
from django_delayq.store import StoredBroker
from django_delayq.worker.settling import Settling

EVERY_S = 0.2
Sets = set[tuple[str, str]]


def claim_of(broker: Broker) -> Callable[..., Claims]:
    """The claim of a worker that drains. With a store, what is due is what the tables say."""
    return broker.claim_all if isinstance(broker, StoredBroker) else broker.claim


def summary(broker: Broker, settling: Settling, served: Sets) -> str:
    """One line: how the messages ended, and how many are left."""
    ended = settling.counts
    counts, pauses = broker.counts(), broker.pauses()
    waiting = counts.waiting
    not_due = sum(count.pending for count in waiting) + sum(counts.levels)
    parked = sum(count.ready for count in waiting if (count.queue, count.key) not in served)
    paused = sum(count.ready for count in _served(waiting, served) if covering(pauses, count.queue, count.key))
    return (
        f"Drained: {ended[Verb.FINISH]} finished, {ended[Verb.RETRY]} to retry, {ended[Verb.SNOOZE]} snoozed, "
        f"{ended[Verb.BURY]} buried. Left: {not_due} not due, {parked} parked, {paused} paused."
    )


@contextmanager
def progress(broker: Broker, settling: Settling, served: Sets) -> Iterator[None]:
    """Show a progress bar meanwhile, if standard error is a terminal and tqdm is installed."""
    try:
        from tqdm import tqdm  # type: ignore[import-untyped]
    except ImportError:
        yield
        return
    if not sys.stderr.isatty():
        yield
        return
    pauses = broker.pauses()
    asked_for = _served(broker.counts().waiting, served)
    due = sum(count.ready for count in asked_for if not covering(pauses, count.queue, count.key))
    ended = threading.Event()
    with tqdm(total=due, unit=" messages") as bar:

        def show() -> None:
            while not ended.wait(EVERY_S):
                bar.update(settling.counts.total() - bar.n)

        thread = threading.Thread(target=show, name="delayq-progress")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            bar.update(settling.counts.total() - bar.n)


def _served(waiting: list[SetCount], served: Sets) -> list[SetCount]:
    return [count for count in waiting if (count.queue, count.key) in served]
