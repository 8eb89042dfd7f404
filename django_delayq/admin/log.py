"""Log what operators do, in Django's own log. It is kept for ever, so hashes stand for payloads and for quoted data.

An error that may quote data is cut to what quotes none, and a hash of the whole error follows. The change of a payload
is in a table of our own, and is removed with the message. Entries of earlier versions have the change in their lines
after the first. The last line of an entry about many messages says as JSON which messages.

Entries are stored in English, like Django's own. The words before the first colon are translated for display.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
from django_delayq.models import MessageRow, PayloadDifference, ReadyMessage, Schedule

LONGEST = 200
"""The most characters that an entry keeps of an error, and of the name of what it is about."""

_MOST_ENTRIES = 50
_DUE = "due_at "
_SEARCHES = re.compile("q|search|(tag|message_id)(__.*)?")
"""The parameters of a list whose values may be ids or tags."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The messages that an entry is about: those of an alias that match a filter, or have one of these ids.

    The `object_repr` of the entry has them as text, cut to `LONGEST`; they can't be read back from that text.
    """

    alias: str
    filter: Mapping[str, str] = field(default_factory=dict)
    ids: Sequence[str] = ()

    def words(self) -> str:
        """Return the filter and the ids for people: `key=order.close, search=order:*`. Empty for all messages."""
        return ", ".join([*(f"{name}={value}" for name, value in self.filter.items()), *self.ids])

    def without(self, words: Collection[str]) -> "Chosen":
        """Return a copy with hashes in place of these ids and tags."""
        return replace(
            self,
            filter={
                name: without(value, words) if _SEARCHES.fullmatch(name) else value
                for name, value in self.filter.items()
            },
            ids=[without(id, words) for id in self.ids],
        )


class Entry(NamedTuple):
    """An entry of the log: an action of one operator."""

    when: Any
    who: str
    what: str


def entries_of(row: MessageRow, *, with_payloads: bool, with_errors: bool) -> Iterator[Entry]:
    """Yield what operators did to a message, newest first, whichever table it was in at that time.

    The `object_repr` must match too, because the databases of two aliases may have rows with the same primary key.
    """
    types = ContentType.objects.get_for_models(*TABLES).values()
    ids = (str(row.pk), f"{row.alias}:{row.pk}")
    found = LogEntry.objects.filter(content_type__in=types, object_id__in=ids, object_repr=_name_of(row))
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
    """Return what operators changed in the payload of a message, by the hash of each change in the log."""
    changes = PayloadDifference.objects.using(get_alias(row.alias).database).filter(message_pk=row.pk)
    return dict(changes.values_list("mark", "difference"))


def _aware(moment: datetime) -> datetime:
    """Return the moment with a time zone. Without USE_TZ Django stores it naive, in the default zone."""
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
            object_repr=_name_of(row),
            action_flag=DELETION if deleted else CHANGE,
            change_message=said[row.pk],
        )
        for row in rows
    )


def log_selection(
    user_id: Any, model: type[MessageRow], chosen: Chosen, message: str, *, object_id: str | None = None
) -> LogEntry:
    """Add one entry for all the chosen messages, and return it. The admin makes a link from its `object_id`."""
    entry = _new_entry(user_id, model)
    entry.object_id = object_id
    _tell(entry, message, chosen)
    entry.save()
    return entry


def log_schedules(
    user_id: Any, rows: Sequence[Schedule], did: Any, *, what: Mapping[int, str] | None = None, flag: int = CHANGE
) -> None:
    """Add an entry for each schedule, as `log_rows` does for messages."""
    with in_english():
        did = str(did)
    LogEntry.objects.bulk_create(
        LogEntry(
            user_id=user_id,
            content_type=ContentType.objects.get_for_model(Schedule),
            object_id=_id_of(row),
            object_repr=_schedule_name(row),
            action_flag=flag,
            change_message=": ".join(filter(None, (did, (what or {}).get(row.pk)))),
        )
        for row in rows
    )


def entries_of_schedule(row: Schedule) -> Iterator[Entry]:
    """Yield what operators did to a schedule, newest first."""
    found = LogEntry.objects.filter(
        content_type=ContentType.objects.get_for_model(Schedule),
        object_id__in=(str(row.pk), f"{row.alias}:{row.pk}"),
        object_repr=_schedule_name(row),
    )
    for entry in found.select_related("user").order_by("-action_time", "-pk")[:_MOST_ENTRIES]:
        said = _translated(entry.get_change_message() or str(entry), with_errors=True)
        yield Entry(exact(_aware(entry.action_time)), entry.user.get_username(), said)


def _schedule_name(row: Schedule) -> str:
    return visible(row.name)[:LONGEST]


def log_text(user_id: Any, model: type[MessageRow], text: str, message: str) -> None:
    """Add an entry that is about no messages, but about what `text` says."""
    entry = _new_entry(user_id, model)
    entry.object_repr, entry.change_message = visible(text)[:LONGEST], message
    entry.save()


def correct(pk: int, message: str, chosen: Chosen | None = None) -> None:
    """Replace the message of an entry about chosen messages, and the messages themselves if `chosen` is given.

    Does nothing if the entry is gone, or names no chosen messages.
    """
    entry = LogEntry.objects.filter(pk=pk).first()
    before = None if entry is None else chosen_in(entry)
    if entry is not None and before is not None:
        _tell(entry, message, chosen or before)
        entry.save(update_fields=["object_repr", "change_message"])


def chosen_in(entry: LogEntry) -> Chosen | None:
    """Return which messages an entry is about; None if it is about one row, or about none."""
    line = entry.change_message.rpartition("\n")[2]
    try:
        return Chosen(**json.loads(line)) if line.startswith("{") else None
    except (ValueError, TypeError):
        return None


def forget_in(entry: LogEntry, alias: str, ids: Collection[str], words: Collection[str]) -> bool:
    """Replace ids and tags with hashes in an entry. Return whether that changed the entry.

    In an entry about chosen messages of the alias these are the `words`. In an entry about one message of the alias
    that has one of the `ids`, it is the id, and of the text only the words for what was done stay.
    """
    chosen = chosen_in(entry)
    if chosen is not None:
        left = chosen.without(words) if chosen.alias == alias else chosen
        if left == chosen:
            return False
        _tell(entry, entry.change_message.rpartition("\n")[0], left)
        return True
    key, _space, id = entry.object_repr.partition(" ")
    if id not in ids or entry.object_id is None or alias != (entry.object_id.rpartition(":")[0] or opening_alias()):
        return False
    entry.object_repr = f"{key} {hashed(id)}"
    entry.change_message = entry.change_message.partition("\n")[0].partition(": ")[0]
    return True


def without(text: str, words: Collection[str]) -> str:
    """Return a hash of the text if it is one of these words, or a search for what starts with one; else the text."""
    return hashed(text) if text.removesuffix("*") in words else text


def _new_entry(user_id: Any, model: type[MessageRow]) -> LogEntry:
    return LogEntry(user_id=user_id, content_type=ContentType.objects.get_for_model(model), action_flag=CHANGE)


def _tell(entry: LogEntry, message: str, chosen: Chosen) -> None:
    entry.object_repr = visible(chosen.words() or "*")[:LONGEST]
    entry.change_message = f"{message}\n{json.dumps(asdict(chosen))}"


def hashed(text: str) -> str:
    """Return a hash of a text that the log must not keep. To compare it, one needs the text and the SECRET_KEY."""
    return f"#{salted_hmac('django_delayq.admin.log', text, algorithm='sha256').hexdigest()[:16]}"


def _hashed_error(error: str) -> str:
    shown = without_values(error)
    return shown if shown == error else f"{shown[:LONGEST]} {hashed(error)}"


def in_english() -> Any:
    """Return a context manager: texts in its block are in English, like those of the log.

    It does not matter which language the operator reads.
    """
    return translation.override(None)


def _translated(line: str, *, with_errors: bool) -> str:
    did, colon, what = line.partition(": ")
    if not (with_errors or what.startswith(_DUE)):
        what = without_values(what)
    return (gettext(did) if did else "") + colon + what


def _name_of(row: MessageRow) -> str:
    """Return the `object_repr` of a row's log entries: the key and the id, or a hash of the id if that is too long.

    Spaces of the key become no-break spaces. So the first space is before the id, and `forget_in` finds the id.
    """
    key, id = visible(row.key).replace(" ", "\u00a0"), visible(row.message_id)
    if len(key) + len(id) < LONGEST:
        return f"{key} {id}"
    id = hashed(row.message_id)
    return f"{key[: LONGEST - len(id) - 1]} {id}"


def _id_of(row: MessageRow | Schedule) -> str:
    """Return the `object_id` of a row's log entries, from which the admin makes their link.

    It is `alias:pk`, or only the primary key for the alias that pages show by default.
    """
    return str(row.pk) if row.alias == opening_alias() else f"{row.alias}:{row.pk}"


def changed(alias: str, rows: Sequence[MessageRow], change: Change) -> Mapping[int, str]:
    """Return the texts of the log entries by primary key. `rows` are as they were before the move.

    The text of a failed message is its error, without values that the error may quote; if there are any, a hash of the
    whole error follows. The text of another message is its due time, followed by the new due time if that was changed.
    """
    if change.move in ("rescue", "purge_failed"):
        return {row.pk: _hashed_error(row.error) for row in rows}
    was = {row.pk: f"{_DUE}{in_utc(row.due_at)}" for row in rows}
    return was | due_changes(alias, rows) if change.move in ("reschedule", "shift") else was


def due_changes(alias: str, rows: Sequence[MessageRow]) -> dict[int, str]:
    """Return the texts of the log entries of those rows that wait: the due time before, and the new one."""
    was = {row.pk: f"{_DUE}{in_utc(row.due_at)}" for row in rows}
    now = ReadyMessage.objects.using(get_alias(alias).database).only("due_at").filter(pk__in=was)
    return {row.pk: f"{was[row.pk]} → {in_utc(row.due_at)}" for row in now}
