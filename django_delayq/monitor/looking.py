"""Look without harm: give up on a hung server after a while, and leave no connection open in a thread."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

from django.db import connections

from django_delayq.conf import get_alias
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.support.translatable import text as _

T = TypeVar("T")


def within(seconds: float | None, look: Callable[[], T]) -> T:
    """Return the result of `look`, or raise its error. Raises `BrokerUnavailable` after `seconds`; None waits for ever.

    After that time `look` goes on in its own thread until the time-outs of the broker end it. So it must not use the
    database.
    """
    if seconds is None:
        return look()
    answer: Future[T] = Future()
    threading.Thread(target=_answer, args=(answer, look), name="delayq-look", daemon=True).start()
    if not wait([answer], seconds).done:
        raise BrokerUnavailable(_("The broker gave no answer within %(seconds)g s.", seconds=seconds))
    return answer.result()


def _answer(answer: "Future[T]", look: Callable[[], T]) -> None:
    try:
        answer.set_result(look())
    except BaseException as error:  # noqa: BLE001  raised again in the thread that asked
        answer.set_exception(error)


@contextmanager
def closed_after(using: str) -> Iterator[None]:
    """Close the connection to the store's database if it was opened in the block.

    A connection that was open before stays open. This is for threads that serve no request, because Django closes no
    connection there.
    """
    alias = get_alias(using)
    if alias.store is None:
        yield
        return
    connection = connections[alias.database]
    was_open = connection.connection is not None
    try:
        yield
    finally:
        if not was_open:
            connection.close()
