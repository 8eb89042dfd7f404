"""Maintain Redis: end lapsed leases, drop old failed messages, and notice by the epoch when data may have been lost.

Each worker maintains every shard as often as it looks there (`claim.PollOwnership`), in the same round trip, and also
when a lease that it knows of runs out there. A second round trip writes the transitions of messages whose leases ran
out.
"""

import time
from collections.abc import Sequence

from django_delayq.brokers.base import BuriedInfo, CancelRequest, Claimed, MaintenanceResult, Transition, earliest
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
    plain,
    split,
)
from django_delayq.brokers.redis.records import unpack_message, unpack_state
from django_delayq.brokers.redis.settle import ENDED, LOST, settle_or_send
from django_delayq.brokers.redis.shards import Keys, load, names_of_sets
from django_delayq.conf import Alias, Options
from django_delayq.core.message import State
from django_delayq.core.transitions import buried_info, lapse

PAGE = 1_000
"""How many leases one call of lua/held_by.lua reads."""


class MaintenanceSchedule:
    """The maintenance of all shards, each in its turn.

    The same round trip looks for messages and alarms that are due there.
    """

    def __init__(
        self, alias: Alias, shards: Sequence[Keys], planner: ClaimPlanner, ownership: PollOwnership, client: Client
    ) -> None:
        self._alias = alias
        self._monitors = [ShardMonitor(keys, client) for keys in shards]
        self._planner = planner
        self._ownership = ownership

    def maintain(self, lease_ms: int) -> Operation[MaintenanceResult]:
        """Maintain the shards whose turn it is, and return one result for all shards.

        Every other shard adds only its time and the end of its next lease, as this process last heard them. A shard
        whose node was away the last time always has its turn.
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
        results = [answers.get(n) or monitor.last_known for n, monitor in enumerate(self._monitors)]
        return merge_results(*split(results))

    def ask_all(self) -> None:
        """Have the next maintenance ask every shard, because something failed."""
        for monitor in self._monitors:
            monitor.answer = None


def merge_results(shards: Sequence[MaintenanceResult], away: str) -> MaintenanceResult:
    """Merge the results of the shards. `away` is why some shards could not be asked; "" if all could.

    If it is "", the merged result takes its `away` from the first shard that has one.
    """
    return MaintenanceResult(
        now_ms=max(shard.now_ms for shard in shards),
        reclaimed=sum(shard.reclaimed for shard in shards),
        buried=[info for shard in shards for info in shard.buried],
        without_body=[id for shard in shards for id in shard.without_body],
        dropped=sum(shard.dropped for shard in shards),
        suspects_due=sum(shard.suspects_due for shard in shards),
        next_lease_end_ms=earliest(*(shard.next_lease_end_ms for shard in shards)),
        lost_record=next((shard.lost_record for shard in shards if shard.lost_record), ""),
        away=away or next((shard.away for shard in shards if shard.away), ""),
    )


class ShardMonitor:
    """The maintenance of one shard by this process, with the last `answer` and the server's time in it."""

    def __init__(self, keys: Keys, client: Client) -> None:
        self._keys = keys
        self._client = client
        self._has_seen = False
        self._clock: tuple[int, float] | None = (
            None  # the server's time in ms, and our monotonic seconds when it was asked
        )
        self.answer: MaintenanceResult | TransientError | None = None

    def is_due(self, span_s: float, *, has_alarms: bool) -> bool:
        """Return whether to maintain the shard now, if this worker may leave it alone for `span_s` seconds.

        It is due earlier if a lease has run out meanwhile, while its node is away, and, if the shard has alarms, while
        its node has no memory left.
        """
        if self._clock is None or not isinstance(self.answer, MaintenanceResult):
            return True
        if span_s <= ALONE_S or (has_alarms and self.answer.away):
            return True
        age_s, end_ms = time.monotonic() - self._clock[1], self.answer.next_lease_end_ms
        return age_s >= span_s - ALONE_S / 2 or (end_ms is not None and end_ms <= self._now_ms())

    @property
    def last_known(self) -> MaintenanceResult | TransientError:
        """Return the error of the last answer, or a result with only the end of the next lease."""
        if isinstance(self.answer, TransientError):
            return self.answer
        return MaintenanceResult(
            self._now_ms(), next_lease_end_ms=self.answer.next_lease_end_ms if self.answer else None
        )

    def maintain(self, options: Options, lease_ms: int) -> Operation[MaintenanceResult]:
        """Maintain the shard, in one round trip if no lease has run out.

        If leases of alarms have run out, another round trip has the wait sets of these alarms among its keys. If leases
        of messages have, another one writes their transitions.
        """
        asked = time.monotonic()
        expected = "" if self._clock is None else str(self._now_ms())
        kept = options.error_retention, _own_share(options)
        was_lost = self._client.was_lost_within(self._keys.epoch, lease_ms / 1000)
        arguments = lease_ms, self._keys.channel, expected, *kept, self._keys.most_bytes, int(was_lost)
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
        transitions, foreign = _read_lapsed(reply[2])
        yield from _end_lapsed(self._keys, transitions, result)
        if foreign:  # else they would stand in front of others for good
            yield [plain("ZREM", self._keys.running, *foreign)]
            result.without_body += [id.decode(errors="replace") for id in foreign]
        return result

    def _now_ms(self) -> int:
        now_ms, asked_at = self._clock or (0, 0.0)
        return now_ms + int((time.monotonic() - asked_at) * 1000)

    def _refusal(self, reply: str) -> str:
        """Return a text for people about an error reply of the server to a write that needs memory."""
        return self._client.refusal(self._keys.epoch, reply)

    def _lost_record(self, here: bytes, seen_on: bytes) -> str:
        has_seen, self._has_seen = self._has_seen, True
        if seen_on == here:
            return ""
        if seen_on:
            return "Redis was restarted or replaced: what its persistence or replication had not kept is lost"
        return "Redis was flushed: every waiting message is lost" if has_seen else ""


def _end_lapsed(keys: Keys, transitions: Sequence[Transition], result: MaintenanceResult) -> Operation[None]:
    """Write the transitions of messages whose leases ran out, unless a lease was renewed or ended meanwhile.

    If somebody has asked meanwhile to cancel a message, the next call cancels it.

    Add them to the counts of `result`.
    """
    answers = (yield from settle_or_send(keys, transitions)) if transitions else ()
    for transition, answer in zip(transitions, answers, strict=True):
        if answer == LOST or isinstance(answer, CancelRequest):
            continue
        if transition.state is State.FAILED:
            result.buried.append(buried_info(transition))
        else:
            result.reclaimed += 1
            result.suspects_due += transition.is_suspect and answer == ENDED  # a message that was sent is new


def take_over(keys: Keys, workers: Sequence[str]) -> Operation[list[BuriedInfo]]:
    """End the leases of dead workers as if they had run out, and return the messages that were buried.

    A lease that is renewed or ended meanwhile is left alone.
    """
    result = MaintenanceResult(0)
    passed = 0  # how many leases were read and are still there, before those to read next
    while True:
        (reply,) = yield [
            Call(load("held_by"), (keys.running, keys.msg, keys.state), (passed, PAGE, keys.most_bytes, *workers))
        ]
        ended = result.reclaimed + len(result.buried)
        transitions, _ = _read_lapsed(reply[1])
        yield from _end_lapsed(keys, transitions, result)
        passed += reply[0] - (result.reclaimed + len(result.buried) - ended)
        if reply[0] < PAGE:
            return result.buried


def _read_lapsed(parts: list[Reply]) -> tuple[list[Transition], list[bytes]]:
    """Return the transition of each message that lua/reclaim.lua or lua/held_by.lua lists.

    Also return the ids of messages that nothing can move by name: the id, or the name of the wait set, is no text.
    """
    transitions, foreign, values = [], [], iter(parts)
    for member, end, name, head, state in zip(values, values, values, values, values, strict=True):
        try:
            id, _ = member.decode(), name.decode()
        except ValueError:  # someone else wrote it
            foreign.append(member)
            continue
        record, (header, _) = unpack_state(state), unpack_message(head)
        claimed = Claimed(
            id,
            as_int(record.token.encode()),
            record.due_ms or 0,
            header,
            b"",
            record.failures,
            record.crashes,
            worker=record.worker,
        )
        at_most_once = header is not None and header.at_most_once
        transitions.append(
            lapse(
                claimed,
                as_int(end),
                at_most_once=at_most_once,
                interrupted=record.interrupted,
                cancel_request=record.cancel_request,
            )
        )
    return transitions, foreign


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
    """Return how many failed messages each shard may keep."""
    return -(-options.error_max // options.shards)
