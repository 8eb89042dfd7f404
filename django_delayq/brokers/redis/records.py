"""Convert a message and its state to and from bytes in Redis. lua/lib/record.lua reads and writes the same bytes.

Fields are separated by US (0x1f), and the body follows RS (0x1e). Neither occurs inside a field, because names are
checked at the send, and JSON escapes control characters.
"""

from dataclasses import dataclass

from django_delayq.brokers.base import CancelRequest, Header
from django_delayq.brokers.redis.client import as_int, as_ms
from django_delayq.core import codec
from django_delayq.support.timestamps import LAST_MS
from django_delayq.support.validation import MAX_NAME

US = b"\x1f"
RS = b"\x1e"
FORMAT = 1
"""The format that this version writes. Messages of a later format are left to workers that know it."""
_OURS = b"%d" % FORMAT + US
_AT_MOST_ONCE = "o"
_PLAIN = US + RS
_OPTIONS = {"max_attempts": int, "timeout_ms": int, "tag": str, "trace_id": str, "version": int}
MOST_COUNT = 2**31 - 1
"""The most failures or crashes that a state can have."""
_NONE_GIVEN = (None,) * 6


def flags_of(header: Header) -> str:
    """Return the options of a message that Lua must know, as one letter each."""
    return _AT_MOST_ONCE if header.at_most_once else ""


def pack_options(header: Header) -> bytes:
    """Return the part of a message between its due time and its body, which Lua copies without reading it."""
    given = (header.expires_ms, header.max_attempts, header.timeout_ms, header.tag, header.trace_id, header.version)
    if given == _NONE_GIVEN:
        return _PLAIN
    expires = b"" if header.expires_ms is None else b"%d" % header.expires_ms
    return expires + US + _pack_given(header) + RS


def _pack_given(header: Header) -> bytes:
    options: dict[str, int | str | None] = {
        "max_attempts": header.max_attempts,
        "timeout_ms": header.timeout_ms,
        "tag": header.tag,
        "trace_id": header.trace_id,
        "version": header.version,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return codec.dumps(given) if given else b""


def is_newer(message: bytes) -> bool:
    """Return whether a message is of a later format."""
    if message.startswith(_OURS):
        return False
    number, found, _ = message.partition(US)
    return bool(found) and number.isdigit() and as_int(number) > FORMAT


def unpack_message(message: bytes) -> tuple[Header | None, bytes]:
    """Return the header and the body of a message; None as the header if someone else wrote the bytes.

    The header of a message of a later format has only the first fields, and no options.
    """
    head, _, body = message.partition(RS)
    try:
        if is_newer(head):
            _, queue, key, flags, sent, scheduled = head.split(US)[:6]
            expires = options = b""
        else:
            version, queue, key, flags, sent, scheduled, expires, options = head.split(US)
            if int(version) != FORMAT:
                return None, body
        header = Header(queue.decode(), key.decode(), _AT_MOST_ONCE in flags.decode())
        header.sent_ms, header.scheduled_ms = _number(sent), _number(scheduled)
        if expires:
            header.expires_ms = _number(expires, LAST_MS - header.scheduled_ms)
        if options:
            _read_options(header, codec.loads(options))
    except (ValueError, TypeError):
        return None, body
    is_ours = 0 < len(header.queue) <= MAX_NAME and 0 < len(header.key) <= MAX_NAME
    return (header if is_ours else None), body


def _read_options(header: Header, options: dict[str, object]) -> None:
    for name, kind in _OPTIONS.items():
        if name in options:
            value = options[name]
            if type(value) is not kind or (isinstance(value, int) and not 0 < value <= LAST_MS):
                raise ValueError(name)
            setattr(header, name, value)


def _number(text: bytes, most: int = LAST_MS) -> int:
    """Parse a number in the form in which we write one: digits only.

    Raises `ValueError` for any other text, and for a number over `most`.
    """
    if not text.isdigit() or len(text) > len(str(LAST_MS)) or (number := int(text)) > most:
        raise ValueError(text)
    return number


@dataclass(slots=True)
class Record:
    """The state of a message, unpacked."""

    token: str = ""
    failures: int = 0
    crashes: int = 0
    due_ms: int | None = None
    worker: str = ""
    interrupted: bool = False
    error: str = ""
    detail: str = ""
    cancel_request: CancelRequest | None = None
    progress: str = ""


def unpack_state(state: bytes) -> Record:
    """Return the state of a message; an empty one if someone else wrote the bytes."""
    try:
        token, failures, crashes, due, worker, error = state.split(US, 5)
        holder = worker.decode(errors="replace")
        last, _, detail = error.decode(errors="replace").partition("\x1e")
        text, interrupted, cancel, progress, *_ = [*last.split("\x1f", 3), "", "", ""]
        return Record(
            token.decode(),
            _number(failures, MOST_COUNT),
            _number(crashes, MOST_COUNT),
            as_ms(due) if due else None,
            holder.removeprefix("!").rstrip(),
            bool(interrupted) or holder.startswith("!"),  # as versions wrote it that did not have the field
            text,
            detail,
            read_cancel_request(cancel),
            progress,
        )
    except ValueError:
        return Record()


def merged_into(merged: bytes, sent_ms: int) -> int:
    """Return how many sends were merged into the message that was sent at `sent_ms`, from lua/lib/kept.lua."""
    sent, _, rest = merged.partition(US)
    number = rest.rpartition(US)[2]
    return as_int(number) if sent == b"%d" % sent_ms and number.isdigit() and len(number) < 16 else 0


def kept_due_ms(kept: bytes, token: str) -> int | None:
    """Return when the send is due that is kept until the run of a token ends; None if there is none."""
    of, _, rest = kept.partition(US)
    due = rest.partition(US)[0]
    return as_ms(due) if of == token.encode() and due.isdigit() else None


def merged_into_kept(kept: bytes) -> int:
    """Return how many sends were merged into the one that is kept until a run ends, from lua/lib/kept.lua."""
    parts = kept.split(US, 4)
    return as_int(parts[3]) if len(parts) > 4 and parts[3].isdigit() and len(parts[3]) < 16 else 0


def read_cancel_request(text: str) -> CancelRequest | None:
    """Return the request that a state has as "<when> <who>"; None for '' and for what someone else wrote."""
    at_ms, _, by = text.partition(" ")
    return CancelRequest(by, as_int(at_ms.encode())) if at_ms.isdigit() else None


def entry_id(entry: bytes) -> str:
    """Return the id in the entry of a buried message (id US token)."""
    return entry.partition(US)[0].decode(errors="replace")
