"""The Redis broker: one sorted set per (queue, key), leases and bodies beside it, every move a Lua script."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

from django_delayq import codec
from django_delayq.brokers.base import (
    BATCH,
    Alarm,
    AlarmInfo,
    Audit,
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
    without_store,
)
from django_delayq.brokers.redis import alarms, byid, claims, looks, pauses, puts, settles
from django_delayq.brokers.redis.audit import audit
from django_delayq.brokers.redis.keys import Keys, set_name
from django_delayq.brokers.redis.links import Links
from django_delayq.brokers.redis.locations import parse_location
from django_delayq.brokers.redis.once import put_once
from django_delayq.brokers.redis.rebuild import Rebuild
from django_delayq.brokers.redis.replies import Passing
from django_delayq.brokers.redis.report import report_on
from django_delayq.brokers.redis.scripts import Call, Operation, Reply, load, plain
from django_delayq.brokers.redis.slots import Slots
from django_delayq.brokers.redis.upkeep import Watch
from django_delayq.brokers.redis.wake import Sleeper
from django_delayq.conf import Alias
from django_delayq.errors import SendError

LOOK_BUDGET = 60.0
"""Seconds that a look through everything (audit, errors, an id among the buried) may take, in many round trips."""


class RedisBroker:
    """See `django_delayq.brokers.base.Broker`; docs/internals describes structures and moves."""

    capabilities = frozenset(Capability) - {Capability.TAGS}

    def __init__(self, alias: Alias) -> None:
        self._options = alias.options
        self._keys = Keys(alias.options.prefix)
        self._slots = Slots()
        self._watch = Watch()
        self._rebuild = Rebuild()
        self._location = parse_location(alias.location)
        self._links = Links(self._location)
        self._sleeper = Sleeper(self._links, self._keys.channel)

    @classmethod
    def check(cls, alias: Alias) -> None:
        parse_location(alias.location)

    def open(self) -> None:
        self._links.run(_one(plain("PING")))

    def close(self) -> None:
        self._sleeper.close()
        self._links.close()

    # Messages in

    def put(self, puts_: Sequence[Put], on_conflict: OnConflict = "keep") -> list[Placed]:
        return self.begin_put(puts_, on_conflict)()

    def begin_put(self, puts_: Sequence[Put], on_conflict: OnConflict = "keep") -> Callable[[], list[Placed]]:
        check_batch(puts_)
        end = self._links.begin(puts.put(self._keys, self._slots, puts_, on_conflict))

        def wait() -> list[Placed]:
            try:
                placed = end()
            except Passing as error:
                raise _unknown(puts_, error) from None
            return refuse_duplicates(placed, on_conflict)

        return wait

    def begin_put_once(self, puts_: Sequence[Put], job: str, keep_ms: int) -> Callable[[], int]:
        """As `begin_put`, of messages that the job has not sent before, whatever became of them. Gives how many.

        What it has sent is in its ledger, which is kept for `keep_ms` after its last put.
        """
        check_batch(puts_)
        end = self._links.begin(put_once(self._keys, self._slots, puts_, job, keep_ms))

        def wait() -> int:
            try:
                return end()
            except Passing as error:
                raise _unknown(puts_, error) from None

        return wait

    async def aput(self, puts_: Sequence[Put], on_conflict: OnConflict = "keep") -> list[Placed]:
        check_batch(puts_)
        try:
            placed = await self._links.arun(puts.put(self._keys, self._slots, puts_, on_conflict))
        except Passing as error:
            raise _unknown(puts_, error) from None
        return refuse_duplicates(placed, on_conflict)

    def put_alarms(self, alarms: Sequence[Alarm], *, within_s: float = 2.0) -> None:
        check_batch(alarms)
        self._links.run(puts.put_alarms(self._keys, alarms), within_s)

    # The worker's moves

    def claim(self, wants: Sequence[Want], *, lease_ms: int, worker: str) -> Claims:
        self._sleeper.before_claim(set_name(want.queue, want.key) for want in wants)
        by = claims.Claimant(worker, lease_ms)
        claimed, sleep_ms = self._links.run(claims.claim(self._keys, self._slots, wants, by))
        self._sleeper.after_claim(claimed.now_ms, sleep_ms)
        return claimed

    def claim_suspect(self, wants: Sequence[Want], *, lease_ms: int, worker: str) -> Claims:
        return self._links.run(claims.claim_suspect(self._keys, self._slots, wants, claims.Claimant(worker, lease_ms)))

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        check_batch(settlements)
        return self._links.run(settles.settle(self._keys, settlements))

    def drop_alarms(self, alarms: Sequence[Alarm], again: Sequence[Alarm] = ()) -> None:
        check_batch(alarms)
        check_batch(again)
        self._links.run(puts.drop_alarms(self._keys, alarms, again))

    def renew(self, leases: Sequence[tuple[str, int]], lease_ms: int) -> list[bool]:
        check_batch(leases)
        return self._links.run(settles.renew(self._keys, leases, lease_ms))

    def upkeep(self, *, lease_ms: int) -> Upkept:
        return self._links.run(self._watch.upkeep(self._keys, self._options, lease_ms))

    def begin_rebuild(self, lock_ms: int) -> bool:
        return self._links.run(self._rebuild.begin(self._keys, lock_ms))

    def end_rebuild(self) -> bool:
        return self._links.run(self._rebuild.end(self._keys))

    def wait(self, timeout: float) -> None:
        self._sleeper.sleep(timeout)

    def wake(self) -> None:
        self._sleeper.wake()

    # Moves by id

    def cancel(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        return self._links.run(byid.cancel(self._keys, self._slots, ids))

    async def acancel(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        return await self._links.arun(byid.cancel(self._keys, self._slots, ids))

    def reschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]:
        check_batch(ids)
        return self._links.run(byid.reschedule(self._keys, self._slots, ids, puts.due_text(delay_ms, at_ms)))

    async def areschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]:
        check_batch(ids)
        return await self._links.arun(byid.reschedule(self._keys, self._slots, ids, puts.due_text(delay_ms, at_ms)))

    def rescue(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        return self._links.run(byid.rescue(self._keys, ids), LOOK_BUDGET)

    def purge(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        return self._links.run(byid.purge(self._keys, self._slots, ids))

    def purge_errors(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        return self._links.run(byid.purge_errors(self._keys, ids), LOOK_BUDGET)

    # Pauses

    def pause(self, pause: Pause) -> None:
        self._links.run(pauses.pause(self._keys, pause))

    def resume(self, queue: str | None, key: str | None) -> bool:
        return self._links.run(pauses.resume(self._keys, queue, key))

    def pauses(self) -> list[Pause]:
        return self._links.run(pauses.pauses(self._keys))

    @property
    def pauses_heard(self) -> int:
        return self._sleeper.pauses_heard

    # Looks

    def get(self, id: str) -> Info | None:
        return self._links.run(looks.get(self._keys, id), LOOK_BUDGET)

    async def aget(self, id: str) -> Info | None:
        return await self._links.arun(looks.get(self._keys, id), LOOK_BUDGET)

    def tagged(self, tag: str) -> list[str]:
        raise without_store("Finding messages by tag", "give ids")

    def peek(self, queue: str, count: int, key: str | None = None) -> list[Info]:
        return self._links.run(looks.peek(self._keys, queue, count, key), LOOK_BUDGET)

    def errors(self, count: int, offset: int = 0) -> list[Info]:
        return self._links.run(looks.errors(self._keys, count, offset), LOOK_BUDGET)

    def counts(self) -> Counts:
        return self._links.run(looks.counts(self._keys))

    def audit(self) -> Audit:
        return self._links.run(audit(self._keys), LOOK_BUDGET)

    def find_alarms(self, queue: str, key: str, pks: Sequence[str]) -> list[AlarmInfo]:
        check_batch(pks)
        return self._links.run(alarms.find_alarms(self._keys, queue, key, pks))

    def alarms(self, queue: str, key: str, *, after: str = "", count: int = BATCH) -> tuple[list[AlarmInfo], str]:
        return self._links.run(alarms.alarms(self._keys, queue, key, after, count))

    def announce(self, worker: WorkerInfo) -> None:
        self._links.run(_announce(self._keys, worker))

    def retire(self, worker: str) -> None:
        self._links.run(_one(plain("HDEL", self._keys.meta, f"worker:{worker}")))

    def workers(self) -> list[WorkerInfo]:
        return self._links.run(looks.workers(self._keys))

    def report(self) -> ServerReport:
        report = report_on(lambda *command: self._links.run(_one(plain(*command))), self._location.shown)
        report.warnings.extend(self._location.warnings)
        return report


def _unknown(puts_: Sequence[Put], error: Passing) -> SendError:
    """A fault that lasted for as long as a send may take: what was sent before it may have arrived."""
    return SendError(str(error), unknown=tuple(put.id for put in puts_))


def _one(call: Call) -> Operation[Reply]:
    (reply,) = yield [call]
    return reply


def _announce(keys: Keys, worker: WorkerInfo) -> Operation[None]:
    said = asdict(worker)
    del said["seen_ms"]
    yield [Call(load("announce"), (keys.meta,), (f"worker:{worker.name}", codec.dumps(said)))]
