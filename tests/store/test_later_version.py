"""Data of a later version than the code, on each database: it is put back, and what ends beside it ends."""

from django_delayq.brokers.base import Header, NewMessage
from django_delayq.conf import get_alias
from django_delayq.core.message import State
from django_delayq.store import DatabaseBackend
from django_delayq.worker.options import Options
from django_delayq.worker.worker import Worker
from tests.worker.rig import make_handler


def test_it_waits_for_later_code_and_holds_up_nothing(broker: DatabaseBackend) -> None:
    got: list[str] = []
    messages = [
        NewMessage(id, Header("default", "k", version=version), b"1") for id, version in (("a", 2), ("b", None))
    ]
    broker.queue.enqueue(messages)
    handler = make_handler(lambda message: got.append(message.id))
    assert Worker(get_alias("default"), broker, {"k": handler}, Options(drain=True)).run()
    assert got == ["b"]
    waiting, finished = broker.queue.get("a"), broker.queue.get("b")
    assert waiting is not None
    assert (waiting.state, waiting.failures, waiting.crashes) == (State.PENDING, 0, 0)
    assert finished is not None
    assert finished.state is State.FINISHED
