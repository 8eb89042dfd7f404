"""The four protocols that a site runs on, and the two kinds of things that offer them.

- `Queue` owns the messages: the tables, or Redis where there is no store.
- `Timer` says when to look. It holds *alarms* for rows: hints that prove nothing and may be early, stale or double.
- `Presence` knows the workers and the pauses.
- `Limiter` keeps limits over all workers.

A `Broker` is what the setting BROKER names: one server, with a timer and whatever else it can do. A `Backend` is what
an alias runs on: the tables with a broker beside them, or a broker alone. The conformance suite in tests/brokers/ holds
every implementation to this page.

Every time is epoch milliseconds by the broker's own clock, every length milliseconds. Every method may raise
`BrokerUnavailable` (try again later) or `BrokerRefused` (mend something first); their texts hold no secrets. All
methods may be called from several threads at once.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from django_delayq.conf import Alias, Store
from django_delayq.core.message import OnConflict as OnConflict  # part of this contract, and of the public API
from django_delayq.core.requests import (  # part of this contract
    BATCH as BATCH,
    Alarm as Alarm,
    AlarmInfo as AlarmInfo,
    Audit as Audit,
    BuriedInfo as BuriedInfo,
    Claimed as Claimed,
    ClaimRequest as ClaimRequest,
    Claims as Claims,
    Counts as Counts,
    Enqueued as Enqueued,
    ExecutorInfo as ExecutorInfo,
    Header as Header,
    Info as Info,
    LeaseId as LeaseId,
    MaintenanceResult as MaintenanceResult,
    NewMessage as NewMessage,
    Pair as Pair,
    Pause as Pause,
    PermitRequest as PermitRequest,
    ProcessInfo as ProcessInfo,
    RunInfo as RunInfo,
    ServerReport as ServerReport,
    SetCount as SetCount,
    Takeover as Takeover,
    Throttled as Throttled,
    WorkerInfo as WorkerInfo,
    check_batch as check_batch,
    covering as covering,
    earliest as earliest,
    in_order as in_order,
    pages as pages,
    refuse_duplicates as refuse_duplicates,
)
from django_delayq.core.transitions import (  # part of this contract
    SettleAction as SettleAction,
    Transition as Transition,
)

T = TypeVar("T")


class Timer(Protocol):
    """A holder of alarms."""

    def schedule(self, alarms: Sequence[Alarm], *, within_s: float = 2.0) -> None:
        """Hold alarms. Idempotent: of two for one pk the earlier counts.

        Raises `BrokerUnavailable` after `within_s` seconds in all, connecting included; some may be held by then. A
        part of the broker that is unavailable is not waited for: the alarms of the other parts are held, and
        `PartlyUnavailable` is raised.
        """

    def take_due(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        """Lease the due alarms of each requested pair, at most `BATCH` in all; never blocks.

        A leased alarm that is not dropped within `lease_ms`, or whose worker dies, is given again. Without requests
        nothing is given, and `wait` sleeps until `wake` or a pause ends it.
        """

    def due_pairs(self, pairs: Collection[Pair]) -> Collection[Pair]:
        """Return the pairs that have something due, by one cheap query. Where it can't tell, it returns a pair too."""

    def drop(self, alarms: Sequence[Alarm], rearm: Sequence[Alarm] = ()) -> None:
        """Forget leased alarms, and hold those in `rearm`, which may take the place of leased ones.

        A row of `rearm` has an alarm at every moment, even if this process dies or another takes it meanwhile. The
        alarms of a part of the broker that is unavailable lapse there: the other parts have done theirs when
        `PartlyUnavailable` is raised.
        """

    def maintain(self, *, lease_ms: int) -> MaintenanceResult:
        """Make alarms whose leases have lapsed ready again. No crash is counted.

        Bounded, cheap, and safe from any worker at any time.
        """

    def cursor(self) -> int | None:
        """Return the due time, by the store's clock, up to which every alarm was scheduled; None where that was lost.

        It shares the fate of the alarms: a loss of them loses it too, or leaves an older one. Of several parts of the
        broker the least counts. Parts that are unavailable do not count.
        """

    def advance_cursor(self, alarms: Sequence[Alarm], from_ms: int | None, to_ms: int) -> int | None:
        """Hold alarms, and then set the cursor to `to_ms`. Return what `cursor` would.

        The cursor stays as it is where it was lost, was set back below `from_ms`, or is later already. Without
        `from_ms` only a cursor that was lost is set. Parts of the broker that are unavailable are left out.
        """

    def set_cursor_back(self, to_ms: int) -> None:
        """Set the cursor back to `to_ms` or earlier, so that no `advance_cursor` from where it was sets it forward."""

    def owner(self, candidate: str = "") -> str:
        """Return the store that the alarms are for. If there is none yet, the `candidate` becomes it.

        Return "" for none, and where that can't be told now. A loss of the alarms loses their owner too.
        """

    @property
    def owner_key(self) -> str:
        """Return, for an error message, what an operator deletes so that another store can become the owner."""

    def wait(self, timeout: float) -> bool:
        """Sleep until `take_due` of the pairs last requested may find something, or for `timeout` seconds.

        `wake`, and a `pause_version` that grows, end it too. Return False where only the time is over: nothing of those
        pairs is due.
        """

    def wake(self) -> None:
        """End the running or the next `wait` at once. From any thread."""


class AlarmIndex(Protocol):
    """The list of a timer's alarms, where it has at most one for a row."""

    def counts(self) -> Counts:
        """Return how many alarms wait and how many are leased, in all and by queue and key."""

    def find_alarms(self, queue: str, key: str, pks: Sequence[str]) -> list[AlarmInfo]:
        """Return the alarms of a (queue, key) for `pks` (at most `BATCH`), waiting or leased, as of one moment."""

    def alarms(self, queue: str, key: str, *, after: str = "", count: int = BATCH) -> tuple[list[AlarmInfo], str]:
        """Return about `count` alarms of a (queue, key), in no order, and what to pass as `after` for the next page.

        That is "" after the last page; an earlier page may be empty. An alarm that is there all the while is given at
        least once. One that moves while the pages are read may be given twice, or not at all: `find_alarms` is exact.
        """


class Limiter(Protocol):
    """A keeper of limits over all workers."""

    def acquire(self, requests: Sequence[PermitRequest], *, lease_ms: int) -> list[Throttled | None]:
        """Return None for each leased message that may start now by the limits of its key, a refusal for each other.

        A permit is held for `lease_ms` from now. If its holder asks for it again, its time begins again, and no other
        turn is taken; this works even where all permits are taken, if the ask says that it is `held`. The refusals name
        different times, so that not all ask again at once.
        """

    def release(self, requests: Sequence[PermitRequest]) -> None:
        """Release the permits of these tokens, where they hold one."""


class Heartbeats(Protocol):
    """The workers that are alive, and a way to notify all of them that pauses have changed."""

    def heartbeat(self, worker: WorkerInfo) -> object:
        """Record a worker's heartbeat, which is forgotten 60 s after the last one."""

    def leave(self, worker: str) -> None:
        """Delete a worker's heartbeat when it stops."""

    def workers(self) -> list[WorkerInfo]:
        """Return the workers whose heartbeat is at most 15 s old."""

    def announce_pauses(self) -> None:
        """Have `pause_version` grow at every worker, and end its `wait`."""

    @property
    def pause_version(self) -> int:
        """Return a number that grows when a pause may have been made or ended, but not when one ends by itself."""


class Presence(Protocol):
    """The workers that are alive, and the pauses: queues and keys of which they start nothing."""

    def heartbeat(self, worker: WorkerInfo) -> list[Pause]:
        """Record a worker's heartbeat, forgotten 60 s after the last one, and return what `pauses` would."""

    def leave(self, worker: str) -> None:
        """Delete a worker's heartbeat when it stops."""

    def workers(self) -> list[WorkerInfo]:
        """Return the workers whose heartbeat is at most 15 s old."""

    def pause(self, pause: Pause) -> None:
        """Have workers start nothing of a queue or key. Replaces a pause of the same queue and key."""

    def resume(self, queue: str | None, key: str | None) -> bool:
        """End the pause of exactly this queue and key. Return False when there was none."""

    def pauses(self) -> list[Pause]:
        """Return the pauses in force, by queue and key."""

    @property
    def pause_version(self) -> int:
        """Return a number that grows when a pause may have been made or ended, but not when one ends by itself."""


class Queue(Protocol):
    """The owner of the messages."""

    # Messages in

    def enqueue(self, messages: Sequence[NewMessage], on_conflict: OnConflict = "keep") -> list[Enqueued]:
        """Take at most `BATCH` messages, each one wholly or not at all, and answer for each in order.

        A repeated call after a lost reply takes nothing twice. A running message is never changed. `replace` takes the
        new data, header and due time and resets the counts; `earliest` and `latest` change the due time only. `raise`
        raises `DuplicateMessage`, naming the ids; other messages of the call are taken. Raises `SendError` when the
        outcome is not known after 2 s.
        """

    async def aenqueue(self, messages: Sequence[NewMessage], on_conflict: OnConflict = "keep") -> list[Enqueued]: ...

    def begin_enqueue(
        self, messages: Sequence[NewMessage], on_conflict: OnConflict = "keep"
    ) -> Callable[[], list[Enqueued]]:
        """Begin an `enqueue` without waiting. The returned function waits, answers and raises, and must be called."""

    # Messages out

    def claim(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        """Lease what is due of each requested pair, earliest first, at most `BATCH` in all; never blocks.

        If not all that is due fits, the pairs that are requested first come first. Every claim gives its messages a
        token never used before. It never gives a message before its due time, nor one that another lease holds. Without
        requests nothing is given, and `wait` sleeps until `wake` or a pause ends it.
        """

    def claim_suspect(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        """Lease, like `claim`, at most one message that was held by workers that died twice."""

    def due_pairs(self, pairs: Collection[Pair]) -> Collection[Pair]:
        """Return the pairs that have something due, by one cheap query. Where it can't tell, it returns a pair too."""

    def apply(self, transitions: Sequence[Transition]) -> Sequence[bool | None]:
        """End leases, and return for each whether it was still held.

        False where the lease was lost: then nothing was changed. None where it can't be told yet, because another
        transaction holds the row: ask again. Repeating a call is harmless, but answers False for what it did the first
        time. If a lost reply made the broker itself repeat the call, it answers True for all, because nobody can tell
        any more.
        """

    def renew(self, leases: Sequence[Claimed], lease_ms: int) -> Sequence[bool | None]:
        """Make each lease end `lease_ms` from now. Return True for each that was still held, else False.

        None means that another transaction holds the row: ask again.
        """

    def maintain(self, *, lease_ms: int) -> MaintenanceResult:
        """Reclaim lapsed leases and trim the kept errors. Bounded, cheap, and safe from any worker at any time.

        A lapsed lease counts a crash, but never more than two: with two the message is a suspect. Only the worker that
        saw its sandbox die buries it for the third, because a bystander's lease lapses too when a worker is
        killed. `at_most_once` messages are buried at the first. A lapsed alarm is ready again, and no crash is counted.
        """

    def take_over(self, workers: Collection[str]) -> Takeover:
        """End the leases of workers that are known to be dead, as `maintain` ends those that ran out.

        Bounded, and safe from any worker at any time: each lease is ended once.
        """

    def wait(self, timeout: float) -> bool:
        """Sleep until a claim of the pairs last requested may find something, or for `timeout` seconds.

        `wake`, and a `pause_version` that grows, end it too. Return False where only the time is over: a claim of those
        pairs would find nothing.
        """

    def wake(self) -> None:
        """End the running or the next `wait` at once. From any thread."""

    # Operations by id

    def atomically(self, work: Callable[[], T]) -> T:
        """Call `work`, and return its result.

        With a store the operations by id that it calls all take place, or none does; `work` may be called more than
        once.
        """

    def cancel(self, ids: Sequence[str]) -> list[bool]:
        """Stop waiting messages. Return True for each that was waiting and now never starts."""

    async def acancel(self, ids: Sequence[str]) -> list[bool]: ...

    def reschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]:
        """Give waiting messages a new due time. Return True for each that was waiting."""

    async def areschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]: ...

    def rescue(self, ids: Sequence[str]) -> list[bool]:
        """Make failed messages ready, with their counts reset.

        Return False for an id that has not failed, or that waits or runs again.
        """

    def purge(self, ids: Sequence[str]) -> list[bool]:
        """Remove waiting messages for good: counted, not archived. Return True for each that was waiting."""

    def purge_failed(self, ids: Sequence[str]) -> list[bool]:
        """Remove for good every failed message under each id. Return True for each id that had one."""

    # Queries

    def get(self, id: str) -> Info | None:
        """Return the message that waits or runs under `id`, else the last one that failed under it, else None."""

    async def aget(self, id: str) -> Info | None: ...

    def peek(self, queue: str, count: int, key: str | None = None) -> list[Info]:
        """Return the next `count` waiting messages of a queue in due order, of one key when given. Removes nothing."""

    def failed(self, count: int, offset: int = 0) -> list[Info]:
        """Return failed messages, newest first."""

    def counts(self) -> Counts:
        """Return how many messages are in each state, in all and by queue and key, and the totals of what ended."""

    def audit(self) -> Audit:
        """Compare the totals with the messages that are there, and find each that is in no place, or in two."""


class Broker(Protocol):
    """One server, which the setting BROKER names. It connects at the first call that needs it."""

    needs_store: ClassVar[bool]
    """Whether it can do nothing without a store: it has no `queue`."""

    @classmethod
    def check(cls, alias: Alias) -> None:
        """Raise `ImproperlyConfigured` for settings that can't work with this broker. Connects to nothing."""

    @classmethod
    def places(cls, alias: Alias) -> frozenset[str]:
        """Return where an alias keeps its data: two aliases with a place in common share all. Connects to nothing.

        Raises `ImproperlyConfigured` as `check` does.
        """

    @property
    def timer(self) -> Timer:
        """Return the timer, which holds the alarms of a store."""

    @property
    def alarm_index(self) -> AlarmIndex | None:
        """Return the list of the timer's alarms; None where the server can't list them."""

    @property
    def presence(self) -> Heartbeats:
        """Return the keeper of the workers' heartbeats."""

    @property
    def limiter(self) -> Limiter | None:
        """Return the keeper of limits; None where the tables must keep them."""

    @property
    def queue(self) -> Queue | None:
        """Return the queue of an alias without a store; None where the broker carries no messages."""

    @property
    def database(self) -> Any:
        """Return the `Database` whose rows are the alarms; None for a broker that is a server of its own."""

    def open(self) -> None:
        """Connect, or raise. If it is not called, the first other method connects."""

    def close(self) -> None:
        """Give back every connection and end a running `wait`. The broker can be used again."""

    def report(self) -> ServerReport:
        """Check the server for use by a worker."""


class Tables(Queue, Protocol):
    """A queue that is the tables of a store, and what only they can do."""

    settings: Store
    broker: Broker
    timer: Timer
    alarm_index: AlarmIndex | None
    database: Any
    """The `Database` that runs their statements. This page knows no table, so it can't name its type."""

    def reschedule(
        self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None, by_ms: int | None = None
    ) -> list[bool]:
        """Change due times as `Queue` does; with `by_ms`, move each due time later by that much."""

    def claim_all(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        """Claim what the timer has alarms for, and once it has none, what the tables show as due."""

    def tagged(self, tag: str) -> list[str]:
        """Return the ids that wait under a tag. Inside `atomically` they stay waiting until its end."""

    def repair(self) -> list[str]:
        """Mend the differences of an audit that have one right answer. Return what was mended, in words."""


class Backend(Protocol):
    """The parts that an alias runs on."""

    @property
    def alias(self) -> Alias:
        """Return the settings of the alias."""

    @property
    def queue(self) -> Queue:
        """Return the owner of the messages."""

    @property
    def presence(self) -> Presence:
        """Return the keeper of the workers' heartbeats and of the pauses."""

    @property
    def limiter(self) -> Limiter:
        """Return the keeper of limits over all workers."""

    @property
    def store(self) -> Tables | None:
        """Return `queue` where it is the tables; None for an alias without a store."""

    def open(self) -> None:
        """Connect, or raise. If it is not called, the first other method connects."""

    def close(self) -> None:
        """Give back every connection and end a running `wait`. The backend can be used again."""

    def report(self) -> ServerReport:
        """Check whether a worker can run on it."""
