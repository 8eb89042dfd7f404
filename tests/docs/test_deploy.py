"""What docs/how-to/deploy.md says about Redis and systemd holds."""

import configparser
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from django_delayq.brokers.base import Alarm, Header, Put, Settlement, Verb, Want, WorkerInfo
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import Alias
from django_delayq.errors import BrokerRefused
from tests.docs.site import ROOT
from tests.servers import Server

PAGE = (ROOT / "docs/how-to/deploy.md").read_text()
WORKER = "w"
LEASE_MS = 15_000


@pytest.fixture
def restricted(start_redis: Callable[..., Server], tmp_path: Path) -> Iterator[tuple[Server, RedisBroker]]:
    """A server with the page's user, and a broker that logs in as that user."""
    (line,) = re.findall(r"^user delayq .*$", PAGE, re.MULTILINE)
    (tmp_path / "redis.conf").write_text(line + "\n")
    server = start_redis(include=str(tmp_path / "redis.conf"))
    broker = RedisBroker(Alias("default", location=server.url.replace("unix://", "unix://delayq:a-long-password@")))
    yield server, broker
    broker.close()


def put(broker: RedisBroker, *ids: str, key: str = "k") -> None:
    broker.put([Put(id, Header("q", key), b"1") for id in ids])


def test_the_user_of_the_page_may_do_all_that_a_broker_does(restricted: tuple[Server, RedisBroker]) -> None:
    _, broker = restricted
    put(broker, *(verb.value for verb in Verb), "cancelled", "purged")
    assert broker.cancel(["cancelled"]) == broker.purge(["purged"]) == [True]
    assert broker.reschedule(["finish"], at_ms=0) == [True]
    claims = broker.claim([Want("q", "k", 100)], lease_ms=LEASE_MS, worker=WORKER)
    leases = [(claimed.id, claimed.token) for claimed in claims.messages]
    assert all(broker.renew(leases, LEASE_MS))
    ends = [Settlement(id, token, Verb(id), "q", "k", 60_000) for id, token in leases]
    assert broker.settle(ends) == [True] * len(Verb)
    broker.upkeep(lease_ms=LEASE_MS)
    assert broker.begin_rebuild(LEASE_MS)
    assert broker.begin_rebuild(LEASE_MS)
    broker.put_alarms([Alarm("q", "alarmed", "1")])
    assert broker.find_alarms("q", "alarmed", ["1"]) == broker.alarms("q", "alarmed")[0]
    broker.drop_alarms([Alarm("q", "alarmed", "1")])
    assert broker.end_rebuild()
    broker.claim_suspect([Want("q", "k", 1)], lease_ms=LEASE_MS, worker=WORKER)
    broker.wait(0)
    broker.announce(WorkerInfo(WORKER, ["q"], ["k"], 0, 0))
    assert [worker.name for worker in broker.workers()] == [WORKER]
    broker.retire(WORKER)
    assert broker.peek("q", 10)
    assert broker.get("retry")
    assert broker.errors(10)
    assert broker.counts().error == 1
    assert broker.rescue(["bury"]) == [True]
    assert broker.audit().differences == []
    assert broker.report().problems == []
    assert "persistence" in broker.report().durability  # so CONFIG GET was allowed


def test_the_user_of_the_page_hears_of_what_is_sent_nearer(restricted: tuple[Server, RedisBroker]) -> None:
    server, broker = restricted
    broker.claim([Want("q", "k", 1)], lease_ms=LEASE_MS, worker=WORKER)
    with server.client() as client:
        subscribers = client.execute_command("PUBSUB", "NUMSUB", "{delayq:0}:wake")
    assert subscribers == [b"{delayq:0}:wake", 1]


def test_the_user_of_the_page_can_touch_nothing_else(restricted: tuple[Server, RedisBroker]) -> None:
    server, _ = restricted
    client = redis.Redis(unix_socket_path=str(server.socket), username="delayq", password="a-long-password")
    for command in (("SET", "session:1", "x"), ("FLUSHALL",), ("KEYS", "*"), ("PUBLISH", "other", "x"), ("SHUTDOWN",)):
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command(*command)
    client.close()


def test_a_wrong_password_is_refused_with_the_fix(restricted: tuple[Server, RedisBroker]) -> None:
    server, _ = restricted
    broker = RedisBroker(Alias("default", location=server.url.replace("unix://", "unix://delayq:wrong@")))
    with pytest.raises(BrokerRefused, match="check user and password in LOCATION"):
        broker.open()


def test_systemd_waits_longer_than_the_worker_takes_to_stop() -> None:
    (unit,) = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(unit)
    service = parser["Service"]
    (shutdown_timeout,) = re.findall(r"--shutdown-timeout (\d+)", service["ExecStart"])
    assert int(service["TimeoutStopSec"]) > int(shutdown_timeout)
