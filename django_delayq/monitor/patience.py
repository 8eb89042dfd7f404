"""Give up looking at a broker after a while: a page about a hung server must not hang too."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from django_delayq.core.errors import BrokerUnavailable
from django_delayq.support.texts import text as _

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
