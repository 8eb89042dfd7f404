"""Say what to write in place of an option or a method that sends do not have, such as those of other libraries."""

from collections.abc import Iterable

from django_delayq.core.message import When
from django_delayq.support.validation import did_you_mean, short_repr

_OPTIONS = (*When.__annotations__, "on_commit", "using")
_OPTIONS_ELSEWHERE = {
    "countdown": "delay=...",
    "eta": "at=...",
    "run_after": "at=... or delay=...",
    "task_id": "id=...",
    "args": "the data as the first argument",
    "kwargs": "the data as the first argument",
}
_METHODS_ELSEWHERE = {
    "delay": "send(data)",
    "apply_async": 'send(data, delay="30m")',
    "delay_on_commit": "send(data): it is a part of the transaction",
    "enqueue": "send(data)",
    "aenqueue": "asend(data)",
    "schedule": 'send(data, delay="30m")',
    "send_with_options": 'send(data, delay="30m")',
}


def refuse_unknown(options: Iterable[str]) -> None:
    """Raise `TypeError` for the first option that a send does not have, with the one to write instead."""
    for name in options:
        if name not in _OPTIONS:
            instead = _OPTIONS_ELSEWHERE.get(name)
            fix = f"write {instead}." if instead else did_you_mean(name, _OPTIONS)
            raise TypeError(f"there is no option {name!r}: {fix}")


def one_value(values: tuple[object, ...]) -> TypeError:
    """Return the error for several values where a message has one."""
    return TypeError(
        f"a message has one value as data, not {len(values)}; send a list or a dict: {short_repr([*values])}."
    )


def no_method(name: str, handler: object) -> AttributeError:
    """Return the error for a method that handlers do not have."""
    instead = _METHODS_ELSEWHERE.get(name)
    fix = f"; write {instead}." if instead else ""
    return AttributeError(f"{handler!r} has no attribute {name!r}{fix}")
