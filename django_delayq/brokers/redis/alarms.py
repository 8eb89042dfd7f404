"""Queries of alarms: one by one, and all of a wait set. Operations, as `scripts.py` defines them."""

from collections.abc import Iterator, Sequence

from django_delayq.brokers.base import AlarmInfo, pages
from django_delayq.brokers.redis.client import Call, Operation, Reply, plain
from django_delayq.brokers.redis.keys import Keys, set_name
from django_delayq.brokers.redis.records import US, as_int
from django_delayq.brokers.redis.scripts import load

CALL = 500
"""The most alarms that one script call looks for."""


def find_alarms(keys: Keys, queue: str, key: str, pks: Sequence[str]) -> Operation[list[AlarmInfo]]:
    """Return the alarms that there are for `pks`."""
    names = (keys.running, keys.wait(set_name(queue, key)))
    asked = list(pages(pks, CALL))
    if not asked:
        return []
    replies = yield [Call(load("alarms"), names, [US + pk.encode() for pk in page]) for page in asked]
    return [alarm for page, (now, *times) in zip(asked, replies, strict=True) for alarm in _found(page, times, now)]


def _found(pks: Sequence[str], times: Sequence[Reply], now_ms: int) -> Iterator[AlarmInfo]:
    for pk, due, end in zip(pks, times[::2], times[1::2], strict=True):
        if due is not None or end is not None:
            yield AlarmInfo(pk, _time(due), _time(end), now_ms)


def alarms(
    shards: Sequence[Keys], queue: str, key: str, after: str, count: int
) -> Operation[tuple[list[AlarmInfo], str]]:
    """Return a page of alarms, one shard after the other; `after` is "shard place cursor"."""
    shard, _, of_shard = after.partition(" ")
    nth = int(shard or 0)
    found, following = yield from _alarms(shards[nth], queue, key, of_shard, count)
    if not following:
        nth += 1
    return found, "" if nth == len(shards) else f"{nth} {following}"


def _alarms(keys: Keys, queue: str, key: str, after: str, count: int) -> Operation[tuple[list[AlarmInfo], str]]:
    """Return a page of one shard: of what waits, then of what runs, where alarms of other sets are skipped."""
    place, _, cursor = (after or "waiting 0").partition(" ")
    zset = keys.wait(set_name(queue, key)) if place == "waiting" else keys.running
    mark = US if place == "waiting" else US + US.join((queue.encode(), key.encode(), b""))
    ((scanned, page),) = yield [plain("ZSCAN", zset, cursor, "COUNT", count)]
    found = [(member[len(mark) :].decode(errors="replace"), as_int(score)) for member, score in _marked(page, mark)]
    following = int(scanned)
    if place == "waiting":
        return [AlarmInfo(pk, at) for pk, at in found], f"waiting {following}" if following else "running 0"
    return [AlarmInfo(pk, lease_end_ms=at) for pk, at in found], f"running {following}" if following else ""


def _marked(page: list[bytes], mark: bytes) -> list[tuple[bytes, bytes]]:
    pairs = zip(page[::2], page[1::2], strict=True)
    return [(member, score) for member, score in pairs if member.startswith(mark)]


def _time(score: Reply) -> int | None:
    return None if score is None else as_int(score)
