"""What the verbs of a broker take and give: messages and alarms, free hands, leases and how they end. Pure values."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from django_delayq.brokers.figures import BuriedInfo, Header

BATCH = 1_000
"""The most messages that one verb call takes or gives."""

LeaseId = tuple[str, int]
"""What proves a lease: the id of the message, and the token of its claim."""


@dataclass(slots=True)
class Put:
    """One message to take. Due after `delay_ms`, or at `at_ms` (the past means now) when that is given.

    Many share one header: a broker copies it before it writes into it.
    """

    id: str
    header: Header
    body: bytes
    delay_ms: int = 0
    at_ms: int | None = None


@dataclass(slots=True)
class Placed:
    """The answer to a put: `created`, or what was there already is kept, changed (`created=False`) or running."""

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
class Want:
    """Free hands for one (queue, key): at most `count` messages are wanted, of which `at_once` would start at once.

    A message whose header says `at_most_once` is given only among those: leased to wait for a hand, it would be buried
    if its worker died, though it had never started.
    """

    queue: str
    key: str
    count: int
    at_once: int = BATCH


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


@dataclass(slots=True)
class Claims:
    """What a claim gave. `left` tells that something due was left behind in a wanted set.

    `ghosts` are ids that waited there without a message: someone else removed it, and now they are gone too.
    `buried` are messages that must not start twice, and whose leases it found to have run out. `away` says why a part
    of the broker could not be asked.
    """

    messages: list[Claimed]
    alarms: list[Alarm]
    now_ms: int
    next_due_ms: int | None
    left: bool = False
    ghosts: list[str] = field(default_factory=list)
    buried: list[BuriedInfo] = field(default_factory=list)
    away: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a leased message must get before it starts, by the limits of its key.

    One of the `most` slots of (key, value), and its turn among the starts of the key, `interval_us` apart. None: there
    is no such limit. The slot is the token's, which no other ask has. One that is `held` already is never refused.
    """

    key: str
    value: str
    token: int
    most: int | None = None
    interval_us: int | None = None
    held: bool = False
    """Whether its message runs: it counts, also where what kept the limits has forgotten it."""


class Refusal(NamedTuple):
    """An ask is to come again after `wait_ms`. `of_key`: so is every other of the key, whatever its value."""

    wait_ms: int
    of_key: bool


class Verb(StrEnum):
    """How a lease ends."""

    FINISH = "finish"
    RETRY = "retry"  # due again after `delay_ms`; failures + 1, crashes 0
    SNOOZE = "snooze"  # due again after `delay_ms`; crashes 0
    RELEASE = "release"  # back in its old place; due after `delay_ms` where that is given
    INTERRUPT = "interrupt"  # stays leased for 1 s more, then is ready again with no crash counted
    CRASH = "crash"  # the child process that ran it died: a crash is counted; ready again, at the third buried
    BURY = "bury"


@dataclass(slots=True)
class Settlement:
    """The end of one lease. `error` is one line at most of what failed, `detail` the traceback.

    `failed` tells a bury that ends a failed attempt, which counts as a failure, from one that never started. When the
    handler started (None where it did not) and ended, what its failure is like (`fingerprint`), and the traceback of a
    retry are for the history, which a store keeps; a broker alone forgets them.

    `finished_pk` is the row that the handler's own transaction has finished: only its alarm is left to forget.
    """

    id: str
    token: int
    verb: Verb
    queue: str
    key: str
    delay_ms: int = 0
    error: str = ""
    detail: str = ""
    failed: bool = False
    started_ms: int | None = None
    ended_ms: int | None = None
    fingerprint: str = ""
    finished_pk: str = ""
