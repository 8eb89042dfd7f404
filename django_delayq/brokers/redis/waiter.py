"""Sleep until something is due, and wake if something is sent that is due earlier (docs/internals/wake-up.md)."""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from django_delayq.brokers.redis.client import Client, Subscription, as_ms
from django_delayq.core.errors import DelayqError

PAUSES = b"pauses"
"""The message on the wake-up channel after a pause or a resume."""

_QUIET = 30.0
"""Seconds without a publication after which the listener checks whether its connection still works."""

_LAST_WORDS = 1.0
"""Seconds to wait for the listener's thread to end. It takes longer if it is just connecting, and ends by itself."""


class SleepHint(NamedTuple):
    """A hint that a worker need not look into one shard before `sleep_ms` by its server's clock.

    The reply with the hint came at `received_at` by the monotonic clock. It was made at `now_ms` by the server's clock.
    """

    received_at: float
    now_ms: int
    sleep_ms: int

    @property
    def until(self) -> float:
        """Return `sleep_ms` by the monotonic clock. It is not too early, because the reply came after `now_ms`."""
        return self.received_at + (self.sleep_ms - self.now_ms) / 1000


class Waiter:
    """The sleep of a worker, which a published due time or a pause can end early.

    It sleeps by a local timer, because a time-out on the server's side comes late.
    """

    def __init__(self, client: Client, channels: Sequence[str]) -> None:
        self.client = client
        self.channels = channels
        self._shards = {channel.encode(): shard for shard, channel in enumerate(channels)}
        self._changed = threading.Condition()
        self._names: frozenset[bytes] = frozenset()
        # For each shard: when a claim may find something, by the monotonic clock, and how far that clock is ahead of
        # the server's.
        self._dues = [0.0 for _ in channels]
        self._offsets = [float("-inf") for _ in channels]
        self._woken = False
        self._heard_at: dict[bytes, float] = {}
        self.pause_version = 0
        self._starting = threading.Lock()
        self._listener: _Listener | None = None

    def before_claim(self, names: Iterable[str]) -> None:
        """Prepare for a claim from these wait sets. The first call starts the listener.

        Forget when something falls due, because the claim is about to tell. From now on, note the due times that are
        published for these sets, in place of those of the last claim: the claim may not find them yet.
        """
        with self._starting:  # if several threads claim at once, only one starts the listener
            if self._listener is None:
                self._listener = _Listener(self)
        with self._changed:
            self._names = frozenset(name.encode() for name in names)
            for name in self._names:
                self._heard_at.setdefault(name, 0.0)
        self.before_look(self._shards.values())

    def before_look(self, shards: Iterable[int]) -> None:
        """Forget when something falls due in these shards, because a look is about to tell.

        From now on, note what is published for the wait sets of the last claim, because the look may miss it.
        """
        with self._changed:
            for shard in shards:
                self._dues[shard] = float("inf")

    def take_hints(self, hints: Mapping[int, SleepHint]) -> None:
        """Let `sleep` take no longer than these hints of a claim or a look allow. They are by shard."""
        with self._changed:
            for shard, hint in hints.items():
                if hint.now_ms:  # else the shard did not answer
                    self._offsets[shard] = hint.received_at - hint.now_ms / 1000
                self._dues[shard] = min(self._dues[shard], hint.until)

    def sleep(self, timeout: float) -> bool:
        """Sleep for `timeout` seconds, or until something is due or `wake` is called.

        Return False if nothing but the time ended it.
        """
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
        """Act as if a publication of each wait set and of pauses was missed, after a time without a connection."""
        with self._changed:
            self._heard_at = dict.fromkeys(self._heard_at, time.monotonic())
        self.note_pauses()

    def published(self, channel: bytes, message: bytes) -> None:
        """Handle a publication: something was scheduled in a shard ("<due ms> <wait set>"), or pauses have changed."""
        if message == PAUSES:
            self.note_pauses()
            return
        due, _, name = message.partition(b" ")
        with self._changed:
            if name in self._heard_at:
                self._heard_at[name] = time.monotonic()
            if name in self._names and due.isdigit():
                shard = self._shards[channel]
                self._dues[shard] = min(self._dues[shard], as_ms(due) / 1000 + self._offsets[shard])
                self._changed.notify_all()

    def hears(self) -> bool:
        """Return whether publications reach this worker now, as far as is known."""
        return self._listener is not None and self._listener.hears

    def heard_at(self, name: str) -> float:
        """Return when something was last published for a wait set, by the monotonic clock.

        Return 0 if nothing was published, or this worker has never claimed from the set.
        """
        return self._heard_at.get(name.encode(), 0.0)


class _Listener:
    """The thread that receives publications. While it has no connection, the worker polls once a second."""

    def __init__(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self.hears = False
        self._stopping = threading.Event()
        self._subscribed = threading.Event()
        self._subscription: Subscription | None = None
        self._thread = threading.Thread(target=self._run, name="delayq-wake", daemon=True)
        self._thread.start()
        self._subscribed.wait(2)  # else messages sent between the first claim and the subscription would be late

    def stop(self) -> None:
        """End the thread, because a process that exits while a thread uses TLS may crash."""
        self._stopping.set()
        if self._subscription is not None:
            self._subscription.interrupt()
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
        with closing(subscription) as self._subscription:  # `stop` can't interrupt it if it came before this line
            self.hears = True
            self._subscribed.set()
            self._waiter.assume_missed()
            while not self._stopping.is_set() and (notice := subscription.next(_QUIET)) is not None:
                self._waiter.published(*notice)
