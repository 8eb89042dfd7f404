"""The ids of messages that an operator chose by queue, key or state."""

from collections.abc import Iterator

from django_delayq.brokers.base import BATCH, Broker


def buried_ids(broker: Broker, key: str | None = None) -> list[str]:
    """The id of each buried message, once; of one execute key when that is given."""
    ids: dict[str, None] = {}
    offset = 0
    while page := broker.errors(BATCH, offset):
        ids.update((each.id, None) for each in page if key in (None, each.header.key))
        offset += len(page)
    return list(ids)


def waiting_pages(broker: Broker, queue: str, key: str | None, *, sent_by_ms: int) -> Iterator[list[str]]:
    """The next ids that wait in a queue, of one key when that is given, and were sent by then.

    The caller takes each page out before it asks for the next, which is the front of the queue again.
    """
    while page := [each.id for each in broker.peek(queue, BATCH, key) if each.header.sent_ms <= sent_by_ms]:
        yield page
