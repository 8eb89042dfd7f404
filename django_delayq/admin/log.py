"""Log what operators do, in Django's own log, which is kept for ever: hashes stand there for errors and payloads.

What was changed in a payload is in a table of our own, and goes with the message. Entries of earlier versions have it
in their lines after the first.

Entries are in English, as Django keeps its own, and the first words are translated where an entry is shown.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.utils import timezone, translation
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext

from django_delayq.admin.access import opening_alias
from django_delayq.admin.bulk.changes import TABLES, Change
from django_delayq.admin.formatting import exact, in_utc, visible
from django_delayq.admin.message.payload import shown_difference
from django_delayq.conf import get_alias
from django_delayq.core.transitions import without_values
from django_delayq.models import MessageRow, PayloadDifference, ReadyMessage

LONGEST = 200
"""The most characters of an error that an entry keeps."""

_MOST_ENTRIES = 50
_PAGE = 2_000
_DUE = "due_at "


class Entry(NamedTuple):
    """An entry of the log: an action of one operator."""

    when: Any
    who: str
    what: str


def entries_of(row: MessageRow, *, with_payloads: bool, with_errors: bool) -> Iterator[Entry]:
    """Yield what operators did to a message, newest first, in whichever table it was then.

    Entries are also selected by the message's name: the databases of two aliases may have rows with one primary key.
    """
    types = ContentType.objects.get_for_models(*TABLES).values()
    ids = (str(row.pk), f"{row.alias}:{row.pk}")
    found = LogEntry.objects.filter(content_type__in=types, object_id__in=ids, object_repr=str(row)[:200])
    differences: dict[str, str] = {}
    for entry in found.select_related("user").order_by("-action_time", "-pk")[:_MOST_ENTRIES]:
        first, _newline, kept = (entry.get_change_message() or str(entry)).partition("\n")
        what = first.partition(": ")[2]
        if what.startswith("#") and with_payloads:
            differences = differences or _differences_of(row)
            kept = differences.get(what, "")
        said = [
            _translated(first, with_errors=with_errors),
            *([shown_difference(kept, row)] if kept and with_payloads else []),
        ]
        yield Entry(exact(_aware(entry.action_time)), entry.user.get_username(), "\n".join(said))


def _differences_of(row: MessageRow) -> dict[str, str]:
    """Return what operators changed in the payload of a message, by the hash that the log has of it."""
    changes = PayloadDifference.objects.using(get_alias(row.alias).database).filter(message_pk=row.pk)
    return dict(changes.values_list("mark", "difference"))


def _aware(moment: datetime) -> datetime:
    """Return the moment as aware. Without USE_TZ Django keeps it in its default zone."""
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment, timezone.get_default_timezone())


def log_rows(
    user_id: Any,
    rows: Sequence[MessageRow],
    did: Any,
    *,
    what: Mapping[int, str] | None = None,
    deleted: bool = False,
) -> None:
    """Add an entry for each row.

    An entry says what the user `did`, followed by the row's text in `what`, which is by primary key.
    """
    with in_english():
        did = str(did)
    said = {row.pk: ": ".join(filter(None, (did, (what or {}).get(row.pk)))) for row in rows}
    LogEntry.objects.bulk_create(
        LogEntry(
            user_id=user_id,
            content_type=ContentType.objects.get_for_model(row),
            object_id=_id_of(row),
            object_repr=str(row)[:200],
            action_flag=DELETION if deleted else CHANGE,
            change_message=said[row.pk],
        )
        for row in rows
    )


def log_selection(
    user_id: Any, model: type[MessageRow], words: str, message: str, *, object_id: str | None = None
) -> LogEntry:
    """Add one entry for all rows that matched a filter, and return it; `words` describe the filter.

    The admin makes the link of the entry from `object_id`.
    """
    return LogEntry.objects.create(
        user_id=user_id,
        content_type=ContentType.objects.get_for_model(model),
        object_id=object_id,
        object_repr=visible(words or "*")[:200],
        action_flag=CHANGE,
        change_message=message,
    )


def hashed(text: str) -> str:
    """Return a hash of a text that the log must not keep. Who has the text, and the SECRET_KEY, can compare it."""
    return f"#{salted_hmac('django_delayq.admin.log', text, algorithm='sha256').hexdigest()[:16]}"


def _hashed_error(error: str) -> str:
    shown = without_values(error)
    return shown if shown == error else f"{shown[:LONGEST]} {hashed(error)}"


def in_english() -> Any:
    """Keep texts in English inside the block, as the log keeps them, whatever language the operator reads."""
    return translation.override(None)


def _translated(line: str, *, with_errors: bool) -> str:
    did, colon, what = line.partition(": ")
    if not (with_errors or what.startswith(_DUE)):
        what = without_values(what)
    return (gettext(did) if did else "") + colon + what


def _id_of(row: MessageRow) -> str:
    """Return the `object_id` of a row's log entries, from which the admin makes their link.

    It is the primary key. Before it stands the alias, unless that is the alias which pages show by default.
    """
    return str(row.pk) if row.alias == opening_alias() else f"{row.alias}:{row.pk}"


def changed(alias: str, rows: Sequence[MessageRow], change: Change) -> Mapping[int, str]:
    """Return a text by primary key, for rows as they were before the move.

    For failed messages it is what of the error quotes no data, with a hash of all of it. For others it is when they
    were due, and when they are due now if that changed.
    """
    if change.move in ("rescue", "purge_failed"):
        return {row.pk: _hashed_error(row.error) for row in rows}
    was = {row.pk: f"{_DUE}{in_utc(row.due_at)}" for row in rows}
    if change.move not in ("reschedule", "shift"):
        return was
    now = ReadyMessage.objects.using(get_alias(alias).database).only("due_at").filter(pk__in=was)
    return was | {row.pk: f"{was[row.pk]} → {in_utc(row.due_at)}" for row in now}


def forget_messages(ids: Collection[str], tag: str | None) -> int:
    """Remove from the log the ids of these messages and what was said of them, and the tag. Return the changed entries.

    A hash stands in place of an id or a tag. What was done, by whom and when stays. The log has no index by message, so
    all of it is read, a page at a time.
    """
    types = {each.pk for each in ContentType.objects.get_for_models(*TABLES).values()}
    named = {*ids, *([] if tag is None else [tag])}
    words = named | set(map(visible, named))  # as entries have them
    changed = last = 0
    while page := list(LogEntry.objects.filter(pk__gt=last).order_by("pk")[:_PAGE]):
        last = page[-1].pk
        forgotten = [entry for entry in page if entry.content_type_id in types and _forget(entry, words)]
        LogEntry.objects.bulk_update(forgotten, ["object_repr", "change_message"])
        changed += len(forgotten)
    return changed


def _forget(entry: LogEntry, words: Collection[str]) -> bool:
    """Change an entry if it tells of one of these messages. Return whether it did."""
    before = entry.object_repr, entry.change_message
    key, _space, id = entry.object_repr.partition(" ")
    if id in words:
        entry.object_repr = f"{key} {hashed(id)}"
        entry.change_message = entry.change_message.partition("\n")[0].partition(": ")[0]
    else:
        entry.object_repr, entry.change_message = (_without(text, words) for text in before)
    return (entry.object_repr, entry.change_message) != before


def _without(text: str, words: Collection[str]) -> str:
    """Return a filter, or a list of ids, with hashes in place of these words."""
    return re.sub(r"[^\s,=]+", lambda found: hashed(found[0]) if found[0] in words else found[0], text)
