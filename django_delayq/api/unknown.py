"""Say what to write in place of an option or a method that only other libraries have."""

from collections.abc import Collection, Iterable, Mapping
from typing import Never

from django_delayq.core.message import When
from django_delayq.support.validation import did_you_mean, short_repr

SEND_OPTIONS = (*When.__annotations__, "on_commit", "using")
"""The options of `send_delay_message`."""
_OPTIONS_ELSEWHERE = {
    "countdown": "delay=...",
    "eta": "at=...",
    "run_after": "at=... or delay=...",
    "task_id": "id=...",
    "args": "the data as the first argument",
    "kwargs": "the data as the first argument",
}


def refuse_unknown(
    options: Iterable[str],
    known: Collection[str] = SEND_OPTIONS,
    elsewhere: Mapping[str, str] = _OPTIONS_ELSEWHERE,
) -> None:
    """Raise `TypeError` for the first option that is not `known` (those of a send), with the one to write instead."""
    for name in options:
        if name not in known:
            instead = elsewhere.get(name)
            fix = f"write {instead}." if instead else did_you_mean(name, known)
            raise TypeError(f"there is no option {name!r}: {fix}")


def one_value(values: tuple[object, ...]) -> TypeError:
    """Return the error for a send with several values as data, because a message has one."""
    return TypeError(
        f"a message has one value as data, not {len(values)}; send a list or a dict: {short_repr([*values])}."
    )


class NoMethod:
    """A descriptor with the name of a method that the tasks of other libraries have, but ours and handlers don't.

    Looking it up raises `AttributeError`, which says what to write instead. A `__getattr__` of the handler would cost
    each send 0.3 µs, because it makes Python look up all of the handler's attributes the slow way.
    """

    def __init__(self, instead: str) -> None:
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, handler: object | None, owner: type) -> Never:
        raise AttributeError(f"{short_repr(handler or owner)} has no attribute {self._name!r}; write {self._instead}.")
