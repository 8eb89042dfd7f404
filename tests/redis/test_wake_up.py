"""Who is woken by what: the rule that no sleeper's timer is later than the mark."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from django_delayq.brokers.base import ClaimRequest
from django_delayq.brokers.redis.claim import Claimant, claim
from django_delayq.brokers.redis.client import Client
from django_delayq.brokers.redis.shards import CallCells, Keys
from tests.brokers.rig import LEASE_MS, Rig
from tests.servers import Server
from tests.servers.cluster import until

CHANNEL = "{delayq:0}:wake"
TIMER = "{delayq:0}:timer"
MINUTE = 60_000


@pytest.fixture
def published(redis_server: Server) -> Iterator["Published"]:
    with redis_server.client() as client, client.pubsub(ignore_subscribe_messages=False) as heard:
        heard.subscribe(CHANNEL)
        assert heard.get_message(timeout=5) is not None
        yield Published(client, heard)


class Published:
    """What was published so far, up to a mark of our own."""

    def __init__(self, client: redis.Redis, heard: redis.client.PubSub) -> None:
        self.client = client
        self._heard = heard

    def __call__(self) -> list[bytes]:
        self.client.publish(CHANNEL, "end")
        messages = []
        for message in iter(lambda: self._heard.get_message(timeout=5), None):
            if message["data"] == b"end":
                break
            messages.append(message["data"])
        return messages


def test_a_burst_wakes_once(rig: Rig, published: Published) -> None:
    rig.claim()
    for n in range(20):
        rig.send(f"{n}")
    assert len(published()) == 1


def test_a_message_later_than_every_timer_wakes_nobody(rig: Rig, published: Published) -> None:
    rig.claim()
    rig.send("a", delay_ms=MINUTE)
    assert published() == []


def test_a_nearer_message_than_the_timer_wakes_with_its_due_time(rig: Rig, published: Published) -> None:
    rig.claim()
    (placed,) = rig.send("a", delay_ms=500)
    assert published() == [f"{placed.due_ms} q:k".encode()]


def test_a_reschedule_and_a_rescue_wake_too(rig: Rig, published: Published) -> None:
    rig.bury("b")
    rig.send("a", delay_ms=MINUTE)
    rig.claim()
    published()
    rig.broker.queue.reschedule(["a"], delay_ms=500)  # who sleeps looks again after a second
    assert len(published()) == 1
    rig.broker.queue.rescue(["b"])
    assert len(published()) == 1


def test_nobody_is_woken_where_nobody_sleeps(rig: Rig, published: Published) -> None:
    rig.claim(key="other")
    rig.send("a")
    assert published() == []


def test_due_messages_left_behind_call_others_once_a_second(rig: Rig, published: Published) -> None:
    rig.send("a", "b", "c", "d")
    rig.claim(1)
    rig.claim(1)
    assert len(published()) == 1


def test_a_worker_sleeps_over_what_was_left_for_want_of_a_slot(rig: Rig, links: Client) -> None:
    rig.send("a", at_most_once=True)
    by = Claimant("w", LEASE_MS)
    wants = [ClaimRequest("q", "k", 9, idle_slots=0)]
    claimed, sleep_until_ms = links.run(claim(Keys("delayq"), CallCells(), {"q:k": wants[0]}, by))
    assert (claimed.messages, claimed.more_available) == ([], True)
    assert sleep_until_ms > claimed.now_ms


def test_a_claim_over_many_sets_raises_all_their_marks(rig: Rig, published: Published) -> None:
    wants = [ClaimRequest("q", f"k{n}", 1) for n in range(100)]
    rig.broker.queue.claim(wants, lease_ms=LEASE_MS, worker="w")
    rig.send("a", key="k77")
    assert len(published()) == 1


def test_a_claim_over_many_sets_starves_none(rig: Rig) -> None:
    names = {f"k{n}" for n in range(100)}
    for name in names:
        rig.send(*(f"{name}-{n}" for n in range(3)), key=name)
    wants = [ClaimRequest("q", name, 1) for name in names]
    seen: set[str] = set()
    for _ in range(30):
        claims = rig.broker.queue.claim(wants, lease_ms=LEASE_MS, worker="w")
        seen |= {message.header.key for message in claims.messages if message.header}
    assert seen == names


def test_a_claim_over_many_sets_knows_the_next_due_time(rig: Rig) -> None:
    (placed,) = rig.send("a", key="k50", delay_ms=MINUTE)
    claims = rig.broker.queue.claim([ClaimRequest("q", f"k{n}", 1) for n in range(100)], lease_ms=LEASE_MS, worker="w")
    assert claims.next_due_ms == placed.due_ms


def test_threads_that_claim_at_once_listen_once(rig: Rig, redis_server: Server) -> None:
    threads = 8
    together = threading.Barrier(threads)

    def claim() -> None:
        together.wait()
        rig.claim()

    with redis_server.client() as client:
        before = {each["id"] for each in client.client_list(_type="pubsub")}  # the server is shared with other tests
        with ThreadPoolExecutor(threads) as pool:
            for claimed in [pool.submit(claim) for _ in range(threads)]:
                claimed.result()
        assert len({each["id"] for each in client.client_list(_type="pubsub")} - before) == 1


def _fall_asleep(rig: Rig) -> None:
    """Find nothing, after what a new connection may have missed."""
    rig.claim()
    until(lambda: rig.broker.presence.pause_version > 0)
    rig.broker.queue.wait(0)
    rig.claim()


def test_a_wait_in_which_nothing_came_says_that_a_claim_would_find_nothing(rig: Rig) -> None:
    _fall_asleep(rig)
    assert not rig.broker.queue.wait(0.001)
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    assert not rig.broker.queue.wait(0.001)
    rig.send("a")
    assert rig.broker.queue.wait(30)
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    assert rig.broker.queue.wait(0)


def test_the_look_along_with_upkeep_finds_what_nobody_was_told_of(rig: Rig, published: Published) -> None:
    _fall_asleep(rig)
    published.client.delete(TIMER)
    rig.send("a")
    assert published() == []
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    assert rig.broker.queue.wait(0)


def test_a_broker_that_is_closed_listens_no_more(rig: Rig) -> None:
    before = set(threading.enumerate())
    rig.claim()
    (listener,) = [thread for thread in threading.enumerate() if thread not in before]
    rig.broker.close()
    assert not listener.is_alive()
