"""Claim what is due. Operations, as `client/calls.py` defines them."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from django_delayq.brokers.base import Alarm, Claimed, ClaimRequest, Claims
from django_delayq.brokers.redis.client import Call, Operation, Reply
from django_delayq.brokers.redis.keys import Keys, set_name
from django_delayq.brokers.redis.records import US, as_int, is_newer, unpack_message, unpack_state
from django_delayq.brokers.redis.scripts import CallCells, load
from django_delayq.support.logging import logger

MOST = 100
"""The most messages that one claim gives: what lua/claim.lua leases."""

MOST_SETS = 32
"""The most wait sets that one claim names."""


@dataclass(slots=True)
class Claimant:
    """The worker that claims, and for how long."""

    worker: str
    lease_ms: int

    @property
    def padded(self) -> str:
        """Return the name, so wide that a state exceeds 64 bytes: up to that, Redis scans `state` as a list."""
        return self.worker.ljust(40)


def claim(
    keys: Keys, cells: CallCells, requests: Mapping[str, ClaimRequest], by: Claimant
) -> Operation[tuple[Claims, int]]:
    """Claim from one shard, of at most `MOST_SETS` wait sets: `requests` has them by name.

    Return the claims, and until when (server time) a worker that has slots left may sleep.
    """
    token = secrets.randbits(62) + 1
    waits = map(keys.wait, requests)
    counts = [n for request in requests.values() for n in (request.count, request.idle_slots)]
    cell = cells.take()
    call = Call(
        load("claim"),
        (keys.running, keys.msg, keys.state, keys.sets, keys.timer, keys.call(cell), keys.count, *waits),
        (token, by.lease_ms, by.padded, keys.channel, *counts),
    )
    try:
        (reply,) = yield [call]
    finally:
        cells.release((cell,))
    now, next_due, sleep, left = (int(float(value)) for value in reply[:4])
    claimed = Claims([], [], now, next_due if next_due >= 0 else None, bool(left))
    _read(reply[4:], token, claimed)
    return claimed, sleep


def claim_suspect(keys: Keys, cells: CallCells, requests: Sequence[ClaimRequest], by: Claimant) -> Operation[Claims]:
    """Claim one suspect of the wanted sets, if one is due."""
    token = secrets.randbits(62) + 1
    names = [set_name(request.queue, request.key) for request in requests if request.count > 0]
    cell = cells.take()
    call = Call(
        load("claim_suspect"),
        (keys.running, keys.msg, keys.state, keys.suspect, keys.timer, keys.call(cell), keys.count),
        (token, by.lease_ms, by.padded, *names),
    )
    try:
        (reply,) = yield [call]
    finally:
        cells.release((cell,))
    claimed = Claims([], [], int(reply[0]), None)
    _read(reply[1:], token, claimed)
    return claimed


def _read(described: list[Reply], token: int, claims: Claims) -> None:
    values = iter(described)
    for member, due, message, state in zip(values, values, values, values, strict=True):
        if message and is_newer(message):
            _warn_of_newer(message.partition(US)[0].decode())
        elif message:
            header, body = unpack_message(message)
            claimed = Claimed(member.decode(errors="replace"), token, as_int(due), header, body)
            if state:
                record = unpack_state(state)
                claimed.failures, claimed.crashes = record.failures, record.crashes
            claims.messages.append(claimed)
        elif member[:1] == US:
            queue, key, pk = member[1:].decode(errors="replace").split("\x1f", 2)
            claims.alarms.append(Alarm(queue, key, pk))
        else:
            claims.orphans.append(member.decode(errors="replace"))


@cache
def _warn_of_newer(format: str) -> None:
    """Warn of messages of a later format, once in a process for each format."""
    logger.warning(
        "Messages of format %s wait here, which a later version of django-delayq has sent. They are left to workers of "
        "that version: start some.",
        format,
    )
