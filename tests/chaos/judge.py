"""The judge: holds the ledger of a round, and what the system says of itself, against what the README promises.

Each check is a function that yields a sentence for each thing that is wrong.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from tests.chaos.ledger import Ledger, PermitRequest, Run

HEAP = "heap-"
"""Messages with such ids are not in the ledger's asks."""
PROBE = "probe"
"""Messages with such ids are sent when all is well again: no fault excuses that they are late."""
SLACK_S = 0.5
"""A clock that is put ahead is seen by all processes within this time."""
TOLD_MS = 1000
"""A worker works out what the database's clock says: it may be so much behind."""
CLAIM_S = 10.0
"""A start may be so much later than the claim by whose clock it was due."""
PROMPT = ("plain", "many", "write", "async", "once", "exact", "flaky", "doomed")
"""Handlers of which nothing holds up the next message."""
TRIES = {"plain": 4, "many": 4, "async": 4, "slow": 4, "single": 4, "flaky": 4, "doomed": 2, "long exact": 20}
LIVES_FOR_EVER = ("write", "exact", "deadlock", "leak")
ATOMIC = {"exact", "long exact", "deadlock"}
LAPSING = ("frozen", "stall", "lock rows")
"""A lease may run out while its handler goes on: its worker has no turn, or its row is locked."""
DEADLY = (*LAPSING, "killed", "killed child", "stopped", "refuse finishes", "put sequence back")
"""A handler may return, and its message not finish."""


@dataclass
class Round:
    """What there is to judge."""

    ledger: Ledger
    is_stored: bool = True
    lease_s: float = 5.0
    late_s: float = 4.0
    ends: Sequence[tuple[str, str]] = ()
    """(id, outcome) of each message that ended: "finished", "cancelled" or "error". Without a store, errors only."""
    finishes: Sequence[tuple[str, int]] = ()
    """(id, ended_at) of each message that finished, with a store."""
    waiting: Sequence[str] = ()
    """What waits or runs at the end of the round."""
    effects: Sequence[str] = ()
    """The ids of the rows that handlers wrote."""
    differences: Sequence[str] = ()
    """What `delayq audit` says."""
    lives: dict[str, "Life"] = field(init=False)

    def __post_init__(self) -> None:
        self.lives = defaultdict(Life)
        for ask in self.ledger.asks:
            self.lives[ask.id].asks.append(ask)
        for run in self.ledger.runs:
            self.lives[run.id].runs.append(run)
        for id, outcome in self.ends:
            self.lives[id].ends[outcome] += 1
        for id in self.waiting:
            self.lives[id].waiting += 1
        for id in self.effects:
            self.lives[id].effects += 1
        for id in [id for id in self.lives if id.startswith(HEAP)]:
            del self.lives[id]


@dataclass
class Life:
    """All that is known of one id."""

    asks: list[PermitRequest] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    waiting: int = 0
    effects: int = 0

    @property
    def sends(self) -> list[PermitRequest]:
        """Return those that may have made a message."""
        return [ask for ask in self.asks if ask.may_send]

    @property
    def least(self) -> int:
        """Return how many messages there were for certain."""
        return sum(ask.ok is True for ask in self.sends)

    @property
    def cancels(self) -> list[PermitRequest]:
        """Return those that stopped a message for certain."""
        return [ask for ask in self.asks if ask.verb == "cancel" and ask.ok and ask.counted]

    @property
    def keys(self) -> set[str]:
        """Return whose message it may have been."""
        return {ask.key for ask in self.asks if ask.verb == "send"} | {run.key for run in self.runs}


def judge(round: Round) -> list[str]:
    """Return all that is wrong."""
    return [sentence for check in CHECKS for sentence in check(round)]


def early(round: Round) -> Iterator[str]:
    """Nothing starts before its due time, by the clock that decides."""
    for id, life in round.lives.items():
        for run in life.runs:
            clock = run.wall + _ahead(round, run.begin - CLAIM_S, run.begin, max)
            if run.due_ms and clock < run.due_ms:
                yield f"{id} started {run.due_ms - clock:.0f} ms before it was due"
            floor = _earliest(round, life, run)
            if floor is not None and clock < floor:
                yield f"{id} started {floor - clock:.0f} ms before anyone had asked for"


def _earliest(round: Round, life: Life, run: Run) -> float | None:
    """Return the earliest time at which the message may have been due. An ask that surely took effect ends those before
    it; one of which nobody knows is added to them."""
    dues: list[float] = []
    for ask in life.asks:
        if ask.at > run.begin or ask.ok is False or ask.verb == "cancel":
            continue
        due = ask.wall + _ahead(round, ask.at, min(ask.answered, run.begin), min) + 1000 * ask.delay
        if ask.ok and ask.counted and ask.answered < run.begin:
            dues.clear()
        dues.append(due)
    return min(dues, default=None)


def _ahead(round: Round, begin: float, end: float, pick: Callable[[Sequence[int]], int]) -> int:
    """Return how far the database's clock was ahead in this time: the most or the least of it."""
    before, during = 0, []
    for at, ms in round.ledger.clocks:
        if at < begin - SLACK_S:
            before = ms
        elif at <= end + SLACK_S:
            during.append(ms)
    return pick([before, *during]) if round.is_stored else 0


def lost(round: Round) -> Iterator[str]:
    """Yield what was accepted and did not finish, fail or get cancelled as often as it was accepted."""
    for id, life in round.lives.items():
        if life.waiting:
            yield f"{id} ({_keys(life)}) still waits"
            continue
        if round.is_stored:
            count = life.ends.total()
        else:
            count = sum(run.how == "returned" for run in life.runs) + life.ends["error"] + len(life.cancels)
        if count < life.least and not _was_emptied(round, life):
            yield f"{id} ({_keys(life)}) was accepted {life.least} times, and ended {count} times"


def made_up(round: Round) -> Iterator[str]:
    """Nothing is there that nobody sent, or that was rolled back; and each that finished has run to its end."""
    for id, life in round.lives.items():
        if round.is_stored and life.ends.total() > len(life.sends):
            yield f"{id} ({_keys(life)}) was sent {len(life.sends)} times at most, and ended {life.ends.total()} times"
        if not life.sends and life.runs:
            yield f"{id} ({_keys(life)}) ran, and its send was refused or rolled back"
        returned = sum(run.how == "returned" for run in life.runs)
        if life.ends["finished"] > returned:
            yield f"{id} ({_keys(life)}) finished {life.ends['finished']} times, and returned {returned} times"


def overlapping(round: Round) -> Iterator[str]:
    """No two runs of an id at once, unless the worker of the first was frozen, or its row locked."""
    for id, life in round.lives.items():
        for first, second in combinations(life.runs, 2):
            if second.begin < first.until and not _was_hit(round, first, LAPSING):
                overlap = first.until - second.begin
                yield (
                    f"{id} ({first.key}) was run by {first.pids[0]} and {second.pids[0]} at once, for {overlap:.2f} s,"
                    f" from {second.begin:.2f} on"
                )


def twice(round: Round) -> Iterator[str]:
    """An `at_most_once` message starts once; any other runs again only after a failure, or if its worker was hit."""
    for id, life in round.lives.items():
        sends, starts = len(life.sends), len(life.runs)
        if life.keys == {"once"} and starts > sends:
            yield f"{id} (at most once) was sent {sends} times at most, and started {starts} times"
        elif round.is_stored and not life.keys & {*ATOMIC, "leak"}:  # those may return, and fail
            returned = [run for run in life.runs if run.how == "returned"]
            spared = [run for run in returned if not _was_hit(round, run, DEADLY)]
            if len(spared) > sends:
                yield f"{id} ({_keys(life)}) was sent {sends} times at most, and returned {len(spared)} times unharmed"


def finished_by_a_late_hand(round: Round) -> Iterator[str]:
    """Yield what a worker ended that had lost the lease: a message finishes once its newest run has returned."""
    for id, ended_ms in round.finishes:
        life = round.lives.get(id, Life())
        if len(life.sends) != 1 or not life.runs or life.runs[-1].how != "returned":
            continue
        newest = life.runs[-1]
        returned_ms = newest.wall + 1000 * (newest.until - newest.begin)
        early_ms = returned_ms + _ahead(round, newest.begin - CLAIM_S, newest.until, min) - ended_ms
        if early_ms > TOLD_MS:
            yield f"{id} ({newest.key}) finished {early_ms:.0f} ms before its newest run returned"


def failed(round: Round) -> Iterator[str]:
    """Yield what failed without a reason: tries were left, and no worker was hit that ran what must not start twice."""
    for id, life in round.lives.items():
        if not life.ends["error"] or len(life.keys) != 1:
            continue
        (key,) = life.keys
        raised = sum(run.how == "raised" for run in life.runs)
        hit = any(_was_hit(round, run, DEADLY) for run in life.runs)
        if key == "once" and life.runs and not hit and all(run.how == "returned" for run in life.runs):
            yield f"{id} (at most once) returned in a worker that nobody harmed, and failed"
        if key in LIVES_FOR_EVER or (key in TRIES and raised < TRIES[key] and not hit):
            yield f"{id} ({key}) failed after {raised} tries"


def effects(round: Round) -> Iterator[str]:
    """Yield what was not written once by each atomic handler that finished, or at least once by each other."""
    for id, life in round.lives.items():
        finished = life.ends["finished"] if round.is_stored else life.least - len(life.cancels)
        if life.keys <= ATOMIC and round.is_stored and life.effects != finished:
            yield f"{id} ({_keys(life)}) finished {finished} times, and took effect {life.effects} times"
        if life.keys == {"write"} and life.effects < finished and not _was_emptied(round, life):
            yield f"{id} (write) finished {finished} times, and {life.effects} of its rows are there"


def crowded(round: Round) -> Iterator[str]:
    """One message of a handler with max_concurrency=1 runs at once, unless a worker was frozen or Redis forgot it."""
    runs = [run for run in round.ledger.runs if run.key == "single"]
    for first, second in combinations(runs, 2):
        if first.id == second.id or second.begin >= first.until or _was_hit(round, first, LAPSING):
            continue
        window = (first.begin - round.lease_s, second.begin)
        if not any(span.name == "redis lost" and _meet((span.begin, span.end), window) for span in round.ledger.spans):
            yield f"{first.id} and {second.id} ran at once, of which one may, at {second.begin:.2f}"


def late(round: Round) -> Iterator[str]:
    """Yield what started late, and nothing excuses it."""
    excuses = [excuse for span in round.ledger.spans for excuse in span.excuses]
    for id, life in round.lives.items():
        if len(life.asks) != 1 or not life.runs or not life.least or life.asks[0].key not in PROMPT:
            continue
        (ask,) = life.asks
        due, start = max(ask.at + ask.delay, ask.answered), life.runs[0].begin
        late_s = _uncovered(due, start, [] if id.startswith(PROBE) else excuses)
        if late_s > round.late_s:
            yield f"{id} ({ask.key}) was {start - due:.1f} s late, {late_s:.1f} s of it without excuse, at {start:.2f}"


def cancelled(round: Round) -> Iterator[str]:
    """Yield what was cancelled before it ran, and started all the same."""
    for id, life in round.lives.items():
        for cancel in life.cancels:
            after = [run for run in life.runs if run.begin > cancel.answered]
            sent_after = [ask for ask in life.sends if ask.answered > cancel.at]
            if after and not sent_after and len(life.sends) == 1:
                yield f"{id} ({_keys(life)}) started {after[0].begin - cancel.answered:.2f} s after it was cancelled"


def no_due_time(round: Round) -> Iterator[str]:
    """A send tells when its message is due."""
    for ask in round.ledger.asks:
        if ask.ok and ask.due_ms == 0:
            yield f"{ask.id}: the send said that it is due at 0"


def audit(round: Round) -> Iterator[str]:
    """`delayq audit` finds nothing."""
    yield from (f"audit: {difference}" for difference in round.differences)


def noted(round: Round) -> Iterator[str]:
    """Yield what was seen to be wrong on the way."""
    yield from round.ledger.findings


CHECKS: list[Callable[[Round], Iterator[str]]] = [
    early, lost, made_up, overlapping, twice, finished_by_a_late_hand, failed, effects, crowded, late, cancelled,
    no_due_time, audit, noted,
]  # fmt: skip


def _was_hit(round: Round, run: Run, names: Sequence[str]) -> bool:
    """Return whether the worker of a run was hit shortly before, while it ran, or before its end can have been settled.

    What names no process hits all of them.
    """
    window = (run.begin - round.lease_s, run.until + 2 * round.lease_s)
    spans = [span for span in round.ledger.spans if span.name in names]
    spans = [span for span in spans if not span.pids or not set(span.pids).isdisjoint(run.pids)]
    return any(_meet((span.begin, span.end), window) for span in spans)


def _was_emptied(round: Round, life: Life) -> bool:
    """Return whether the message may have been in a Redis that was emptied, without a store: such a one is lost."""
    if round.is_stored:
        return False
    emptied = [span.end for span in round.ledger.spans if span.name == "redis lost"]
    return any(ask.at <= end for ask in life.sends for end in emptied)


def _meet(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _uncovered(begin: float, end: float, excuses: Sequence[tuple[float, float]]) -> float:
    """Return how much of a time is left when all excuses are taken from it."""
    left, at = 0.0, begin
    for first, last in sorted(excuses):
        if last > at and first < end:
            left += max(0.0, first - at)
            at = max(at, last)
    return left + max(0.0, end - at)


def _keys(life: Life) -> str:
    return ", ".join(sorted(life.keys))
