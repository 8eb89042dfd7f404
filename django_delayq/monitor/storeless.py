"""Find the messages that may need somebody's attention, a page at a time, in a broker without a store."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend, Info, is_asked_for
from django_delayq.conf import DEFAULT_ALIAS
from django_delayq.monitor.looking import within

PAGE = 50
"""How many messages of each kind are on a page."""

LAST = 20
"""The last page that is shown. For each page the broker also reads all messages before it, so later ones cost more."""

LOOKED_THROUGH = 500
"""How many messages of each queue are searched for retried ones."""


@dataclass(frozen=True, slots=True)
class Page:
    """Messages of one kind. Pages are counted from 1, and `is_more` says whether other messages follow these."""

    infos: Sequence[Info]
    number: int
    is_more: bool

    @property
    def is_last(self) -> bool:
        """Return whether no page follows."""
        return self.number >= LAST or not self.is_more


@dataclass(frozen=True, slots=True)
class Storeless:
    """Pages of buried, retried and parked messages.

    Buried messages come newest first, the others in due order. Retried ones have failed and wait for another attempt;
    only the next 500 messages of each queue are searched for them. No live worker asks for parked ones.
    """

    buried: Page
    retried: Page
    parked: Page


def storeless(
    using: str = DEFAULT_ALIAS, pages: Mapping[str, int] | None = None, *, patience_s: float | None = None
) -> Storeless:
    """Return a page of each kind of message that a broker carries: the first, or the one that `pages` names.

    `pages` is such as `{"buried": 2}`. Nothing is changed. Raises the errors that `status` does.
    """
    return within(patience_s, partial(_storeless, get_backend(using), pages or {}))


def _storeless(backend: Backend, pages: Mapping[str, int]) -> Storeless:
    buried, retried, parked = (min(max(pages.get(kind, 1), 1), LAST) for kind in ("buried", "retried", "parked"))
    found = backend.queue.failed(PAGE + 1, (buried - 1) * PAGE)
    of_buried = Page(found[:PAGE], buried, len(found) > PAGE)
    sets, workers = backend.queue.counts().waiting, backend.presence.workers()
    next_ones = (info for queue in {each.queue for each in sets} for info in backend.queue.peek(queue, LOOKED_THROUGH))
    unasked = [each for each in sets if not is_asked_for(each.queue, each.key, workers)]
    most = parked * PAGE + 1
    nobodys = (info for each in unasked for info in backend.queue.peek(each.queue, most, each.key))
    return Storeless(of_buried, _page([info for info in next_ones if info.failures], retried), _page(nobodys, parked))


def _page(infos: Iterable[Info], number: int) -> Page:
    nearest = nsmallest(number * PAGE + 1, infos, key=lambda info: (info.due_ms, info.id))
    return Page(nearest[(number - 1) * PAGE : number * PAGE], number, len(nearest) > number * PAGE)
