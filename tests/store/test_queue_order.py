"""The order of queues with a store, whose claims take so long that slots run dry meanwhile."""

from typing import Any

from django_delayq import Message, Send, send_delay_messages
from django_delayq.conf import get_alias
from django_delayq.store import DatabaseBackend
from django_delayq.worker.options import Options, served_queues
from django_delayq.worker.prefetch import MAX_PER_SLOT
from django_delayq.worker.worker import Worker
from tests.worker.rig import make_handler

BACKLOG, EARLY, THREADS = 1_500, 40, 2
MOST = THREADS * (MAX_PER_SLOT + 1)
"""The most messages that wait for the slots or were just taken by them."""


def test_no_more_of_a_later_queue_starts_than_its_slots_had_claimed(broker: DatabaseBackend) -> None:
    """While messages of an earlier one are due, though many more of the later wait."""
    started: list[str] = []

    def handle(message: Message[Any]) -> None:
        started.append(message.queue)
        if message.queue == "late" and message.data == BACKLOG // 3:  # slots are busy, and known to be fast
            send_delay_messages(Send("k", n, queue="early") for n in range(EARLY))
            until_ms = broker.database.now_ms() + 2
            while broker.database.now_ms() <= until_ms:  # their alarms are rounded up
                pass
            started.append("all are due")

    send_delay_messages(Send("k", n, queue="late") for n in range(BACKLOG))
    options = Options(queues=served_queues("early,late"), threads=THREADS, max_threads=THREADS, drain=True)
    Worker(get_alias(), broker, {"k": make_handler(handle)}, options).run()
    assert started.count("late") == BACKLOG
    since = started[started.index("all are due") :]
    last = max((n for n, queue in enumerate(since) if queue == "early"), default=0)
    assert since[:last].count("late") <= MOST
