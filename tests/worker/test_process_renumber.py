"""Workers and senders are replaced one after the other, amid a load, by some with another number of shards."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace

import pytest

from django_delayq.brokers.base import Header, Put
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import Alias
from django_delayq.errors import BrokerRefused
from tests import servers
from tests.brokers.rig import OPTIONS
from tests.servers.cluster import until
from tests.servers.redis import Server
from tests.worker.processes import Line, Site

OLD, NEW = 3, 4
LOAD = 300
HELD = ["held by the old number", "held by both"]

Start = Callable[..., Site]


@pytest.fixture
def redis_binary() -> str:
    """One will do: it is about the workers."""
    return next(iter(servers.redis_binaries()), "") or servers.missing("redis-server")


@pytest.fixture
def line(redis_server: Server) -> Iterator[Line]:
    line = Line(redis_server.directory / "renumber.sock")
    with closing(line):
        yield line
    line.path.unlink()


@pytest.fixture
def site(redis_url: str, line: Line, process_env: dict[str, str]) -> Iterator[Start]:
    """A site after a deploy: with the numbers of shards that its settings have."""
    with ExitStack() as stack:

        def deployed(shards: int, old_shards: int | None = None) -> Site:
            alias = {
                "BROKER": "django_delayq.brokers.redis.RedisBroker",
                "LOCATION": redis_url,
                "STORE": None,
                "OPTIONS": {"shards": shards, "old_shards": old_shards},
            }
            env = process_env | {
                "DJANGO_SETTINGS_MODULE": "tests.worker.settings",
                "DELAYQ_TEST": json.dumps(alias),
                "DELAYQ_TEST_LINE": str(line.path),
            }
            options = replace(OPTIONS, shards=shards, old_shards=old_shards)
            broker = RedisBroker(Alias("default", location=redis_url, options=options))
            site = Site(broker, env, line)
            stack.callback(broker.close)
            stack.callback(site.close)
            return site

        yield deployed


def test_each_message_runs_once_while_the_number_of_shards_changes_under_load(site: Start, line: Line) -> None:
    before, both = site(OLD), site(NEW, OLD)
    first = before.worker()
    first.until_says("Queues:")
    before.send(HELD[0], key="hold")
    held = [line.next()]
    second = both.worker()
    second.until_says("Queues:")
    senders = [threading.Thread(target=_send_load, args=(each, sign)) for each in (before, both) for sign in "+-"]
    for sender in senders:
        sender.start()
    until(lambda: both.broker.counts().totals["sent"] > LOAD // 4)
    assert isinstance(both.broker, RedisBroker)
    both.broker.switch_shards()
    first.until_says("OPTIONS[")  # it claims no more
    held[0].release()
    assert first.stop() == 0
    for sender in senders:
        sender.join()
    ran = Counter(line.next().id for _ in range(2 * LOAD + 1))
    assert set(ran.values()) == {1}
    assert second.stop() == 0
    assert line.none_waits()
    assert both.totals()["finished"] == both.totals()["sent"] == 2 * LOAD + 1
    assert both.broker.change_of_shards().has_drained
    after = site(NEW)
    after.send("last")
    third = after.worker()
    assert line.next().id == "last"
    assert third.stop() == 0


def _send_load(site: Site, sign: str) -> None:
    """Two senders send each id, at nearly the same moment: it is due only when both have."""
    due_ms = int(time.time() * 1000) + 4_000
    with suppress(BrokerRefused):  # once it is switched
        for n in range(LOAD):
            site.broker.put([Put(f"{sign}{n}", Header("default", "run"), b'""', at_ms=due_ms)])
            time.sleep(0.001)
