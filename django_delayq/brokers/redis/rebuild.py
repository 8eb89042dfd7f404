"""Who puts every alarm again after a loss, and that it was done. Operations, as `scripts.py` defines them."""

import secrets
import threading

from django_delayq.brokers.redis.keys import Keys
from django_delayq.brokers.redis.scripts import Call, Operation, load


class Rebuild(threading.local):
    """The rebuild that this thread does: two threads of one process are two callers."""

    def __init__(self) -> None:
        self._token = ""

    def begin(self, keys: Keys, lock_ms: int) -> Operation[bool]:
        """Take the lock, or hold on to it. One that is lost is not taken again in the same call: see the protocol."""
        token = self._token or secrets.token_hex(8)
        script = load("hold_rebuild" if self._token else "begin_rebuild")
        (held,) = yield [Call(script, (keys.epoch, keys.rebuild), (token, lock_ms))]
        self._token = token if held else ""
        return bool(held)

    def end(self, keys: Keys) -> Operation[bool]:
        """Give the lock up, with every alarm put."""
        if not self._token:
            return False
        (ended,) = yield [Call(load("end_rebuild"), (keys.epoch, keys.rebuild), (self._token,))]
        self._token = ""
        return bool(ended)
