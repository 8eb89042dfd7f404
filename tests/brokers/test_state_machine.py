"""Memory and Redis take the same steps; whatever they answer, and all that can be seen of them, is the same.

Redis reads its own clock, so times are compared by their distance from now, in steps of `STEP_MS`: every length used
here is a multiple of it, and an example ends long before real time adds up to half a step: on a busy machine, too.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any, cast

from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from django_delayq.brokers.base import (
    Alarm,
    Claimed,
    ClaimRequest,
    Claims,
    Header,
    Info,
    NewMessage,
    OnConflict,
    SettleAction,
    Transition,
)
from django_delayq.conf import Options
from django_delayq.core.requests import TOTALS
from tests.brokers.rig import Carrier, Rig, memory_rig, redis_rig, settlement
from tests.scale import scaled
from tests.servers import Server

STEP_MS = 300_000
LEASE_MS = 2 * STEP_MS
OPTIONS = Options(error_retention=30 * STEP_MS)
SETS = [("q", "k"), ("q", "l:m"), ("q^-5", "k")]
IDS = ["a", "b", "ü|c", "d"]
PKS = ["1", "2"]
ON_CONFLICT: list[OnConflict] = ["keep", "replace", "earliest", "latest"]

Lease = tuple[Claimed, Claimed]  # the same message as memory and as Redis gave it

ids = st.sampled_from(IDS)
sets = st.sampled_from(SETS)
steps = st.sampled_from([0, 0, 0, STEP_MS, 2 * STEP_MS, 4 * STEP_MS])
verbs = st.sampled_from([verb for verb in SettleAction if verb != SettleAction.INTERRUPT])
alarms = st.builds(lambda name, pk, wait: Alarm(name[0], name[1], pk, wait), sets, st.sampled_from(PKS), steps)
wants = st.lists(
    st.builds(
        lambda name, count, idle_slots: ClaimRequest(name[0], name[1], count, idle_slots),
        sets,
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    max_size=len(SETS),
    unique_by=lambda want: (want.queue, want.key),
)


class MemoryAndRedis(RuleBasedStateMachine):
    """One message is moved at a time where the order of what has the same due time would tell the two apart."""

    leases = Bundle("leases")
    spent = Bundle("spent")
    rung = Bundle("rung")

    def __init__(self, redis: Rig) -> None:
        super().__init__()
        self.rigs = (memory_rig(OPTIONS), redis)

    def both(
        self, use: Callable[[Carrier], Any], seen: Callable[[Any, int], object] = lambda answer, now_ms: answer
    ) -> Any:
        """Let both take a step, and hold the answers against each other."""
        memory, redis = (use(cast(Carrier, rig.broker)) for rig in self.rigs)
        assert seen(redis, self.now_ms(1)) == seen(memory, self.now_ms(0))
        self.advance(0)  # what is due now is ready at the next step, also where due times are rounded up
        return memory, redis

    def now_ms(self, which: int) -> int:
        return self.rigs[which].now_us() // 1000

    def advance(self, ms: int) -> None:
        memory, redis = self.rigs
        memory.advance(ms + 1)
        redis.advance(ms)

    @initialize()
    def send_all(self) -> None:
        for n, id in enumerate(IDS):
            self.put(id, SETS[n % len(SETS)], 0, "keep", once=False)

    @rule(id=ids, name=sets, delay_ms=steps, mode=st.sampled_from(ON_CONFLICT), once=st.booleans())
    def put(self, id: str, name: tuple[str, str], delay_ms: int, mode: OnConflict, once: bool) -> None:
        put = NewMessage(id, Header(*name, once, expires_ms=7, tag=mode), f'"{delay_ms}"'.encode(), delay_ms)
        self.both(lambda broker: broker.queue.enqueue([put], mode), _placed)

    @rule(id=ids, name=sets, delay_ms=steps, max_wait_ms=st.none() | steps, once=st.booleans())
    def merge(self, id: str, name: tuple[str, str], delay_ms: int, max_wait_ms: int | None, once: bool) -> None:
        others = (self.rigs[0].broker.queue.get(other) for other in IDS if other != id)
        if any(info and info.again_ms for info in others):
            return  # what one upkeep sends has one time in memory, and in Redis times that are a moment apart
        put = NewMessage(id, Header(*name, once, tag="merged"), f'"m{delay_ms}"'.encode(), delay_ms)
        put = replace(put, max_wait_ms=max_wait_ms, while_running="again")
        self.both(lambda broker: broker.queue.enqueue([put], "replace"), _placed)

    @rule(alarm=alarms)
    def put_alarm(self, alarm: Alarm) -> None:
        self.both(lambda broker: broker.timer.schedule([alarm]))

    @rule(target=leases, wants=wants)
    def claim(self, wants: list[ClaimRequest]) -> Any:
        claims = self.both(lambda broker: broker.queue.claim(wants, lease_ms=LEASE_MS, worker="w"), _claims)
        return multiple(*zip(*(given.messages for given in claims), strict=True))

    @rule(target=leases)
    def claim_all(self) -> Any:
        return self.claim([ClaimRequest(*name, 9) for name in SETS])

    @rule(target=spent, verb=verbs, delay_ms=steps)
    def work(self, verb: SettleAction, delay_ms: int) -> Any:
        """A worker claims all that is due, a suspect too, and ends it."""
        claimed = [*self.claim_all().values, *self.claim_any_suspect().values]
        for lease in claimed:
            self._settle(lease, verb, delay_ms)
        return multiple(*claimed)

    @rule(target=leases, wants=wants)
    def claim_suspect(self, wants: list[ClaimRequest]) -> Any:
        claims = self.both(lambda broker: broker.queue.claim_suspect(wants, lease_ms=LEASE_MS, worker="w"), _claims)
        return multiple(*zip(*(given.messages for given in claims), strict=True))

    @rule(target=leases)
    def claim_any_suspect(self) -> Any:
        return self.claim_suspect([ClaimRequest(*name, 1) for name in SETS])

    @rule(target=rung, name=sets)
    def claim_alarms(self, name: tuple[str, str]) -> Any:
        """Alarms are taken from a set only when no message comes with them: those leases would be lost to the rules."""
        if any(rig.broker.queue.peek(name[0], 9) for rig in self.rigs):
            return multiple()
        claims, _ = self.both(
            lambda broker: broker.queue.claim([ClaimRequest(*name, 1)], lease_ms=LEASE_MS, worker="w"), _claims
        )
        return multiple(*claims.alarms)

    @rule(alarm=consumes(rung))
    def drop_alarm(self, alarm: Alarm) -> None:
        self.both(lambda broker: broker.timer.drop([alarm]))

    @rule(alarm=consumes(rung), delay_ms=steps)
    def put_alarm_back(self, alarm: Alarm, delay_ms: int) -> None:
        self.both(lambda broker: broker.timer.drop([alarm], [replace(alarm, wait_ms=delay_ms)]))

    @rule(target=spent, lease=consumes(leases), verb=verbs, delay_ms=steps)
    def settle(self, lease: Lease, verb: SettleAction, delay_ms: int) -> Lease:
        self._settle(lease, verb, delay_ms)
        return lease

    @rule(lease=spent, verb=verbs)
    def settle_again(self, lease: Lease, verb: SettleAction) -> None:
        self._settle(lease, verb, 0)

    @rule(lease=leases)
    def interrupt(self, lease: Lease) -> None:
        self._settle(lease, SettleAction.INTERRUPT, 0)
        self.advance(STEP_MS)  # at once: its second is too short to compare

    def _settle(self, lease: Lease, verb: SettleAction, delay_ms: int) -> None:
        each = iter(lease)
        self.both(lambda broker: broker.queue.apply([_settlement(next(each), verb, delay_ms)]))

    @rule(lease=leases)
    def renew(self, lease: Lease) -> None:
        each = iter(lease)
        self.both(lambda broker: broker.queue.renew([next(each)], LEASE_MS))

    @rule(ms=steps.filter(bool))
    def let_time_pass(self, ms: int) -> None:
        self.advance(ms)

    @rule()
    def upkeep(self) -> None:
        self.both(lambda broker: broker.queue.maintain(lease_ms=LEASE_MS), _upkept)

    @rule()
    def crash_all(self) -> None:
        """All that is due is claimed by workers that die: the way to suspects is too long to be found by chance."""
        self.claim_all()
        self.claim_any_suspect()
        self.advance(LEASE_MS)
        self.upkeep()

    @rule(some=st.lists(ids, max_size=3))
    def cancel(self, some: list[str]) -> None:
        self.both(lambda broker: broker.queue.cancel(some))

    @rule(id=ids, delay_ms=steps)
    def reschedule(self, id: str, delay_ms: int) -> None:
        self.both(lambda broker: broker.queue.reschedule([id], delay_ms=delay_ms))

    @rule(id=ids)
    def rescue(self, id: str) -> None:
        self.both(lambda broker: broker.queue.rescue([id]))

    @rule(some=st.lists(ids, max_size=2))
    def purge(self, some: list[str]) -> None:
        self.both(lambda broker: broker.queue.purge(some))

    @rule(some=st.lists(ids, max_size=2))
    def purge_failed(self, some: list[str]) -> None:
        self.both(lambda broker: broker.queue.purge_failed(some))

    @invariant()
    def all_that_can_be_seen_is_the_same(self) -> None:
        memory, redis = (
            _everything(cast(Carrier, rig.broker), self.now_ms(which)) for which, rig in enumerate(self.rigs)
        )
        assert redis == memory

    @invariant()
    def the_audit_adds_up(self) -> None:
        memory, redis = (rig.broker.queue.audit() for rig in self.rigs)
        assert memory.differences == redis.differences == []
        assert memory.places == redis.places

    def teardown(self) -> None:
        self.rigs[1].broker.close()


def _distance(time_ms: int | None, now_ms: int) -> int | None:
    return None if time_ms is None else round((time_ms - now_ms) / STEP_MS)


def _placed(placed: Iterable[Any], now_ms: int) -> object:
    return [(one.id, one.created, one.running, one.kept, _distance(one.due_ms, now_ms)) for one in placed]


def _claims(claims: Claims, now_ms: int) -> object:
    messages = [
        (one.id, one.body, one.failures, one.crashes, _header(one.header, now_ms), _distance(one.due_ms, now_ms))
        for one in claims.messages
    ]
    rung = [(alarm.queue, alarm.key, alarm.pk) for alarm in claims.alarms]
    return messages, rung, claims.more_available, _distance(claims.next_due_ms, now_ms)


def _header(header: Header | None, now_ms: int) -> dict[str, Any]:
    assert header is not None
    times = {name: _distance(getattr(header, name), now_ms) for name in ("sent_ms", "scheduled_ms")}
    return asdict(header) | times


def _upkept(upkept: Any, now_ms: int) -> object:
    counted = (upkept.reclaimed, len(upkept.buried), upkept.dropped, upkept.suspects_due)
    return counted, _distance(upkept.next_lease_end_ms, now_ms)


def _info(info: Info | None, now_ms: int) -> dict[str, Any] | None:
    if info is None:
        return None
    times = {
        name: _distance(getattr(info, name), now_ms) for name in ("due_ms", "lease_end_ms", "buried_ms", "again_ms")
    }
    return asdict(info) | times | {"header": _header(info.header, now_ms)}


def _everything(broker: Carrier, now_ms: int) -> dict[str, object]:
    counts = broker.queue.counts()
    waiting = [
        (found.queue, found.key, found.pending, found.ready, _distance(found.next_due_ms, now_ms))
        for found in counts.waiting
        if found.pending or found.ready
    ]
    # Those buried by one upkeep have one time, so their order is nobody's promise.
    errors = sorted((_info(info, now_ms) for info in broker.queue.failed(100)), key=str)
    return {
        "waiting": sorted(waiting),
        "others": (counts.running, counts.suspects, counts.error),
        "totals": {name: counts.totals.get(name, 0) for name in TOTALS},
        "messages": [_info(broker.queue.get(id), now_ms) for id in IDS],
        "alarms": [_alarms(broker, name, now_ms) for name in SETS],
        "peek": [_info(info, now_ms) for queue in ("q", "q^-5") for info in broker.queue.peek(queue, 9)],
        "errors": errors,
    }


def _alarms(broker: Carrier, name: tuple[str, str], now_ms: int) -> object:
    found = broker.timer.find_alarms(*name, PKS)
    return [(alarm.pk, _distance(alarm.due_ms, now_ms), _distance(alarm.lease_end_ms, now_ms)) for alarm in found]


def _settlement(claimed: Claimed, verb: SettleAction, delay_ms: int) -> Transition:
    return settlement(claimed, verb, delay_ms=delay_ms, error=f"by {verb}", detail="detail", failed=delay_ms > 0)


def test_memory_and_redis_are_the_same_machine(redis_server: Server) -> None:
    with redis_server.client() as client:

        class Machine(MemoryAndRedis):
            def __init__(self) -> None:
                client.flushall()
                super().__init__(redis_rig(redis_server.url, client, OPTIONS))

        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=scaled(40),
                stateful_step_count=40,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
