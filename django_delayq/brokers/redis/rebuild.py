"""Record whose alarms these are, which caller puts them all again after a loss, and that it was done.

Operations, as `scripts.py` defines them.
"""

import secrets
import threading
from collections.abc import Sequence

from django_delayq.brokers.redis.client import Call, Operation
from django_delayq.brokers.redis.keys import Keys
from django_delayq.brokers.redis.scripts import load
from django_delayq.brokers.redis.shards import Shards


class Rebuild(threading.local):
    """The rebuild that this thread does, of all shards that lost their alarms. Two threads are two callers."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._token = secrets.token_hex(8)
        self._held: Sequence[Keys] = ()

    def begin(self, lock_ms: int) -> Operation[bool]:
        """Take the locks, or keep them. A lost one is not taken again in the same call: see the protocol."""
        if self._held:
            held = yield [_call("hold_rebuild", keys, self._token, lock_ms) for keys in self._held]
            self._held = self._held if all(held) else ()
        else:
            taken = yield [_call("begin_rebuild", keys, self._token, lock_ms) for keys in self._shards.all]
            self._held = [keys for keys, answer in zip(self._shards.all, taken, strict=True) if answer]
        return bool(self._held)

    def end(self) -> Operation[bool]:
        """Give the locks up once every alarm was put. Return False where one was lost."""
        if not self._held:
            return False
        ended = yield [_call("end_rebuild", keys, self._token) for keys in self._held]
        self._held = ()
        return all(ended)


def owner(keys: Keys, candidate: str) -> Operation[str]:
    """Return the store that the alarms are for. If there is none yet, the candidate becomes it."""
    (store,) = yield [Call(load("owner"), (keys.meta,), (candidate,))]
    return bytes(store).decode(errors="replace")


def _call(script: str, keys: Keys, *arguments: str | int) -> Call:
    return Call(load(script), (keys.epoch, keys.rebuild), arguments)
