"""Find and claim due rows without alarms, by the index of each requested (queue, key).

So workers go on while the timer is away, claim a backlog, and find rows that the timer lost or was not told of. The
sweep finds such rows: it looks for pairs that have overdue rows although workers have slots free for them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from time import monotonic, sleep

from django_delayq.brokers.base import (
    BATCH,
    Alarm,
    BuriedInfo,
    Claimed,
    ClaimRequest,
    Claims,
    MaintenanceResult,
    Pair,
    Timer,
)
from django_delayq.core.errors import DelayqError
from django_delayq.core.shares import QUANTUM
from django_delayq.core.transitions import SUSPECT_CRASHES
from django_delayq.store import claim
from django_delayq.store.database import Database
from django_delayq.store.queries import repeat_at, waiting_pairs
from django_delayq.store.shares import ShareClaims
from django_delayq.store.sql.dialect import LEASE_FREE, WAITING, Sql

LOCKED_S, LOCKED_LOOK_S = 1.0, 0.020
SETS = 50
"""The most (queue, key) pairs that one statement looks at."""
LOW_END_S = 1.0
"""The least seconds between two looks that begin at the low end of the index.

After a slow look, the gap is `REST_FACTOR` times its length. While another session keeps a transaction open, the index
keeps the entries of rows that have ended, and each look reads them.
"""


LATE_COMMITS_MS = 1_000
"""A claim begins at due times at least this far back, because a row may be committed a little after its due time."""


class TableClaims:
    """Claims of due rows from the table, without alarms.

    A claim of a (queue, key) begins at the due time that the last one reached, so that it need not read the index from
    its low end. At most once a second it begins at the low end, because a row with an earlier due time may have become
    ready meanwhile.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._since: dict[Pair, int] = {}
        self._low_end_at: dict[Pair, float] = {}
        self._shares: dict[Pair, ShareClaims] = {}

    def claim(self, requests: Sequence[ClaimRequest], lease_ms: int, worker: str) -> tuple[Claims, set[Pair]]:
        """Lease due rows, and return the requested pairs that may have more.

        If the messages of a pair are shared, the shares take turns, as far as they are known to have any and due order
        would not give each its part; once a second a few rows come first that were due first, whatever their shares.
        """
        if not any(request.shares for request in requests):
            return self._claim_in_order(requests, lease_ms, worker)
        in_order, found, full = list[ClaimRequest](), Claims([], [], 0, None), set[Pair]()
        for request in requests:
            shares, most = request.shares, min(request.count, BATCH - len(found.messages))
            if shares is None or most <= 0:
                in_order.append(request)
                continue
            if monotonic() >= self._low_end_at.get(request.pair, 0.0):
                first = [replace(request, count=min(most, QUANTUM), idle_slots=min(request.idle_slots, QUANTUM))]
                _add(found, self._claim_in_order(first, lease_ms, worker)[0])
                (request,) = less([request], found.messages)
            if (claims := self._shares.get(request.pair)) is None:
                claims = self._shares[request.pair] = ShareClaims(self._database, shares)
            given = claims.claim(request, BATCH - len(found.messages), lease_ms, worker)
            if given is None:
                in_order.append(request)
                continue
            messages, now_ms, has_more = given
            _add(found, Claims(messages, [], now_ms, None))
            if has_more:
                full.add(request.pair)
            else:
                in_order += less([request], messages)
        rest = [request for request in in_order if request.count > 0]
        if rest and len(found.messages) < BATCH:
            more, full_in_order = self._claim_in_order(rest, lease_ms, worker)
            _add(found, more)
            full |= full_in_order
        else:
            full.update(request.pair for request in rest)
        return found, full

    def _claim_in_order(self, requests: Sequence[ClaimRequest], lease_ms: int, worker: str) -> tuple[Claims, set[Pair]]:
        """Lease due rows in due order, and return the requested pairs that may have more.

        This also claims rows whose leases ran out: at the low end of the index, once nothing else is left there; of
        more than `SETS` pairs, together with the others.
        """
        began_at = monotonic()
        pairs = {request.pair for request in requests}
        onward = {pair for pair in pairs if began_at < self._low_end_at.get(pair, 0.0)}
        since = {pair: self._since.get(pair, 0) for pair in onward}
        if len(pairs) > SETS:
            found, full = claim_due(self._database, requests, lease_ms, worker, since)
        else:
            found, full = claim_ready(self._database, requests, lease_ms, worker, since)
            short = [request for request in requests if request.pair not in onward | full]
            if short:
                lapsed, _ = claim_due(self._database, less(short, found.messages), lease_ms, worker)
                found.messages += lapsed.messages
                found.buried += lapsed.buried
                found.now_ms = found.now_ms or lapsed.now_ms
        self._low_end_at |= dict.fromkeys(pairs - onward, repeat_at(began_at, monotonic(), LOW_END_S))
        for message in found.messages:
            if message.header:
                pair = message.header.queue, message.header.key
                since_ms = min(message.due_ms, found.now_ms - LATE_COMMITS_MS)
                self._since[pair] = max(self._since.get(pair, 0), since_ms)
        for pair in pairs & self._shares.keys():
            own = [one for one in found.messages if one.header and (one.header.queue, one.header.key) == pair]
            self._shares[pair].note_in_order(own, found.now_ms, is_full=pair in full)
        return found, full

    def go_back(self, pair: Pair, due_ms: int) -> None:
        """Let the next claim of a pair begin at this due time, or earlier."""
        self._since[pair] = min(self._since.get(pair, 0), due_ms - LATE_COMMITS_MS)

    def begin_at_low_end(self, pair: Pair) -> None:
        """Let the next claim of a pair begin at the low end of the index. Any thread may call it."""
        self._low_end_at[pair] = 0.0
        if claims := self._shares.get(pair):
            claims.scan_again()


def _add(found: Claims, more: Claims) -> None:
    """Add the messages of a claim from the table to those of another."""
    found.messages += more.messages
    found.buried += more.buried
    found.now_ms = found.now_ms or more.now_ms


class RowClaims:
    """Claims with a timer that reads the rows: with the database alone, and while another broker is away.

    The timer tells which (queue, key) pairs have something due, and which leases ended. A pair is claimed from the
    table until a claim gets less than it requested.
    """

    def __init__(self, database: Database, timer: Timer, table_claims: TableClaims) -> None:
        self._database = database
        self._timer = timer
        self._table_claims = table_claims
        self._wanted: frozenset[Pair] = frozenset()
        self._full: frozenset[Pair] = frozenset()
        """The pairs of which the last claim got all that it requested. They may have more."""
        self._skipped: frozenset[Pair] = frozenset()
        """The requested pairs that the timer was not asked for. It does not wait for them."""

    def claim(self, requests: Sequence[ClaimRequest], lease_ms: int, worker: str) -> Claims:
        """Claim what is due. See `Queue.claim`."""
        self._wanted = frozenset(request.pair for request in requests)
        if self._database.unanswered:
            self._end_unanswered()
        found = self._claim_lapsed(requests, lease_ms, worker)
        due = [one for one in less(requests, found.messages) if one.count > 0 and one.pair in self._full]
        if not due:
            return found
        try:
            more, full = self._table_claims.claim(due, lease_ms, worker)
        except DelayqError:  # it also fails the next claim, which follows at once
            if not (found.messages or found.buried):
                raise
            return found
        # If nothing was leased, other workers hold the rows that were found: another claim at once would find the same
        may_have_more = full if more.messages else set()
        self._full = self._full.difference(request.pair for request in due) | may_have_more
        found.messages += more.messages
        found.buried += more.buried
        found.now_ms = more.now_ms or found.now_ms
        if may_have_more:
            found.more_available, found.next_due_ms = True, found.now_ms
        return found

    def _claim_lapsed(self, requests: Sequence[ClaimRequest], lease_ms: int, worker: str) -> Claims:
        """Claim rows whose leases ended, and note which pairs have something due.

        Leave out pairs that may have more anyway.
        """
        asked = [request for request in requests if request.pair not in self._full]
        self._skipped = self._full.intersection(self._wanted)
        if requests and not asked:
            return Claims([], [], 0, None)
        found = self._timer.take_due(asked, lease_ms=lease_ms, worker=worker)
        for pair, due_ms in found.due.items():
            self._table_claims.go_back(pair, due_ms)
        self._full |= found.due.keys()
        if not found.alarms:
            return found
        try:
            rows = claim.claim(self._database, found.alarms, asked, lease_ms, worker)
        except Exception:
            self.note(found.alarms)
            raise
        self.note(rows.rearm)
        return Claims(rows.messages, [], rows.now_ms, found.next_due_ms, buried=rows.buried)

    def _end_unanswered(self) -> None:
        """End the leases of claims whose answers were lost, so that their rows are claimed again."""
        ended = claim.end_unanswered(self._database)
        self.note(ended)
        self._full |= {(alarm.queue, alarm.key) for alarm in ended}

    def due_pairs(self, pairs: Collection[Pair]) -> Collection[Pair]:
        """Return the pairs that have something due, or may have more than the last claim got. See `Timer.due_pairs`."""
        full = self._full.intersection(pairs)
        return {*full, *self._timer.due_pairs([pair for pair in pairs if pair not in full])}

    def note(self, alarms: Sequence[Alarm]) -> None:
        """Note rows that wait again. Any thread may call it."""
        for alarm in alarms:
            if not alarm.wait_ms:  # it may have been due before what was claimed since
                self._table_claims.begin_at_low_end((alarm.queue, alarm.key))
        self._timer.schedule(alarms)

    def maintain(self, *, lease_ms: int) -> MaintenanceResult:
        """Have the next claim take rows whose leases have ended. See `Timer.maintain`."""
        return self._timer.maintain(lease_ms=lease_ms)

    def wait(self, timeout: float) -> bool:
        """Sleep until a claim of the pairs that were last requested may find something. See `Timer.wait`."""
        return bool(self._skipped) or not self._wanted.isdisjoint(self._full) or self._timer.wait(timeout)

    def wake(self) -> None:
        """End the running `wait`, or the next one. Any thread may call it."""
        self._timer.wake()


def less(requests: Iterable[ClaimRequest], messages: Iterable[Claimed]) -> list[ClaimRequest]:
    """Return the requests, less the messages that were already claimed for them."""
    given = count_by_pair(messages)
    return [
        replace(
            request,
            count=max(request.count - given[request.pair], 0),
            idle_slots=max(request.idle_slots - given[request.pair], 0),
        )
        for request in requests
    ]


def count_by_pair(messages: Iterable[Claimed]) -> Counter[Pair]:
    """Return how many messages there are of each (queue, key)."""
    return Counter([(one.header.queue, one.header.key) for one in messages if one.header])


def claim_ready(
    database: Database, requests: Sequence[ClaimRequest], lease_ms: int, worker: str, since: Mapping[Pair, int]
) -> tuple[Claims, set[Pair]]:
    """Lease rows that wait and are due, of at most `SETS` pairs: a statement for more would take long to plan.

    Also return the pairs that may have more. Rows that another claim has locked are skipped. For a pair in `since`,
    only rows due at that time or later are leased.
    """
    merged = _merged(database, requests)
    if not merged:
        return Claims([], [], 0, None), set()
    rows = _claim_page(database, merged, BATCH, lease_ms, worker, since)
    given = count_by_pair(rows.messages)
    once = {(one.header.queue, one.header.key) for one in rows.messages if one.header and one.header.at_most_once}
    full = set()
    for request in merged:
        most = request.idle_slots if request.pair in once else request.count
        if given[request.pair] >= min(most, request.count) or len(rows.messages) >= BATCH:
            full.add(request.pair)
    return Claims(rows.messages, [], rows.now_ms, None), full


def _claim_page(
    database: Database, page: Sequence[ClaimRequest], most: int, lease_ms: int, worker: str, since: Mapping[Pair, int]
) -> claim.ClaimedRows:
    """Lease at most `most` rows of the pairs, those of the first pairs first.

    At-most-once messages are leased for idle slots only: a message that is leased may be lost with its worker.
    """
    dialect = database.dialect
    of_pair = (
        f"FROM delayq_ready r WHERE {dialect.of_alias} AND r.queue = %s AND r.key = %s AND r.due_at >= %s"
        f" AND r.due_at <= {dialect.now}"
    )
    first = f"{dialect.by_due_time} {dialect.limit.format(count='%s')}"
    due = (
        "SELECT id FROM (SELECT due{i}.*, row_number() OVER (ORDER BY due_at, id) AS number FROM ("
        f"SELECT r.id, r.due_at, r.at_most_once {of_pair} AND {WAITING} AND r.crashes < {SUSPECT_CRASHES}"
        f" {first}{dialect.skip_locked}) AS due{{i}}) AS numbered{{i}} WHERE NOT at_most_once OR number <= %s"
    )
    among = f"SELECT * FROM (SELECT r.id {of_pair} {first}) AS first{{i}}"
    names = [(database.alias, one.queue, one.key, since.get(one.pair, 0)) for one in page]
    counts = [(min(one.count, BATCH), one.idle_slots) for one in page]
    found = Sql(
        f"(SELECT id FROM ({_union(due, len(page))}) AS due LIMIT {most}) AS r",
        [value for name, count in zip(names, counts, strict=True) for value in (*name, *count)],
    )
    leased = Sql(
        f"r.id IN (SELECT id FROM ({_union(among, len(page))}) AS among)",
        [value for name in names for value in (*name, BATCH)],
    )
    return claim.claim_found(database, found, leased, lease_ms, worker)


def _union(select: str, count: int) -> str:
    return " UNION ALL ".join(select.format(i=i) for i in range(count))


def claim_due(
    database: Database,
    requests: Sequence[ClaimRequest],
    lease_ms: int,
    worker: str,
    since: Mapping[Pair, int] | None = None,
) -> tuple[Claims, set[Pair]]:
    """Lease due rows, and return the requested pairs that may have more. See `due` for `since`."""
    alarms, full = due(database, requests, since=since)
    if not (alarms or database.unanswered):
        return Claims([], [], 0, None), full
    rows = claim.claim(database, alarms, requests, lease_ms, worker)
    return Claims(rows.messages, [], rows.now_ms, None, buried=rows.buried), full


def claim_until_none(
    database: Database, requests: Sequence[ClaimRequest], lease_ms: int, worker: str
) -> tuple[Claims, set[Pair]]:
    """Lease due rows, for a caller that stops when it gets none. Also return the pairs that may have more.

    Wait for rows that other transactions hold, but no longer than a second.
    """
    give_up_at = monotonic() + LOCKED_S
    buried: list[BuriedInfo] = []
    while True:
        found, full = claim_due(database, requests, lease_ms, worker)
        buried += found.buried
        found.buried = buried
        if found.messages or monotonic() > give_up_at or not due(database, requests, lock="")[0]:
            return found, full
        sleep(LOCKED_LOOK_S)


def due(
    database: Database,
    requests: Sequence[ClaimRequest],
    late_ms: int = 0,
    lock: str | None = None,
    since: Mapping[Pair, int] | None = None,
) -> tuple[list[Alarm], set[Pair]]:
    """Return alarms for the rows that a claim could lease, at most `BATCH`, and the pairs that may have more.

    Only rows that have been due for at least `late_ms` count; for a pair in `since`, only those due at that time or
    later. Rows that another claim has locked are skipped, because otherwise all workers would look at the same ones;
    another `lock` clause changes that.
    """
    sets = [(one.queue, one.key, min(one.count, BATCH)) for one in _merged(database, requests)]
    found: list[Alarm] = []
    full: set[Pair] = set()
    for start in range(0, len(sets), SETS):
        page = sets[start : start + SETS]
        if len(found) >= BATCH:  # nothing of the rest would be returned
            full.update((queue, key) for queue, key, _ in page)
            continue
        alarms = _due_of(database, page, late_ms, lock, since or {})
        given = Counter([(alarm.queue, alarm.key) for alarm in alarms])
        full.update((queue, key) for queue, key, count in page if given[queue, key] >= count)
        found += alarms
    return found[:BATCH], full.union((alarm.queue, alarm.key) for alarm in found[BATCH:])


def _merged(database: Database, requests: Iterable[ClaimRequest]) -> list[ClaimRequest]:
    """Return one request for each pair of which a message is wanted.

    Of more than `SETS` pairs, only those that have a row get one.
    """
    merged: dict[Pair, ClaimRequest] = {}
    for one in requests:
        if one.count > 0:
            before = merged.get(one.pair)
            if before is not None:
                one = replace(one, count=before.count + one.count, idle_slots=before.idle_slots + one.idle_slots)
            merged[one.pair] = one
    if len(merged) > SETS:
        known = set(_with_rows(database, list(merged)))
        return [one for pair, one in merged.items() if pair in known]
    return list(merged.values())


def _with_rows(database: Database, asked: list[Pair]) -> list[Pair]:
    """Return the pairs in `asked` that have any row, by one statement; all of `asked` if very many pairs have rows."""
    most = max(len(asked), BATCH)
    pairs = waiting_pairs(database, most)
    if len(pairs) >= most:  # there may be others
        return asked
    known = set(pairs)
    return [pair for pair in asked if pair in known]


def _due_of(
    database: Database,
    sets: Sequence[tuple[str, str, int]],
    late_ms: int,
    lock: str | None,
    since: Mapping[Pair, int],
) -> list[Alarm]:
    dialect = database.dialect
    ending = dialect.limit.format(count="%s") + (dialect.skip_locked if lock is None else lock)
    of_set = (
        f"SELECT * FROM (SELECT r.id, r.queue, r.key FROM delayq_ready r WHERE {dialect.of_alias} AND r.queue = %s"
        f" AND r.key = %s AND r.due_at >= %s AND r.due_at <= {dialect.now} - %s"
        f" AND {LEASE_FREE.format(now=dialect.now)} AND r.crashes < {SUSPECT_CRASHES}"
        f" {dialect.by_due_time} {ending}) AS due{{i}}"
    )
    rows = database.rows(
        " UNION ALL ".join(of_set.format(i=i) for i in range(len(sets))),
        [
            value
            for queue, key, count in sets
            for value in (database.alias, queue, key, since.get((queue, key), 0), late_ms, min(count, BATCH))
        ],
    )
    return [Alarm(queue, key, str(pk)) for pk, queue, key in rows]


LATE_MS = 500
RECENT_MS = 15_000
"""How far back a sweep looks that does not begin at the low end of the index."""


class Underfilled:
    """The (queue, key) pairs whose last claim gave fewer messages than it wanted."""

    def __init__(self) -> None:
        self._pairs: set[Pair] = set()

    def note(
        self, requests: Sequence[ClaimRequest], alarms: Iterable[Alarm], messages: Iterable[Claimed], *, left: bool
    ) -> None:
        """Record which pairs got fewer messages than were wanted.

        If the timer has more alarms that are due (`left`), record only the pairs that gave none: a pair that gave some
        may have its other messages behind alarms that are stale.
        """
        rang = Counter([(alarm.queue, alarm.key) for alarm in alarms])
        given = count_by_pair(messages)
        self._pairs = {
            request.pair
            for request in requests
            if (rang[request.pair] < min(request.count, 1) if left else given[request.pair] < request.count)
        }

    def requests(self) -> list[ClaimRequest]:
        """Return a request for one message of each pair."""
        return [ClaimRequest(queue, key, 1) for queue, key in self._pairs]


class Sweep:
    """The search for overdue rows: among those that fell due lately, and once a second among all.

    While another session's transaction keeps the entries of ended rows in the index, a search among all takes long, and
    is made less often.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._low_end_at = 0.0

    def find(self, requests: Sequence[ClaimRequest]) -> set[Pair]:
        """Return the requested pairs that have a row which nobody holds and which has been due for over `LATE_MS`.

        A search that does not begin at the low end of the index finds only rows that fell due within `RECENT_MS`.
        """
        if not requests:
            return set()
        began_at = monotonic()
        is_from_low_end = began_at >= self._low_end_at
        pairs = {request.pair for request in requests}
        since = {} if is_from_low_end else dict.fromkeys(pairs, self._database.now_ms() - RECENT_MS)
        found, _ = due(self._database, requests, late_ms=LATE_MS, lock="", since=since)
        if is_from_low_end:
            self._low_end_at = repeat_at(began_at, monotonic(), LOW_END_S)
        return {(alarm.queue, alarm.key) for alarm in found}
