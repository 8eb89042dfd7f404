"""Define the protocols that a site runs on, and `Broker` and `Backend`, which offer them.

- `Queue` owns the messages. It is the tables, or Redis if there is no store.
- `Timer` tells workers when to look. It holds *alarms* for rows: hints that may be early, stale or double.
- `Window` tells up to which due time a timer has every alarm, and which store the alarms belong to.
- `Presence` knows the workers, the pauses and the lanes of queues.
- `Limiter` keeps limits over all workers.

The setting BROKER names a `Broker`: one server, with a timer and perhaps a queue, a limiter and more. An alias runs on
a `Backend`: the tables with a broker beside them, or a broker alone. The tests in tests/brokers/ check that every
implementation does what this module promises.

Times are epoch milliseconds by the broker's own clock; lengths of time are milliseconds. Every method may raise
`BrokerUnavailable` (try again later) or `BrokerRefused` (somebody must mend something first). Their texts contain no
secrets. All methods may be called from several threads at once.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from django_delayq.conf import Alias, Store
from django_delayq.core.message import (
    OnConflict as OnConflict,  # part of this contract, and of the public API
    State,
)
from django_delayq.core.requests import (  # part of this contract
    BATCH as BATCH,
    NO_PROGRESS as NO_PROGRESS,
    Action as Action,
    Alarm as Alarm,
    AlarmInfo as AlarmInfo,
    Audit as Audit,
    BuriedInfo as BuriedInfo,
    CancelRequest as CancelRequest,
    Claimed as Claimed,
    ClaimRequest as ClaimRequest,
    Claims as Claims,
    Counts as Counts,
    Enqueued as Enqueued,
    ExecutorInfo as ExecutorInfo,
    Header as Header,
    Heard as Heard,
    Info as Info,
    LeaseId as LeaseId,
    MaintenanceResult as MaintenanceResult,
    NewMessage as NewMessage,
    Page as Page,
    Pair as Pair,
    Pause as Pause,
    PermitRequest as PermitRequest,
    Place as Place,
    ProcessInfo as ProcessInfo,
    PutBack as PutBack,
    RunInfo as RunInfo,
    ServerReport as ServerReport,
    SetCount as SetCount,
    Takeover as Takeover,
    Throttled as Throttled,
    Waiting as Waiting,
    WorkerInfo as WorkerInfo,
    check_batch as check_batch,
    covering as covering,
    earliest as earliest,
    in_order as in_order,
    is_asked_for as is_asked_for,
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
        """Hold alarms until they are due. Idempotent: of two alarms for one pk the earlier one counts.

        Raises `BrokerUnavailable` if it takes over `within_s` seconds in all, connecting included; some of the alarms
        may be held even so. If a part of the broker is unavailable, the other parts hold their alarms, and this raises
        `PartlyUnavailable` without waiting for that part.
        """

    def take_due(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        """Lease the due alarms of each requested pair, at most `BATCH` in all; never blocks.

        An alarm that is not dropped within `lease_ms`, or whose worker dies, is leased again later. Without requests
        none is leased, and the next `wait` sleeps until `wake` or a pause ends it.
        """

    def due_pairs(self, pairs: Collection[Pair]) -> Collection[Pair]:
        """Return those of `pairs` that have something due, or for which that can't be told, by one cheap query."""

    def drop(self, alarms: Sequence[Alarm], rearm: Sequence[Alarm] = ()) -> None:
        """Forget leased alarms, and schedule the alarms in `rearm`. A row may be in both.

        Each row in `rearm` has an alarm at every moment, even if this process dies or another one takes the alarm
        meanwhile. If a part of the broker is unavailable, the other parts do this, and it raises `PartlyUnavailable`.
        The leased alarms of the unavailable part lapse later.
        """

    def maintain(self, *, lease_ms: int) -> MaintenanceResult:
        """Make the alarms whose lease lapsed ready again.

        It is bounded and cheap, and any worker may call it at any time.
        """

    def wait(self, timeout: float) -> bool:
        """Sleep for `timeout` seconds, or until `claim` may find something for the pairs of its last call.

        `wake` ends it too, and so does a growing `pause_version`. Return False only if nothing but the time ended it
        and a claim for those pairs would find nothing.
        """

    def wake(self) -> None:
        """End the running or the next `wait` at once. Any thread may call this."""


class Window(Protocol):
    """The time up to which every alarm was scheduled, and the store that owns the alarms, as a timer keeps them."""

    def cursor(self) -> int | None:
        """Return the due time, by the store's clock, up to which every alarm was scheduled; None if that was lost.

        It is kept beside the alarms: if they are lost, it is lost too, or an older one is left. If the broker has
        several parts, it is the least of all parts that are available.
        """

    def advance_cursor(self, alarms: Sequence[Alarm], from_ms: int | None, to_ms: int) -> int | None:
        """Store the alarms; after that, set the cursor forward to `to_ms`. Return the cursor.

        `from_ms` is the cursor as the caller has read it; None if it was lost. The cursor is not changed if it has been
        lost or set back below `from_ms` meanwhile, or is later than `to_ms` already. If `from_ms` is None, it is
        changed only if it is still lost. Parts of the broker that are unavailable are left out.
        """

    def set_cursor_back(self, to_ms: int) -> None:
        """Set the cursor back to `to_ms`, and by at least 1 ms even if it is earlier already.

        So an `advance_cursor` that has read the old cursor as `from_ms` does not set it forward.
        """

    def owner(self, candidate: str = "", *, within_s: float = 2.0) -> str:
        """Return the identity of the store that the alarms are for. If there is none yet, make `candidate` the owner.

        Return "" if there is no owner and no candidate, or if that can't be told now. If the alarms are lost, the owner
        is lost with them. Raises `BrokerUnavailable` if it takes over `within_s` seconds.
        """

    @property
    def owner_key(self) -> str:
        """Return a text for errors: what an operator has to delete so that another store can become the owner."""


class AlarmIndex(Protocol):
    """The list of a timer's alarms, for a timer that has at most one for each row."""

    def counts(self) -> Counts:
        """Return how many alarms wait, by queue and key, and how many are leased."""

    def find_alarms(self, queue: str, key: str, pks: Sequence[str]) -> list[AlarmInfo]:
        """Return the alarms of a (queue, key) for `pks` (at most `BATCH`), waiting or leased, all at one moment."""

    def alarms(self, queue: str, key: str, *, after: str = "", count: int = BATCH) -> tuple[list[AlarmInfo], str]:
        """Return about `count` alarms of a (queue, key), in no order, and the `after` of the next page.

        The returned `after` is "" if there is no next page. A page may be empty even if more pages follow. An alarm
        that exists all the time is on at least one page. An alarm that is scheduled or leased meanwhile may be on two
        pages or on none; `find_alarms` is exact.
        """


class Limiter(Protocol):
    """The keeper of limits over all workers."""

    def acquire(self, requests: Sequence[PermitRequest], *, lease_ms: int) -> list[Throttled | None]:
        """Return None for each request that is granted in full, and a refusal for every other one.

        A permit lasts for `lease_ms` from now. A repeated request renews it, and uses no turn of a rate. Refusals have
        different waits, so that not all messages ask again at once. Of several starts as many as may come now are
        granted, and the refusal says how many.
        """

    def renew(self, requests: Sequence[PermitRequest], *, lease_ms: int) -> None:
        """Make the permits of messages that run last for `lease_ms` from now.

        A permit that was lost is taken again, even if there are more then than the limit allows.
        """

    def release(self, requests: Sequence[PermitRequest]) -> None:
        """Release the permits that the tokens of these requests hold."""


class Heartbeats(Protocol):
    """The workers that are alive, and a way to notify all of them that pauses or lanes have changed."""

    def heartbeat(self, worker: WorkerInfo) -> Heard:
        """Record a worker's heartbeat in place of its last one. Heartbeats over 60 s old may be removed."""

    def leave(self, worker: str) -> None:
        """Delete a worker's heartbeat when it stops."""

    def workers(self) -> list[WorkerInfo]:
        """Return the workers whose heartbeat is at most 15 s old.

        With the database alone, a worker that hears notices may answer from a list that it read up to 10 s ago.
        """

    def announce_pauses(self) -> None:
        """Make `pause_version` grow in every worker. That ends the worker's `wait`."""

    @property
    def pause_version(self) -> int:
        """Return a number that grows when somebody may have paused or resumed, but not when a pause runs out."""


class Presence(Protocol):
    """The workers that are alive, and the facts that they all must know.

    These are the pauses (queues and keys whose messages workers don't start), and the lanes of other priorities than 0.
    """

    def heartbeat(self, worker: WorkerInfo) -> Heard:
        """Record a worker's heartbeat in place of its last one. Heartbeats over 60 s old may be removed."""

    def leave(self, worker: str) -> None:
        """Delete a worker's heartbeat when it stops."""

    def workers(self) -> list[WorkerInfo]:
        """Return the workers whose heartbeat is at most 15 s old.

        With the database alone, a worker that hears notices may answer from a list that it read up to 10 s ago.
        """

    def pause(self, pause: Pause) -> None:
        """Have workers start no message of a queue or key. This replaces a pause of the same queue and key."""

    def resume(self, queue: str | None, key: str | None) -> bool:
        """End the pause of exactly this queue and key. Return False if there was none."""

    def pauses(self) -> list[Pause]:
        """Return the pauses in force, sorted by queue and key."""

    def lanes(self) -> Collection[str]:
        """Return the lanes of other priorities than 0 to which messages were ever sent (core/lanes.py)."""

    @property
    def pause_version(self) -> int:
        """Return a number that grows when somebody may have paused or resumed, but not when a pause runs out.

        It also grows with the first message of a lane.
        """


@runtime_checkable
class Scanner(Protocol):
    """A queue outside of tables whose waiting messages can be read page by page."""

    def wait_sets(self) -> list[list[str]]:
        """Return for each shard the names ("queue:key") of its wait sets."""

    def scan(self, shard: int, name: str, place: Place, last_ms: int, count: int) -> Page:
        """Return about `count` messages of a wait set that are due after `place` and until `last_ms`.

        A message that waits all the time, with the same due time, is on exactly one page.
        """


class Queue(Protocol):
    """The owner of the messages."""

    # Messages in

    def enqueue(self, messages: Sequence[NewMessage], on_conflict: OnConflict = "keep") -> list[Enqueued]:
        """Take at most `BATCH` messages, each one wholly or not at all, and return an answer for each in order.

        If the reply of the server is lost, the repeated call takes nothing twice. A running message is never changed.
        `replace` takes the new data, header and due time, and resets the counts; `earliest` and `latest` change only
        the due time. `raise` raises `DuplicateMessage`, naming the ids, after the other messages of the call were
        taken. The lanes of the messages are in `Presence.lanes` before the messages are here. Raises `SendError` if it
        is not known after 2 s that all messages were taken.
        """

    async def aenqueue(self, messages: Sequence[NewMessage], on_conflict: OnConflict = "keep") -> list[Enqueued]: ...

    def begin_enqueue(
        self, messages: Sequence[NewMessage], on_conflict: OnConflict = "keep"
    ) -> Callable[[], list[Enqueued]]:
        """Begin an `enqueue`, without waiting for its end where messages are sent to a server.

        The caller must call the returned function, which waits, and then returns or raises like `enqueue`. The tables
        have no such beginning: with a store this call does all the work, and raises like `enqueue` itself.
        """

    # Messages out

    def claim(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        """Lease what is due of each requested pair, earliest first, at most `BATCH` in all; never blocks.

        If not all due messages fit, those of the first requests come first. Every claim gives its messages a token that
        was never used before. It leases no message before its due time, and none that is under another lease. Without
        requests none is leased, and the next `wait` sleeps until `wake` or a pause ends it.
        """

    def claim_suspect(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        """Lease like `claim`, but at most one message, which is a suspect."""

    def due_pairs(self, pairs: Collection[Pair]) -> Collection[Pair]:
        """Return those of `pairs` that have something due, or for which that can't be told, by one cheap query."""

    def apply(self, transitions: Sequence[Transition]) -> Sequence[bool | CancelRequest | None]:
        """End leases, and return for each whether it was still held.

        False means that nothing was changed: the lease was lost, or it is interrupted already and would be interrupted
        again. None means that another transaction holds the row: try again. A `CancelRequest` means that nothing was
        changed because somebody has asked to cancel the message, and the transition yields to that: cancel it.
        Repeating a call is harmless, but returns False for each lease that the first call has ended. If the backend
        itself repeats the call because a reply was lost, it returns True for all of its leases, because it can't tell
        which ones the first call has ended.
        """

    def renew(
        self, leases: Sequence[Claimed], lease_ms: int, progress: Mapping[LeaseId, str] = NO_PROGRESS
    ) -> Sequence[bool | CancelRequest | None]:
        """Make each lease end `lease_ms` from now, and write the `progress` of those that have some.

        Return True for each that was still held, else False. A `CancelRequest` means that it was held, and that
        somebody has asked to cancel its message. None means that another transaction holds the row: try again.
        """

    def maintain(self, *, lease_ms: int) -> MaintenanceResult:
        """Reclaim lapsed leases, and trim failed messages.

        It is bounded and cheap, and any worker may call it at any time. A lapsed lease counts as a crash of its
        message, but never as the third one, because another message may have killed the worker. A message with two
        crashes is a suspect: only the worker that sees its sandbox die buries it for a third. An `at_most_once` message
        is buried when its lease lapses.
        """

    def take_over(self, workers: Collection[str]) -> Takeover:
        """End the leases of workers that are known to be dead, as `maintain` ends lapsed ones.

        It is bounded, and any worker may call it at any time: each lease is ended once.
        """

    def wait(self, timeout: float) -> bool:
        """Sleep for `timeout` seconds, or until `claim` may find something for the pairs of its last call.

        `wake` ends it too, and so does a growing `pause_version`. Return False only if nothing but the time ended it
        and a claim for those pairs would find nothing.
        """

    def wake(self) -> None:
        """End the running or the next `wait` at once. Any thread may call this."""

    # Operations by id

    def atomically(self, work: Callable[[], T]) -> T:
        """Call `work`, and return its result.

        With a store, all operations by id that `work` calls take place, or none does. `work` may be called more than
        once.
        """

    def cancel(self, ids: Sequence[str], running_by: str | None = None) -> list[bool]:
        """Stop waiting messages. Return True for each that was waiting and now never starts.

        If `running_by` is not None, it says who asks ('' for nobody): those that run get a `CancelRequest`, and count
        as well. Each is cancelled when its lease ends, unless it finishes. A request that is there stays.
        """

    async def acancel(self, ids: Sequence[str], running_by: str | None = None) -> list[bool]: ...

    def reschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]:
        """Give waiting messages a new due time. Return True for each that was waiting."""

    async def areschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]: ...

    def rescue(self, ids: Sequence[str]) -> list[bool]:
        """Make failed messages ready, with their counts reset. Return True for each that was rescued.

        A message is not rescued if another one with its id waits or runs.
        """

    def purge(self, ids: Sequence[str]) -> list[bool]:
        """Remove waiting messages for good, and only count them. Return True for each that was waiting."""

    def purge_failed(self, ids: Sequence[str]) -> list[bool]:
        """Remove every failed message under each id for good. Return True for each id that had one."""

    # Queries

    def get(self, id: str) -> Info | None:
        """Return the message with this id that waits or runs, else the one that ended last, else None.

        Without a store, only failed messages are kept after their end.
        """

    async def aget(self, id: str) -> Info | None: ...

    def peek(self, queue: str, count: int, key: str | None = None) -> list[Info]:
        """Return the next `count` waiting messages of a queue, of one key or of all, in due order. Changes nothing."""

    def failed(self, count: int, offset: int = 0) -> list[Info]:
        """Return failed messages, newest first."""

    def counts(self) -> Counts:
        """Return how many messages wait, by queue and key, and how many run, are suspects or failed; and the totals."""

    def audit(self) -> Audit:
        """Compare the totals with the messages that exist, and find messages that are in no place or in two."""


class Risk(Enum):
    """A part of an alias's settings that is unsafe for a site in production."""

    PASSWORD_IN_URL = auto()
    CLEARTEXT = auto()
    UNVERIFIED = auto()
    DEFAULT_USER = auto()
    FOR_DEVELOPMENT = auto()


class Broker(Protocol):
    """One server, which the setting BROKER names. It connects at the first call that needs it."""

    needs_store: ClassVar[bool]
    """Whether it works only with a store, because it has no `queue`."""

    @classmethod
    def check(cls, alias: Alias) -> None:
        """Raise `ImproperlyConfigured` for settings that can't work with this broker. Connects to nothing."""

    @classmethod
    def places(cls, alias: Alias) -> frozenset[str]:
        """Return names of the places where an alias keeps its data. Aliases with a name in common share their data.

        Connects to nothing. Raises `ImproperlyConfigured` like `check`.
        """

    @classmethod
    def risks(cls, alias: Alias) -> list[Risk]:
        """Return what is unsafe in the settings of an alias for a site in production.

        Connects to nothing. Raises `ImproperlyConfigured` like `check`.
        """

    @property
    def timer(self) -> Timer:
        """Return the timer, which holds the alarms of a store."""

    @property
    def window(self) -> Window | None:
        """Return the cursor and the owner of the timer's alarms; None if the timer reads the rows itself."""

    @property
    def alarm_index(self) -> AlarmIndex | None:
        """Return the list of the timer's alarms; None if the server can't list them."""

    @property
    def presence(self) -> Heartbeats:
        """Return the keeper of the workers' heartbeats."""

    @property
    def limiter(self) -> Limiter | None:
        """Return the keeper of limits for an alias without a store; None if the broker carries no messages."""

    @property
    def queue(self) -> Queue | None:
        """Return the queue for an alias without a store; None if the broker carries no messages."""

    @property
    def database(self) -> Any:
        """Return the `Database` that the timer uses, which the store must share; None if the timer uses none."""

    def open(self) -> None:
        """Connect, or raise. If it is not called, the first other method connects."""

    def close(self) -> None:
        """Close every connection and end a running `wait`. The broker can be used again."""

    def report(self) -> ServerReport:
        """Check whether a worker can run on the server."""


class Tables(Queue, Protocol):
    """The queue of an alias with a store: the tables. It has methods that only tables can have."""

    settings: Store
    broker: Broker
    database: Any
    """The `Database` that runs the statements. Its type can't be named here, because this module knows no tables."""
    mark: Any
    """The `Mark` that says which store the broker works for."""

    def cancel(self, ids: Sequence[str], running_by: str | None = None, *, action: Action | None = None) -> list[bool]:
        """Cancel messages like `Queue`, as a part of the `action`."""

    def reschedule(
        self,
        ids: Sequence[str],
        *,
        delay_ms: int = 0,
        at_ms: int | None = None,
        by_ms: int | None = None,
        rule: str = "",
        action: Action | None = None,
    ) -> list[bool]:
        """Give waiting messages a new due time, like `Queue`. With `by_ms`, make each due time that much later.

        `rule` is the one that gave `at_ms`: it takes the place of the messages' own. It can't be a part of an action.
        """

    def correct(self, corrections: Sequence[Any]) -> list[bool]:
        """Give waiting messages the due times that their rules give now. Return True for each that was unchanged.

        A message that has started, ended or got another due time since the `Correction` was found is left alone.
        """

    def send_again(
        self,
        ids: Sequence[str],
        *,
        delay_ms: int = 0,
        interval_us: int = 0,
        first: int = 0,
        action: Action | None = None,
    ) -> list[bool]:
        """Send the messages again that finished or were cancelled last under the ids. Return for each whether it was.

        Each has the id, the data and the header of the old one, whose row stays. An id that waits or runs is left
        alone, and so is one without a row. They are due after `delay_ms`, each `interval_us` after the one before it;
        `first` is how many were sent before them.
        """

    def begin_undo(self, action: Action) -> bool:
        """Note that somebody undoes the action. Return whether nobody did before.

        Raises `DelayqError` if nothing is known of an action of that name.
        """

    def changed_by(self, name: str, after: int = 0) -> list[int]:
        """Return the next page of messages that the action has changed and no undo has looked at, by primary key."""

    def put_back(self, name: str, pks: Sequence[int]) -> PutBack:
        """Put messages back that are still as the action of that name left them. Each is tried once."""

    def claim_all(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        """Claim rows whose alarms are due; if that gives none, claim due rows that have no alarm."""

    def finish_here(self, id: str, pk: int, token: int, started_ms: int) -> bool:
        """Finish a message as the last step of the caller's transaction, and put what follows it.

        That is a send that was kept for its end, the next step of a sequence, or the message on the end of a batch.
        Return False if the lease is lost.
        """

    def settle_here(self, transitions: Sequence[Transition]) -> list[Transition]:
        """Write transitions as the last step of the caller's transaction, and return those whose lease is lost."""

    def sweep(self) -> None:
        """Look for overdue rows that the timer has no alarms for. Later claims take them from the table."""

    def keep_window(self, *, lease_ms: int) -> None:
        """Schedule the alarms of rows that are due soon. Begin or end degraded mode if necessary.

        Raises the timer's error while the timer, or a part of it, is away.
        """

    def due_pairs_except(self, keys: Collection[str]) -> list[Pair]:
        """Return some pairs of queue and key of which a message is due. The keys in `keys` are left out."""

    def put_occurrences(self) -> None:
        """Put the next occurrences of schedules whose last message has ended unnoticed, if it is time to look."""

    def change_schedules(self, change: Callable[[Any], tuple[T, list[Alarm]]]) -> T:
        """Call a function of store/schedules.py with the `database`. Return its answer."""

    def stopped_among(self, ids: Collection[str]) -> Collection[str]:
        """Return those of the ids of claimed messages that are steps of sequences which were stopped."""

    def mend_follow_ups(self) -> None:
        """Go on with sequences and batches whose last message has ended unnoticed, if it is time to look."""

    def change_follow_ups(self, change: Callable[[Any], tuple[T, list[Alarm]]]) -> T:
        """Call a function of store/sequences.py or batches.py with the `database`. Return its answer."""

    def prune(self) -> bool:
        """Remove a batch of finished messages past the `retention`, and one of failed ones past the `failed_retention`.

        Return whether there may be more.
        """

    def ids_by_tag(self, tag: str, *, running: bool = False) -> list[str]:
        """Return the ids of the messages that wait with a tag. Inside `atomically` they stay waiting until its end.

        With `running`, those that run are among them.
        """

    def note_lanes(self, messages: Iterable[NewMessage]) -> None:
        """Make workers ask for the lanes of messages that are about to be inserted without `enqueue`."""

    def rows_with_states(
        self, tag: str | None, key: str | None, id_prefix: str | None, states: Collection[State]
    ) -> Iterator[tuple[Any, State]]:
        """Yield each row that matches the arguments that are not None, with its state, if that is one of `states`."""

    def repair(self) -> list[str]:
        """Repair the differences of an audit that have only one right answer. Return a line about each repair."""


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
        """Return `queue` if it is the tables; None for an alias without a store."""

    def open(self) -> None:
        """Connect, or raise. If it is not called, the first other method connects."""

    def close(self) -> None:
        """Close every connection and end a running `wait`. The backend can be used again."""

    def report(self) -> ServerReport:
        """Check whether a worker can run on the backend."""
