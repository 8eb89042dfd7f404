"""The protocols of what times waiting messages, and of what hands them out.

A `Timer` holds *alarms* for rows of a store (`put_alarms`): an alarm is a hint that proves nothing and may be early,
stale or double. A `Broker` is one too, and *carries* whole messages (`put`) where there is no store. Both may be
present at once. The verbs follow beanstalkd's; the conformance suite in tests/brokers/ holds every one to this page.

Every time is epoch milliseconds by the broker's own clock, every length milliseconds. Every verb may raise
`BrokerUnavailable` (try again later) or `BrokerRefused` (mend something first), and then says so without secrets.
All verbs may be called from several threads at once.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Protocol, TypeGuard, TypeVar

from django_delayq.brokers.figures import (  # part of this contract
    AlarmInfo as AlarmInfo,
    Audit as Audit,
    Counts as Counts,
    HandsInfo as HandsInfo,
    Info as Info,
    Pause as Pause,
    RunInfo as RunInfo,
    ServerReport as ServerReport,
    SetCount as SetCount,
    Upkept as Upkept,
    WorkerInfo as WorkerInfo,
    covering as covering,
)
from django_delayq.conf import Alias
from django_delayq.core.errors import DuplicateMessage, Unsupported
from django_delayq.core.requests import (  # part of this contract
    BATCH as BATCH,
    Alarm as Alarm,
    Ask as Ask,
    BuriedInfo as BuriedInfo,
    Claimed as Claimed,
    Claims as Claims,
    Header as Header,
    LeaseId as LeaseId,
    Pair as Pair,
    Placed as Placed,
    Put as Put,
    Refusal as Refusal,
    Want as Want,
)
from django_delayq.core.sends import OnConflict as OnConflict  # part of this contract, and of the public API
from django_delayq.core.transitions import (  # part of this contract
    SettleAction as SettleAction,
    Transition as Transition,
)

T = TypeVar("T")


class Capability(StrEnum):
    """What not every broker can do. Its verbs are asked for by the functions below, and else not called."""

    MESSAGES = "messages"  # carries messages: it is a `Broker`, and can do without a store
    ALARMS = "alarms"  # holds one alarm for a row, and finds it: it is an `AlarmIndex`
    LIMITS = "limits"  # knows what runs, and how often, over all workers: it is a `Limiter`
    TAGS = "tags"  # finds waiting messages by their tag; `tagged` raises `Unsupported` without
    MOVES = "moves"  # totals of every move, those too that leave a message where others are (retried, reclaimed, …)


def earliest(*times: int | None) -> int | None:
    """The earliest of the times there are."""
    return min((time for time in times if time is not None), default=None)


def pages(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in order, at most `size` at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


def in_order(positions: Iterable[Sequence[int]], answers: Iterable[Sequence[T]]) -> list[T]:
    """What was answered part by part, of which `positions` tells whose answers it has, in the order of the whole."""
    by_position = {
        i: answer for own, given in zip(positions, answers, strict=True) for i, answer in zip(own, given, strict=True)
    }
    return [by_position[i] for i in range(len(by_position))]


def check_batch(batch: Sequence[object]) -> None:
    """Raise `ValueError` for more than one call takes."""
    if len(batch) > BATCH:
        raise ValueError(f"{len(batch)} in one call; give at most {BATCH}.")


def refuse_duplicates(placed: list[Placed], on_conflict: OnConflict) -> list[Placed]:
    """`placed`, or `DuplicateMessage` with the ids that were there already where `on_conflict` asks for that."""
    if on_conflict == "raise":
        refused = [answer.id for answer in placed if not answer.created]
        if refused:
            raise DuplicateMessage(f"Waiting or running already: {', '.join(map(repr, refused))}.")
    return placed


def without_store(what: str, instead: str) -> Unsupported:
    """The error for what a broker alone can't do."""
    return Unsupported(f"{what} needs a store (STORE in DELAYQ); {instead}, or set one up.")


class Timer(Protocol):
    """What a store needs of what times its rows."""

    capabilities: frozenset[Capability]

    @classmethod
    def check(cls, alias: Alias) -> None:
        """Raise `ImproperlyConfigured` for settings that can't work with this broker. Connects to nothing."""

    @classmethod
    def places(cls, alias: Alias) -> frozenset[str]:
        """Return where an alias keeps what it has: two aliases with a place in common share all. Connects to nothing.

        Raises `ImproperlyConfigured` as `check` does.
        """

    def open(self) -> None:
        """Connect, or raise. Without it the first verb connects."""

    def close(self) -> None:
        """Give back every connection and end a running `wait`. The broker can be used again."""

    # Alarms

    def put_alarms(self, alarms: Sequence[Alarm], *, within_s: float = 2.0) -> None:
        """Hold alarms. Idempotent: of two for one pk the earlier counts.

        Raises `BrokerUnavailable` after `within_s` seconds in all, connecting included; some may be held then. Where a
        part of the broker is away it is not waited for: the others are held, and `PartlyUnavailable` is raised.
        """

    def claim(self, wants: Sequence[Want], *, lease_ms: int, worker: str) -> Claims:
        """Lease what is due of each wanted set, at most `BATCH` in all; never blocks. A leased alarm that is not
        dropped in `lease_ms`, or whose worker dies, is given again.

        Without wants nothing is given, and `wait` sleeps until `wake` or a pause ends it.
        """

    def due_pairs(self, pairs: Collection[Pair]) -> Collection[Pair]:
        """Return those of the pairs of which anything is due, by one cheap look; more of them where it can't tell."""

    def drop_alarms(self, alarms: Sequence[Alarm], again: Sequence[Alarm] = ()) -> None:
        """Forget claimed alarms, and hold others for rows that wait again, also in the place of claimed ones.

        At no moment is there none for a row of `again`, whoever dies or claims it meanwhile. What a part has that is
        away lapses there: the others have done theirs when `PartlyUnavailable` is raised.
        """

    def upkeep(self, *, lease_ms: int) -> Upkept:
        """Make ready again what was leased and has lapsed, which counts nothing. Bounded, cheap, and safe from any
        worker at any time."""

    def begin_rebuild(self, lock_ms: int) -> bool:
        """Whether the caller, a thread, may now put again every alarm that there should be, for the next `lock_ms`.

        True for one caller at a time, and only while alarms may be lost (`Upkept.alarms_lost`). It calls again between
        its pages, to hold on: True while the lock was its own all along. False says that it was not: others may have
        begun, or what it had put may be gone again. Then it stops, and begins anew when it is asked to.
        """

    def end_rebuild(self) -> bool:
        """Every alarm was put: they are not lost until the server is started again, flushed or replaced.

        False, and they stay lost, where the caller's lock was lost before, or that happened meanwhile.
        """

    def owner(self, candidate: str = "") -> str:
        """Return the store that the alarms are for: the `candidate` from now on, where they are for none.

        "" for none, and where that can't be told now. What loses the alarms loses this too.
        """

    @property
    def owner_key(self) -> str:
        """What people delete to have the alarms be for the next store that is named, in words."""

    def wait(self, timeout: float) -> bool:
        """Sleep until a claim of the sets last wanted may find something, `pauses_heard` grows, `wake` is called, or
        `timeout` seconds. False where only these are over: a claim of those sets would find nothing."""

    def wake(self) -> None:
        """End the running or the next `wait` at once. From any thread."""

    # Workers, and what they are told

    def pause(self, pause: Pause) -> object:
        """Have `pauses_heard` grow at every worker, and end its `wait`. With a store it is the tables that keep it."""

    def resume(self, queue: str | None, key: str | None) -> object:
        """As `pause`, for the end of one."""

    @property
    def pauses_heard(self) -> int:
        """A number that grows when `pauses` may answer otherwise; one that ends by itself does not count."""

    def announce(self, worker: WorkerInfo) -> object:
        """A worker's heartbeat; forgotten 60 s after the last."""

    def retire(self, worker: str) -> None:
        """Take a worker's heartbeat back when it stops."""

    def workers(self) -> list[WorkerInfo]:
        """The workers whose heartbeat is at most 15 s old."""

    def report(self) -> ServerReport:
        """Check the server for use by a worker."""


class Limiter(Protocol):
    """What keeps limits over all workers."""

    def acquire(self, asks: Sequence[Ask], *, lease_ms: int) -> list[Refusal | None]:
        """Whether leased messages may start now, by the limits of their keys: None for each that may.

        A slot is held for `lease_ms` from now. Asked for again by its holder it is held anew, and takes no other turn:
        also where all slots are taken, if the ask says that it is `held`.
        Those that are refused are told different times, so that they don't all come at once.
        """

    def give_back(self, asks: Sequence[Ask]) -> None:
        """Free the slots of these tokens, of those that hold one."""


class AlarmIndex(Timer, Protocol):
    """A timer that can be asked for its alarms: then there is at most one for a row."""

    def counts(self) -> Counts:
        """Every figure."""

    def find_alarms(self, queue: str, key: str, pks: Sequence[str]) -> list[AlarmInfo]:
        """Those alarms of a (queue, key) that there are for `pks`, at most `BATCH`, wherever they are at one moment."""

    def alarms(self, queue: str, key: str, *, after: str = "", count: int = BATCH) -> tuple[list[AlarmInfo], str]:
        """A page of about `count` alarms of a (queue, key), in no order, and what to give as `after` for the next.

        That is empty after the last page; a page may be empty before. What is there all the while is given at least
        once; what moves while the pages are read may be given twice, or not at all: `find_alarms` knows.
        """


class Broker(AlarmIndex, Limiter, Protocol):
    """What sending, the worker and the looks need of a broker that carries messages."""

    # Messages in

    def put(self, puts: Sequence[Put], on_conflict: OnConflict = "keep") -> list[Placed]:
        """Take at most `BATCH` messages, each one wholly or not at all, and answer for each in order.

        A repeated call after a lost reply takes nothing twice. Against a running message nothing changes. `replace`
        takes the new data, header and due time and starts the counts anew; `earliest` and `latest` change the due time
        only. `raise` raises `DuplicateMessage`, naming the ids; other messages of the call are taken.
        Raises `SendError` when the outcome is not known after 2 s.
        """

    async def aput(self, puts: Sequence[Put], on_conflict: OnConflict = "keep") -> list[Placed]: ...

    def begin_put(self, puts: Sequence[Put], on_conflict: OnConflict = "keep") -> Callable[[], list[Placed]]:
        """As `put`, without waiting: the function that is given waits, answers and raises, and must be called."""

    # The worker's moves

    def claim(self, wants: Sequence[Want], *, lease_ms: int, worker: str) -> Claims:
        """Lease what is due of each wanted set, earliest first, at most `BATCH` in all; never blocks. Where a call
        can't give all that is due, what it gives is of the sets that are wanted first.

        Every claim gives its messages a token never used before. Never gives a message before its due time, nor one
        that another lease holds. Without wants nothing is given, and `wait` sleeps until `wake` or a pause ends it.
        """

    def claim_suspect(self, wants: Sequence[Want], *, lease_ms: int, worker: str) -> Claims:
        """As `claim`, for at most one message that was held by workers that died twice."""

    def settle(self, settlements: Sequence[Transition]) -> Sequence[bool | None]:
        """End leases. False where the lease was lost: then nothing was changed. None where it can't be told yet, since
        another transaction holds the row: ask again. Repeating a call is harmless, but answers False for what it did
        the first time; where a lost reply made the broker itself repeat it, True is answered for all, since nobody can
        tell any more."""

    def renew(self, leases: Sequence[LeaseId], lease_ms: int) -> Sequence[bool | None]:
        """Make each lease end `lease_ms` from now. False where it was lost, None as for `settle`."""

    def upkeep(self, *, lease_ms: int) -> Upkept:
        """Reclaim lapsed leases and trim what is kept of errors. Bounded, cheap, and safe from any worker at any time.

        A lapsed lease counts a crash, but never more than two: with two the message is a suspect. Who buries it for
        the third is the worker that saw its child die, since a bystander's lease lapses too when a worker is killed.
        `at_most_once` messages are buried at the first. A lapsed alarm is ready again and counts nothing.
        """

    # Moves by id

    def together(self, work: Callable[[], T]) -> T:
        """What `work` gives. With a store its moves by id all take place, or none, and it may be called again."""

    def cancel(self, ids: Sequence[str]) -> list[bool]:
        """Stop waiting messages. True for each that was waiting and now never starts."""

    async def acancel(self, ids: Sequence[str]) -> list[bool]: ...

    def reschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]:
        """Give waiting messages a new due time. True for each that was waiting."""

    async def areschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]: ...

    def rescue(self, ids: Sequence[str]) -> list[bool]:
        """Make buried messages ready, counts anew. False for an id that is not buried, or that waits or runs again."""

    def purge(self, ids: Sequence[str]) -> list[bool]:
        """Remove waiting messages for good; counted, not archived. True for each that was waiting."""

    def purge_errors(self, ids: Sequence[str]) -> list[bool]:
        """As `purge`, for all that is buried under each id."""

    # Pauses: the broker keeps them and tells; it is the workers who leave out of their claims what is paused

    def pause(self, pause: Pause) -> None:
        """Let workers start nothing of a queue or key. Takes the place of a pause of the same queue and key."""

    def resume(self, queue: str | None, key: str | None) -> bool:
        """End the pause of just this queue and key. False when there was none."""

    def pauses(self) -> list[Pause]:
        """Those in force, by queue and key."""

    # Looks

    def get(self, id: str) -> Info | None:
        """The message that waits or runs under `id`, else the one buried last, else None."""

    async def aget(self, id: str) -> Info | None: ...

    def tagged(self, tag: str) -> list[str]:
        """The ids that wait under a tag; inside `together` they stay so until its end. Needs the capability `TAGS`."""

    def peek(self, queue: str, count: int, key: str | None = None) -> list[Info]:
        """The next `count` waiting messages of a queue in due order, of one key when given. Removes nothing."""

    def errors(self, count: int, offset: int = 0) -> list[Info]:
        """Buried messages, newest first."""

    def audit(self) -> Audit:
        """Hold the totals against the sets, and look for bodies without a place and places without a body."""

    def announce(self, worker: WorkerInfo) -> list[Pause]:
        """A worker's heartbeat; forgotten 60 s after the last. Gives what `pauses` would."""


def carries_messages(timer: Timer) -> TypeGuard[Broker]:
    """Return whether a timer can do without a store."""
    return Capability.MESSAGES in timer.capabilities


def lists_alarms(timer: Timer) -> TypeGuard[AlarmIndex]:
    """Return whether a timer can be asked for its alarms."""
    return Capability.ALARMS in timer.capabilities


def keeps_limits(timer: Timer) -> TypeGuard[Limiter]:
    """Return whether a timer keeps limits over all workers."""
    return Capability.LIMITS in timer.capabilities
