"""Reading one message, without touching it."""

from typing import Any

from django_delayq.brokers import get_broker
from django_delayq.brokers.base import Info
from django_delayq.codec import decode_data
from django_delayq.conf import get_alias
from django_delayq.errors import DataMismatch
from django_delayq.handlers import get_handler
from django_delayq.instants import from_ms
from django_delayq.sends import MessageInfo
from django_delayq.values import check_name


def get_delay_message(id: str, *, using: str | None = None) -> MessageInfo | None:
    """The message that waits or runs under `id`, else the one buried last, else None.

    A send that waits for a commit is not there yet. Raises `BrokerUnavailable` or `BrokerRefused`.
    """
    alias = get_alias(using)
    info = get_broker(alias.name).get(check_name(id, "id"))
    return None if info is None else message_info(alias.name, info)


async def aget_delay_message(id: str, *, using: str | None = None) -> MessageInfo | None:
    """As `get_delay_message`, from async code."""
    alias = get_alias(using)
    info = await get_broker(alias.name).aget(check_name(id, "id"))
    return None if info is None else message_info(alias.name, info)


def message_info(using: str, info: Info) -> MessageInfo:
    """What a broker knows of a message, as callers see it."""
    header = info.header
    expires_ms = header.expires_at_ms
    return MessageInfo(
        id=info.id,
        key=header.key,
        queue=header.queue,
        state=info.state,
        data=_readable(using, header.key, info.body),
        due_at=from_ms(info.due_ms),
        sent_at=from_ms(header.sent_ms),
        failures=info.failures,
        expires_at=None if expires_ms is None else from_ms(expires_ms),
        tag=header.tag,
        trace_id=header.trace_id,
        error=info.error,
        holder=info.holder,
        lease_until=None if info.lease_end_ms is None else from_ms(info.lease_end_ms),
    )


def _readable(using: str, key: str, body: bytes) -> Any:
    """The data as the handler would get it, else as plain JSON, else as text: a look shows what is there."""
    handler = get_handler(using, key)
    for data_type in (Any if handler is None else handler.data_type, Any):
        try:
            return decode_data(body, data_type)
        except DataMismatch:
            continue
    return body.decode(errors="replace")
