"""Claiming: what is due, leased. Operations, as `scripts.py` defines them."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from django_delayq.brokers.base import Alarm, Claimed, Claims, Want
from django_delayq.brokers.redis.keys import Keys, set_name
from django_delayq.brokers.redis.records import counts_of, unpack_message
from django_delayq.brokers.redis.scripts import Call, Operation, Reply, load, plain
from django_delayq.brokers.redis.slots import Slots

MOST_SETS = 32
"""The most wait sets that a claim names without having looked which of them have something due."""

_PER_MESSAGE = 4


@dataclass(slots=True)
class Claimant:
    """Who claims, and for how long."""

    worker: str
    lease_ms: int


def claim(keys: Keys, slots: Slots, wants: Sequence[Want], by: Claimant) -> Operation[tuple[Claims, int]]:
    """Claims, and until when (server time) a worker that has hands left may sleep."""
    wants = [want for want in wants if want.count > 0]
    if not wants:
        (clock,) = yield [plain("TIME")]
        now = int(clock[0]) * 1000 + int(clock[1]) // 1000
        return Claims([], [], now, None), now + 1000
    if len(wants) > MOST_SETS:
        names = [set_name(want.queue, want.key) for want in wants]
        (reply,) = yield [Call(load("look"), (keys.sets, keys.timer), names)]
        due = {name.decode() for name in reply[2:]}
        next_due_ms = int(reply[1]) if int(reply[1]) >= 0 else None
        wants = [want for want, name in zip(wants, names, strict=True) if name in due][:MOST_SETS]
        if not wants:
            return Claims([], [], int(reply[0]), next_due_ms), next_due_ms or int(reply[0]) + 1000
    token = secrets.randbits(62) + 1
    with slots.taken(1) as (slot,):
        waits = [keys.wait(set_name(want.queue, want.key)) for want in wants]
        call = Call(
            load("claim"),
            (keys.running, keys.msg, keys.state, keys.sets, keys.timer, keys.call(slot), keys.count, *waits),
            (token, by.lease_ms, by.worker, keys.channel, *(want.count for want in wants)),
        )
        (reply,) = yield [call]
    now, next_due, sleep, left = (int(value) for value in reply[:4])
    messages, alarms = _read(reply, 4, token)
    return Claims(messages, alarms, now, next_due if next_due >= 0 else None, bool(left)), sleep


def claim_suspect(keys: Keys, slots: Slots, wants: Sequence[Want], by: Claimant) -> Operation[Claims]:
    """One suspect of the wanted sets, if one is due."""
    token = secrets.randbits(62) + 1
    names = [set_name(want.queue, want.key) for want in wants if want.count > 0]
    with slots.taken(1) as (slot,):
        call = Call(
            load("claim_suspect"),
            (keys.running, keys.msg, keys.state, keys.suspect, keys.timer, keys.call(slot), keys.count),
            (token, by.lease_ms, by.worker, *names),
        )
        (reply,) = yield [call]
    return Claims(_read(reply, 1, token)[0], [], int(reply[0]), None)


def _read(reply: list[Reply], start: int, token: int) -> tuple[list[Claimed], list[Alarm]]:
    messages, alarms = [], []
    for i in range(start, len(reply), _PER_MESSAGE):
        member, due, message, state = reply[i : i + _PER_MESSAGE]
        if member[:1] == b"\x1f":
            queue, key, pk = member[1:].decode().split("\x1f")
            alarms.append(Alarm(queue, key, pk))
        elif message:
            header, body = unpack_message(message)
            failures, crashes = counts_of(state)
            due_ms = int(float(due))
            messages.append(Claimed(member.decode(), token, due_ms, header, body, failures, crashes))
    return messages, alarms
