"""Read AMQP frames whatever is in them: anyone who may publish can send bytes that py-amqp can't read.

py-amqp would raise, and raise again each time the server delivers the message again. So nobody could read what comes
after it.
"""

from collections.abc import Callable, Sequence
from struct import unpack_from
from typing import Any

from amqp import Connection, Message, spec
from amqp.method_framing import frame_handler

_METHOD, _HEADER = 1, 2
"""The types of a frame with a method, and of one with the properties of a message."""
_NO_PROPERTIES = bytes(2)
_BEFORE_NAMES = {spec.Basic.Deliver: (0, 9, 0), spec.Basic.GetOk: (9, 0), spec.Basic.Return: (2, 0, 0)}
"""The methods that bring a message: how many bytes precede each name in them. The last name is the routing key."""

Frame = tuple[int, int, Any]


def read_frames(connection: Connection, callback: Callable[..., object]) -> Callable[[Frame], bool]:
    """Return py-amqp's reader of frames, changed so that it is given nothing that it can't read.

    A message whose properties it can't read is given to it without properties, so it counts as no alarm. In a routing
    key that is no text, each byte becomes a "?".
    """
    read = frame_handler(connection, callback)

    def read_any(frame: Frame) -> bool:
        kind, channel, payload = frame
        if kind == _HEADER:
            try:
                Message().inbound_header(payload)
            except Exception:  # noqa: BLE001 - whatever it is, it comes from these bytes
                payload = bytes(payload[:12]) + _NO_PROPERTIES
        elif kind == _METHOD and (gaps := _BEFORE_NAMES.get(unpack_from(">HH", payload, 0))):
            payload = _with_text(payload, gaps)
        return bool(read((kind, channel, payload)))

    return read_any


def _with_text(payload: Any, gaps: Sequence[int]) -> Any:
    """Return the payload of a method. If its last name is no text, each byte of that name becomes a "?"."""
    at = 4
    for gap in gaps[:-1]:
        at += gap
        at += 1 + payload[at]
    start = at + gaps[-1] + 1
    name = bytes(payload[start : start + payload[start - 1]])
    try:
        name.decode()
    except UnicodeDecodeError:
        return bytes(payload[:start]) + b"?" * len(name) + bytes(payload[start + len(name) :])
    return payload
