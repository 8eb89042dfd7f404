"""Define how messages look in `--json` and in tables."""

import json
from typing import Any

from django_delayq.brokers.base import Info, Pause
from django_delayq.core.codec import loads
from django_delayq.core.lanes import split_lane
from django_delayq.core.message import State, read_progress
from django_delayq.management.support.terminal import Write, to_iso
from django_delayq.support.timestamps import to_epoch_ms

_SHOWN = 200
"""The most characters of data in a table; `--json` shows all."""


def write_json(write: Write, value: Any) -> None:
    """Write `value` as one line of JSON in ASCII, so that no control character in it reaches the terminal."""
    write(json.dumps(value))


def instant(name: str, milliseconds: int | None) -> dict[str, str | int | None]:
    """Return an instant for programs: `<name>_at` in ISO 8601, and `<name>_ms`."""
    return {f"{name}_at": to_iso(milliseconds), f"{name}_ms": milliseconds}


def queue_shape(lane: str) -> dict[str, str | int]:
    """Return the queue of a lane and its priority for programs."""
    queue, priority = split_lane(lane)
    return {"queue": queue, "priority": priority}


def message_shape(info: Info) -> dict[str, Any]:
    """Return the documented JSON shape of one message. `data` is null and `unreadable` true if the body is no JSON."""
    data, readable = _decode(info.body)
    return {
        "id": info.id,
        "state": str(info.state),
        **queue_shape(info.header.queue),
        "key": info.header.key,
        "tag": info.header.tag,
        "tags": info.header.tags,
        "trace_id": info.header.trace_id,
        "share": info.header.share,
        **instant("due", info.due_ms),
        **instant("sent", info.header.sent_ms),
        **instant("expires", info.header.expires_at_ms),
        "at_most_once": info.header.at_most_once,
        "failures": info.failures,
        "crashes": info.crashes,
        "merged": info.merged,
        **instant("again", info.again_ms),
        "suspect": info.suspect,
        "holder": info.holder or None,
        **instant("lease_end", info.lease_end_ms),
        **instant("buried", info.buried_ms),
        "progress": progress_shape(info.progress),
        **instant("cancel_asked", None if info.cancel_request is None else info.cancel_request.at_ms),
        "cancel_asked_by": None if info.cancel_request is None else info.cancel_request.by,
        "error": info.error,
        "detail": info.detail,
        "version": info.header.version or 1,
        "data": data,
        "unreadable": not readable,
    }


def progress_shape(written: str) -> dict[str, Any] | None:
    """Return the documented JSON shape of a progress; None if there is none."""
    progress = read_progress(written)
    return None if progress is None else progress._asdict()


def row_shape(row: Any, state: State) -> dict[str, Any]:
    """Return the documented JSON shape of a row of the store's tables: of `message_shape`, what the row has."""
    data, readable = _decode(row.data.encode())
    return {
        "id": row.message_id,
        "state": str(state),
        **queue_shape(row.queue),
        "key": row.key,
        "tag": row.tag,
        "tags": row.tags,
        "trace_id": row.trace_id,
        "share": row.share,
        **instant("due", to_epoch_ms(row.due_at)),
        **instant("sent", to_epoch_ms(row.sent_at)),
        **instant("expires", None if row.expires_at is None else to_epoch_ms(row.expires_at)),
        "failures": row.failures,
        "merged": row.merged_sends,
        **instant("again", None if row.again_at is None else to_epoch_ms(row.again_at)),
        "progress": progress_shape((row.progress or "") if state is State.RUNNING else ""),
        "error": row.error,
        "version": row.version or 1,
        "data": data,
        "unreadable": not readable,
    }


def pause_shape(pause: Pause) -> dict[str, Any]:
    """Return the documented JSON shape of one pause."""
    return {
        "queue": pause.queue,
        "key": pause.key,
        "reason": pause.reason,
        **instant("paused", pause.paused_ms),
        **instant("until", pause.until_ms),
    }


def data_text(body: bytes) -> str:
    """Return the data on one line, cut when long."""
    text = body.decode(errors="backslashreplace")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(body)} bytes; --json shows all)"


def _decode(body: bytes) -> tuple[Any, bool]:
    try:
        return loads(body), True
    except (ValueError, RecursionError):  # someone else wrote it
        return None, False
