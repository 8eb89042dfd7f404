"""Decide what becomes of a leased message when its lease ends, for every backend. Pure: no Django, no I/O.

A worker computes a transition from what its claim returned, and a backend writes it if the lease's token still matches.
No other move (claim, cancel, replace, reschedule, purge) touches a message that has a token. Only a reclaim takes the
token away, from a lease that ran out or whose worker is dead. So while the token matches, the record has the counts,
the history and the data that the claim returned, and no backend has to decide anything again.

`MOVES` is the table of docs/internals/states.md. Oban's executor and River's job state machine are its models.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from django_delayq.core.history import Ended, PastAttempt, add
from django_delayq.core.message import State
from django_delayq.core.requests import BuriedInfo, CancelRequest, Claimed
from django_delayq.support.units import to_text

_WAITING = frozenset({State.PENDING, State.READY})
_RUNNING = frozenset({State.RUNNING})

MOVES: dict[str, tuple[frozenset[State], frozenset[State]]] = {
    "send": (frozenset({State.NONE}), _WAITING),
    "claim": (frozenset({State.READY}), _RUNNING),
    "finish": (_RUNNING, frozenset({State.FINISHED})),
    "interrupt": (_RUNNING, _RUNNING),
    "retry": (_RUNNING, _WAITING),
    "snooze": (_RUNNING, _WAITING),
    "release": (_RUNNING, _WAITING),
    "crash": (_RUNNING, frozenset({State.READY})),
    "reclaim": (_RUNNING, frozenset({State.READY})),
    "bury": (frozenset({State.READY, State.RUNNING}), frozenset({State.FAILED})),
    "cancel": (_WAITING | _RUNNING, frozenset({State.CANCELLED})),
    "ask to cancel": (_RUNNING, _RUNNING),
    "replace": (_WAITING, _WAITING),
    "reschedule": (_WAITING, _WAITING),
    "rescue": (frozenset({State.FAILED}), _WAITING),
    "purge": (_WAITING | {State.FAILED}, frozenset({State.GONE})),
}
"""The legal moves, each with the states it may start from and end in. Tests compare code and docs with this table."""

SUSPECT_CRASHES = 2
"""With this many crashes a message is a suspect: it waits apart, and runs alone."""

FATAL_CRASHES = SUSPECT_CRASHES + 1
"""With this many crashes a message is buried: a suspect runs alone, so the next crash is its own (`crash_alone`)."""

INTERRUPT_MS = 1_000
"""How long an interrupted lease still lasts: time for a thread that can't be stopped to end."""

UNREADABLE = "its header can not be read"
"""The reason to bury a message whose lease has run out and whose header can't be read."""

_KILLED = "killed its worker"

LAPSED_AT_MOST_ONCE = "its lease ran out; it may not have started, or have run in part, and must not start twice"
"""The reason to bury a message that must not start twice when its lease has run out."""


class SettleAction(StrEnum):
    """How a lease ends."""

    FINISH = "finish"
    RETRY = "retry"  # due again after a delay; failures + 1, crashes 0
    SNOOZE = "snooze"  # due again after a delay; crashes 0
    RELEASE = "release"  # not started: back in its old place, or due after a delay
    INTERRUPT = "interrupt"  # stays leased for `INTERRUPT_MS`, then is ready again with no crash counted
    CRASH = "crash"  # the process that ran it died: ready again, with one crash more, but never the fatal one
    LAPSE = "lapse"  # its lease ran out: ready again, with one crash more, but never the fatal one
    BURY = "bury"
    CANCEL = "cancel"  # somebody asked for it while it ran, and it has not finished


STATE_AFTER = {
    SettleAction.FINISH: State.FINISHED,
    SettleAction.RETRY: State.PENDING,
    SettleAction.SNOOZE: State.PENDING,
    SettleAction.RELEASE: State.PENDING,
    SettleAction.INTERRUPT: State.RUNNING,
    SettleAction.CRASH: State.PENDING,
    SettleAction.LAPSE: State.PENDING,
    SettleAction.BURY: State.FAILED,
    SettleAction.CANCEL: State.CANCELLED,
}
"""The state in which each action leaves the message. `PENDING` stands for `READY` too: only the due time differs."""

TOTALS = {
    SettleAction.FINISH: "finished",
    SettleAction.RETRY: "retried",
    SettleAction.SNOOZE: "snoozed",
    SettleAction.RELEASE: "released",
    SettleAction.LAPSE: "reclaimed",
    SettleAction.BURY: "buried",
    SettleAction.CANCEL: "cancelled",
}
"""The total that counts each action, where a backend keeps totals."""

_OUTCOMES = {
    SettleAction.RETRY: Ended.FAILED,
    SettleAction.SNOOZE: Ended.SNOOZED,
    SettleAction.CRASH: Ended.CRASHED,
}
"""The outcome that an attempt has in the history of a message that waits again."""


@dataclass(slots=True)
class Transition:
    """A change to one leased message. A backend writes it only if the lease (`id`, `token`) is still held.

    - `failures`, `crashes`: the new counts.
    - `started_ms`: when the handler started; None if it did not.
    - `ended_ms`: when the handler ended; None means now. This, `started_ms` and the times in the history are the
      worker's estimates of the authoritative clock, and may be ahead of it. When a store writes the row of a message
      that has ended, it lowers a time that is ahead to that of its own clock.
    - `pk`: the primary key of the row, with a store.
    - `delay_ms`: how long from now a message that waits again is due; None keeps its due time.
    - `at_ms`: when it is due, if that was named. Then `delay_ms` is only the worker's estimate of how long that is.
    - `error`: one line on the failure; None keeps the last one.
    - `detail` (the traceback), `fingerprint`: kept for a buried message. A `Retry` that waits again has no fingerprint.
    - `history`: the earlier attempts as JSON; None leaves them as they are.
    - `lease_until_ms`: when the lease ran out; None if its holder ends it. A renewal keeps the token, so a lapse is
      written only if the lease still ends at this time.
    - `is_written`: whether the handler's own transaction has ended the row already, so that only its alarm is left to
      drop or rearm.
    - `is_replaced`: whether a send that was kept until the end of the run (kept.py) was sent with it. The backend says
      so, once the transition is written.
    """

    id: str
    token: int
    queue: str
    key: str
    action: SettleAction
    failures: int = 0
    crashes: int = 0
    started_ms: int | None = None
    ended_ms: int | None = None
    pk: str = ""
    delay_ms: int | None = None
    at_ms: int | None = None
    error: str | None = None
    detail: str = ""
    fingerprint: str = ""
    history: str | None = None
    lease_until_ms: int | None = None
    is_written: bool = False
    is_replaced: bool = field(default=False, compare=False)

    @property
    def state(self) -> State:
        """Return the state of the message once this transition is written."""
        return STATE_AFTER[self.action]

    @property
    def yields_to_cancel(self) -> bool:
        """Return whether the message is cancelled instead if somebody has asked for that while it ran.

        What has finished has finished. An interrupted lease lapses soon: then the message is cancelled. SQL and Lua
        check the same.
        """
        return self.state in (State.PENDING, State.FAILED)

    @property
    def is_suspect(self) -> bool:
        """Return whether this transition leaves a suspect, which waits apart from the others and runs alone."""
        return self.crashes >= SUSPECT_CRASHES

    def is_repeated(self, *, interrupted: bool) -> bool:
        """Return whether this transition interrupts a lease that is `interrupted` already.

        It must not be written in that case, because it would prolong the lease. SQL and Lua check the same.
        """
        return interrupted and self.state is State.RUNNING


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure: one line on it, its traceback, and a text that is the same for failures of one kind."""

    error: str
    detail: str = ""
    fingerprint: str = ""


class Terms(Protocol):
    """The bounds on how often a message may start, which a handler, a message's header and its row all have."""

    @property
    def at_most_once(self) -> bool: ...

    @property
    def max_attempts(self) -> int | None: ...


def is_at_most_once(sent: Terms | None, handler: Terms | None) -> bool:
    """Return whether a message must not start a second time, because it or its handler says so."""
    return bool((sent is not None and sent.at_most_once) or (handler is not None and handler.at_most_once))


def max_attempts(sent: Terms | None, handler: Terms | None) -> int | None:
    """Return how many attempts a message may have: 1 if at most once, else its own or its handler's number.

    Return None if neither number is known.
    """
    if is_at_most_once(sent, handler):
        return 1
    if sent is not None and sent.max_attempts is not None:
        return sent.max_attempts
    return None if handler is None else handler.max_attempts


class Policy(NamedTuple):
    """How often a message may start, and until when, as its sender or its handler says."""

    at_most_once: bool = False
    max_attempts: int | None = None
    expires_at_ms: int | None = None


class Span(NamedTuple):
    """The epoch ms at which an attempt started (None if it did not) and ended (None if that is not known)."""

    started_ms: int | None = None
    ended_ms: int | None = None


UNSTARTED = Span()


class Again(NamedTuple):
    """When a message is due again: after `delay_ms`. If `at_ms` is named, it is due then, and the delay says how long.

    The delay is the worker's estimate in that case.
    """

    delay_ms: int
    at_ms: int | None = None


# The transition for each way in which a lease ends


def finish(claimed: Claimed, span: Span = UNSTARTED, *, is_written: bool = False) -> Transition:
    """Return the transition of a message whose handler returned."""
    transition = _of(claimed, SettleAction.FINISH, span)
    transition.is_written = is_written
    return transition


def fail(
    claimed: Claimed,
    failure: Failure,
    policy: Policy,
    span: Span,
    again: Callable[[int], Again],
) -> Transition:
    """Return the transition of a message whose attempt failed: a retry as `again(attempt)` says, or a burial.

    It is buried if `policy` allows no more attempts, or the next one would start after the message expires.
    """
    attempt = claimed.failures + 1
    if policy.at_most_once or (policy.max_attempts is not None and attempt >= policy.max_attempts):
        return bury(claimed, failure, span, failed=True)
    delay_ms, at_ms = again(attempt)
    if policy.expires_at_ms is not None and (span.ended_ms or 0) + delay_ms >= policy.expires_at_ms:
        last = Failure(f"{failure.error} (the next try would be after it expires)", failure.detail, failure.fingerprint)
        return bury(claimed, last, span, failed=True)
    transition = _retry(claimed, failure, delay_ms, span)
    transition.at_ms = at_ms
    return transition


def snooze(
    claimed: Claimed, delay_ms: int, policy: Policy, span: Span = UNSTARTED, *, at_ms: int | None = None
) -> Transition:
    """Return the transition of a message whose handler asked to run it later: after `delay_ms`, or at `at_ms`.

    The attempt did not die, so its end sets the crashes to 0. An `at_most_once` message is buried.
    """
    if policy.at_most_once:
        return bury(claimed, Failure("asked to snooze, but at_most_once never starts a second time"), span)
    transition = _again(claimed, SettleAction.SNOOZE, span, Ended.SNOOZED)
    transition.crashes, transition.delay_ms, transition.at_ms = 0, delay_ms, at_ms
    return transition


def release(claimed: Claimed, delay_ms: int | None = None) -> Transition:
    """Return the transition of a message that was not started: it is due after `delay_ms`; if None, when it was due."""
    transition = _of(claimed, SettleAction.RELEASE, UNSTARTED)
    transition.delay_ms = delay_ms
    return transition


def bury(
    claimed: Claimed, failure: Failure, span: Span = UNSTARTED, *, failed: bool = False, crashed: bool = False
) -> Transition:
    """Return the transition of a message that must not run again.

    With `failed` the attempt is counted as a failure, with `crashed` as a crash.
    """
    transition = _of(claimed, SettleAction.BURY, span)
    transition.failures += failed
    transition.crashes += crashed
    transition.error, transition.detail = _storable(failure.error), _storable(failure.detail)
    transition.fingerprint = _storable(failure.fingerprint)
    return transition


def cancel(claimed: Claimed, request: CancelRequest, span: Span = UNSTARTED) -> Transition:
    """Return the transition of a message that somebody has asked to cancel while it ran, and that has not finished.

    No failure and no crash is counted. The row says in its error who asked.
    """
    transition = _of(claimed, SettleAction.CANCEL, span)
    transition.error = _storable(f"cancelled while it ran, by {request.by}" if request.by else "cancelled while it ran")
    return transition


def interrupt(claimed: Claimed, policy: Policy, span: Span = UNSTARTED) -> Transition:
    """Return the transition of a message that still runs while its worker stops.

    Its lease runs out in `INTERRUPT_MS`, and no crash is counted then. An `at_most_once` message is buried.
    """
    if policy.at_most_once:
        reason = "at_most_once: interrupted by the stop of its worker; it may have run in part"
        return bury(claimed, Failure(reason), span)
    return _of(claimed, SettleAction.INTERRUPT, span)


def crash(claimed: Claimed, death: str, policy: Policy, span: Span = UNSTARTED) -> Transition:
    """Return the transition of a message that ran in a process that died, perhaps beside others: it is ready again.

    Nobody knows whether this message killed the process or only ran in it. So this counts a crash, but never the fatal
    one. An `at_most_once` message is buried.
    """
    if policy.at_most_once:
        return bury(claimed, Failure(f"{death}; at_most_once: it may have run in part"), span)
    transition = _again(claimed, SettleAction.CRASH, span, Ended.CRASHED, Failure(death))
    transition.crashes = min(claimed.crashes + 1, SUSPECT_CRASHES)
    return transition


def crash_alone(claimed: Claimed, death: str, policy: Policy, span: Span = UNSTARTED) -> Transition:
    """Return the transition of a message whose sandbox died: it is ready again, or buried at the third crash.

    Nothing else ran there, so the message is to blame. Only this function counts the fatal crash. An `at_most_once`
    message is buried at any crash.
    """
    crashes = claimed.crashes + 1
    if policy.at_most_once or crashes < FATAL_CRASHES:
        return crash(claimed, death, policy, span)
    since_claim = Span(claimed.claimed_ms if span.started_ms is None else span.started_ms, span.ended_ms)
    return bury(claimed, Failure(f"{_KILLED} {crashes} times: {death}"), since_claim, crashed=True)


def lapse(
    claimed: Claimed,
    lease_until_ms: int,
    *,
    at_most_once: bool,
    interrupted: bool = False,
    cancel_request: CancelRequest | None = None,
) -> Transition:
    """Return the transition of a message whose lease ran out at `lease_until_ms`.

    Nobody knows whether it killed its worker, or another message did. So a lapse counts a crash, but never the fatal
    one; it counts none if the lease was `interrupted` by the stop of its worker. A message that must not start twice is
    buried, and so is one whose header can't be read. One that somebody has asked to cancel is cancelled.
    """
    if cancel_request is not None:
        transition = cancel(claimed, cancel_request, Span(claimed.claimed_ms, lease_until_ms))
        transition.lease_until_ms = lease_until_ms
        return transition
    crashes = claimed.crashes if interrupted else min(claimed.crashes + 1, SUSPECT_CRASHES)
    span = Span(claimed.claimed_ms, lease_until_ms)
    if claimed.header is None:
        transition = bury(claimed, Failure(UNREADABLE), span)
    elif at_most_once:
        transition = bury(claimed, Failure(LAPSED_AT_MOST_ONCE), span)
    else:
        transition = _again(claimed, SettleAction.LAPSE, span, Ended.INTERRUPTED if interrupted else Ended.LOST)
    transition.crashes, transition.lease_until_ms = crashes, lease_until_ms
    return transition


def lapse_unburied(
    claimed: Claimed,
    lease_until_ms: int,
    *,
    at_most_once: bool,
    interrupted: bool = False,
    cancel_request: CancelRequest | None = None,
) -> Transition:
    """Return the transition to try if the backend refuses that of `lapse`: the message waits again.

    A failure is counted for one that must not start twice, so that `refuse` buries it at its next claim.
    """
    transition = lapse(
        claimed, lease_until_ms, at_most_once=False, interrupted=interrupted, cancel_request=cancel_request
    )
    if at_most_once and cancel_request is None:
        transition.failures, transition.crashes = claimed.failures + 1, 0
    return transition


def refuse(claimed: Claimed, policy: Policy, now_ms: int) -> Transition | None:
    """Return the transition that buries a claimed message which must not start; None if it may start."""
    if policy.at_most_once and (claimed.crashes or claimed.failures):
        return bury(claimed, Failure("at_most_once: it was handed out before, and may have run in part"))
    if policy.max_attempts is not None and claimed.failures >= policy.max_attempts:
        # Its last end could not be written, or max_attempts was lowered.
        return bury(
            claimed, Failure(f"it has failed {claimed.failures} times, and max_attempts is {policy.max_attempts}")
        )
    if policy.expires_at_ms is not None and policy.expires_at_ms <= now_ms:
        return bury(claimed, Failure(f"expired {to_text(now_ms - policy.expires_at_ms)} ago"))
    return None


def in_place_of(
    transition: Transition, claimed: Claimed, policy: Policy, refusal: str, wait_ms: Callable[[int], int]
) -> list[Transition]:
    """Return the transitions to try, in this order, instead of one that the backend keeps refusing.

    The attempt counts as failed. If attempts are left, the only transition is a retry after `wait_ms(attempt)`. If not,
    the first one buries the message; the second is such a retry, for the case that the burial is refused too. (At the
    next claim, `refuse` keeps the message from starting once more.) Return none if the message has ended already, if
    no attempt has ended, or if it is cancelled: then its lease lapses, and it is cancelled again. `refusal` says in one
    line why the backend refuses.
    """
    if transition.is_written or transition.action in (
        SettleAction.RELEASE,
        SettleAction.INTERRUPT,
        SettleAction.CANCEL,
    ):
        return []
    kind = f"its {transition.action} is refused"
    why = f"{kind}: {refusal}"
    error = f"{transition.error} ({why})" if transition.error else why
    attempt, span = claimed.failures + 1, Span(transition.started_ms, transition.ended_ms)
    again = _retry(claimed, Failure(error), wait_ms(attempt), span)
    if policy.max_attempts is None or attempt < policy.max_attempts:
        return [again]
    return [bury(claimed, Failure(error, error, kind), span, failed=True), again]


def with_history(transition: Transition, claimed: Claimed) -> Transition:
    """Add the attempt to the history of a transition that comes from a child process, which did not know the history.

    Return the transition.
    """
    outcome = _OUTCOMES.get(transition.action)
    if outcome is not None and transition.history is None:
        _remember(transition, claimed, outcome)
    return transition


# Texts about a transition


def describe(transition: Transition) -> str:
    """Return the words that say in a log line, after the message's name, what becomes of it."""
    match transition.action:
        case SettleAction.RETRY:
            return f"failed, runs again in {to_text(transition.delay_ms or 0)}: {transition.error}"
        case SettleAction.SNOOZE:
            return f"snoozes for {to_text(transition.delay_ms or 0)}"
        case SettleAction.CRASH:
            return f"crashed, runs again: {transition.error}"
        case SettleAction.RELEASE:
            return f"is left to others for {to_text(transition.delay_ms or 0)}: {transition.error}"
        case SettleAction.BURY:
            return f"failed for good: {transition.error}"
        case SettleAction.CANCEL:
            return str(transition.error)
        case _:
            return str(transition.state.value)


_OWN_WORDS = ("its ", "it ", "cancelled ", "at_most_once: ", "asked to snooze", "expired ", f"{_KILLED} ")
_REFUSED = " is refused: "


def without_values(error: str) -> str:
    """Return the part of an error that quotes no data: the class of the exception, or our own words.

    Every error begins with one or the other.
    """
    if error.startswith(_OWN_WORDS):
        own, refused, _why = error.partition(_REFUSED)
        return own + refused.removesuffix(": ")
    return error.partition(" ")[0].partition(":")[0]


def buried_info(transition: Transition) -> BuriedInfo:
    """Return the report of a message that was buried by a worker that did not run it."""
    return BuriedInfo(transition.id, transition.queue, transition.key, transition.failures, transition.error or "")


def _of(claimed: Claimed, action: SettleAction, span: Span) -> Transition:
    header = claimed.header
    return Transition(
        claimed.id,
        claimed.token,
        header.queue if header else "",
        header.key if header else "",
        action,
        claimed.failures,
        claimed.crashes,
        span.started_ms,
        span.ended_ms,
        claimed.pk,
    )


def _retry(claimed: Claimed, failure: Failure, delay_ms: int, span: Span) -> Transition:
    """Return the transition of a failed message that waits again. Its attempt did not die, so its crashes become 0."""
    transition = _again(claimed, SettleAction.RETRY, span, Ended.FAILED, failure)
    transition.failures, transition.crashes, transition.delay_ms = claimed.failures + 1, 0, delay_ms
    return transition


def _again(
    claimed: Claimed, action: SettleAction, span: Span, outcome: Ended, failure: Failure | None = None
) -> Transition:
    """Return the transition of a message that waits again. Its attempt is added to the history, if one is kept."""
    transition = _of(claimed, action, span)
    if failure is not None:
        transition.error, transition.detail = _storable(failure.error), _storable(failure.detail)
    _remember(transition, claimed, outcome)
    return transition


def _remember(transition: Transition, claimed: Claimed, outcome: Ended) -> None:
    if not claimed.history:
        return
    started_ms = claimed.claimed_ms if transition.started_ms is None else transition.started_ms
    ended_ms = started_ms if transition.ended_ms is None else transition.ended_ms
    error, detail = transition.error or "", transition.detail
    past = PastAttempt(claimed.failures + 1, started_ms, ended_ms, claimed.worker, outcome, error, detail)
    transition.history = add(claimed.history, past)


def _storable(text: str) -> str:
    """Return the text with NUL characters escaped, because PostgreSQL can't store them."""
    return text.replace("\0", "\\x00")
