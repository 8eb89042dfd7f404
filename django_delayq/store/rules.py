"""Keep the rules that gave messages their due times, and correct due times that their rules no longer give.

A row of `delayq_rule` has the primary key of its message, which stays the same in all tables of messages: so nothing
that moves a message writes here. A retry, a snooze or a plain reschedule gives the message another due time than that
of the row: then the row says nothing of it any more. Its window still holds for retries and snoozes
(worker/attempt.py). What removes a message for good removes its row in the same transaction.

The messages of schedules whose rules are in a zone have such rows too: their local times.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from django_delayq.brokers.base import BATCH, Alarm, Claimed, pages
from django_delayq.core.rules import decode, like_zone, zones
from django_delayq.models import RuleRow
from django_delayq.store.database import Database, in_transaction
from django_delayq.store.sql.dialect import WAITING, Sql

Kept = tuple[int, str, int]
"""The primary key of a message, the text of its rule, and the due time in epoch ms that the rule gave."""


def put(database: Database, rules: Sequence[Kept]) -> None:
    """Keep rules, each in place of the one that the message had. The caller's transaction has written the messages."""
    database.has_rules = True  # other processes learn of the first one by their maintenance
    target = database.connection.features.supports_update_conflicts_with_target
    rows = [
        RuleRow(id=pk, alias=database.alias, rule=text, due_at=due_ms)  # an InstantField takes ms too
        for pk, text, due_ms in sorted(rules)
    ]
    with database.telling_what_it_lacks():
        RuleRow.objects.using(database.using).bulk_create(
            rows,
            BATCH,
            update_conflicts=True,
            unique_fields=["id"] if target else None,
            update_fields=["alias", "rule", "due_at"],
        )


def read(database: Database, pks: Sequence[int]) -> dict[int, tuple[str, int]]:
    """Return the rules of messages, and the due times that these gave, by primary key."""
    found: dict[int, tuple[str, int]] = {}
    for page in pages(pks, BATCH):
        of_pks = database.dialect.among("id", page)
        rows = database.rows(
            f"SELECT id, rule, due_at FROM delayq_rule WHERE {of_pks.text} AND alias = %s",
            [*of_pks.parameters, database.alias],
        )
        found |= {pk: (text, due_ms) for pk, text, due_ms in rows}
    return found


def add_to(database: Database, messages: Iterable[Claimed]) -> None:
    """Set the `rule` of claimed messages that have one."""
    by_pk = {int(one.pk): one for one in messages}
    for pk, (text, _due_ms) in read(database, list(by_pk)).items():
        by_pk[pk].rule = text


# Due times that a change of the time-zone database made wrong


@dataclass(frozen=True, slots=True)
class Correction:
    """A waiting message that is due at `old_ms`, while its rule gives `new_ms` now."""

    id: str
    pk: int
    rule: str
    old_ms: int
    new_ms: int


class Unresolved(NamedTuple):
    """A waiting message whose rule gives no due time now, and why."""

    id: str
    reason: str


class Looked(NamedTuple):
    """The result of a look at some rules: how many waiting messages are due by them, and whose due times are wrong."""

    seen: int
    corrections: list[Correction]
    unresolved: list[Unresolved]


def look(database: Database, zone: str) -> Iterator[Looked]:
    """Yield what is wrong with the due times of waiting messages whose rules name the zone, page by page.

    Each statement looks at `BATCH` rules at most, of whatever zone. Rules that are written meanwhile are not looked at.
    """
    ((last,),) = database.rows("SELECT coalesce(max(id), 0) FROM delayq_rule")
    after = 0
    while after < last:
        ends = database.rows(
            f"SELECT id FROM delayq_rule WHERE id > %s AND id <= %s ORDER BY id LIMIT 1 OFFSET {BATCH - 1}",
            [after, last],
        )
        until = ends[0][0] if ends else last
        yield _look_at(database, zone, after, until)
        after = until


def _look_at(database: Database, zone: str, after: int, until: int) -> Looked:
    page = Sql(
        "(SELECT * FROM delayq_rule WHERE id > %s AND id <= %s AND alias = %s AND rule LIKE %s) AS x",
        [after, until, database.alias, like_zone(zone)],
    )
    dialect = database.dialect
    due_by_it = Sql(  # like core/rules.py's `is_due_by`
        f"r.id = x.id AND r.due_at = {dialect.greatest}(x.due_at, r.sent_at) AND r.alias = %s AND {WAITING}",
        [database.alias],
    )
    found = dialect.joined(page, due_by_it)
    rows = database.rows(
        f"SELECT r.id, r.message_id, r.due_at, x.due_at, x.rule, r.expires_at, r.scheduled_at FROM {found.text}"
        " ORDER BY x.id",
        found.parameters,
    )
    looked = Looked(0, [], [])
    seen, now_ms = 0, database.now_ms()
    for pk, id, old_ms, given_ms, text, expires_at_ms, scheduled_ms in rows:
        try:
            rule = decode(text)
            if zone not in zones(rule):
                continue
            new_ms = rule.due_ms(id)
        except Exception as error:  # noqa: BLE001 - a calendar is the site's code
            looked.unresolved.append(Unresolved(id, str(error) or type(error).__name__))
        else:
            is_over = expires_at_ms is not None and expires_at_ms + max(new_ms - scheduled_ms, 0) <= now_ms
            if new_ms != given_ms and max(new_ms, given_ms) > now_ms and not is_over:
                looked.corrections.append(Correction(id, pk, text, old_ms, new_ms))
        seen += 1
    return looked._replace(seen=seen)


_TIMES = {"of_id": str, "of_pk": int, "old_ms": int, "new_ms": int}


@in_transaction
def correct(database: Database, corrections: Sequence[Correction]) -> tuple[set[str], list[Alarm]]:
    """Give messages the due times that their rules give now, also where these are past, but none before its send.

    One that expires some time after it is due does so that long after now, if its new time is past. Those that don't
    wait any more, or are due at another time than when they were looked at, are left alone. Return the ids of the
    others, and alarms for them.
    """
    if not corrections:
        return set(), []
    dialect = database.dialect
    by_pk = {each.pk: each for each in corrections}
    values = sorted((each.id, each.pk, each.old_ms, each.new_ms) for each in corrections)
    due = f"{dialect.greatest}(input.new_ms, r.sent_at)"  # so that it is known as that of its rule
    begin = f"{dialect.greatest}({dialect.now}, {due})"
    changed = dialect.change_values(
        database,
        f"expires_at = r.expires_at - r.scheduled_at + {begin}, due_at = {due}, scheduled_at = {begin}",
        dialect.values_table("input", _TIMES, values),
        f"{WAITING} AND r.id = input.of_pk AND r.due_at = input.old_ms",
        f'message_id, id, queue, "key", due_at - {dialect.now}{database.noticed(len(values))}',
    )
    alarms = [Alarm(queue, key, str(pk), max(wait_ms, 0)) for _, pk, queue, key, wait_ms, *_ in changed]
    moved = [by_pk[pk] for _, pk, *_ in changed]
    if moved:
        put(database, [(one.pk, one.rule, one.new_ms) for one in moved])
    return {id for id, *_ in changed}, alarms
