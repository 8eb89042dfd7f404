"""What time alone does in Redis: leases lapse, errors outlive their retention. And whose data it is: the epoch."""

import threading
import time

from django_delayq.brokers.base import Upkept
from django_delayq.brokers.redis.keys import Keys
from django_delayq.brokers.redis.scripts import Argument, Call, Operation, load, plain
from django_delayq.conf import Options


class Watch:
    """What one process knows of the server: whose data it serves (its epoch), and how its clock goes."""

    def __init__(self) -> None:
        self._connected = threading.Event()
        self._identity = ""
        self._seen_epoch = False
        self._clock: tuple[int, float] | None = None  # server ms, our monotonic seconds when it was asked

    def connected(self) -> None:
        """A connection was made: the server may be another one now, or the same without its data."""
        self._connected.set()

    def upkeep(self, keys: Keys, options: Options, lease_ms: int) -> Operation[Upkept]:
        """One round trip, but after a new connection, and when a lapsed message's wait set must be named first."""
        if self._connected.is_set() or not self._identity:
            self._connected.clear()
            server, replication = yield [plain("INFO", "server"), plain("INFO", "replication")]
            self._identity = f"{_info(server, 'run_id')}:{_info(replication, 'master_replid')}"
        asked = time.monotonic()
        expected = "" if self._clock is None else str(self._clock[0] + int((asked - self._clock[1]) * 1000))
        reclaim: list[Argument] = [lease_ms, keys.channel, expected, self._identity]
        upkept = Upkept(0)
        epoch = ""
        missing: list[str] = []
        while True:
            reply, dropped = yield [_reclaim_call(keys, reclaim, missing), _trim_call(keys, options)]
            epoch = epoch or reply[5].decode()
            self._clock = int(reply[0]), asked
            upkept.now_ms = int(reply[0])
            upkept.reclaimed += reply[1]
            upkept.buried += reply[2]
            upkept.dropped += dropped
            upkept.suspects_due = reply[3]
            upkept.next_lease_end_ms = int(reply[4]) if int(reply[4]) >= 0 else None
            more = [name.decode() for name in dict.fromkeys(reply[6:])]
            if not more or set(more) <= set(missing):
                break
            missing = more
        upkept.lost_record = self._lost_record(epoch)
        return upkept

    def _lost_record(self, epoch: str) -> str:
        seen_epoch, self._seen_epoch = self._seen_epoch, True
        if epoch == self._identity:
            return ""
        if epoch:
            return "Redis was restarted or replaced: what its persistence or replication had not kept is lost"
        return "Redis was flushed: every waiting message is lost" if seen_epoch else ""


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
    return Call(load("trim"), names, (options.error_retention, options.error_max))


def _info(text: bytes, name: str) -> str:
    """One value of an INFO section; empty when it is not told."""
    for line in text.decode().splitlines():
        if line.startswith(f"{name}:"):
            return line.partition(":")[2]
    return ""
