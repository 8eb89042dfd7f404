"""Keep a send whose id runs until the run ends: the newest one, which is then sent. Pure: no Django, no I/O.

The end of a run and this send are written together. If the message waits again then, for a retry, a snooze or after a
crash, the send replaces it, like any other with `on_conflict="replace"`.
"""

from dataclasses import dataclass, fields
from typing import Any

from django_delayq.core import codec
from django_delayq.core.requests import Header, NewMessage


@dataclass(frozen=True, slots=True)
class Kept:
    """A send that waits for the end of a run. `merged` counts the sends that it replaced while the run went on.

    `first_ms` is when the first of them was sent; its own `header` has when it was sent itself.
    """

    header: Header
    body: bytes
    due_ms: int
    first_ms: int
    merged: int = 0
    max_wait_ms: int | None = None
    rule: str = ""

    def message(self, id: str) -> NewMessage:
        """Return the message to send when the run ends."""
        return NewMessage(id, self.header, self.body, at_ms=self.due_ms, rule=self.rule, max_wait_ms=self.max_wait_ms)


def keep(message: NewMessage, due_ms: int, now_ms: int, before: Kept | None) -> Kept:
    """Return the send to keep for a message that runs, in place of the one that was kept `before`.

    It would be due at `due_ms` if no send had been kept.
    """
    first_ms = now_ms if before is None else before.first_ms
    bounded_ms = bounded(due_ms, first_ms, message.max_wait_ms, now_ms)
    return Kept(
        _sent_at(message.header, now_ms),
        message.body,
        bounded_ms,
        first_ms,
        0 if before is None else before.merged + 1,
        message.max_wait_ms,
        message.rule if bounded_ms == message.at_ms else "",
    )


def bounded(due_ms: int, first_ms: int, max_wait_ms: int | None, now_ms: int) -> int:
    """Return when a message is due whose first send was at `first_ms`. SQL and Lua work out the same."""
    return due_ms if max_wait_ms is None else max(min(due_ms, first_ms + max_wait_ms), now_ms)


_HEADER = [field.name for field in fields(Header)]


def _sent_at(header: Header, now_ms: int) -> Header:
    return Header(**{name: getattr(header, name) for name in _HEADER} | {"sent_ms": now_ms})


def encode(kept: Kept) -> str:
    """Return what is kept as JSON."""
    given: dict[str, Any] = {name: getattr(kept.header, name) for name in _HEADER}
    given |= {"data": kept.body.decode(), "due_ms": kept.due_ms, "first_ms": kept.first_ms}
    given |= {"merged": kept.merged, "max_wait_ms": kept.max_wait_ms, "rule": kept.rule}
    return codec.dumps(given).decode()


def decode(text: str) -> Kept:
    """Return what `encode` wrote."""
    given: dict[str, Any] = codec.loads(text.encode())
    header = Header(**{name: given[name] for name in _HEADER if name in given})  # an older release knew fewer
    header.more_tags = tuple(header.more_tags)
    return Kept(
        header,
        given["data"].encode(),
        given["due_ms"],
        given["first_ms"],
        given["merged"],
        given["max_wait_ms"],
        given["rule"],
    )
