"""Claim due rows share by share (core/shares.py), for handlers with a `share_key`.

A worker keeps in mind which shares of a (queue, key) have rows that are due, so that a claim need not look for them:

- A *scan* steps from share to share in the index `delayq_ready_share`, once a second if it is quick.
- A *look* reads the rows that fell due since the last one, by the index of due times, up to 33 times a second. So a
  share of which nothing was due before is found soon, however many rows of others are due.

What neither finds in time is still claimed: if the shares in mind have nothing left, a claim takes rows in due order.

Rows of many shares lie on many pages, so claims in turn cost more than claims in due order. So a worker counts by share
the rows that come next in due order. If each share gets about its part of them, it claims as many in due order, and
then counts again; otherwise the shares take turns until the next scan. Shares that a look finds come first, either way.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from random import shuffle
from time import monotonic

from django_delayq.brokers.base import BATCH, Claimed, ClaimRequest
from django_delayq.core.shares import Shares, Turns, in_turn
from django_delayq.store.claim import ClaimedRows, claim_found
from django_delayq.store.database import Database
from django_delayq.store.queries import repeat_at
from django_delayq.store.sql.dialect import WAITING, ShareTurn, Sql
from django_delayq.support.logging import logger

SCAN_S, SCAN_REST_FACTOR = 1.0, 100
"""The least seconds between two scans, and the rest after a scan, as a multiple of the time that it took."""
SCANNED = 2_000
"""The most shares that one scan finds. The next one goes on after the last of them."""
MOST_AHEAD, AHEAD_REST_FACTOR = 30_000, 50
"""The most rows to count ahead: with more turns than that, the shares take them. The rest is like the scan's."""
LOOK_S = 0.030
LATE_COMMITS_MS = 250
"""How far back a look goes beyond the last one: a row may be committed a little after its due time."""
MOST_SEEN = 500
"""The most rows that a look reads, the newest first."""
MOST_SINCE = 100_000
"""The most shares of which it is kept where their last claim ended."""
ROUNDS = 3
"""How many statements a claim makes at most, because shares turned out to be empty."""


class ShareClaims:
    """The claims of one (queue, key) whose messages are shared, as one worker makes them."""

    def __init__(self, database: Database, shares: Shares) -> None:
        self._database = database
        self._shares = shares
        self._turns = Turns(weights_of(shares))
        self._since: dict[str, int] = {}
        self._scan_at = self._look_at = 0.0
        self._scanned_to = ""
        self._looked_ms = 0
        self._knows_all = False  # whether scans have been through all shares once
        self._mixed = self._mixed_to_ms = 0  # how many rows in due order are known to be mixed, and up to when
        self._count_at = 0.0

    def scan_again(self) -> None:
        """Let the next claim scan for shares. Any thread may call it."""
        self._scan_at = 0.0

    def claim(
        self, request: ClaimRequest, most: int, lease_ms: int, worker: str
    ) -> tuple[list[Claimed], int, bool] | None:
        """Lease at most `most` due rows of the pair, in turn.

        Return them, the database's time (0 if none was leased), and whether there may be more to claim in turn. What
        then lacks is claimed in due order. Return None if fewer than two shares are known to be due.
        """
        self._find_shares(request)
        if len(self._turns) < 2:
            return None
        if self._mixed <= 0 and monotonic() >= self._count_at:
            self._count_ahead(request)
        is_mixed = self._mixed > 0
        plan, rounds = (self._turns.plan_new, 1) if is_mixed else (self._turns.plan, ROUNDS)
        count, idle = min(request.count, most), request.idle_slots
        messages: list[Claimed] = []
        order: dict[str, None] = {}
        now_ms = 0
        for _ in range(rounds):
            planned = plan(count - len(messages))
            if not planned:
                break
            found = self._lease(request, planned, idle - len(messages), lease_ms, worker)
            now_ms = found.now_ms or now_ms
            self._turns.note(planned, Counter([one.share or "" for one in found.messages]))
            self._note_since(found.messages, now_ms)
            messages += found.messages
            order |= dict.fromkeys(planned)
            if 2 * len(messages) >= count:
                break
        has_more = len(messages) >= count or (not is_mixed and len(self._turns) > 0)
        return in_turn(messages, attrgetter("share"), order), now_ms, has_more

    def note_in_order(self, messages: list[Claimed], now_ms: int, *, is_full: bool) -> None:
        """Note what a claim in due order gave. If it is not full, no more are due."""
        if messages:
            last_ms = max(one.due_ms for one in messages)
            self._turns.passed_ms = last_ms if is_full else last_ms + 1
            self._mixed = 0 if last_ms > self._mixed_to_ms else self._mixed - len(messages)
            self._note_since(messages, now_ms)

    def _note_since(self, messages: list[Claimed], now_ms: int) -> None:
        if len(self._since) > MOST_SINCE:
            self._since.clear()
        last_ms = {one.share: one.due_ms for one in messages}  # they are in due order
        for share, due_ms in last_ms.items():
            if share:
                since_ms = min(due_ms, now_ms - LATE_COMMITS_MS)
                self._since[share] = max(self._since.get(share, 0), since_ms)

    # Which shares are due

    def _find_shares(self, request: ClaimRequest) -> None:
        began_at = monotonic()
        if began_at >= self._look_at:  # before a scan, which does not tell which shares are new
            self._look(request)
            self._look_at = monotonic() + LOOK_S
        if began_at >= self._scan_at:
            began_at = monotonic()
            self._scan(request)
            self._scan_at = repeat_at(began_at, monotonic(), SCAN_S, SCAN_REST_FACTOR)

    def _scan(self, request: ClaimRequest) -> None:
        """Find the shares that have rows that are due, and where the first and the last of these are."""
        rows = self._database.dialect.shares(self._database, *request.pair, self._scanned_to, SCANNED)
        self._knows_all |= len(rows) < SCANNED
        self._scanned_to = rows[-1][0] if len(rows) >= SCANNED else ""
        shuffle(rows)  # several workers would otherwise begin with the same shares
        for share, first_ms, last_ms in rows:
            if first_ms is not None and last_ms is not None:
                self._since[share] = min(self._since.get(share, 0), first_ms)
                if self._turns.add(share, last_ms):
                    self._mixed = 0

    def _look(self, request: ClaimRequest) -> None:
        """Find the shares of rows that fell due since the last look."""
        now = self._database.dialect.now
        newest = self._due(request, self._looked_ms - LATE_COMMITS_MS, MOST_SEEN, " DESC")
        rows = self._database.rows(
            f"SELECT NULL, 0, {now} UNION ALL SELECT share, count(*), max(due_at) FROM ({newest.text})"
            " AS newest WHERE share IS NOT NULL GROUP BY share",
            newest.parameters,
        )
        is_first = not self._looked_ms
        for share, number, last_ms in rows:
            if share is None:
                self._looked_ms = last_ms
            elif not is_first:
                self._turns.add(share, last_ms, number)

    def _count_ahead(self, request: ClaimRequest) -> None:
        """Count the rows that come next in due order by share, and keep in mind how many of them are mixed."""
        self._count_at, most = self._scan_at, self._turns.ahead(request.count)
        if most > MOST_AHEAD or not self._knows_all:
            return
        began_at = monotonic()
        ahead = self._due(request, self._turns.passed_ms - LATE_COMMITS_MS, most)
        rows = self._database.rows(
            f"SELECT share, count(*), max(due_at) FROM ({ahead.text}) AS ahead GROUP BY share", ahead.parameters
        )
        counts = {share: number for share, number, _ in rows}
        number, end_ms = sum(counts.values()), max((last_ms for *_, last_ms in rows), default=0)
        if self._turns.note_ahead(counts, None if number < most else end_ms):
            self._mixed, self._mixed_to_ms = number, end_ms
            self._count_at = repeat_at(began_at, monotonic(), 0, AHEAD_REST_FACTOR)

    def _due(self, request: ClaimRequest, after_ms: int, most: int, way: str = "") -> Sql:
        """Return a SELECT of share and due time of the first `most` rows that wait and fell due after a time."""
        dialect = self._database.dialect
        columns = dialect.by_due_time.removeprefix("ORDER BY ").split(", ")
        return Sql(
            f"SELECT r.share, r.due_at FROM delayq_ready r WHERE {dialect.of_alias} AND r.queue = %s AND r.key = %s"
            f" AND r.due_at > %s AND r.due_at <= {dialect.now} AND {WAITING}"
            f" ORDER BY {', '.join(column + way for column in columns)} {dialect.limit.format(count=most)}",
            [self._database.alias, *request.pair, after_ms],
        )

    # The rows of shares

    def _lease(
        self, request: ClaimRequest, planned: Mapping[str, int], idle: int, lease_ms: int, worker: str
    ) -> ClaimedRows:
        """Lease rows of the shares, at most as many of each as planned.

        At-most-once messages are leased for idle slots only: a message that is leased may be lost with its worker.
        """
        turns = []
        for share, count in planned.items():
            turns.append(ShareTurn(share, self._since.get(share, 0), count, max(idle, 0)))
            idle -= count
        rows_of = partial(self._database.dialect.of_shares, self._database.alias, request.pair)
        found = rows_of(turns, WAITING)
        among = rows_of([turn._replace(most=BATCH, idle=BATCH) for turn in turns])
        return claim_found(
            self._database, found, Sql(f"r.id IN (SELECT id FROM {among.text})", among.parameters), lease_ms, worker
        )


def weights_of(shares: Shares) -> Callable[[str], int]:
    """Return a function that returns the weight of a share: 1 if the site's function fails, which is logged once."""
    has_failed = False

    def weight_of(share: str) -> int:
        nonlocal has_failed
        try:
            return shares.weight_of(share)
        except Exception:  # it is the site's code, and its messages must run all the same
            if not has_failed:
                logger.exception("share_weight failed for share %r, which counts as of weight 1", share)
                has_failed = True
            return 1

    return weight_of
