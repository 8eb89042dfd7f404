"""End leases, those that workers settle and those that ran out, and renew the others.

Each call of a worker proves its lease by id and token: a worker that lost it changes no row. A row that another
transaction holds, which may be a renewal or a caller's cancel, is skipped rather than waited for. Its lease may still
be good, so the answer for it is None: ask again.

A *reclaim* ends the leases that ran out, or that dead workers hold, and counts the crashes, before their rows can be
leased again.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

from django.db import DatabaseError

from django_delayq.brokers.base import BATCH, Alarm, BuriedInfo, Claimed, Header, LeaseId, pages
from django_delayq.core.batches import PREFIX
from django_delayq.core.errors import BrokerRefused
from django_delayq.core.kept import decode
from django_delayq.core.message import State
from django_delayq.core.requests import NO_PROGRESS, CancelRequest
from django_delayq.core.steps import step_of
from django_delayq.core.transitions import INTERRUPT_MS, Transition, buried_info, lapse, lapse_unburied
from django_delayq.store import kept
from django_delayq.store.alarms import SOON_MS
from django_delayq.store.database import Database, in_transaction, is_away
from django_delayq.store.queries import REST_FACTOR, START, Position, page_after
from django_delayq.store.sql.dialect import CRASHED, ONCE, SUSPECT, Row, Sql, checked, marks
from django_delayq.store.sql.stepwise import (
    TimedTransition,
    bury,
    cancel_running,
    leases,
    request_of,
    wait_again,
)


@dataclass(slots=True)
class Settled:
    """The answer for each lease, alarms to drop, alarms to rearm, and alarms of messages that follow."""

    answers: list[bool | CancelRequest | None]
    drop: list[Alarm]
    rearm: list[Alarm]
    following: Sequence[Alarm] = ()


def settle(database: Database, transitions: Sequence[Transition]) -> Settled:
    """Write transitions. If the handler's own transaction has written one, only drop or rearm its alarm."""
    if any(_may_be_followed(one.id) and not one.is_written for one in transitions):
        return _settle_following(database, transitions)
    return _settle(database, transitions)


def _may_be_followed(id: str) -> bool:
    """Return whether something may follow the end of a message: it may be a step of a sequence, or in a batch."""
    return id.startswith(PREFIX) or ("@" in id and step_of(id) is not None)  # most ids cost no call


@in_transaction
def _settle_following(database: Database, transitions: Sequence[Transition]) -> Settled:
    """Write transitions, and in the same transaction put what follows.

    A message whose sequence another transaction has locked is left as it is, and the answer for it is None.
    """
    from django_delayq.store import follow, sequences  # late: most sites have nothing that follows

    rows, busy = follow.lock(database, [one.id for one in transitions if not one.is_written])
    left = [not one.is_written and one.id in busy for one in transitions]
    settled = _settle(database, [one for one, is_left in zip(transitions, left, strict=True) if not is_left])
    answers = iter(settled.answers)
    settled.answers = [None if is_left else next(answers) for is_left in left]
    answered = zip(transitions, settled.answers, strict=True)
    ended = [one for one, was_held in answered if was_held is True and not one.is_written]
    settled.following = follow.follow(database, rows, sequences.ended_of(ended))
    return settled


def finish_here(database: Database, id: str, pk: int, token: int, started_ms: int) -> list[Alarm] | None:
    """Finish a message as the end of an atomic handler's transaction. Put what follows it, and what was kept for it.

    Return alarms to schedule; None if the lease is lost.
    """
    if is_followed := _may_be_followed(id):
        from django_delayq.store import follow, sequences  # late, as above

        rows = follow.lock_waiting(database, [id])
    alarms: list[Alarm] | None = []
    if not database.dialect.finish_here(database, pk, token, started_ms):
        alarms = kept.finish_here(database, pk, id, token, started_ms)
    if is_followed and alarms is not None:
        alarms += follow.follow(database, rows, [sequences.Ended(id, pk, State.FINISHED)])
    return alarms


def _settle(database: Database, transitions: Sequence[Transition]) -> Settled:
    by_lease: dict[LeaseId, Transition] = {}
    for one in transitions:  # in this order, in which ids mostly grow: their indexes fill page after page
        if not one.is_written:
            by_lease.setdefault((one.id, one.token), one)  # of two transitions of one lease the first counts
    found = database.dialect.apply(database, list(by_lease.values())) if by_lease else {}
    others = [one for lease, one in by_lease.items() if lease not in found]
    standing = _standing(database, leases(database, others)) if others else {}
    alarms: list[Alarm] = []
    if any(standing.values()):
        ended, alarms = kept.end(database, [by_lease[lease] for lease, has_kept in standing.items() if has_kept])
        found = found | ended
    retry_locked = [lease for lease in standing if lease not in found]
    written = {lease: by_lease[lease] for lease, is_written in found.items() if is_written is True}
    refused = {lease: answer for lease, answer in found.items() if isinstance(answer, CancelRequest)}
    of_all = [*written.values(), *(one for one in transitions if one.is_written)]
    drop = [_alarm(one) for one in of_all]
    alarms += [_alarm(one, _until_due_ms(one)) for one in of_all if one.state in (State.PENDING, State.RUNNING)]
    rearm = [alarm for alarm in alarms if alarm.wait_ms <= SOON_MS]  # a pass schedules the others in time
    return Settled([_answer(one, written, retry_locked, refused) for one in transitions], drop, rearm)


def settle_here(database: Database, transitions: Sequence[Transition]) -> tuple[list[Transition], list[Alarm]]:
    """Write transitions in the caller's transaction, as its last step, and put what follows them.

    Return those whose lease is lost, or that somebody has asked to cancel, and the alarms of what was put. If another
    transaction has locked a row, such as a renewal, wait for its end.
    """
    if are_followed := any(_may_be_followed(one.id) for one in transitions):
        from django_delayq.store import follow, sequences  # late, as above

        rows = follow.lock_waiting(database, [one.id for one in transitions])
    found: dict[LeaseId, bool | CancelRequest] = {}
    alarms: list[Alarm] = []
    for page in pages(transitions, PAGE):
        _standing(database, leases(database, page, database.dialect.lock))
        found |= database.dialect.apply(database, page)
        if others := [one for one in page if (one.id, one.token) not in found]:
            ended, sent = kept.end(database, others)
            found |= ended
            alarms += sent
    if are_followed:
        written = [one for one in transitions if found.get((one.id, one.token)) is True]
        alarms += follow.follow(database, rows, sequences.ended_of(written))
    return [one for one in transitions if found.get((one.id, one.token)) is not True], alarms


def _alarm(one: Transition, wait_ms: int = 0) -> Alarm:
    return Alarm(one.queue, one.key, one.pk, wait_ms)


def _until_due_ms(one: Transition) -> int:
    """Return the ms until the row is due again, or until its interrupted lease ends."""
    return INTERRUPT_MS if one.state is State.RUNNING else one.delay_ms or 0


def _answer(
    one: Transition,
    written: dict[LeaseId, Transition],
    retry_locked: Collection[LeaseId],
    refused: dict[LeaseId, CancelRequest],
) -> bool | CancelRequest | None:
    lease = one.id, one.token
    if one.is_written:
        return True
    if lease in retry_locked:
        return None
    if lease in refused:
        return refused.pop(lease)
    return written.pop(lease, None) is not None


def renew(
    database: Database, held: Sequence[Claimed], lease_ms: int, progress: Mapping[LeaseId, str] = NO_PROGRESS
) -> list[bool | CancelRequest | None]:
    """Make leases end later, and write how far their handlers are.

    Return whether each was still held, or who has asked to cancel its message; None if another transaction has its row.
    """
    if not held:
        return []
    changes = Sql(f"lease_until = {database.dialect.now} + %s", [lease_ms])
    if by_pk := [(int(one.pk), progress[one.id, one.token]) for one in held if (one.id, one.token) in progress]:
        cases = " ".join(["WHEN %s THEN %s"] * len(by_pk))
        values = [value for pair in by_pk for value in pair]
        changes = Sql(
            f"{changes.text}, progress = CASE r.id {cases} ELSE r.progress END", [*changes.parameters, *values]
        )
    unlocked = leases(database, held, database.dialect.skip_locked)
    found = database.dialect.change(database, changes, unlocked, "message_id, token, cancel_by, cancel_at")
    renewed = {(id, token): request_of(by, at_ms) or True for id, token, by, at_ms in found}
    others = [one for one in held if (one.id, one.token) not in renewed]
    retry_locked = _standing(database, leases(database, others)) if others else {}
    asked = [(one.id, one.token) for one in held]
    return [None if lease in retry_locked else renewed.get(lease, False) for lease in asked]


def _standing(database: Database, found: Sql) -> dict[LeaseId, bool]:
    """Return which leases of `found` still stand, each with whether a send is kept for the end of its run.

    They are read without a lock, because other transactions have locked them.
    """
    rows = database.rows(f"SELECT r.message_id, r.token, r.again IS NOT NULL FROM {found.text}", found.parameters)
    return {(id, token): bool(has_kept) for id, token, has_kept in rows}


def is_finished(database: Database, pk: int) -> bool:
    """Return whether the row has finished or was cancelled, for a caller whose COMMIT got no answer."""
    return bool(database.rows("SELECT 1 FROM delayq_finish WHERE id = %s", [pk]))


PAGE = 100


LONG_S = 1.0
"""A look at all rows that took longer is repeated only after `REST_FACTOR` times as long.

While another session holds an old snapshot, a look reads every row that has finished meanwhile.
"""


TAKEOVER_S = 0.2
"""How long one call of `take_over` looks at a backlog, in seconds. The worker claims nothing meanwhile."""

AGAIN: Position = (0, 1)
"""A position before all rows, like `START`, but not equal to it: the takeover is not done and must begin again."""


class LapsePositions(NamedTuple):
    """The positions at which the next look at leases begins: among all rows, and among at-most-once ones."""

    of_all: Position
    of_at_most_once: Position
    rests_until: float
    """No look at all rows is made before this time of the monotonic clock."""
    limits_from_ms: int
    """The limits that were over before this time are removed."""


BEGIN = LapsePositions(START, START, 0.0, 0)


class LeaseReport(NamedTuple):
    """The result of one look at leases, at one time of the database's clock."""

    now_ms: int
    lapsed: list[int]
    """The pks of rows whose lease ran out."""
    suspects_due: int
    """How many suspects are due, counted up to `PAGE`."""
    crashed: bool
    """Whether any message has a crash counted: it is a suspect, or may become one."""
    over: bool
    """Whether any limit has run out."""
    position: LapsePositions
    """The position at which the next look begins."""
    has_rules: bool
    """Whether any message of any alias has a rule (rules.py)."""


class Reclaimed(NamedTuple):
    """The rows whose leases ended: their pks, each with its message if that was buried.

    `alarms` are those of sends that were kept for the ends of these runs.
    """

    rows: dict[int, BuriedInfo | None]
    alarms: list[Alarm]


def reclaim(database: Database, pks: Sequence[int], now_ms: int) -> Reclaimed:
    """End the leases that ran out. Their rows are ready again, or buried if they must not start twice.

    A row that another transaction holds is left alone. `now_ms` is the database's time at which `ClockMonitor` allowed
    this: later statements don't read the clock again, because it may jump.
    """
    return _reclaim(database, pks, now_ms, Sql("r.lease_until <= %s", [now_ms]))


def _reclaim(database: Database, pks: Sequence[int], now_ms: int, over: Sql) -> Reclaimed:
    """End the leases for which the condition `over` holds, as `reclaim` does."""
    if not pks:
        return Reclaimed({}, [])
    try:
        return _reclaim_all(database, pks, now_ms, over)
    except (DatabaseError, BrokerRefused) as error:
        if is_away(error):
            raise
        return _reclaim_all(database, pks, now_ms, over, lapse_unburied)  # such a row must not hold up the others


@in_transaction
def _reclaim_all(
    database: Database, pks: Sequence[int], now_ms: int, over: Sql, lapsed: Callable[..., Transition] = lapse
) -> Reclaimed:
    of_pks = database.dialect.among("r.id", sorted(pks))
    rows = database.rows(
        "SELECT r.id, r.message_id, r.queue, r.key, r.due_at, r.failures, r.crashes, r.worker, r.started_at,"
        " r.history, r.lease_until, r.at_most_once, r.interrupted, r.cancel_by, r.cancel_at, r.again"
        " FROM delayq_ready r"
        f" WHERE {of_pks.text} AND r.token IS NOT NULL AND {over.text} ORDER BY r.id{database.dialect.skip_locked}",
        [*of_pks.parameters, *over.parameters],
    )
    if are_followed := any(_may_be_followed(id) for _, id, *_ in rows):
        from django_delayq.store import follow, sequences  # late, as above

        of_steps, busy = follow.lock(database, [id for _, id, *_ in rows])
        rows = [row for row in rows if row[1] not in busy]  # a stop must know whether its message runs
    ended, again = [], {}
    for *row, lease_until_ms, at_most_once, interrupted, cancel_by, cancel_at, text in rows:
        if text is not None:
            again[row[0]] = row[1], text
        claimed, until_ms = _claimed(*row), min(lease_until_ms, now_ms)
        ended_as = lapsed(
            claimed,
            until_ms,
            at_most_once=bool(at_most_once),
            interrupted=bool(interrupted),
            cancel_request=request_of(cancel_by, cancel_at),
        )
        ended.append(TimedTransition(ended_as, claimed.claimed_ms, until_ms))
    buried = [one for one in ended if one.transition.state is State.FAILED]
    kept.forget(database, list(again))
    bury(database, buried)
    cancel_running(database, [one for one in ended if one.transition.state is State.CANCELLED])
    wait_again(database, [one.transition for one in ended if one.transition.state is State.PENDING])
    alarms = kept.send(database, {id: decode(text) for id, text in again.values()})
    if are_followed:
        alarms += follow.follow(database, of_steps, sequences.ended_of(one for one, _, _ in ended))
    ready = dict.fromkeys(int(one.transition.pk) for one in ended)
    return Reclaimed(ready | {int(one.pk): buried_info(one) for one, _, _ in buried}, alarms)


def _claimed(
    pk: int,
    id: str,
    queue: str,
    key: str,
    due_ms: int,
    failures: int,
    crashes: int,
    worker: str,
    claimed_ms: int,
    history: str,
) -> Claimed:
    """Return the row's message with the fields that a lapse needs, as the claim of its lease returned it."""
    return Claimed(id, 0, due_ms, Header(queue, key), b"", failures, crashes, str(pk), history, claimed_ms, worker)


def look_at_leases(database: Database, after: LapsePositions = BEGIN) -> LeaseReport:
    """Look with one statement for leases that ran out, suspects that are due, limits that are over, and any rule.

    A lease is found even if no alarm leads to its row. The statement reads the next `BATCH` due rows from the position
    in `after` on. It also reads the leased suspects and at-most-once messages, for which there is an index each.
    """
    began_at = monotonic()
    parts = _parts_of_look(database, after)
    if began_at < after.rests_until:
        del parts["all"]
    found: dict[str, list[Row]] = {part: [] for part in (*parts, "all")}
    selects = [f"SELECT '{part}', {part}_part.* FROM ({sql.text}) AS {part}_part" for part, sql in parts.items()]
    values = [value for sql in parts.values() for value in sql.parameters]
    for part, *row in database.rows(" UNION ALL ".join(selects), values):
        found[part].append(tuple(row))
    took_s = monotonic() - began_at
    of_at_most_once, of_all = _end_of(found["once"]), _end_of(found["all"])
    now_ms = int(found["clock"][0][0])
    position = after._replace(of_at_most_once=of_at_most_once, limits_from_ms=now_ms)
    if "all" in parts:
        rests_until = monotonic() + REST_FACTOR * took_s if took_s > LONG_S else 0.0
        position = position._replace(of_all=of_all, rests_until=rests_until)
    lapsed = [pk for part in ("suspects", "once", "all") for _, pk, has_lapsed, _ in found[part] if has_lapsed]
    return LeaseReport(
        now_ms,
        list(dict.fromkeys(lapsed)),
        int(found["due"][0][0]),
        bool(found["crashed"]),
        bool(found["over"]),
        position,
        bool(found["rules"]),
    )


def _parts_of_look(database: Database, after: LapsePositions) -> dict[str, Sql]:
    """Return the SELECTs of a look by name.

    Their columns are a time or a count, a pk, whether the lease ran out, and the row's number.
    """
    now, of_alias, crashed = database.dialect.now, [database.alias], f"r.alias = %s AND {CRASHED}"
    suspects = f"SELECT 1 FROM delayq_ready r WHERE r.alias = %s AND {SUSPECT.format(now=now)} LIMIT {PAGE}"
    return {
        "clock": Sql(_row(now)),
        "due": Sql(f"{_row('count(*)')} FROM ({suspects}) AS suspects", of_alias),
        "crashed": Sql(f"{_row('0')} FROM delayq_ready r WHERE {crashed} LIMIT 1", of_alias),
        "suspects": Sql(
            f"{_row('0', 'r.id', '1')} FROM delayq_ready r WHERE {crashed} AND {_ran_out(database)} LIMIT {PAGE}",
            of_alias,
        ),
        "over": Sql(
            f"{_row('0')} FROM delayq_limit l WHERE l.over_ms >= %s AND l.over_ms < {now} AND {checked('l.alias = %s')}"
            " LIMIT 1",
            [after.limits_from_ms, database.alias],
        ),
        # The newest one, because a vacuum may be far behind at the other end of the index
        "rules": Sql(f"{_row('0')} FROM (SELECT id FROM delayq_rule ORDER BY id DESC LIMIT 1) AS newest"),
        "once": _lapsed(database, after.of_at_most_once, "delayq_ready_once", ONCE),
        "all": _lapsed(database, after.of_all, "delayq_ready_list"),
    }


def _row(number: str, pk: str = "0", has_lapsed: str = "0") -> str:
    return f"SELECT {number} AS due_at, {pk} AS id, {has_lapsed} AS wanted, 0 AS number"


def reclaim_lapsed(database: Database, found: LeaseReport) -> Reclaimed:
    """Reclaim the leases that a look found to have run out."""
    all_rows = Reclaimed({}, [])
    for page in pages(found.lapsed, PAGE):
        rows, alarms = reclaim(database, page, found.now_ms)
        all_rows.rows.update(rows)
        all_rows.alarms.extend(alarms)
    return all_rows


class TakenOver(NamedTuple):
    """The result of one `take_over`, and where the next call goes on: `START` once all is done."""

    alarms: list[Alarm]
    buried: list[BuriedInfo]
    position: Position


def take_over(database: Database, dead: Sequence[str], now_ms: int, after: Position = START) -> TakenOver:
    """Reclaim the leases of dead workers, and return alarms for the rows that are ready again.

    Leased rows are among the due ones, mostly the first of them. One call looks at a part of a long backlog. The
    takeover also goes on while another transaction holds one of the rows: it may be a dead worker's last transaction,
    which ends by itself.
    """
    began_at = monotonic()
    taken = TakenOver([], [], START)
    columns = ["r.queue", 'r."key" AS of_key', "r.worker"]
    is_over = True
    while True:
        page_of_dead = _page(database, after, columns, "delayq_ready_list", Sql(*_among(dead, "worker")))
        found = database.rows(f"{page_of_dead.text} ORDER BY number", page_of_dead.parameters)
        after = _end_of([row[:-1] for row in found])
        for page in pages([row for row in found if row[-1]], PAGE):
            ended, alarms = _reclaim(database, [pk for _, pk, *_ in page], now_ms, Sql(*_among(dead, "r.worker")))
            taken.alarms.extend(Alarm(queue, key, str(pk)) for _, pk, queue, key, *_ in page if pk in ended)
            taken.alarms.extend(alarms)
            taken.buried.extend(info for info in ended.values() if info)
            is_over &= len(ended) == len(page)
        if after == START:
            return taken if is_over else taken._replace(position=AGAIN)
        if monotonic() - began_at > TAKEOVER_S:
            return taken._replace(position=after if is_over else AGAIN)


def _lapsed(database: Database, after: Position, index: str, condition: str = "true") -> Sql:
    """Return a SELECT of the lapsed leases among the next `BATCH` due rows.

    If there are `BATCH` rows, it also gives the last of them, lapsed or not, because `_end_of` needs that one.
    """
    page = _page(database, after, [f"{_ran_out(database)} AS ran_out"], index, Sql("ran_out"), condition)
    return Sql(f"SELECT due_at, id, wanted, number FROM ({page.text}) AS page", page.parameters)


def _end_of(page: Sequence[Row]) -> Position:
    """Return the position of the last row of a full page; `START` if the page is not full."""
    return next(((due_ms, pk) for due_ms, pk, *_, number in page if number == BATCH), START)


def _page(
    database: Database, after: Position, columns: Sequence[str], index: str, wanted: Sql, condition: str = "true"
) -> Sql:
    """Return a SELECT of the rows for which `wanted` holds among the next `BATCH` due rows, and of the last row.

    The last row is there only if the page is full. `wanted` is a condition on `columns`. The last two columns are the
    row's number, and whether it is `wanted`.
    """
    looked_at = page_after(database, after, 0, columns, index, condition)
    return Sql(
        f"SELECT numbered.*, CASE WHEN {wanted.text} THEN 1 ELSE 0 END AS wanted FROM"
        " (SELECT looked_at.*, row_number() OVER (ORDER BY due_at, id) AS number"
        f" FROM ({looked_at.text}) AS looked_at) AS numbered WHERE {wanted.text} OR number = {BATCH}",
        [*wanted.parameters, *looked_at.parameters, *wanted.parameters],
    )


def _among(workers: Sequence[str], column: str) -> tuple[str, Sequence[str]]:
    """Return the condition that a column names one of the workers."""
    return f"{column} IN ({marks(len(workers))})", workers


def _ran_out(database: Database) -> str:
    return f"(r.token IS NOT NULL AND r.lease_until <= {database.dialect.now})"
