"""Keys under our names that someone else has written. Redis answers WRONGTYPE and names none; TYPE tells which."""

from collections.abc import Iterable, Sequence

from redis.exceptions import ResponseError

from django_delayq.brokers.redis.keys import kind_of
from django_delayq.brokers.redis.scripts import Call, Reply


def is_wrong_type(replies: Iterable[Reply]) -> bool:
    """Whether one of the replies says that a key is of another type."""
    return any(
        isinstance(reply, ResponseError) and ("WRONGTYPE" in str(reply) or "wrong kind of value" in str(reply))
        for reply in replies
    )


def keys_of(calls: Sequence[Call]) -> list[str]:
    """Every key that the calls are about."""
    return list(dict.fromkeys(key for call in calls for key in call.keys))


def describe(keys: Sequence[str], types: Sequence[Reply]) -> list[str]:
    """Of the keys, with what TYPE answered for each, those that are not ours, in words. It may have been refused."""
    return [
        f"{key!r} is a {kind.decode()} and not our {kind_of(key)}"
        for key, kind in zip(keys, types, strict=True)
        if isinstance(kind, bytes) and kind.decode() not in ("none", kind_of(key))
    ]


def refusal(shown: str, wrong: Sequence[str]) -> str:
    """What is wrong, and the fix."""
    return (
        f"Redis at {shown}: {'; '.join(wrong)}: someone else writes under our prefix. "
        "Remove or rename it (RENAME), or give this site a prefix of its own (OPTIONS['prefix'])."
    )
