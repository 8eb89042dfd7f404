"""The names of everything on the server, and the route that a delay takes through the levels.

The levels are the binary topology that NServiceBus describes and kombu builds too: 28 topic exchanges, each with a
queue whose messages expire after 2^level seconds. The bits of the delay, highest first, are the words of the routing
key: 1 leads into the level's queue and, once expired, to the next exchange, 0 leads there at once. Each queue holds one
length of delay only, so no message waits behind a longer one.
"""

import hashlib
from functools import lru_cache
from urllib.parse import quote

from django.core.exceptions import ImproperlyConfigured

LEVELS = 28
LONGEST_S = 2**LEVELS - 1
"""Eight and a half years."""

MOST_BYTES = 160
"""The longest address: with the words of the levels it must stay below the 255 bytes of a routing key."""
MOST_BYTES_OF_PREFIX = 255 - len(".ready.") - MOST_BYTES


class Names:
    """All names of one prefix. None of them needs a permission outside of `^prefix[.]`."""

    def __init__(self, prefix: str) -> None:
        if len(prefix.encode()) > MOST_BYTES_OF_PREFIX:
            raise ImproperlyConfigured(
                f"OPTIONS['prefix']={prefix!r} is too long for RabbitMQ, whose names have 255 bytes at most; give one"
                f" of at most {MOST_BYTES_OF_PREFIX} bytes."
            )
        self.prefix = prefix
        self.due = f"{prefix}.due"
        """The last exchange: the queues of the (queue, key) pairs are bound to it."""
        self.direct = f"{prefix}.direct"
        """The exchange of all other queues, bound by their own names."""
        self.pause_notices = f"{prefix}.news"
        """The exchange that tells every worker of a pause."""
        self.error = f"{prefix}.error"
        """A queue for messages that are no alarms; nobody reads it."""
        self.stray = f"{prefix}.stray"
        """An exchange and its queue, for messages whose queue behind the last exchange was deleted."""
        self.register = f"{prefix}.register"
        self.set_up = f"{prefix}.setup"
        """The queue that one connection has to itself while it declares the others."""

    def level(self, level: int) -> str:
        """Return the name of a level's exchange, and of its queue."""
        return f"{self.prefix}.level.{level:02}"

    def entry(self, level: int) -> str:
        """Return the exchange that leads into a level's queue whatever the routing key: the server need not read it."""
        return f"{self.prefix}.entry.{level:02}"

    def ready(self, queue: str, key: str) -> str:
        """Return the queue in which the alarms of a (queue, key) arrive."""
        return f"{self.prefix}.ready.{address(queue, key)}"

    def route(self, seconds: int, queue: str, key: str) -> tuple[str, str]:
        """Return the exchange and the routing key of an alarm that arrives after whole seconds."""
        if not seconds:
            return self.direct, self.ready(queue, key)
        top = seconds.bit_length() - 1
        return self.entry(top), f"{'.'.join(f'{seconds:0{LEVELS}b}')}.{address(queue, key)}"


@lru_cache(maxsize=1_000)
def address(queue: str, key: str) -> str:
    """Return one word for a (queue, key), without dots, wildcards and spaces."""
    word = f"{quote(queue, safe='')}/{quote(key, safe='')}".replace(".", "%2E")
    if len(word) <= MOST_BYTES:
        return word
    return f"{word[: MOST_BYTES - 40]}!{hashlib.sha256(word.encode()).hexdigest()[:32]}"
