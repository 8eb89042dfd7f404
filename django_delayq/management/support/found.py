"""Find the ids of messages that an operator chose by queue, key or state."""

from collections.abc import Iterator

from django_delayq.brokers.base import BATCH, Backend


def buried_ids(backend: Backend, key: str | None = None) -> list[str]:
    """Return the ids of all buried messages, each once; if `key` is given, only of those with this key."""
    ids: dict[str, None] = {}
    offset = 0
    while page := backend.queue.failed(BATCH, offset):
        ids.update((each.id, None) for each in page if key in (None, each.header.key))
        offset += len(page)
    return list(ids)


def waiting_pages(backend: Backend, queue: str, key: str | None, *, sent_by_ms: int) -> Iterator[list[str]]:
    """Yield pages of the ids that wait in a queue, of one key if it is given, and were sent by `sent_by_ms`.

    The caller removes each page before it asks for the next, which is the front of the queue again.
    """
    while page := [each.id for each in backend.queue.peek(queue, BATCH, key) if each.header.sent_ms <= sent_by_ms]:
        yield page
