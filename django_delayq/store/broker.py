"""A broker whose record is the database: the rows decide, and another broker, their clock, says where to look."""

from collections.abc import Callable, Sequence

from asgiref.sync import sync_to_async

from django_delayq.brokers.base import (
    BATCH,
    Alarm,
    AlarmInfo,
    Audit,
    Broker,
    Capability,
    Claims,
    Counts,
    Info,
    OnConflict,
    Pause,
    Placed,
    Put,
    ServerReport,
    Settlement,
    Upkept,
    Want,
    WorkerInfo,
    check_batch,
    refuse_duplicates,
)
from django_delayq.conf import Alias, Store
from django_delayq.sending.commit import is_in_transaction
from django_delayq.store import byid, claims, looks, puts, settles
from django_delayq.store.database import Database
from django_delayq.store.short_cut import ShortCut


class StoredBroker:
    """See `django_delayq.brokers.base.Broker`. Messages that the clock carries from before the store are run too."""

    capabilities = frozenset(Capability) - {Capability.MOVES}  # a shared counter would make every send wait for others

    def __init__(self, alias: Alias, store: Store, clock: Broker) -> None:
        self._alias = alias
        self.clock = clock
        self.store = store
        self.database = Database(alias.name, alias.database)
        self._short_cut = ShortCut(clock)
        self.alarms_lost = False
        """Whether the last upkeep found that the clock may have lost alarms."""

    @classmethod
    def check(cls, alias: Alias) -> None:
        """The clock's own check is made where its class is named."""

    def open(self) -> None:
        self.clock.open()

    def close(self) -> None:
        self.clock.close()

    # Messages in

    def put(self, puts_: Sequence[Put], on_conflict: OnConflict = "keep") -> list[Placed]:
        check_batch(puts_)
        is_in_transaction(self._alias)  # it warns of others, which are not joined
        placed, alarms = puts.put(self.database, puts_, on_conflict)
        self._short_cut.put_after_commit(self.database.connection, alarms)
        return refuse_duplicates(placed, on_conflict)

    def begin_put(self, puts_: Sequence[Put], on_conflict: OnConflict = "keep") -> Callable[[], list[Placed]]:
        placed = self.put(puts_, on_conflict)
        return lambda: placed

    async def aput(self, puts_: Sequence[Put], on_conflict: OnConflict = "keep") -> list[Placed]:
        return await sync_to_async(self.put)(puts_, on_conflict)

    def put_alarms(self, alarms: Sequence[Alarm], *, within_s: float = 2.0) -> None:
        self.clock.put_alarms(alarms, within_s=within_s)

    # The worker's moves

    def claim(self, wants: Sequence[Want], *, lease_ms: int, worker: str) -> Claims:
        found = self.clock.claim(wants, lease_ms=lease_ms, worker=worker)
        with self.database.available():
            rows = claims.claim(self.database, found.alarms, lease_ms, worker)
        self._forget(rows.over, rows.again)
        next_due_ms = None if found.next_due_ms is None else rows.now_ms + found.next_due_ms - found.now_ms
        return Claims([*found.messages, *rows.messages], [], rows.now_ms, next_due_ms, found.left)

    def claim_suspect(self, wants: Sequence[Want], *, lease_ms: int, worker: str) -> Claims:
        with self.database.available():
            rows = claims.claim_suspect(self.database, wants, lease_ms, worker)
        if rows.messages:
            return Claims(rows.messages, [], rows.now_ms, None)
        return self.clock.claim_suspect(wants, lease_ms=lease_ms, worker=worker)

    def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool | None]:
        check_batch(settlements)
        with self.database.available():
            settled = settles.settle(self.database, settlements)
        self._forget(settled.over, settled.again)
        others = [one for one, answer in zip(settlements, settled.answers, strict=True) if answer is False]
        if not others:
            return settled.answers
        carried = iter(self.clock.settle(others))  # the clock may carry messages from before the store
        return [next(carried) if answer is False else answer for answer in settled.answers]

    def drop_alarms(self, alarms: Sequence[Alarm]) -> None:
        self.clock.drop_alarms(alarms)

    def renew(self, leases: Sequence[tuple[str, int]], lease_ms: int) -> Sequence[bool | None]:
        check_batch(leases)
        with self.database.available():
            renewed = settles.renew(self.database, leases, lease_ms)
        others = [lease for lease, answer in zip(leases, renewed, strict=True) if answer is False]
        if not others:
            return renewed
        carried = iter(self.clock.renew(others, lease_ms))
        return [next(carried) if answer is False else answer for answer in renewed]

    def upkeep(self, *, lease_ms: int) -> Upkept:
        upkept = self.clock.upkeep(lease_ms=lease_ms)
        upkept.lost_record = ""  # the record is here
        self.alarms_lost = upkept.alarms_lost
        with self.database.available():
            upkept.buried += claims.bury_lapsed(self.database)
            upkept.suspects_due += claims.suspects_due(self.database)
        return upkept

    def begin_rebuild(self, lock_ms: int) -> bool:
        return self.clock.begin_rebuild(lock_ms)

    def end_rebuild(self) -> bool:
        return self.clock.end_rebuild()

    def wait(self, timeout: float) -> None:
        self.clock.wait(timeout)

    def wake(self) -> None:
        self.clock.wake()

    def _forget(self, over: Sequence[Alarm], again: Sequence[Alarm]) -> None:
        """Drop claimed alarms, then put those of rows that wait again."""
        if over:
            self.clock.drop_alarms(over)
        if again:
            self.clock.put_alarms(again)

    # Moves by id

    def cancel(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        return _answers(ids, byid.cancel(self.database, ids))

    async def acancel(self, ids: Sequence[str]) -> list[bool]:
        return await sync_to_async(self.cancel)(ids)

    def reschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]:
        check_batch(ids)
        found, alarms = byid.reschedule(self.database, ids, delay_ms, at_ms)
        self._short_cut.put_after_commit(self.database.connection, alarms)
        return _answers(ids, found)

    async def areschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]:
        return await sync_to_async(self.reschedule)(ids, delay_ms=delay_ms, at_ms=at_ms)

    def rescue(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        found, alarms = byid.rescue(self.database, ids)
        self._short_cut.put_after_commit(self.database.connection, alarms)
        return _answers(ids, found)

    def purge(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        return _answers(ids, byid.purge(self.database, ids))

    def purge_errors(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        return _answers(ids, byid.purge_errors(self.database, ids))

    # Pauses: the clock keeps them

    def pause(self, pause: Pause) -> None:
        self.clock.pause(pause)

    def resume(self, queue: str | None, key: str | None) -> bool:
        return self.clock.resume(queue, key)

    def pauses(self) -> list[Pause]:
        return self.clock.pauses()

    @property
    def pauses_heard(self) -> int:
        return self.clock.pauses_heard

    # Looks

    def alarms(self, queue: str, key: str, *, after: str = "", count: int = BATCH) -> tuple[list[AlarmInfo], str]:
        return self.clock.alarms(queue, key, after=after, count=count)

    def find_alarms(self, queue: str, key: str, pks: Sequence[str]) -> list[AlarmInfo]:
        return self.clock.find_alarms(queue, key, pks)

    def get(self, id: str) -> Info | None:
        return looks.get(self.database, id)

    async def aget(self, id: str) -> Info | None:
        return await sync_to_async(self.get)(id)

    def tagged(self, tag: str) -> list[str]:
        return looks.tagged(self.database, tag)

    def peek(self, queue: str, count: int, key: str | None = None) -> list[Info]:
        return looks.peek(self.database, queue, count, key)

    def errors(self, count: int, offset: int = 0) -> list[Info]:
        return looks.errors(self.database, count, offset)

    def counts(self) -> Counts:
        return looks.counts(self.database)

    def audit(self) -> Audit:
        return looks.audit(self.database)

    def announce(self, worker: WorkerInfo) -> None:
        self.clock.announce(worker)

    def retire(self, worker: str) -> None:
        self.clock.retire(worker)

    def workers(self) -> list[WorkerInfo]:
        return self.clock.workers()

    def report(self) -> ServerReport:
        return self.clock.report()


def _answers(ids: Sequence[str], found: set[str]) -> list[bool]:
    """True for each id that was found, once."""
    left = set(found)
    answers = []
    for id in ids:
        answers.append(id in left)
        left.discard(id)
    return answers
