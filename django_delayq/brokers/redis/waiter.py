"""Sleep until something is due, and wake for what is sent with a nearer due time (docs/internals, "Wake-up")."""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from django_delayq.brokers.redis.client import Client, Subscription
from django_delayq.core.errors import DelayqError

PAUSES = b"pauses"
"""The text that is published after a pause or a resume."""

_QUIET = 30.0
"""Seconds of silence after which the listener checks whether its connection still lives."""

_LAST_WORDS = 1.0
"""Seconds that the listener has to end when it is stopped; one that is just connecting again is left."""


class SleepHint(NamedTuple):
    """A promise that nothing need be looked for in one shard before `sleep_ms` by its server's clock.

    The reply that says so came at `told_at` by the monotonic clock, when it was `now_ms` at the server.
    """

    told_at: float
    now_ms: int
    sleep_ms: int

    @property
    def until(self) -> float:
        """Return that time by the monotonic clock: never too early, because the reply came after `now_ms` was read."""
        return self.told_at + (self.sleep_ms - self.now_ms) / 1000


class Waiter:
    """One worker's sleep: a local timer (a server-side time-out overshoots), ended early by a published due time."""

    def __init__(self, client: Client, channels: Sequence[str]) -> None:
        self.client = client
        self.channels = channels
        self._shards = {channel.encode(): shard for shard, channel in enumerate(channels)}
        self._changed = threading.Condition()
        self._names: frozenset[bytes] = frozenset()
        # For each shard: when a claim may find something, by the monotonic clock, and its server's offset from that.
        self._dues = [0.0 for _ in channels]
        self._offsets = [float("-inf") for _ in channels]
        self._woken = False
        self._heard_at: dict[bytes, float] = {}
        self.pause_version = 0
        self._starting = threading.Lock()
        self._listener: _Listener | None = None

    def before_claim(self, names: Iterable[str]) -> None:
        """Begin to heed what is published for these wait sets, because the claim that follows may miss it."""
        with self._starting:  # of threads that claim at once, one starts it
            if self._listener is None:
                self._listener = _Listener(self)
        with self._changed:
            self._names = frozenset(name.encode() for name in names)
            for name in self._names:
                self._heard_at.setdefault(name, 0.0)
        self.before_look(self._shards.values())

    def before_look(self, shards: Iterable[int]) -> None:
        """Begin to heed what is published at these shards, for the wait sets of the last claim."""
        with self._changed:
            for shard in shards:
                self._dues[shard] = float("inf")

    def take_hints(self, hints: Mapping[int, SleepHint]) -> None:
        """Take in the sleep hints of a claim or a look, by shard."""
        with self._changed:
            for shard, hint in hints.items():
                if hint.now_ms:  # else it did not answer
                    self._offsets[shard] = hint.told_at - hint.now_ms / 1000
                self._dues[shard] = min(self._dues[shard], hint.until)

    def sleep(self, timeout: float) -> bool:
        """Sleep until the due time, `wake`, or for `timeout` seconds. Return False where only the time is over."""
        until = time.monotonic() + timeout
        with self._changed:
            while not self._woken:
                now, due = time.monotonic(), min(self._dues)
                if now >= min(due, until):
                    return now >= due
                self._changed.wait(min(due, until) - now)
            self._woken = False
        return True

    def wake(self) -> None:
        """End the running or the next sleep."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop listening, and end a running sleep."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()
        self.wake()

    def note_pauses(self) -> None:
        """End the running or the next sleep, because the pauses may have changed."""
        with self._changed:
            self.pause_version += 1
            self.wake()

    def assume_missed(self) -> None:
        """Assume that something was published meanwhile, of pauses and of each wait set, and was missed."""
        with self._changed:
            self._heard_at = dict.fromkeys(self._heard_at, time.monotonic())
        self.note_pauses()

    def published(self, channel: bytes, message: bytes) -> None:
        """Take in a notice: something was scheduled in a shard ("<due ms> <wait set>"), or the pauses changed."""
        if message == PAUSES:
            self.note_pauses()
            return
        due, _, name = message.partition(b" ")
        with self._changed:
            if name in self._heard_at:
                self._heard_at[name] = time.monotonic()
            if name in self._names and due.isdigit():
                shard = self._shards[channel]
                self._dues[shard] = min(self._dues[shard], int(due) / 1000 + self._offsets[shard])
                self._changed.notify_all()

    def hears(self) -> bool:
        """Return whether publications are heard now, as far as is known."""
        return self._listener is not None and self._listener.hears

    def heard_at(self, name: str) -> float:
        """Return when something was last published for a wait set, by the monotonic clock.

        That is known of sets that this worker claims from.
        """
        return self._heard_at.get(name.encode(), 0.0)


class _Listener:
    """The thread that hears what is published. Without its connection a worker polls once a second."""

    def __init__(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self.hears = False
        self._stopping = threading.Event()
        self._subscribed = threading.Event()
        self._subscription: Subscription | None = None
        self._thread = threading.Thread(target=self._run, name="delayq-wake", daemon=True)
        self._thread.start()
        self._subscribed.wait(2)  # else what is sent between the first claim and the subscription is heard late

    def stop(self) -> None:
        """End the thread, because a process that exits while a thread speaks TLS may crash."""
        self._stopping.set()
        if self._subscription is not None:
            self._subscription.close()
        self._thread.join(_LAST_WORDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except (DelayqError, OSError, ValueError):
                self.hears = False
                self._stopping.wait(1)

    def _listen(self) -> None:
        subscription = self._waiter.client.subscribe(self._waiter.channels)
        with closing(subscription) as self._subscription:  # also if `stop` came before there was one
            self.hears = True
            self._subscribed.set()
            self._waiter.assume_missed()
            while not self._stopping.is_set() and (notice := subscription.next(_QUIET)) is not None:
                self._waiter.published(*notice)
