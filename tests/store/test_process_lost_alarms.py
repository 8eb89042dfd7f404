"""Redis loses what it holds while many messages wait and many handlers run: all run, none twice at once.

DELAYQ_SCALE=1000 is 200,000 that wait and 500 that run, for three minutes: `-o faulthandler_timeout=0` lets it.
`-o log_cli=1 -o log_level=INFO` tells how late they were at most.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from django_delayq import Send, send_delay_messages
from django_delayq.store import DatabaseBackend
from tests.scale import scaled
from tests.servers import Server
from tests.store.support import alarms, site_on
from tests.worker.processes import PATIENCE_S, Site

_logger = logging.getLogger(__name__)

WAITING, RUNNING = scaled(200), min(scaled(20), 500)
DELAY_S = 4 + WAITING // 1_500
"""Long enough for all alarms to be put, and lost, before the first message is due."""

pytestmark = pytest.mark.parametrize(  # what dies is the Redis: two databases will do
    "database", ["sqlite_database", "postgres_database"], ids=["sqlite", "postgresql"], indirect=True
)


@pytest.fixture
def server(start_redis: Callable[..., Server]) -> Server:
    """A Redis of this test's own, which keeps what SAVE has written."""
    return start_redis()


@pytest.fixture
def redis_url(server: Server) -> str:
    """LOCATION of that one."""
    return server.url


@pytest.fixture
def site(stored_delayq: dict[str, Any], database_env: dict[str, str], server: Server) -> Iterator[Site]:
    """A site on it."""
    with site_on(stored_delayq, database_env, server) as site:
        yield site


def _flush(server: Server) -> None:
    with server.client() as client:
        client.flushall()


def _save(server: Server) -> None:
    with server.client() as client:
        client.save()


def _restart_on_old_snapshot(server: Server) -> None:
    server.kill()
    server.start()


def _send(site: Site, prefix: str, count: int) -> None:
    """Send messages that wait, and return when Redis has all of them."""
    assert isinstance(site.broker, DatabaseBackend)
    before = alarms(site.broker)
    sends = (Send("journal", "", id=f"{prefix}{n}", delay=DELAY_S) for n in range(count))
    assert send_delay_messages(sends).created == count
    while alarms(site.broker) < before + count:
        site.broker.queue.timer.wait(0.1)


def _journal(site: Site, count: int) -> list[str]:
    """Return what the handlers wrote, when so many messages have run."""
    path = Path(f"{site.line.path}.journal")
    until = monotonic() + PATIENCE_S + 2 * DELAY_S
    while not path.exists() or path.read_bytes().count(b"\n") < 2 * count:
        assert monotonic() < until, "not all have run"
        site.broker.queue.wait(0.2)
    return path.read_text().splitlines()


@pytest.mark.parametrize("fault", [_flush, _restart_on_old_snapshot], ids=["flushed", "on an old snapshot"])
def test_all_run_and_none_twice_at_once(site: Site, server: Server, fault: Callable[[Server], None]) -> None:
    workers = [site.worker(), site.worker()]
    site.send(*(f"held-{n}" for n in range(RUNNING)), key="crowd")
    held = [site.line.next() for _ in range(RUNNING)]
    _send(site, "saved-", WAITING // 2)
    _save(server)
    _send(site, "later-", WAITING - WAITING // 2)
    fault(server)
    journal = [line.split() for line in _journal(site, WAITING)]
    _logger.info("at most %d ms late", max(int(words[1]) for words in journal if len(words) == 2))
    for one in held:
        one.release()
    assert {site.line.next().what for _ in held} == {"ran"}
    assert [worker.stop() for worker in workers] == [0, 0]
    assert sum(worker.text.count("The broker is new, or has lost its alarms") for worker in workers)
    assert Counter(id for id, *_ in journal) == dict.fromkeys(_ids(), 2)  # each started and ended once
    assert site.totals()["finished"] == WAITING + RUNNING
    assert site.line.none_waits()


def _ids() -> list[str]:
    half = WAITING // 2
    return [*(f"saved-{n}" for n in range(half)), *(f"later-{n}" for n in range(WAITING - half))]
