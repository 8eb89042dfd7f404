"""Fixtures of the worker's tests."""

import contextlib
import os
import resource
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import get_alias
from django_delayq.worker import prefetch
from tests import servers
from tests.servers import Server
from tests.worker.processes import Site, site_with
from tests.worker.rig import PATIENCE_S, Rig

FD_SETSIZE = 1024


@pytest.fixture
def redis_binary() -> str:
    """One will do: the brokers' suite and test_process_outages hold each version of Redis to what it promises."""
    return next(iter(servers.redis_binaries()), "") or servers.missing("redis-server")


@pytest.fixture(autouse=True)
def _slots_end_with_their_test() -> Iterator[None]:
    """Wait until what a slot of a stopped worker still runs has ended and is logged, before the next test begins."""
    before = set(threading.enumerate())
    yield
    until = time.monotonic() + 1.0  # a test may leave slots that wait for work: they log nothing
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("delayq-"):
            thread.join(max(until - time.monotonic(), 0))


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A broker for workers, which end with the test."""
    rig = Rig()
    yield rig
    rig.stop()


@pytest.fixture
def known_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler is known as fast once it has run, though the machine is slow: what waits behind it is claimed along."""
    monkeypatch.setattr(prefetch, "TIME_SLICE_S", PATIENCE_S)


@pytest.fixture
def many_files() -> Iterator[None]:
    """Open as many descriptors as `select.select` can take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * FD_SETSIZE:
        pytest.skip(f"this process may have no more than {hard} files open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * FD_SETSIZE), hard))
    with open(os.devnull) as file, contextlib.ExitStack() as opened:
        for _ in range(FD_SETSIZE):
            opened.callback(os.close, os.dup(file.fileno()))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Something that handlers wait for; opened at the end of the test, so that no thread stays."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def site(redis_delayq: dict[str, Any], process_env: dict[str, str], redis_server: Server) -> Iterator[Site]:
    """A site with handlers on Redis, with leases of 2 s."""
    redis_delayq["OPTIONS"] = {"lease": "2s"}
    with site_with(redis_delayq, RedisBroker(get_alias()), process_env, redis_server.directory) as site:
        yield site
