"""Name everything on the server, and find the route of a delay through the levels.

The levels are the binary topology that NServiceBus describes and kombu builds too: 28 topic exchanges, each with a
queue whose messages expire after 2^level seconds. The bits of the delay, highest first, are the words of the routing
key. At each level a 1 leads into the level's queue, and to the next exchange when the message has expired there; a 0
leads to the next exchange at once. All messages of a queue have the same delay, so none waits behind a longer one.
"""

import hashlib
from functools import lru_cache
from urllib.parse import quote

from django.core.exceptions import ImproperlyConfigured

LEVELS = 28
LONGEST_S = 2**LEVELS - 1
"""The longest delay, over eight years."""

MOST_BYTES = 160
"""The most bytes of an `address`. It follows the words of the levels in a routing key, which has at most 255 bytes."""
MOST_BYTES_OF_PREFIX = 255 - len(".ready.") - MOST_BYTES


class Names:
    """All names for one prefix. Each begins with it and a dot, so a permission on `^prefix[.]` is enough."""

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
        """The exchange for messages that tell every worker that pauses have changed."""
        self.error = f"{prefix}.error"
        """A queue for messages that are no alarms; nobody reads it."""
        self.stray = f"{prefix}.stray"
        """An exchange and its queue, for due messages whose own queue was deleted."""
        self.register = f"{prefix}.register"
        """The queue that holds the shared state."""
        self.set_up = f"{prefix}.setup"
        """The queue that one connection has to itself while it declares the others."""

    def level(self, level: int) -> str:
        """Return the name of a level's exchange, and of its queue."""
        return f"{self.prefix}.level.{level:02}"

    def entry(self, level: int) -> str:
        """Return the name of an exchange that leads into a level's queue without reading the routing key."""
        return f"{self.prefix}.entry.{level:02}"

    def ready(self, queue: str, key: str) -> str:
        """Return the name of RabbitMQ's queue in which the alarms of a (queue, key) arrive."""
        return f"{self.prefix}.ready.{address(queue, key)}"

    def route(self, seconds: int, queue: str, key: str) -> tuple[str, str]:
        """Return the exchange and the routing key of an alarm that is to arrive after a whole number of seconds."""
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
