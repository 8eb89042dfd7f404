"""The values that backends take and give: messages, alarms, claims and leases. Pure values."""

from dataclasses import dataclass, field
from typing import NamedTuple

BATCH = 1_000
"""The most messages that one call of a broker takes or gives."""

LeaseId = tuple[str, int]
"""The proof of a lease: the id of the message, and the token of its claim."""


Pair = tuple[str, str]
"""A queue and a key: messages wait in one set for each such pair."""


@dataclass(slots=True)
class Header:
    """The part of a message that says how to treat its data. A field that is `None` is left to the handler."""

    queue: str
    key: str
    at_most_once: bool = False
    expires_ms: int | None = None  # a length: the message expires that long after `scheduled_ms`
    max_attempts: int | None = None
    timeout_ms: int | None = None
    tag: str | None = None
    trace_id: str | None = None
    sent_ms: int = 0  # set by the broker when it takes the message
    scheduled_ms: int = 0  # the due time as sent or rescheduled, before any retry

    @property
    def has_own_policy(self) -> bool:
        """Return whether it says itself how often the message may start, or until when."""
        return self.at_most_once or self.max_attempts is not None or self.expires_ms is not None

    @property
    def expires_at_ms(self) -> int | None:
        """Return the instant from which the message must not start."""
        return None if self.expires_ms is None else self.scheduled_ms + self.expires_ms


@dataclass(frozen=True, slots=True)
class BuriedInfo:
    """A message that was buried without having been run. Queue and key are '' where its header can't be read."""

    id: str
    queue: str
    key: str
    failures: int
    error: str


@dataclass(slots=True)
class NewMessage:
    """One message to take. Due after `delay_ms`, or at `at_ms` (the past means now) when that is given.

    Many share one header: a broker copies it before it writes into it.
    """

    id: str
    header: Header
    body: bytes
    delay_ms: int = 0
    at_ms: int | None = None


@dataclass(slots=True)
class Enqueued:
    """The answer to an `enqueue`.

    `created` tells that the message is new. Otherwise the one that was there already was kept or changed, or is
    `running`.
    """

    id: str
    due_ms: int
    created: bool
    running: bool = False


@dataclass(slots=True)
class Alarm:
    """A hint that the row `pk` may be due `wait_ms` from now."""

    queue: str
    key: str
    pk: str
    wait_ms: int = 0


@dataclass(slots=True)
class ClaimRequest:
    """A request for one (queue, key): at most `count` messages, of which `idle_slots` would start at once.

    A message whose header says `at_most_once` is given only among those: if it were leased to wait, and its worker
    died, it would be buried though it had never started.
    """

    queue: str
    key: str
    count: int
    idle_slots: int = BATCH

    @property
    def pair(self) -> Pair:
        """Return its queue and key."""
        return self.queue, self.key


@dataclass(slots=True)
class Claimed:
    """One leased message. `header` is None when it can't be read (someone else wrote it): bury it."""

    id: str
    token: int
    due_ms: int
    header: Header | None
    body: bytes
    failures: int = 0
    crashes: int = 0
    pk: str = ""  # of its row, where a store has it
    history: str = ""  # its earlier attempts (history.py), where a store keeps them
    claimed_ms: int = 0
    worker: str = ""  # that claimed it


@dataclass(slots=True)
class Claims:
    """The result of a claim. `more_available` tells that something due was left behind in a requested (queue, key).

    `orphans` are ids that waited there without a message, because someone else removed it; they are gone now too.
    `buried` are messages that must not start twice, and whose leases it found to have run out. `away` says why a part
    of the broker could not be asked.
    """

    messages: list[Claimed]
    alarms: list[Alarm]
    now_ms: int
    next_due_ms: int | None
    more_available: bool = False
    orphans: list[str] = field(default_factory=list)
    buried: list[BuriedInfo] = field(default_factory=list)
    away: str = ""


@dataclass(frozen=True, slots=True)
class PermitRequest:
    """A leased message's request to start, where its handler has limits.

    It asks for one of the `most` permits of (key, value), and for a turn, because the starts of the key are at least
    `interval_us` apart. None means that there is no such limit. A permit is held under the message's `token`. A request
    with `held` is never refused.
    """

    key: str
    value: str
    token: int
    most: int | None = None
    interval_us: int | None = None
    held: bool = False
    """Whether its message runs already. Then it counts even where the keeper of the limits has forgotten it."""


class Throttled(NamedTuple):
    """The refusal of a permit request: ask again after `wait_ms`.

    With `of_key` every other request of the key would be refused too, whatever its value.
    """

    wait_ms: int
    of_key: bool
