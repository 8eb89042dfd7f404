"""How often a message may start: what was sent with it says so, or its handler."""

from typing import Protocol


class Terms(Protocol):
    """What the header or the row of a message has, and its handler."""

    @property
    def at_most_once(self) -> bool: ...

    @property
    def max_attempts(self) -> int | None: ...


def is_at_most_once(sent: Terms | None, handler: Terms | None) -> bool:
    """Whether a message must not start a second time, whichever of the two says so."""
    return bool((sent is not None and sent.at_most_once) or (handler is not None and handler.at_most_once))


def max_attempts(sent: Terms | None, handler: Terms | None) -> int | None:
    """How many attempts a message may have: its own number, else its handler's; None where neither is known."""
    if is_at_most_once(sent, handler):
        return 1
    if sent is not None and sent.max_attempts is not None:
        return sent.max_attempts
    return None if handler is None else handler.max_attempts
