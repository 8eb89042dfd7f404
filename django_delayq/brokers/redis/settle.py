"""End and renew leases, by operations (client/calls.py)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from django_delayq.brokers.base import NO_PROGRESS, CancelRequest, Claimed, LeaseId, Transition, pages
from django_delayq.brokers.redis.client import Argument, Call, Operation, Reply
from django_delayq.brokers.redis.records import read_cancel_request
from django_delayq.brokers.redis.shards import Keys, load, names_of_sets, set_name
from django_delayq.core.message import State
from django_delayq.core.transitions import INTERRUPT_MS, STATE_AFTER, TOTALS

CALL = 200
"""The most leases that one script call ends."""

MOST_UNCONFIRMED = 10_000
"""The most leases whose end is remembered as unconfirmed. An end is never sent again if its lease is lost meanwhile."""


def settle(keys: Keys, transitions: Sequence[Transition]) -> Operation[list[bool | CancelRequest]]:
    """End leases in one round trip: a call for each new state, and for each wait set to which messages go back.

    If a send is kept for the end of a run, a call of its own ends that. Return whether each lease was still held, or
    who has asked to cancel its message, which was left alone then.
    """
    answers = yield from settle_or_send(keys, transitions)
    for one, answer in zip(transitions, answers, strict=True):
        one.is_replaced = answer == SENT
    return [answer if isinstance(answer, CancelRequest) else answer != LOST for answer in answers]


LOST, ENDED, SENT = 0, 1, 2
"""The answers of `settle_or_send`: the lease was lost, it was ended, or what was kept for its end was sent, too."""


def settle_or_send(keys: Keys, transitions: Sequence[Transition]) -> Operation[list[int | CancelRequest]]:
    """End leases like `settle`. Return `LOST`, `ENDED`, `SENT` or the request to cancel for each."""
    found: list[int | CancelRequest] = [LOST] * len(transitions)
    todo: Sequence[int] = range(len(transitions))
    while todo:
        answers = yield from _end(keys, [transitions[i] for i in todo])
        kept = [i for i, answer in zip(todo, answers, strict=True) if answer == KEPT]
        for i, answer in zip(todo, answers, strict=True):
            found[i] = answer if isinstance(answer, CancelRequest) else ENDED if answer == 1 else LOST
        todo = []
        for i in kept:
            answer = yield from _end_and_send(keys, transitions[i])
            found[i] = SENT if answer == 1 else LOST
            if answer == KEPT:  # there is nothing, or of another run, or the message is to be cancelled
                todo.append(i)
    return found


KEPT = 2
"""The answer of a script if a send is kept for the end of a run; of end_again.lua if the lease ends otherwise."""


def _end(keys: Keys, transitions: Sequence[Transition]) -> Operation[list[int | CancelRequest]]:
    """End leases like `settle`. Return 1 for each that was held, 0 for each that was lost, `KEPT`, or who cancels."""
    groups: defaultdict[tuple[State, str], list[int]] = defaultdict(list)
    for i, transition in enumerate(transitions):
        state = STATE_AFTER[transition.action]
        name = set_name(transition.queue, transition.key) if state is State.PENDING else ""
        groups[state, name].append(i)
    calls: list[Call] = []
    positions: list[int] = []
    for (state, name), group in groups.items():
        for some in pages(group, CALL):
            calls.append(_settle_call(keys, state, name, [transitions[i] for i in some]))
            positions.extend(some)
    if not calls:
        return []
    replies = yield calls
    answers: list[int | CancelRequest] = [0] * len(transitions)
    for i, answer in zip(positions, (answer for reply in replies for answer in reply), strict=True):
        # After a repeat, 0 may mean that the first call has ended the lease and its reply was lost. Nobody can tell.
        answers[i] = (_answer(answer) if isinstance(answer, bytes) else answer) or int(replies.repeated)
    return answers


def _end_and_send(keys: Keys, one: Transition) -> Operation[int]:
    """End the lease of a message, and send what was kept for its end. Return 1, 0 or `KEPT` like end_again.lua."""
    token, end = _proof(one) if one.lease_until_ms is not None else (one.token, "")
    fixed = (keys.running, keys.msg, keys.state, keys.suspect, keys.error, keys.sets, keys.timer, keys.count)
    name = set_name(one.queue, one.key)
    while True:
        arguments: list[Argument] = [keys.channel, keys.most_bytes, one.id, token, end, one.state]
        arguments += [TOTALS.get(one.action, ""), one.failures, one.crashes, _line(one.error or ""), one.detail]
        replies = yield [Call(load("end_again"), [*fixed, keys.again, keys.wait(name)], arguments)]
        (answer,) = replies
        if not isinstance(answer, bytes):
            return answer or int(replies.repeated)
        (name,) = names_of_sets([answer])


class Unconfirmed:
    """The leases whose end was sent to a node that did not answer, so that it is not known whether they have ended."""

    def __init__(self) -> None:
        self._leases: dict[LeaseId, None] = {}  # the one that was sent last at the end

    def heard(
        self, transitions: Sequence[Transition], held: Sequence[bool | CancelRequest | None]
    ) -> Sequence[bool | CancelRequest | None]:
        """Return `held`, but with True instead of False for a lease that an unanswered call may have ended before."""
        if not self._leases and None not in held:
            return held
        answers = []
        for one, answer in zip(transitions, held, strict=True):
            lease = (one.id, one.token)
            answers.append(answer if answer is None else answer or lease in self._leases)
            self._leases.pop(lease, None)
            if answer is None:
                self._leases[lease] = None
        while len(self._leases) > MOST_UNCONFIRMED:
            del self._leases[next(iter(self._leases))]
        return answers


def _settle_call(keys: Keys, state: State, name: str, transitions: Sequence[Transition]) -> Call:
    match state:
        case State.FINISHED:
            ids: list[Argument] = [one.id for one in transitions]
            tokens: list[Argument] = [one.token for one in transitions]
            return Call(load("finish"), (keys.running, keys.msg, keys.state, keys.count, keys.again), ids + tokens)
        case State.FAILED:
            buried: list[Argument] = []
            for one in transitions:
                token, end = _proof(one) if one.lease_until_ms is not None else (one.token, "")
                buried += (one.id, token, end, one.failures, one.crashes, _line(one.error or ""), one.detail)
            return Call(load("bury"), (keys.running, keys.msg, keys.state, keys.error, keys.count, keys.again), buried)
        case State.CANCELLED:
            cancelled: list[Argument] = []
            for one in transitions:
                cancelled += (one.id, *(_proof(one) if one.lease_until_ms is not None else (one.token, "")))
            fixed = (keys.running, keys.msg, keys.state, keys.count, keys.again)
            return Call(load("cancel_running"), fixed, cancelled)
        case State.RUNNING:
            pairs = [value for one in transitions for value in (one.id, one.token)]
            return Call(load("interrupt"), (keys.running, keys.state), [INTERRUPT_MS, *pairs])
        case _:
            again: list[Argument] = [keys.channel]
            for one in transitions:
                token, end = _proof(one) if one.lease_until_ms is not None else (one.token, "")
                suspect = "1" if one.crashes and one.is_suspect else "0"
                delay = "" if one.delay_ms is None else one.delay_ms
                at = "" if one.at_ms is None else one.at_ms
                error, is_new = ("", "0") if one.error is None else (_line(one.error), "1")
                # One text, because packing one more argument costs more than formatting it here.
                facts = (
                    f"{end},{suspect},{one.failures},{one.crashes},{delay},{at},{is_new},{TOTALS.get(one.action, '')}"
                )
                again += (one.id, token, facts, error)
            names = (
                keys.running,
                keys.state,
                keys.suspect,
                keys.sets,
                keys.timer,
                keys.count,
                keys.again,
                keys.wait(name),
            )
            return Call(load("requeue"), names, again)


def _proof(one: Transition) -> tuple[int | str, int | str]:
    """Return the token and the end of a lease that ran out. Both prove that it is still the same lease.

    The token is "" if someone else has left a message in `running` without one. Only a lapse can end such a lease.
    """
    return one.token or "", one.lease_until_ms or 0


def _line(error: str) -> str:
    """Return an error with spaces for the characters that separate the fields of a state."""
    return error.replace("\x1e", " ").replace("\x1f", " ")


def _answer(reply: Reply) -> bool | CancelRequest:
    """Return an answer of a script about a lease: a text says who has asked to cancel the message."""
    if isinstance(reply, bytes):
        return read_cancel_request(reply.decode(errors="replace")) or True
    return bool(reply)


def renew(
    keys: Keys, leases: Sequence[Claimed], lease_ms: int, progress: Mapping[LeaseId, str] = NO_PROGRESS
) -> Operation[list[bool | CancelRequest]]:
    """Make leases end `lease_ms` from now, and write how far their handlers are.

    Return whether each was still held, or who has asked to cancel its message.
    """
    calls = []
    for page in pages(leases, CALL):
        parts: list[Argument] = []
        for one in page:
            parts += (one.id, one.token, progress.get((one.id, one.token), ""))
        calls.append(Call(load("renew"), (keys.running, keys.state), [lease_ms, *parts]))
    if not calls:
        return []
    replies = yield calls
    return [_answer(answer) for reply in replies for answer in reply]
