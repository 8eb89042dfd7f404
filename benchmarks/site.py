"""A site: this process sends to one private Redis and reads from it, like a Django project."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Unpack

from django.test.utils import override_settings

from benchmarks.delayed import noop
from benchmarks.server import AnyServer, Server, private_server
from benchmarks.settings import delayq_at
from django_delayq import Send, send_delay_messages
from django_delayq.brokers.redis.shards import Keys
from django_delayq.conf import Options
from django_delayq.core.message import When

KEYS = Keys(Options().prefix)
"""The names of our keys in Redis, for floors and for reads that bypass the broker."""

DATA = {"order": 1234567, "email": "customer@example.com", "note": "Please leave it at the back door, thanks."}
DATA_BYTES = b'{"order":1234567,"email":"customer@example.com","note":"Please leave it at the back door, thanks."}'


@contextmanager
def sending_to(server: AnyServer, shards: int | None = None) -> Iterator[None]:
    """Put DELAYQ["default"] on this server for the block."""
    with override_settings(DELAYQ=delayq_at(server.url, shards=shards)):
        yield


@contextmanager
def site(shards: int | None = None) -> Iterator[Server]:
    """Yield a private server, to which this process sends."""
    with private_server() as server, sending_to(server, shards):
        yield server


def fill(count: int, **when: Unpack[When]) -> None:
    """Send `count` messages with 100 bytes of data to the handler that does nothing."""
    send_delay_messages(noops(count, **when))


def noops(count: int, **when: Unpack[When]) -> Iterator[Send]:
    """Return an iterator that makes `count` messages for the handler that does nothing."""
    return (noop.prepare(DATA, **when) for _ in range(count))
