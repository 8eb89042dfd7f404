"""What time alone does in Redis: leases lapse, errors outlive their retention. And whose data it is: the epoch."""

import time

from django_delayq.brokers.base import BuriedInfo, Upkept
from django_delayq.brokers.redis.keys import Keys
from django_delayq.brokers.redis.records import unpack_message
from django_delayq.brokers.redis.scripts import Argument, Call, Operation, Reply, load
from django_delayq.conf import Options


class Watch:
    """What one process knows of a shard: whether it has seen the epoch, and how the server's clock goes."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._has_seen = False
        self._clock: tuple[int, float] | None = None  # server ms, our monotonic seconds when it was asked

    def upkeep(self, options: Options, lease_ms: int) -> Operation[Upkept]:
        """One round trip, but where a lapsed message's wait set must be named first."""
        asked = time.monotonic()
        expected = "" if self._clock is None else str(self._clock[0] + int((asked - self._clock[1]) * 1000))
        reclaim: list[Argument] = [lease_ms, self._keys.channel, expected]
        upkept = Upkept(0)
        missing: list[str] = []
        while True:
            reply, dropped = yield [_reclaim_call(self._keys, reclaim, missing), _trim_call(self._keys, options)]
            self._clock = int(reply[0]), asked
            upkept.now_ms = int(reply[0])
            upkept.reclaimed += reply[1]
            upkept.buried += _read_buried(reply[2])
            upkept.ghosts += [id.decode(errors="replace") for id in reply[3]]
            upkept.dropped += dropped
            upkept.suspects_due = reply[4]
            upkept.next_lease_end_ms = int(reply[5]) if int(reply[5]) >= 0 else None
            here, seen_on, rebuilt_on = reply[6:9]
            upkept.lost_record = upkept.lost_record or self._lost_record(here, seen_on)
            upkept.alarms_lost = here != rebuilt_on
            more = [name.decode() for name in dict.fromkeys(reply[9:])]
            if not more or set(more) <= set(missing):
                break
            missing = more
        return upkept

    def _lost_record(self, here: bytes, seen_on: bytes) -> str:
        has_seen, self._has_seen = self._has_seen, True
        if seen_on == here:
            return ""
        if seen_on:
            return "Redis was restarted or replaced: what its persistence or replication had not kept is lost"
        return "Redis was flushed: every waiting message is lost" if has_seen else ""


def _read_buried(parts: list[Reply]) -> list[BuriedInfo]:
    buried, values = [], iter(parts)
    for id, head, failures, why in zip(values, values, values, values, strict=True):
        header, _ = unpack_message(head)
        queue, key = (header.queue, header.key) if header else ("", "")
        buried.append(BuriedInfo(id.decode(errors="replace"), queue, key, int(failures), why.decode(errors="replace")))
    return buried


def _reclaim_call(keys: Keys, arguments: list[Argument], names: list[str]) -> Call:
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


def _trim_call(keys: Keys, options: Options) -> Call:
    names = (keys.error, keys.msg, keys.state, keys.count)
    own_share = -(-options.error_max // min(options.shards, options.old_shards or options.shards))
    return Call(load("trim"), names, (options.error_retention, own_share))
