"""Keep the limits of an alias with a store, over all workers.

The tables keep them, by the database's time, so that nobody who can write to the broker moves a limit. core/limits.py
has the arithmetic. A worker locks the rows that it changes, so that workers take turns. Permits are in a row for each
key and value of `concurrency_key`, and turns by rate in the row of the key and value of `rate_key`. The rows of a key
are locked in the order of their values, so that two workers don't wait for each other.

A worker may be frozen, or its host cut off, while it has rows locked. So nobody waits long for a lock (see `_brief`),
and such a worker loses its locks after `STALLED_MS`, except on MySQL.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from itertools import groupby
from operator import attrgetter
from time import monotonic
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from django.db import OperationalError

from django_delayq.brokers.base import BATCH, PermitRequest, Throttled, check_batch, in_order, pages
from django_delayq.core import codec
from django_delayq.core.errors import StoreUnavailable
from django_delayq.core.limits import LINGER_MS, Limit, Permits, acquire as work_out, by_limit, spread
from django_delayq.store.database import Database, in_transaction, waited_for_lock
from django_delayq.store.sql.dialect import LongText, Sql, checked
from django_delayq.support.tokens import random_numbers

KEPT_MS = 60_000
"""How long a limit's row is kept, at least, after nothing counts any more.

The time of its end is written ahead in whole multiples of this, so it changes seldom: its index keeps each value while
another session keeps a transaction open.
"""

LOCKED_MS = 5_000
"""How long a message waits whose value has a locked row. A try takes a second of the loop, which others need, too."""

RACED_S = 5.0
"""For how long rows of a key are locked before they are read, after another session got in between."""

P = ParamSpec("P")
T = TypeVar("T")
TRIES = 3
"""How often missing rows are inserted. They may be removed again only if the clock jumps meanwhile."""


class _Row(NamedTuple):
    """A row of a limit."""

    value: str
    version: int
    id: int
    slots: str
    line_ms: int
    since_ms: int
    looked_ms: int
    turn_us: int
    over_ms: int


_NONE = "{}"
"""The `slots` of a row without permits, as they are written."""
_IN_PLACE = {"slots": LongText, "line_ms": int, "since_ms": int, "looked_ms": int, "turn_us": int, "over_ms": int}
"""The columns that are written of a row, with their types."""
_ANEW = {**_IN_PLACE, "slots": str, "version": int, "id": int}
"""The columns that are written where an UPDATE leaves the earlier version of a row behind (see `_write`)."""


@dataclass(slots=True)
class _Held:
    """A row that is locked, or read, and what is to be written of it."""

    row: _Row
    permits: Permits
    turn_us: int


Requests = Mapping[Limit, Sequence[PermitRequest]]
Answers = dict[Limit, list[Throttled | None]]

Change = Callable[[Mapping[str, _Held], int], Answers]
"""A function of rows of a key, by value, and of the time in epoch ms. It changes the rows and returns the answers."""


class DatabaseLimiter:
    """The `Limiter` (brokers/base.py) in the tables. The requests of a key are answered together."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock_until: dict[str, float] = {}  # until when rows of a key are locked before they are read

    def acquire(self, requests: Sequence[PermitRequest], *, lease_ms: int) -> list[Throttled | None]:
        check_batch(requests)
        positions = by_limit(requests)
        answers: Answers = {}
        with self._database.available():
            for key, asked in _by_key(requests, positions):
                answers |= self._acquire_of_key(key, asked, lease_ms)
        return spread(requests, in_order(positions.values(), [answers[limit] for limit in positions]))

    def _acquire_of_key(self, key: str, asked: Requests, lease_ms: int) -> Answers:
        """Return the answers by limit. Refuse those whose rows are locked, unless all are: then raise."""
        values, answer = _values_of(asked), partial(_answer, asked, lease_ms)
        try:
            if (answers := self._change_unlocked(key, values, answer)) is not None:
                return answers
            return _with_rows(self._database, key, values, partial(_change, self._database, key, values, answer))
        except StoreUnavailable as error:
            _insert_missing(self._database, key, values)
            granted = _change_free(self._database, key, values, answer)
            if not granted:
                raise
            locked: Throttled | None = Throttled(LOCKED_MS, of_key=False, error=str(error))
            return {limit: granted.get(limit, [locked] * len(own)) for limit, own in asked.items()}

    def renew(self, requests: Sequence[PermitRequest], *, lease_ms: int) -> None:
        check_batch(requests)
        with self._database.available():
            for key, asked in _by_key(requests, by_limit(requests)):
                values, renew = {limit.value for limit in asked}, partial(_renew, asked, lease_ms)
                with self._unless_locked(key, values, renew):
                    if self._change_unlocked(key, values, renew) is None:
                        _with_rows(self._database, key, values, partial(_change, self._database, key, values, renew))

    def release(self, requests: Sequence[PermitRequest]) -> None:
        check_batch(requests)
        with self._database.available():
            for key, asked in _by_key(requests, by_limit(requests)):
                values, release = {limit.value for limit in asked}, partial(_release, asked)
                with self._unless_locked(key, values, release):
                    if self._change_unlocked(key, values, release, may_lack=True) is None:
                        _change(self._database, key, values, release, may_lack=True)

    def _change_unlocked(
        self, key: str, values: AbstractSet[str], change: Change, *, may_lack: bool = False
    ) -> Answers | None:
        """Return the answers of a change whose rows nobody else locks or writes meanwhile; None if nothing was changed.

        Missing rows are inserted first, unless some may be missing. Otherwise it takes two statements, where a change
        of locked rows takes six. After one that was in vain, rows of the key are locked for a while: its other workers
        are likely to be busy with them.
        """
        dialect = self._database.dialect
        if dialect.updates_in_place or monotonic() < self._lock_until.get(key, 0.0):
            return None
        rows, now_ms = _rows(self._database, key, values)
        if not may_lack and (missing := values - rows.keys()):
            _insert(self._database, key, missing)
            rows, now_ms = _rows(self._database, key, values)
            if rows.keys() != values:
                return None
        held = _to_hold(rows)
        answers = change(held, now_ms)
        if _write(self._database, held.values(), now_ms, dialect.update_unless_raced):
            return answers
        self._lock_until[key] = monotonic() + RACED_S
        return None

    @contextmanager
    def _unless_locked(self, key: str, values: AbstractSet[str], change: Change) -> Iterator[None]:
        """If the block fails because a row is locked, make the change for the other rows, too.

        So a value whose row is locked takes no permit of another value away.
        """
        try:
            yield
        except StoreUnavailable:
            _change_free(self._database, key, values, change)
            raise


def _by_key(
    requests: Sequence[PermitRequest], positions: Mapping[Limit, Sequence[int]]
) -> Iterator[tuple[str, dict[Limit, list[PermitRequest]]]]:
    """Yield each key with the requests for each of its limits."""
    for key, limits in groupby(sorted(positions, key=lambda limit: limit.key), key=lambda limit: limit.key):
        yield key, {limit: [requests[i] for i in positions[limit]] for limit in limits}


@in_transaction
def forget_over(database: Database, since_ms: int, now_ms: int) -> None:
    """Remove the rows of limits that ran out at `since_ms` or later, and before `now_ms`. Leave out locked ones."""
    _write_first(database)
    found = database.rows(
        f"SELECT r.id FROM delayq_limit r WHERE r.over_ms >= %s AND r.over_ms < %s AND {checked('r.alias = %s')}"
        f"{database.dialect.skip_locked}",
        [since_ms, now_ms, database.alias],
    )
    for page in pages(found, BATCH):
        among = database.dialect.among("id", [pk for (pk,) in page])
        database.changed(f"DELETE FROM delayq_limit WHERE {among.text}", among.parameters)


def _values_of(limits: Iterable[Limit]) -> set[str]:
    """Return the values whose rows have the permits and turns of these limits."""
    return {value for limit in limits for value in limit.values}


def _brief(work: Callable[Concatenate[Database, str, P], T]) -> Callable[Concatenate[Database, str, P], T]:
    """Make a function of a database and a key run in a transaction that gives up if a row is locked for long.

    It may be locked by a worker that was frozen. Whoever waited for it would hold up what doesn't need it.
    """

    @wraps(work)
    def run(database: Database, key: str, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return database.transaction(partial(work, database, key, *args, **kwargs), database.dialect.brief)
        except OperationalError as error:
            if not waited_for_lock(error):
                raise
            raise StoreUnavailable(
                f"Database {database.using!r}: the limits of {key!r} are locked by another session, perhaps that of a"
                " frozen worker. Messages with these limits wait."
            ) from error

    return run


@_brief
def _change(
    database: Database, key: str, values: AbstractSet[str], change: Change, *, may_lack: bool = False
) -> Answers | None:
    """Change the rows of a key and these values, and return the answers; None if one is missing that may not be."""
    _write_first(database)
    held = _to_hold(_rows(database, key, values, database.dialect.lock)[0])
    return _changed(database, held, change) if may_lack or held.keys() == values else None


@_brief
def _change_free(database: Database, key: str, values: AbstractSet[str], change: Change) -> Answers:
    """Change those of the rows that nobody else has locked, and return the answers."""
    _write_first(database)
    rows, _ = _rows(database, key, values, database.dialect.skip_locked)
    newest, _ = _rows(database, key, values)  # if that one is locked, an older one was found instead
    free = {value: row for value, row in rows.items() if row.id == newest[value].id}
    return _changed(database, _to_hold(free), change)


def _changed(database: Database, held: Mapping[str, _Held], change: Change) -> Answers:
    """Change locked rows, and return the answers."""
    now_ms = database.now_ms()  # after the wait for the locks
    answers = change(held, now_ms)
    _write(database, held.values(), now_ms, database.dialect.update_locked)
    return answers


def _answer(asked: Requests, lease_ms: int, held: Mapping[str, _Held], now_ms: int) -> Answers:
    """Answer the requests of those limits whose rows are held."""
    answers = {}
    for limit, own in asked.items():
        if limit.values <= held.keys():
            turns = held[limit.value if limit.interval_us is None else limit.rate_value]
            permits = (turns if limit.most is None else held[limit.value]).permits
            answers[limit], turns.turn_us = work_out(limit, permits, turns.turn_us, own, lease_ms, now_ms * 1000)
    return answers


def _renew(asked: Requests, lease_ms: int, held: Mapping[str, _Held], now_ms: int) -> Answers:
    """Renew the permits of the rows that are held. There is nothing to answer."""
    for each in held.values():
        each.permits.look(now_ms, lease_ms)
    for limit, own in asked.items():
        for request in own if limit.value in held else ():
            held[limit.value].permits.take(request.token, now_ms + lease_ms)
    return {}


def _release(asked: Requests, held: Mapping[str, _Held], now_ms: int) -> Answers:
    """Release the permits of the rows that are held. There is nothing to answer."""
    for limit, own in asked.items():
        if limit.value in held:  # else nobody holds its permits any more, or it is locked
            held[limit.value].permits.release(request.token for request in own)
    return {}


def _to_hold(rows: Mapping[str, _Row]) -> dict[str, _Held]:
    return {value: _Held(row, _permits_of(row), row.turn_us) for value, row in rows.items()}


def _write_first(database: Database) -> None:
    """Begin a transaction with a write where the database is SQLite, which must write before it reads."""
    if database.dialect.updates_in_place:
        database.prove_writes()


def _with_rows(database: Database, key: str, values: AbstractSet[str], work: Callable[[], Answers | None]) -> Answers:
    """Return the answers of `work`. If it has none, because rows are missing, insert these first.

    They are inserted in a transaction that has locked no others. An INSERT waits for another of the same row, and who
    waits so while it holds locks may wait for somebody who waits for these.
    """
    for _ in range(TRIES):
        if (answers := work()) is not None:
            return answers
        _insert_missing(database, key, values)
    raise StoreUnavailable(f"Database {database.using!r}: rows of the limits of {key!r} vanish.")


def _insert_missing(database: Database, key: str, values: AbstractSet[str]) -> None:
    if missing := values - _rows(database, key, values)[0].keys():
        _insert(database, key, missing)


def _rows(database: Database, key: str, values: AbstractSet[str], lock: str = "") -> tuple[dict[str, _Row], int]:
    """Return the newest row of a key and each of the values, by value, and when the statement began.

    They are locked in the order of values.
    """
    columns = ", ".join([database.dialect.now, *(f"r.{name}" for name in _Row._fields)])
    if database.dialect.updates_in_place:
        named = Sql('r.alias = %s AND r."key" = %s AND r.value = input.value AND r.version = 0', [database.alias, key])
        wanted = database.dialect.values_table("input", {"value": str}, [(value,) for value in sorted(values)])
        found = database.dialect.joined(wanted, named, lock, "delayq_limit")
        statement = f"SELECT {columns} FROM {found.text}"
        rows = database.rows(database.dialect.briefly(statement) if lock else statement, found.parameters)
    else:
        rows = database.rows(
            f"SELECT {columns} FROM json_array_elements_text(%s) AS input (value) CROSS JOIN LATERAL ("
            f'SELECT * FROM delayq_limit r WHERE alias = %s AND "key" = %s AND r.value = input.value'
            f" ORDER BY version DESC LIMIT 1{lock}) AS r",
            [codec.dumps(sorted(values)).decode(), database.alias, key],
        )
    newest = [_Row._make(row[1:]) for row in rows]
    return {row.value: row for row in newest}, rows[0][0] if rows else 0


@_brief
def _insert(database: Database, key: str, values: Iterable[str]) -> None:
    """Insert rows without permits, unless a key and value have a row of version 0.

    If another worker's row has a higher version by then, that one counts, and this one is forgotten.
    """
    dialect = database.dialect
    new = dialect.values_table("new", {"value": LongText}, [(value,) for value in sorted(values)])
    database.changed(
        dialect.briefly(
            'INSERT INTO delayq_limit (alias, "key", value, slots, line_ms, since_ms, turn_us, over_ms, version)'
            f" SELECT %s, %s, new.value, '{{}}', 0, 0, 0, {dialect.now} + %s, 0 FROM {new.text}"
            f" WHERE true {dialect.unless_limit_there}"
        ),
        [database.alias, key, KEPT_MS, *new.parameters],
    )


def _permits_of(row: _Row) -> Permits:
    ends = {} if row.slots == _NONE else {int(token): end for token, end in codec.loads(row.slots).items()}
    return Permits(ends, row.line_ms, row.since_ms, row.looked_ms)


def _write(database: Database, held: Iterable[_Held], now_ms: int, update: Callable[..., Sql]) -> bool:
    """Write the rows that changed, by an `update` of the dialect. Return whether it wrote all of them.

    On PostgreSQL such a row gets another primary key and a higher version. If it kept the old ones, each look at the
    row would walk over all of its earlier versions while another session keeps a transaction open, because these stay
    under the same entries of the indexes. The version is no lower than the time of the last grant, because a row that
    was forgotten begins at 0 again.
    """
    rows = [(each.row, _written(each)) for each in held]
    changed = [(before.id, row) for before, row in rows if row != before]
    if not database.dialect.updates_in_place:
        changed = [
            (pk, row._replace(id=new_pk, version=max(row.version + 1, now_ms)))
            for (pk, row), new_pk in zip(changed, random_numbers(len(changed)), strict=True)
        ]
    if not changed:
        return True
    columns = _IN_PLACE if database.dialect.updates_in_place else _ANEW
    written_of = attrgetter(*columns)
    held_rows = database.dialect.values_table(
        "held",
        {"pk": int, **{f"new_{name}": kind for name, kind in columns.items()}},
        [(pk, *written_of(row)) for pk, row in changed],
    )
    changes = ", ".join(f"{name} = held.new_{name}" for name in columns)
    return database.changed(*update("delayq_limit", changes, held_rows, [pk for pk, _ in changed])) == len(changed)


def _written(held: _Held) -> _Row:
    """Return a row with what is to be written: the same row if nothing changed."""
    before, permits = held.row, held.permits
    kept_until_ms = KEPT_MS + max([permits.line_ms + LINGER_MS, held.turn_us // 1000 + 1, *permits.ends.values()])
    ends = codec.dumps({str(token): end for token, end in permits.ends.items()}).decode() if permits.ends else _NONE
    over_ms = before.over_ms if before.over_ms >= kept_until_ms else -(-kept_until_ms // KEPT_MS) * KEPT_MS
    progress = permits.line_ms, permits.since_ms, permits.looked_ms, held.turn_us, over_ms
    return _Row(before.value, before.version, before.id, ends, *progress)
