"""What travels in our header of an AMQP message beside its body, as JSON."""

import secrets
from dataclasses import dataclass, field, replace
from typing import Any

from amqp import Message

from django_delayq import codec
from django_delayq.brokers.base import Header
from django_delayq.brokers.rabbitmq.names import SetName

NOTE = "delayq"
PERSISTENT = 2
MESSAGE, ALARM = "delayq.message", "delayq.alarm"


def new_uid() -> str:
    """A name for one publishing: it stays when a lost confirm has it sent again."""
    return secrets.token_urlsafe(9)


@dataclass(slots=True)
class Note:
    """All that a broker knows of a message.

    `hold_ms` is what was left of its delay for when it arrives. `due_s` is when it is due by the monotonic clock of the
    machine that sent it, `clock`: whoever has the same one need not be as late as it arrived. `after` is the uid of the
    copy that came again from a lost connection, and this one took its place.
    """

    id: str  # AMQP's own message id takes 255 bytes at most
    header: Header
    due_ms: int = 0
    hold_ms: int = 0
    clock: str = ""
    due_s: float = 0
    failures: int = 0
    crashes: int = 0
    error: str = ""
    detail: str = ""
    buried_ms: int = 0
    uid: str = field(default_factory=new_uid)
    after: str = ""

    @property
    def set_name(self) -> SetName:
        return self.header.queue, self.header.key

    def anew(self, **changes: Any) -> "Note":
        """A changed copy, for another publishing."""
        return replace(self, uid=new_uid(), **{"after": "", **changes})


def pack(note: Note, body: bytes, kind: str = MESSAGE) -> Message:
    """The AMQP message."""
    text = codec.dumps(note).decode()
    return Message(body, type=kind, delivery_mode=PERSISTENT, application_headers={NOTE: text})


def unpack(message: Message) -> tuple[Note | None, bytes]:
    """Note and body; no note for what someone else wrote. What a later version tells beside is passed over."""
    body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
    try:
        return codec.decoder_for(Note).decode(message.properties["application_headers"][NOTE]), body
    except (KeyError, TypeError, ValueError):
        return None, body
