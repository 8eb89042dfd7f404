"""Pauses: fields of the meta hash, and notices on the wake-up channel. Operations, as `scripts.py` defines them."""

from django_delayq.brokers.figures import Pause
from django_delayq.brokers.redis.client import Call, Operation, colocated, plain
from django_delayq.brokers.redis.keys import Keys
from django_delayq.brokers.redis.queries import clock_ms, pairs
from django_delayq.brokers.redis.records import US
from django_delayq.brokers.redis.scripts import load
from django_delayq.brokers.redis.waiter import PAUSES

_FIELD = "pause:"


def pause(keys: Keys, pause_: Pause) -> Operation[None]:
    """Keep a pause, in the place of one of the same queue and key."""
    until = "" if pause_.until_ms is None else str(pause_.until_ms)
    said = f"{until}{US.decode()}{pause_.reason}"
    yield [Call(load("pause"), (keys.meta,), (_field(pause_.queue, pause_.key), said, keys.channel, PAUSES))]


def resume(keys: Keys, queue: str | None, key: str | None) -> Operation[bool]:
    """Drop a pause. Return whether it was in force."""
    before = yield from pauses(keys)
    yield [plain("HDEL", keys.meta, _field(queue, key)), plain("PUBLISH", keys.channel, PAUSES)]
    return any((each.queue, each.key) == (queue, key) for each in before)


def announce(keys: Keys) -> Operation[None]:
    """Have every worker read the pauses."""
    yield [plain("PUBLISH", keys.channel, PAUSES)]


def pauses(keys: Keys) -> Operation[list[Pause]]:
    """Return the pauses in force, by queue and key."""
    clock, fields = yield [colocated(keys.meta, "TIME"), plain("HGETALL", keys.meta)]
    return read_pauses(clock_ms(clock), fields)


def read_pauses(now_ms: int, fields: list[bytes]) -> list[Pause]:
    """Return the pauses in force, by queue and key, given all fields of the meta hash."""
    found = {name: pause for name, value in pairs(fields) if (pause := _read(name, value)) and pause.holds(now_ms)}
    return [found[name] for name in sorted(found)]


def _field(queue: str | None, key: str | None) -> str:
    """Return the field of a pause. It is unambiguous: no name is empty, and no queue has a colon in it."""
    return f"{_FIELD}{queue or ''}:{key or ''}"


def _read(name: bytes, value: bytes) -> Pause | None:
    """Return the pause in a field; None for another field, and for what someone else wrote."""
    try:
        field = name.decode()
        if not field.startswith(_FIELD):
            return None
        queue, _, key = field.removeprefix(_FIELD).partition(":")
        paused, until, reason = value.decode().split(US.decode(), 2)
        return Pause(queue or None, key or None, reason, int(until) if until else None, int(paused))
    except ValueError:
        return None
