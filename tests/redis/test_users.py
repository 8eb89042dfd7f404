"""The users that the docs tell a site to make can do what they are for, and no more."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
import redis
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from django_delayq.brokers.base import ClaimRequest, Header, NewMessage, Pause, SettleAction, WorkerInfo
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import Alias, Options
from django_delayq.core.errors import BrokerRefused
from tests.brokers.rig import LEASE_MS, Rig, redis_rig
from tests.redis_users import ACL, location_of, login
from tests.servers import Server

HOUR = 3_600_000
FIX = "use the user that docs/how-to/deploy.md lists for this, such as the worker's, or give this one what it lists."


@pytest.fixture
def rig_of(redis_server: Server) -> Iterator[Callable[[str], Rig]]:
    """A broker of one kind of user."""
    rigs: list[Rig] = []
    with redis_server.client() as client:

        def rig_of(user: str) -> Rig:
            rigs.append(redis_rig(location_of(redis_server, user), client))
            return rigs[-1]

        yield rig_of
        for rig in rigs:
            rig.broker.close()


def test_a_site_sends_and_moves_what_waits(rig_of: Callable[[str], Rig]) -> None:
    site = rig_of("site")
    site.broker.open()
    site.send("a", "b", "c", delay_ms=HOUR)
    site.send("a", key="other", delay_ms=HOUR, on_conflict="replace")
    site.send("b", delay_ms=1, on_conflict="earliest")
    assert site.broker.queue.reschedule(["b"], delay_ms=HOUR) == [True]
    assert site.broker.queue.cancel(["c"]) == [True]
    assert site.get("a").header.key == "other"
    assert site.broker.queue.get("nowhere") is None


def test_a_site_runs_and_rescues_nothing(rig_of: Callable[[str], Rig]) -> None:
    site = rig_of("site")
    site.send("a")
    for forbidden, name in (
        (site.claim, "claim.lua"),
        (lambda: site.broker.queue.maintain(lease_ms=LEASE_MS), "reclaim.lua"),
        (lambda: site.broker.presence.heartbeat(WorkerInfo("w", [], [], 0, 0)), "heartbeat.lua"),
        (site.broker.queue.counts, "read.lua"),
    ):
        with pytest.raises(BrokerRefused) as refused:
            forbidden()
        assert_tells_the_fix(refused.value, name)


def test_a_user_for_other_keys_is_told_the_fix(redis_server: Server) -> None:
    alias = Alias("default", location=location_of(redis_server, "worker"), options=Options(prefix="other"))
    with closing(RedisBroker(alias)) as broker, pytest.raises(BrokerRefused) as refused:
        broker.queue.enqueue([NewMessage("a", Header("q", "k"), b"1")])
    assert_tells_the_fix(refused.value, "agree.lua")


def assert_tells_the_fix(refused: BrokerRefused, name: str) -> None:
    """By the name of what was asked, and not by the hash of a script."""
    assert f" refused {name}: " in str(refused)
    assert str(refused).endswith("; " + FIX)
    assert not re.search(r"[0-9a-f]{40}|user_script|\bERR\b", str(refused))


def test_a_worker_runs_what_a_site_sent_and_is_woken_for_it(rig_of: Callable[[str], Rig]) -> None:
    site, worker = rig_of("site"), rig_of("worker")
    assert worker.broker.report().problems == []
    assert worker.claim() == []
    site.send("a")
    worker.broker.queue.wait(30)
    assert worker.settle(worker.claim_one(), SettleAction.FINISH)
    assert worker.broker.queue.audit().differences == []


def test_a_dashboard_looks_and_changes_nothing(rig_of: Callable[[str], Rig]) -> None:
    site, worker, dashboard = rig_of("site"), rig_of("worker"), rig_of("dashboard")
    site.send("a", delay_ms=HOUR)
    worker.bury("b")
    worker.broker.presence.heartbeat(WorkerInfo("w", ["q"], ["k"], 0, 0))
    assert worker.timer.owner("default 1") == "default 1"
    look = dashboard.broker
    assert dashboard.timer.owner() == "default 1"
    assert (look.queue.counts().error, len(look.queue.peek("q", 9)), len(look.queue.failed(9))) == (1, 1, 1)
    assert (len(look.presence.workers()), look.presence.pauses(), look.queue.audit().differences) == (1, [], [])
    assert look.report().problems == []
    assert look.queue.get("a") is not None
    for forbidden in (
        lambda: look.queue.enqueue([NewMessage("c", Header("q", "k"), b"1")]),
        lambda: look.queue.claim([ClaimRequest("q", "k", 1)], lease_ms=LEASE_MS, worker="w"),
        lambda: look.queue.cancel(["a"]),
        lambda: look.queue.rescue(["b"]),
        lambda: look.queue.purge_failed(["b"]),
        lambda: look.presence.pause(Pause("q", None, "x")),
    ):
        with pytest.raises(BrokerRefused):
            forbidden()
    assert (look.queue.counts().totals["sent"], look.queue.counts().error) == (2, 1)


@pytest.mark.parametrize("user", ["site", "worker", "dashboard"])
@pytest.mark.parametrize(
    "command",
    [
        *[("EXISTS", "session:1"), ("FLUSHALL",), ("KEYS", "*"), ("PUBLISH", "other", "x"), ("SHUTDOWN",)],
        *[("CONFIG", "GET", "requirepass"), ("CONFIG", "SET", "appendonly", "no"), ("ACL", "LIST"), ("MONITOR",)],
    ],
    ids=str,
)
def test_nobody_touches_anything_else(redis_server: Server, user: str, command: tuple[str, ...]) -> None:
    with redis.Redis.from_url(location_of(redis_server, user)) as client, pytest.raises(NoPermissionError):
        client.execute_command(*command)


def test_nobody_is_let_in_without_a_login(start_redis: Callable[..., Server], tmp_path: Path) -> None:
    (tmp_path / "users.acl").write_text(ACL)
    server = start_redis(aclfile=str(tmp_path / "users.acl"))
    with server.client() as nobody:
        for command in (("PING",), ("FLUSHALL",), ("GET", "a"), ("INFO",)):
            with pytest.raises(AuthenticationError, match="Authentication required"):
                nobody.execute_command(*command)
    url = f"unix://{{}}@{server.socket}?db=0"
    with redis.Redis.from_url(url.format("default:")) as default, pytest.raises(AuthenticationError):
        default.execute_command("FLUSHALL")
    options = Options(prefix="delayq")
    with (
        closing(RedisBroker(Alias("default", location=url.format(login("site")), options=options))) as site,
        closing(RedisBroker(Alias("default", location=url.format(login("worker")), options=options))) as worker,
    ):
        site.queue.enqueue([NewMessage("a", Header("q", "k"), b"1")])
        claims = worker.queue.claim([ClaimRequest("q", "k", 1)], lease_ms=LEASE_MS, worker="w")
        assert [message.id for message in claims.messages] == ["a"]


def test_a_wrong_password_is_refused_with_the_fix(redis_server: Server) -> None:
    url = location_of(redis_server, "worker").replace(":worker-password", ":wrong")
    broker = RedisBroker(Alias("default", location=url))
    with pytest.raises(BrokerRefused, match="check user and password in LOCATION"):
        broker.open()


def test_people_can_end_a_script_that_has_no_end(start_redis: Callable[..., Server], tmp_path: Path) -> None:
    (tmp_path / "users.acl").write_text(ACL)
    server = start_redis(aclfile=str(tmp_path / "users.acl"))
    url = f"unix://{{}}@{server.socket}?db=0"
    with (
        redis.Redis.from_url(url.format(login("people"))) as people,
        redis.Redis.from_url(url.format(login("dashboard"))) as dashboard,
        ThreadPoolExecutor(1) as pool,
    ):
        people.config_set("lua-time-limit", 10)
        endless = pool.submit(dashboard.eval, "while true do end", 0)
        while not endless.done():
            with suppress(ResponseError):  # it has not begun
                people.script_kill()
        with pytest.raises(ResponseError, match="killed"):
            endless.result()
