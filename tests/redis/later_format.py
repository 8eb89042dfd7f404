"""Messages of a later format."""

from typing import Any


def as_format_2(client: Any, *ids: str | bytes) -> None:
    """Have messages as a later version might write them: the first fields as ever, then whatever it likes."""
    for id in ids:
        first = (client.hget("{delayq:0}:msg", id) or b"").split(b"\x1f")[1:6]
        client.hset("{delayq:0}:msg", id, b"\x1f".join([b"2", *first, b"?\x1f?\x1f?\x1e\xff"]))
