"""The tables as the owner of the messages: the rows decide, and a timer says where to look."""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

from asgiref.sync import sync_to_async

from django_delayq.brokers.base import (
    BATCH,
    NO_PROGRESS,
    Action,
    Alarm,
    Audit,
    Broker,
    CancelRequest,
    Claimed,
    ClaimRequest,
    Claims,
    Counts,
    Enqueued,
    Info,
    LeaseId,
    MaintenanceResult,
    NewMessage,
    OnConflict,
    Pair,
    PutBack,
    SettleAction,
    Takeover,
    Transition,
    Window,
    check_batch,
    earliest,
    refuse_duplicates,
)
from django_delayq.conf import Alias, Store
from django_delayq.core.errors import (
    BrokerUnavailable,
    DelayqError,
    ForeignMark,
    PartlyUnavailable,
    StoreUnavailable,
)
from django_delayq.core.lanes import priority_of
from django_delayq.core.message import State
from django_delayq.core.transitions import release
from django_delayq.models import ActionRow
from django_delayq.store import (
    again,
    audit,
    claim,
    due_times,
    enqueue,
    limits,
    listing,
    operations,
    queries,
    rules,
    settle,
    undo,
)
from django_delayq.store.alarms import Degraded, schedule_window
from django_delayq.store.database import Database, T
from django_delayq.store.enqueue import CommitNotifier
from django_delayq.store.lanes import note_lanes
from django_delayq.store.mark import Mark
from django_delayq.store.polling import (
    LATE_MS,
    RowClaims,
    Sweep,
    TableClaims,
    Underfilled,
    claim_until_none,
    count_by_pair,
    less,
)
from django_delayq.store.queries import START
from django_delayq.store.timer import POLL_S, DatabaseTimer
from django_delayq.support.logging import logger

STALE_BATCH = 100
"""The least number of alarms to take for pairs whose last alarms were all stale, for all these pairs together."""
ASKED_EVERY_S = 1.0
"""The timer is asked this often even amid a backlog: what others send over its connection comes with its answers."""
LOOK_S, LONGEST_REST_S = 0.5, 5.0
"""The least and the most seconds between two looks for leases that ran out, if there is no suspect.

Within these bounds, the gap is a third of a lease: a clock that jumps ahead must be noticed before a lease seems to
have run out.
"""
FOLLOW_UPS_S = 10.0
"""How often upkeep looks after sequences and batches, in seconds."""
LEFT_ALONE_MS = 60_000
"""How long to put off messages that the timer's server carries, so that alarms come before them."""


class DatabaseQueue:
    """The queue of an alias with a store; see `Queue` in brokers/base.py.

    Only rows run: messages that the timer's server carries are left to it.
    """

    def __init__(
        self, alias: Alias, settings: Store, database: Database, broker: Broker, degraded: Degraded, mark: Mark
    ) -> None:
        self.settings = settings
        self.database = database
        self.degraded = degraded
        self.mark = mark
        self.underfilled = Underfilled()
        self.backlog: frozenset[Pair] = frozenset()
        """The pairs of which very many rows may be overdue. They are claimed from the table."""
        self._alias = alias
        self.broker = broker
        self.timer = broker.timer
        self.window = broker.window
        self._can_list_alarms = broker.alarm_index is not None
        self._broker_queue = broker.queue
        self._table_claims = TableClaims(database)
        self._is_alone = broker.window is None  # then the broker's timer reads the rows, otherwise a stand-in does
        row_timer = broker.timer if self._is_alone else DatabaseTimer(database)
        self._row_claims = RowClaims(database, row_timer, self._table_claims)
        self._sweep = Sweep(database)
        # Pairs that the last claim filled: if the timer has no more of them, the table may
        self._filled: set[Pair] = set()
        self._commit_notifier = CommitNotifier(broker, database.now_ms, mark)
        self._lapse_positions = settle.BEGIN
        self._looked_at, self._looked_at_ms, self._rests_until = 0.0, 0, 0.0
        self._taken_to = START
        self._all_stale = False  # whether in the last claim all alarms of some pair were stale: it may have more
        self._timer_asked_at = self._rows_asked_at = 0.0
        self._schedules_rest_until = self._follow_ups_rest_until = 0.0
        # Whether the last claim did not ask the timer, which waits for what an earlier claim requested
        self._timer_skipped = False

    # Messages in

    def enqueue(self, messages: Sequence[NewMessage], on_conflict: OnConflict = "keep") -> list[Enqueued]:
        check_batch(messages)
        self.note_lanes(messages)
        asked_at = monotonic()
        enqueued, alarms = enqueue.enqueue(self.database, messages, on_conflict)
        self._commit_notifier.schedule_after_commit(self.database.connection, alarms, asked_at)
        return refuse_duplicates(enqueued, on_conflict)

    def note_lanes(self, messages: Iterable[NewMessage]) -> None:
        queues = {message.header.queue for message in messages}
        if found := [queue for queue in queues if priority_of(queue)]:
            note_lanes(self.database, self.broker.presence, self.mark, found)

    def begin_enqueue(
        self, messages: Sequence[NewMessage], on_conflict: OnConflict = "keep"
    ) -> Callable[[], list[Enqueued]]:
        enqueued = self.enqueue(messages, on_conflict)
        return lambda: enqueued

    async def aenqueue(self, messages: Sequence[NewMessage], on_conflict: OnConflict = "keep") -> list[Enqueued]:
        return await sync_to_async(self.enqueue)(messages, on_conflict)

    # Messages out

    @property
    def _reads_rows(self) -> bool:
        """Return whether a timer that reads the rows is asked: with the database alone, and in degraded mode."""
        return self._is_alone or self.degraded.on

    @property
    def _reads_rows_alone(self) -> bool:
        """Return whether the timer that reads the rows is the only one that is asked."""
        return self._is_alone or self.degraded.is_alone

    def claim(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        self._all_stale = False
        if self._reads_rows:
            self._timer_skipped, self._rows_asked_at = True, monotonic()
            with self.database.available():
                found = self._row_claims.claim(requests, lease_ms, worker)
            # Leased messages must not wait for the timer, nor be lost if it fails. The next claim asks it.
            if found.messages or found.buried or self._reads_rows_alone:
                return found
        backlog = self._claim_backlog(_those_of(requests, self.backlog), lease_ms, worker)
        asked = _without(requests, self.backlog, backlog.messages)
        if not asked:
            if monotonic() < self._timer_asked_at + ASKED_EVERY_S:
                self._timer_skipped = True
                return backlog
            asked = [replace(request, count=1, idle_slots=0) for request in requests]
        try:
            found = self._claim_what_is_due(asked, lease_ms, worker)
        except DelayqError:
            if not (backlog.messages or backlog.buried):
                raise
            return backlog  # leased messages must not be lost: the next claim asks the timer
        _add(found, backlog)
        return found

    def _claim_backlog(self, requests: Sequence[ClaimRequest], lease_ms: int, worker: str) -> Claims:
        """Claim from the table. A pair whose request was not filled has no backlog any more."""
        if not requests:
            return Claims([], [], 0, None)
        with self.database.available():
            found, may_be_left = self._table_claims.claim(requests, lease_ms, worker)
        self.backlog = self.backlog.difference(_pairs_wanted(requests)) | may_be_left
        if may_be_left:
            found.more_available, found.next_due_ms = True, found.now_ms
        return found

    def _claim_what_is_due(self, requests: Sequence[ClaimRequest], lease_ms: int, worker: str) -> Claims:
        """Claim the rows whose alarms are due, and then rows from the table to which no alarm may lead.

        The table is asked for pairs whose alarms were all stale, and for pairs whose request the last claim filled and
        this one did not: the timer may have no more alarms of their backlog.
        """
        found, stale = self._claim_by_timer(requests, lease_ms, worker)
        self._all_stale = bool(stale)
        # An error from here on also fails the next claim, which follows at once. These messages must not be lost.
        with contextlib.suppress(DelayqError):
            if stale:
                more, stale = self._claim_by_timer(_stale_batches(requests, stale), lease_ms, worker)
                _add(found, more)
            _add(
                found,
                self._claim_backlog(_those_of(requests, stale | self._note_filled(requests, found)), lease_ms, worker),
            )
        return found

    def _note_filled(self, requests: Sequence[ClaimRequest], found: Claims) -> set[Pair]:
        """Note which requests were filled. Return the pairs whose request the last claim filled and this one did not.

        A pair that got overdue messages has a backlog if the timer has more messages, or if its request was filled.
        """
        given = count_by_pair(found.messages)
        short = {request.pair for request in requests if given[request.pair] < request.count}
        filled, self._filled = self._filled, set(given).difference(short)
        overdue = _pairs_of(one for one in found.messages if one.due_ms < found.now_ms - LATE_MS)
        self.backlog |= overdue if found.more_available else overdue & self._filled
        return short & filled

    def due_pairs(self, pairs: Collection[Pair]) -> Collection[Pair]:
        if self._reads_rows_alone:
            with self.database.available():
                return self._row_claims.due_pairs(pairs)
        if not self.degraded.away:  # otherwise the claim tells whether the timer is back: a look does not
            with contextlib.suppress(DelayqError):
                return {*self.timer.due_pairs(pairs), *self.backlog.intersection(pairs)}
        return pairs

    def claim_all(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        """Claim rows whose alarms are due; once the timer gives none, claim the rows that the tables show as due.

        This also finds rows whose alarms were never scheduled, or were lost. If a backlog is known, it is claimed from
        the table first, because the timer may have very many stale alarms.
        """
        found = self._claim_backlog(_those_of(requests, self.backlog), lease_ms, worker)
        if found.messages:
            return found
        buried, without_body = found.buried, list[str]()
        left = [] if self._reads_rows else requests
        while left and not found.messages:
            found, stale = self._claim_by_timer(left, lease_ms, worker)
            self._note_filled(left, found)
            buried, without_body = [*buried, *found.buried], [*without_body, *found.without_body]
            left = _stale_batches(requests, stale)
        if not found.messages:
            with self.database.available():
                found, more_of = claim_until_none(self.database, requests, lease_ms, worker)
                self.backlog |= more_of
            buried += found.buried
        found.buried, found.without_body = buried, without_body
        return found

    def _claim_by_timer(self, requests: Sequence[ClaimRequest], lease_ms: int, worker: str) -> tuple[Claims, Set[Pair]]:
        """Claim the rows whose alarms the timer gives. Also return the pairs for which it gave only stale alarms.

        Very many stale alarms may come before a good one: those of messages that were cancelled or moved together, or
        that ran from the tables alone. Messages that the timer's server carries are left to it, and count like stale
        alarms.
        """
        self._timer_asked_at = monotonic()
        found = self.degraded.ask(partial(self.timer.take_due, requests, lease_ms=lease_ms, worker=worker))
        self._timer_skipped = False
        if found.away:  # only maintenance can tell that nothing is away
            self.degraded.hear(found.away)
        self._leave(found.messages)
        rows = claim.ClaimedRows(found.now_ms)
        if found.alarms or self.database.unanswered:
            try:
                with self.database.available():
                    rows = claim.claim(self.database, found.alarms, requests, lease_ms, worker)
            except Exception:
                self._forget(found.alarms, found.alarms)  # set them again: they would otherwise lie idle for a lease
                raise
        # If the timer has no index of its alarms, more of them may be on their way.
        may_be_left = found.more_available or not self._can_list_alarms
        self.underfilled.note(requests, found.alarms, rows.messages, left=may_be_left)
        self._forget(rows.drop, rows.rearm)
        next_due_ms = None if found.next_due_ms is None else rows.now_ms + found.next_due_ms - found.now_ms
        claimed = Claims(
            rows.messages, [], rows.now_ms, next_due_ms, found.more_available, found.without_body, rows.buried
        )
        without_row = {(alarm.queue, alarm.key) for alarm in found.alarms} | _pairs_of(found.messages)
        return claimed, {request.pair for request in requests} & without_row - _pairs_of(rows.messages)

    def _leave(self, messages: Sequence[Claimed]) -> None:
        """Put off messages that the timer's server carries, for long enough that alarms come before them.

        They are from before the store was switched on, or forged. If they can't be put off now, they return when their
        lease ends.
        """
        readable = [release(claimed, LEFT_ALONE_MS) for claimed in messages if claimed.header]
        if readable and self._broker_queue is not None:
            with contextlib.suppress(DelayqError):
                self.degraded.ask(partial(self._broker_queue.apply, readable))

    def claim_suspect(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        with self.database.available():
            rows = claim.claim_suspect(self.database, requests, lease_ms, worker)
        return Claims(rows.messages, [], rows.now_ms, None)

    def apply(self, transitions: Sequence[Transition]) -> Sequence[bool | CancelRequest | None]:
        check_batch(transitions)
        asked_at = monotonic()
        with self.database.available():
            settled = settle.settle(self.database, transitions)
        if settled.following:
            self._commit_notifier.schedule_after_commit(self.database.connection, settled.following, asked_at)
        if any(one.action is SettleAction.CRASH for one in transitions):
            self.look_again()  # there may be a suspect now
        self._forget(settled.drop, settled.rearm)
        if ends := [
            one.id for one, was_held in zip(transitions, settled.answers, strict=True) if _may_recur(one, was_held)
        ]:
            self._put_following(ends)
        return settled.answers

    def finish_here(self, id: str, pk: int, token: int, started_ms: int) -> bool:
        asked_at = monotonic()
        alarms = settle.finish_here(self.database, id, pk, token, started_ms)
        if alarms is None:
            return False
        self._commit_notifier.schedule_after_commit(self.database.connection, alarms, asked_at)
        return True

    def settle_here(self, transitions: Sequence[Transition]) -> list[Transition]:
        asked_at = monotonic()
        lost, alarms = settle.settle_here(self.database, transitions)
        self._commit_notifier.schedule_after_commit(self.database.connection, alarms, asked_at)
        return lost

    def _put_following(self, ends: Sequence[str]) -> None:
        """Put the occurrences that follow messages that have ended. An error is left to maintenance: the ends stand."""
        from django_delayq.core.occurrences import schedule_of  # late: most sites have no schedules
        from django_delayq.store import schedules

        names = [name for id in ends if (name := schedule_of(id))]
        if not names:
            return
        try:
            asked_at = monotonic()
            alarms = schedules.put_following(self.database, {"name__in": names})
        except Exception as error:  # noqa: BLE001 - whatever it is, maintenance tries again
            logger.warning("The next occurrences of schedules are left to maintenance: %s", error)
        else:
            self._commit_notifier.schedule_after_commit(self.database.connection, alarms, asked_at)

    def put_occurrences(self) -> None:
        if monotonic() < self._schedules_rest_until:
            return
        from django_delayq.store import schedules  # late, as above

        with self.database.available():
            asked_at = monotonic()
            alarms, rest_ms = schedules.put_due(self.database)
        self._schedules_rest_until = asked_at + rest_ms / 1000
        self._commit_notifier.schedule_after_commit(self.database.connection, alarms, asked_at)

    def change_schedules(self, change: Callable[[Database], tuple[T, list[Alarm]]]) -> T:
        answer = self.change_follow_ups(change)
        self._schedules_rest_until = 0.0
        return answer

    def stopped_among(self, ids: Collection[str]) -> Collection[str]:
        from django_delayq.store import sequences  # late, as above

        with self.database.available():
            return sequences.stopped_among(self.database, ids)

    def mend_follow_ups(self) -> None:
        if monotonic() < self._follow_ups_rest_until:
            return
        from django_delayq.store import batches, sequences  # late, as above

        is_any_left = False
        asked_at = monotonic()
        for mend in (sequences.mend, batches.mend):
            with self.database.available():
                alarms, is_left = mend(self.database)
            is_any_left |= is_left
            self._commit_notifier.schedule_after_commit(self.database.connection, alarms, asked_at)
        self._follow_ups_rest_until = 0.0 if is_any_left else asked_at + FOLLOW_UPS_S

    def change_follow_ups(self, change: Callable[[Database], tuple[T, list[Alarm]]]) -> T:
        asked_at = monotonic()
        with self.database.available():
            answer, alarms = change(self.database)
        self._commit_notifier.schedule_after_commit(self.database.connection, alarms, asked_at)
        return answer

    def renew(
        self, leases: Sequence[Claimed], lease_ms: int, progress: Mapping[LeaseId, str] = NO_PROGRESS
    ) -> Sequence[bool | CancelRequest | None]:
        check_batch(leases)
        with self.database.available():
            return settle.renew(self.database, leases, lease_ms, progress)

    def maintain(self, *, lease_ms: int) -> MaintenanceResult:
        result = None if self.degraded.on else self._maintain_timer(lease_ms)
        with self.database.available():
            result = result or self._row_claims.maintain(lease_ms=lease_ms)
            now_ms = self._maintain_rows(result, lease_ms)
        if result.next_lease_end_ms is not None:
            result.next_lease_end_ms += now_ms - result.now_ms
        result.now_ms = now_ms
        return result

    def _maintain_rows(self, result: MaintenanceResult, lease_ms: int) -> int:
        """Reclaim the leases that ran out, unless the last look for them was a moment ago. Return the database's time.

        Alarms lead to most leases that ran out. Only this look finds the others: those of suspects, of at-most-once
        messages, and of messages that no worker serves. While there are no suspects, it is made less often.
        """
        asked_at = monotonic()
        if asked_at < self._rests_until:
            return self._looked_at_ms + int((asked_at - self._looked_at) * 1000)
        monitor = self.database.clock_monitor
        if monitor.waits_for_writes:
            self.database.prove_writes()
            monitor.take_writes(lease_ms)
            asked_at = monotonic()
        found = settle.look_at_leases(self.database, self._lapse_positions)
        self._looked_at, self._looked_at_ms = asked_at, found.now_ms
        result.suspects_due = found.suspects_due
        self.database.has_rules = found.has_rules
        hold_off_ms = monitor.hear(found.now_ms, asked_at, lease_ms)
        most_s = min(max(lease_ms / 3000, LOOK_S), LONGEST_REST_S)
        if hold_off_ms:
            if not (found.crashed or monitor.waits_for_writes):
                self._rests_until = asked_at + min(hold_off_ms / 1000, most_s)
            return found.now_ms
        if found.lapsed:
            reclaimed = settle.reclaim_lapsed(self.database, found)
            result.buried += [info for info in reclaimed.rows.values() if info]
            self._forget([], reclaimed.alarms)
            result.suspects_due = settle.look_at_leases(self.database, found.position).suspects_due
        saw_all = self._lapse_positions[:2] == found.position[:2] == settle.BEGIN[:2]
        if found.over:
            limits.forget_over(self.database, self._lapse_positions.limits_from_ms, found.now_ms)
        self._lapse_positions = found.position
        if saw_all and not (found.lapsed or found.crashed or self.degraded.away):
            self._rests_until = asked_at + most_s
        return found.now_ms

    def look_again(self) -> None:
        """Have the next maintenance look for leases that ran out, however lately the last one did."""
        self._rests_until = 0.0

    def take_over(self, workers: Collection[str]) -> Takeover:
        with self.database.available():
            now_ms = self.database.now_ms()
            taken = settle.take_over(self.database, sorted(workers), now_ms, self._taken_to)
        self._taken_to = taken.position
        self._forget(taken.alarms, taken.alarms)
        return Takeover(taken.buried, left=taken.position != START)

    def sweep(self) -> None:
        if self.window is None:  # the timer reads the rows by itself
            return
        with self.database.available():
            found = self._sweep.find(self.underfilled.requests())
        if found:
            self.backlog |= found
            self.wake()

    def keep_window(self, *, lease_ms: int) -> None:
        if self.window is None:
            return
        try:
            with self.database.available():
                self._keep_window(self.window, lease_ms)
        except Exception as error:
            if isinstance(error, DelayqError) and not isinstance(error, StoreUnavailable):
                self.degraded.miss_window()
            self.degraded.begin_if_due()
            raise
        self.degraded.unscheduled_since = None

    def _keep_window(self, window: Window, lease_ms: int) -> None:
        """Schedule the window.

        After an outage of the timer, first do its maintenance, and end the degraded mode last.
        """
        try:
            if self.degraded.away:
                self.ask_timer(lease_ms=lease_ms)
        except PartlyUnavailable:
            schedule_window(self.database, window)  # the shards that answer go on, beside the tables
            raise
        schedule_window(self.database, window)
        if self.degraded.on:
            self.degraded.end()

    def due_pairs_except(self, keys: Collection[str]) -> list[Pair]:
        with self.database.available():
            pairs = [pair for pair in queries.waiting_pairs(self.database, BATCH) if pair[1] not in keys]
            return list(due_times.read_due_times(self.database, pairs[: due_times.PAIRS], 0, 0, 1)[1]) if pairs else []

    def prune(self) -> bool:
        kept = (
            (operations.prune_finished, self.settings.retention),
            (operations.prune_errors, self.settings.failed_retention),
            (operations.prune_actions, undo.KEPT_MS),
        )
        with self.database.available():
            now_ms = self.database.now_ms()
            pruned = [prune(self.database, now_ms - kept_ms) for prune, kept_ms in kept if kept_ms is not None]
        return any(number >= BATCH for number in pruned)

    def ask_timer(self, *, lease_ms: int) -> None:
        """Set the timer's mark, and do its own maintenance. Success proves that the timer takes writes.

        Raises `PartlyUnavailable` while a part of it is away, and `ForeignMark` if it bears another store's mark.
        """
        try:
            self.mark.set()
        except ForeignMark:
            self.degraded.begin_foreign()
            raise
        result = self._maintain_timer(lease_ms)
        if result.away:
            raise PartlyUnavailable(result.away)

    def _maintain_timer(self, lease_ms: int) -> MaintenanceResult:
        try:
            result = self.degraded.ask(partial(self.timer.maintain, lease_ms=lease_ms))
        except BrokerUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - until somebody mends it; the rows must not wait for that
            result = MaintenanceResult(0, away=str(error) if isinstance(error, DelayqError) else repr(error))
        self.degraded.hear(result.away)
        result.lost_record, result.buried = "", []  # the record is here
        return result

    def wait(self, timeout: float) -> bool:
        if self._all_stale:
            return True
        if self._reads_rows_alone:
            return self._row_claims.wait(timeout)
        if self._timer_skipped:
            return True
        if not self.degraded.on:
            return self.timer.wait(timeout)
        rest_s = max(self._rows_asked_at + POLL_S - monotonic(), 0)  # what is away can't end the wait
        return self.timer.wait(min(timeout, rest_s)) or rest_s <= timeout

    def wake(self) -> None:
        self._row_claims.wake()
        if not self._is_alone:
            self.timer.wake()

    def _forget(self, drop: Sequence[Alarm], rearm: Sequence[Alarm]) -> None:
        """Drop claimed alarms, and rearm those of rows that still wait.

        A failure does no harm: the rows are written already. Alarms that were not dropped lapse, and a later claim
        finds them stale.
        """
        if rearm:
            self._row_claims.note(rearm)
        if (drop or rearm) and not self._is_alone and self.degraded.may_ask:
            with contextlib.suppress(DelayqError):
                self.degraded.ask(partial(self.timer.drop, drop, rearm))

    # Operations by id

    def atomically(self, work: Callable[[], T]) -> T:
        return self.database.transaction(work)

    def cancel(self, ids: Sequence[str], running_by: str | None = None, *, action: Action | None = None) -> list[bool]:
        check_batch(ids)
        if action is None:
            found = operations.cancel(self.database, ids, running_by)
        else:
            found = undo.cancel(self.database, action, ids, running_by)
        return operations.answers(ids, found)

    async def acancel(self, ids: Sequence[str], running_by: str | None = None) -> list[bool]:
        return await sync_to_async(self.cancel)(ids, running_by)

    def reschedule(
        self,
        ids: Sequence[str],
        *,
        delay_ms: int = 0,
        at_ms: int | None = None,
        by_ms: int | None = None,
        rule: str = "",
        action: Action | None = None,
    ) -> list[bool]:
        """Change due times as the protocol says; with `by_ms`, make each message due that much later."""
        check_batch(ids)
        asked_at = monotonic()
        if action is not None:
            found, alarms = undo.reschedule(self.database, action, ids, delay_ms, at_ms, by_ms)
        elif rule and at_ms is not None:
            found, alarms = operations.reschedule_by(self.database, ids, at_ms, rule)
        else:
            found, alarms = operations.reschedule(self.database, ids, delay_ms, at_ms, by_ms)
        self._commit_notifier.schedule_after_commit(self.database.connection, alarms, asked_at)
        return operations.answers(ids, found)

    def correct(self, corrections: Sequence[rules.Correction]) -> list[bool]:
        from django_delayq.store import schedules  # late, as above

        check_batch(corrections)
        asked_at = monotonic()
        found, alarms = schedules.correct(self.database, corrections)
        self._commit_notifier.schedule_after_commit(self.database.connection, alarms, asked_at)
        return operations.answers([each.id for each in corrections], found)

    async def areschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]:
        return await sync_to_async(self.reschedule)(ids, delay_ms=delay_ms, at_ms=at_ms)

    def rescue(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        asked_at = monotonic()
        found, alarms = operations.rescue(self.database, ids)
        self._commit_notifier.schedule_after_commit(self.database.connection, alarms, asked_at)
        return operations.answers(ids, found)

    def send_again(
        self,
        ids: Sequence[str],
        *,
        delay_ms: int = 0,
        interval_us: int = 0,
        first: int = 0,
        action: Action | None = None,
    ) -> list[bool]:
        check_batch(ids)
        send = partial(self._send_again, ids, delay_ms, interval_us, first, action)
        sent = send() if action is None else self.database.transaction(send)
        return operations.answers(ids, sent)

    def _send_again(
        self, ids: Sequence[str], delay_ms: int, interval_us: int, first: int, action: Action | None
    ) -> set[str]:
        if action is not None:
            self.database.begin_with_write()
        sent: set[str] = set()
        for new in again.to_send_again(self.database, list(dict.fromkeys(ids))):
            for number, message in enumerate(new, first + len(sent)):
                message.delay_ms = delay_ms + number * interval_us // 1000
            sent |= {one.id for one in self.enqueue(new) if one.created}
        if action is not None:
            undo.note_sent(self.database, action, sent)
        return sent

    def begin_undo(self, action: Action) -> bool:
        self._action(action.name)
        return undo.begin(self.database, action)

    def changed_by(self, name: str, after: int = 0) -> list[int]:
        return undo.next_pks(self.database, self._action(name), after)

    def put_back(self, name: str, pks: Sequence[int]) -> PutBack:
        asked_at = monotonic()
        done, alarms = undo.put_back(self.database, self._action(name), pks)
        self._commit_notifier.schedule_after_commit(self.database.connection, alarms, asked_at)
        return done

    def _action(self, name: str) -> ActionRow:
        row = undo.find(self.database, name)
        if row is None:
            raise undo.unknown(name)
        return row

    def purge(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        return operations.answers(ids, operations.purge(self.database, ids))

    def purge_failed(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        return operations.answers(ids, operations.purge_failed(self.database, ids))

    # Queries

    def get(self, id: str) -> Info | None:
        return queries.get(self.database, id)

    async def aget(self, id: str) -> Info | None:
        return await sync_to_async(self.get)(id)

    def ids_by_tag(self, tag: str, *, running: bool = False) -> list[str]:
        """Return the ids that wait under a tag, or also run. Inside `atomically` they can't start before its end."""
        return queries.ids_by_tag(self.database, tag, running=running)

    def rows_with_states(
        self, tag: str | None, key: str | None, id_prefix: str | None, states: Collection[State]
    ) -> Iterator[tuple[Any, State]]:
        return listing.rows_with_states(self.database, tag, key, id_prefix, states)

    def peek(self, queue: str, count: int, key: str | None = None) -> list[Info]:
        return queries.peek(self.database, queue, count, key)

    def failed(self, count: int, offset: int = 0) -> list[Info]:
        return queries.errors(self.database, count, offset)

    def counts(self) -> Counts:
        return queries.counts(self.database)

    def audit(self) -> Audit:
        return audit.audit(self.database, self.broker, self.mark, self._alias.options.lease)

    def repair(self) -> list[str]:
        """Mend the differences of an audit that have one right answer. Return what was mended, in words."""
        return audit.repair(self.database, self.broker, self.mark)


def _may_recur(one: Transition, was_held: bool | CancelRequest | None) -> bool:
    """Return whether a message has ended whose id may be that of a schedule's occurrence."""
    is_over = one.state in (State.FINISHED, State.FAILED, State.CANCELLED)
    return was_held is True and is_over and one.id.endswith(("Z", "]")) and "@" in one.id


def _pairs_of(messages: Iterable[Claimed]) -> set[Pair]:
    return {(one.header.queue, one.header.key) for one in messages if one.header}


def _pairs_wanted(requests: Iterable[ClaimRequest]) -> set[Pair]:
    return {request.pair for request in requests}


def _those_of(requests: Iterable[ClaimRequest], pairs: Set[Pair]) -> list[ClaimRequest]:
    return [request for request in requests if request.pair in pairs]


def _without(
    requests: Iterable[ClaimRequest], pairs: Collection[Pair], messages: Iterable[Claimed]
) -> list[ClaimRequest]:
    """Return the requests for pairs that are not in `pairs`, less what `messages` already gave."""
    return [request for request in less(requests, messages) if request.pair not in pairs]


def _stale_batches(requests: Iterable[ClaimRequest], pairs: Set[Pair]) -> list[ClaimRequest]:
    """Return the requests for `pairs`, with counts that clear many stale alarms at a time."""
    return [
        replace(request, count=max(request.count, STALE_BATCH // len(pairs))) for request in _those_of(requests, pairs)
    ]


def _add(found: Claims, more: Claims) -> None:
    """Add to a claim what another one gave."""
    found.messages += more.messages
    found.buried += more.buried
    found.without_body += more.without_body
    found.more_available |= more.more_available
    found.next_due_ms = earliest(found.next_due_ms, more.next_due_ms)
