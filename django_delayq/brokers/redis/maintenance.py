"""Maintain Redis: end lapsed leases, drop old errors, and notice by the epoch when data may have been lost.

The epoch is the identity of the data. Each worker maintains every shard, as often as it looks there
(`claim.PollOwnership`) and in the same round trip, and also when a lease ends there that it knows of. A second round
trip writes the outcome of the messages whose leases ran out.
"""

import time
from collections.abc import Sequence
from itertools import compress

from django_delayq.brokers.base import BuriedInfo, Claimed, MaintenanceResult, Transition, earliest
from django_delayq.brokers.redis.claim import ALONE_S, ClaimPlanner, PollOwnership
from django_delayq.brokers.redis.client import (
    Argument,
    Call,
    Client,
    Operation,
    Reply,
    TransientError,
    as_int,
    gather_available,
    split,
)
from django_delayq.brokers.redis.records import unpack_message, unpack_state
from django_delayq.brokers.redis.settle import settle
from django_delayq.brokers.redis.shards import Keys, load, names_of_sets
from django_delayq.conf import Alias, Options
from django_delayq.core.message import State
from django_delayq.core.transitions import buried_info, lapse

PAGE = 1_000
"""How many leases one call looks at."""


class MaintenanceSchedule:
    """Maintains all shards, each in its turn, and in the same round trip looks what is due there."""

    def __init__(
        self, alias: Alias, shards: Sequence[Keys], planner: ClaimPlanner, ownership: PollOwnership, client: Client
    ) -> None:
        self._alias = alias
        self._monitors = [ShardMonitor(keys, client) for keys in shards]
        self._planner = planner
        self._ownership = ownership

    def maintain(self, lease_ms: int) -> Operation[MaintenanceResult]:
        """Maintain the shards whose turn it is.

        Of each other shard the result tells when the next lease ends there, or that its node was away.
        """
        spans_s = self._ownership.spans_s(lease_ms)
        turns = {
            shard: span_s
            for shard, (monitor, span_s) in enumerate(zip(self._monitors, spans_s, strict=True))
            if monitor.is_due(span_s, has_alarms=self._alias.store is not None)
        }
        maintained = [self._monitors[shard].maintain(self._alias.options, lease_ms) for shard in turns]
        *given, _ = yield from gather_available([*maintained, self._planner.look(turns)])
        answers = dict(zip(turns, given, strict=True))
        for shard, answer in answers.items():
            self._monitors[shard].answer = answer
        return merge_results(*split([answers.get(n) or monitor.still for n, monitor in enumerate(self._monitors)]))

    def ask_all(self) -> None:
        """Have the next maintenance ask every shard, because something failed."""
        for monitor in self._monitors:
            monitor.answer = None


def merge_results(shards: Sequence[MaintenanceResult], away: str) -> MaintenanceResult:
    """Merge the results of the shards. `away` is why some shards could not be asked, "" if all were.

    If it is "", the merged result takes its `away` from the first shard that has one.
    """
    return MaintenanceResult(
        now_ms=max(one.now_ms for one in shards),
        reclaimed=sum(one.reclaimed for one in shards),
        buried=[info for one in shards for info in one.buried],
        without_body=[id for one in shards for id in one.without_body],
        dropped=sum(one.dropped for one in shards),
        suspects_due=sum(one.suspects_due for one in shards),
        next_lease_end_ms=earliest(*(one.next_lease_end_ms for one in shards)),
        lost_record=next((one.lost_record for one in shards if one.lost_record), ""),
        away=away or next((one.away for one in shards if one.away), ""),
    )


class ShardMonitor:
    """One process's knowledge of a shard.

    That is whether it has seen the epoch, the server's time when it last asked, and the `answer` that it got then.
    """

    def __init__(self, keys: Keys, client: Client) -> None:
        self._keys = keys
        self._client = client
        self._has_seen = False
        self._clock: tuple[int, float] | None = None  # server ms, our monotonic seconds when it was asked
        self.answer: MaintenanceResult | TransientError | None = None

    def is_due(self, span_s: float, *, has_alarms: bool) -> bool:
        """Return whether to ask the shard now, for a worker that may leave it alone for `span_s`.

        It must also be asked where a lease has ended in the meantime, and while its node is away or has no memory
        left.
        """
        if self._clock is None or not isinstance(self.answer, MaintenanceResult):
            return True
        if span_s <= ALONE_S or (has_alarms and self.answer.away):
            return True
        age_s, end_ms = time.monotonic() - self._clock[1], self.answer.next_lease_end_ms
        return age_s >= span_s - ALONE_S / 2 or (end_ms is not None and end_ms <= self._now_ms())

    @property
    def still(self) -> MaintenanceResult | TransientError:
        """Return what is still true of the last answer."""
        if isinstance(self.answer, TransientError):
            return self.answer
        return MaintenanceResult(
            self._now_ms(), next_lease_end_ms=self.answer.next_lease_end_ms if self.answer else None
        )

    def maintain(self, options: Options, lease_ms: int) -> Operation[MaintenanceResult]:
        """Maintain the shard, in one round trip if no lease has run out.

        If alarms have lapsed, another round trip names their wait sets. If messages have, another writes their outcome.
        """
        asked = time.monotonic()
        expected = "" if self._clock is None else str(self._now_ms())
        kept = options.error_retention, _own_share(options)
        arguments = lease_ms, self._keys.channel, expected, *kept
        result = MaintenanceResult(0)
        missing: list[str] = []
        while True:
            (reply,) = yield [_reclaim_call(self._keys, arguments, missing)]
            self._clock = int(reply[0]), asked
            result.now_ms = int(reply[0])
            result.reclaimed += reply[1]
            result.without_body += [id.decode(errors="replace") for id in reply[3]]
            result.suspects_due = reply[4]
            result.next_lease_end_ms = int(reply[5]) if int(reply[5]) >= 0 else None
            result.dropped += reply[6]
            here, seen_on, refused = reply[7:10]
            self._client.hear(self._keys.epoch, here)
            result.lost_record = result.lost_record or self._lost_record(here, seen_on)
            result.away = self._refusal(refused.decode(errors="replace")) if refused else ""
            more = names_of_sets(reply[10:])
            if not more or set(more) <= set(missing):
                break
            missing = more
        yield from _end_lapsed(self._keys, _read_lapsed(reply[2]), result)
        return result

    def _now_ms(self) -> int:
        now_ms, asked_at = self._clock or (0, 0.0)
        return now_ms + int((time.monotonic() - asked_at) * 1000)

    def _refusal(self, said: str) -> str:
        """Return, for people, why the server refuses writes that need memory, from the error reply `said`."""
        return self._client.refusal(self._keys.epoch, said)

    def _lost_record(self, here: bytes, seen_on: bytes) -> str:
        has_seen, self._has_seen = self._has_seen, True
        if seen_on == here:
            return ""
        if seen_on:
            return "Redis was restarted or replaced: what its persistence or replication had not kept is lost"
        return "Redis was flushed: every waiting message is lost" if has_seen else ""


def _end_lapsed(keys: Keys, transitions: Sequence[Transition], result: MaintenanceResult) -> Operation[None]:
    """Write the outcome of messages whose leases ran out, unless a lease was renewed or ended meanwhile."""
    held = (yield from settle(keys, transitions)) if transitions else ()
    for transition in compress(transitions, held):
        if transition.state is State.ERROR:
            result.buried.append(buried_info(transition))
        else:
            result.reclaimed += 1
            result.suspects_due += transition.is_suspect


def take_over(keys: Keys, workers: Sequence[str]) -> Operation[list[BuriedInfo]]:
    """End the leases of dead workers as if they had run out, and return what was buried.

    A lease that was renewed or ended since it was listed stays as it is.
    """
    result = MaintenanceResult(0)
    passed = 0
    while True:
        (reply,) = yield [Call(load("held_by"), (keys.running, keys.msg, keys.state), (passed, PAGE, *workers))]
        ended = result.reclaimed + len(result.buried)
        yield from _end_lapsed(keys, _read_lapsed(reply[1]), result)
        passed += reply[0] - (result.reclaimed + len(result.buried) - ended)
        if reply[0] < PAGE:
            return result.buried


def _read_lapsed(parts: list[Reply]) -> list[Transition]:
    """Return the outcome of each message that lua/reclaim.lua lists; one whose wait set is no text is left alone."""
    transitions, values = [], iter(parts)
    for id, end, name, head, state in zip(values, values, values, values, values, strict=True):
        if not names_of_sets([name]):
            continue
        record, (header, _) = unpack_state(state), unpack_message(head)
        claimed = Claimed(
            id.decode(errors="replace"),
            as_int(record.token.encode()),
            record.due_ms or 0,
            header,
            b"",
            record.failures,
            record.crashes,
            worker=record.worker,
        )
        at_most_once = header is not None and header.at_most_once
        transitions.append(lapse(claimed, as_int(end), at_most_once=at_most_once, interrupted=record.interrupted))
    return transitions


def _reclaim_call(keys: Keys, arguments: Sequence[Argument], names: Sequence[str]) -> Call:
    fixed = (
        keys.running,
        keys.msg,
        keys.state,
        keys.suspect,
        keys.error,
        keys.sets,
        keys.timer,
        keys.count,
        keys.epoch,
    )
    return Call(load("reclaim"), [*fixed, *(keys.wait(name) for name in names)], arguments)


def _own_share(options: Options) -> int:
    """Return how many errors each shard may keep."""
    return -(-options.error_max // options.shards)
