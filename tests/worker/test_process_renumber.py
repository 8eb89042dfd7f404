"""Workers and senders are replaced one after the other, amid a load, by some with another number of shards."""

import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace

import pytest

from django_delayq.brokers.base import Header, Put
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import Alias
from django_delayq.errors import BrokerRefused
from tests.brokers.rig import OPTIONS
from tests.servers.cluster import until
from tests.servers.redis import Server
from tests.worker.processes import Call, Line, Site

OLD, NEW = 3, 4
LOAD = 300
IDS = [f"{n}" for n in range(LOAD)]

Start = Callable[..., Site]


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
    first, second = before.worker(), both.worker()
    first.until_says("Queues:")
    second.until_says("Queues:")
    ended: list[str] = []
    held = [_hold(before, line, first.pid, ended), _hold(both, line, second.pid, ended)]
    senders = [threading.Thread(target=_send_load, args=(each,)) for each in (before, both, both)]
    for sender in senders:
        sender.start()
    until(lambda: both.broker.counts().totals["sent"] > LOAD // 4)
    assert isinstance(both.broker, RedisBroker)
    both.broker.switch_shards()
    for sender in senders:
        sender.join()

    second.signal(signal.SIGSTOP)
    assert both.broker.reschedule(IDS) == [True] * LOAD
    first.until_says("the number of shards was changed")
    second.signal(signal.SIGCONT)
    for call in held:
        call.release()
    ran = Counter([*ended, *(line.next().id for _ in range(LOAD + len(held)))])
    assert set(ran.values()) == {1}
    assert set(IDS) < set(ran)
    assert [first.stop(), second.stop()] == [0, 0]
    assert line.none_waits()
    assert both.totals()["finished"] == both.totals()["sent"] == ran.total()
    assert both.broker.end_change_of_shards().has_ended
    site(NEW).send("last")


def _hold(site: Site, line: Line, pid: int, ended: list[str]) -> Call:
    """A call of a message that this worker holds. What others took before it has ended: they have hands again."""
    calls: list[Call] = []
    while not calls or calls[-1].pid != pid:
        site.send(f"held-{pid}-{len(calls)}", key="hold")
        calls.append(line.next())
    *others, call = calls
    for other in others:
        other.release()
        ended.append(line.next().id)
    return call


def _send_load(site: Site) -> None:
    """Several send each id, at nearly the same moment; it is due when they are through."""
    with suppress(BrokerRefused):  # once it is switched
        for id in IDS:
            site.broker.put([Put(id, Header("default", "run"), b'""', 600_000)])
