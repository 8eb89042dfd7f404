"""Report on `--drain`: what was done, what is left, and a progress bar on a terminal."""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from django_delayq.brokers.base import Backend, Claims, Pause, SetCount, SettleAction, covering

EVERY_S = 0.2
Sets = set[tuple[str, str]]


def claim_of(backend: Backend) -> Callable[..., Claims]:
    """Return the claim of a worker that drains. With a store, the tables say what is due."""
    return backend.store.claim_all if backend.store else backend.queue.claim


def summary(backend: Backend, ended: Counter[SettleAction], served: Sets) -> str:
    """Return one line on how the messages ended, and how many are left: some due, if the drain was stopped early."""
    counts, pauses = backend.queue.counts(), backend.presence.pauses()
    waiting = counts.waiting
    not_due = sum(count.pending for count in waiting)
    parked = sum(count.ready for count in waiting if count.pair not in served)
    paused = sum(count.ready for count in _served(waiting, served) if covering(pauses, *count.pair))
    return (
        f"Drained: {ended[SettleAction.FINISH]} finished, {ended[SettleAction.RETRY]} to retry,"
        f" {ended[SettleAction.SNOOZE]} snoozed, {ended[SettleAction.BURY]} buried."
        f" Left: {_due(waiting, served, pauses)} due, {not_due} not due, {parked} parked,"
        f" {paused} paused, {counts.running} running elsewhere."
    )


@contextmanager
def progress(backend: Backend, ended_so_far: Callable[[], Counter[SettleAction]], served: Sets) -> Iterator[None]:
    """Show a progress bar for the block, if standard error is a terminal and tqdm is installed."""
    try:
        from tqdm import tqdm  # type: ignore[import-untyped]
    except ImportError:
        yield
        return
    if not sys.stderr.isatty():
        yield
        return
    due = _due(backend.queue.counts().waiting, served, backend.presence.pauses())
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


def _due(waiting: list[SetCount], served: Sets, pauses: Iterable[Pause]) -> int:
    """Return how many messages may start now."""
    return sum(count.ready for count in _served(waiting, served) if not covering(pauses, *count.pair))


def _served(waiting: list[SetCount], served: Sets) -> list[SetCount]:
    return [count for count in waiting if count.pair in served]
