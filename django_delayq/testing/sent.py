"""Find the messages that were sent."""

from dataclasses import replace

from django_delayq.api.on_commit import WaitingSend, waiting_sends
from django_delayq.api.operations import message_info
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend, Info
from django_delayq.conf import DEFAULT_ALIAS, get_alias
from django_delayq.core.message import MessageInfo, State
from django_delayq.testing.clock import now_ms
from django_delayq.testing.timeline import messages_of


def sent_messages(key: str | None = None, *, using: str = DEFAULT_ALIAS) -> list[MessageInfo]:
    """Return the messages that wait to run, of one key or of all keys, in due order.

    With a store these are its rows, as the transaction of this thread sees them. Without one, messages that wait for
    the commit of an open transaction are included as if it were committed now, and `on_conflict` is applied: inside a
    `TestCase` all sent messages are there. Messages that were cancelled or have run are not.
    """
    messages_of(using)  # raises if the alias is on no broker for tests
    backend = get_backend(using)
    waiting = {info.id: info for info in _at_broker(backend)}
    for send in waiting_sends(get_alias(using)):
        id = send.message.id
        if not _is_running(backend.queue.get(id)):
            waiting[id] = _as_if_committed(send, waiting.get(id))
    found = sorted(waiting.values(), key=lambda info: (info.due_ms, info.id))
    return [message_info(using, info) for info in found if key in (None, info.header.key)]


def _at_broker(backend: Backend) -> list[Info]:
    queues = sorted({found.queue for found in backend.queue.counts().waiting})
    return [info for queue in queues for info in backend.queue.peek(queue, backend.queue.counts().totals["sent"])]


def _is_running(info: Info | None) -> bool:
    return info is not None and info.state is State.RUNNING


def _as_if_committed(send: WaitingSend, held: Info | None) -> Info:
    """Return the message that will wait with the send's id after the commit. `held` waits with that id now, if any.

    The rules of `on_conflict` are those of `Queue.enqueue`.
    """
    message, called_ms = send.message, send.called_ms
    due_ms = called_ms + message.delay_ms if message.at_ms is None else max(message.at_ms, called_ms)
    state = State.PENDING if due_ms > now_ms() else State.READY
    if held is None or send.on_conflict == "replace":
        header = replace(message.header, sent_ms=called_ms, scheduled_ms=due_ms)
        return Info(message.id, state, due_ms, header, message.body)
    if (send.on_conflict == "earliest" and due_ms < held.due_ms) or (
        send.on_conflict == "latest" and due_ms > held.due_ms
    ):
        return replace(held, state=state, due_ms=due_ms, header=replace(held.header, scheduled_ms=due_ms))
    return held
