"""What a job sends, it sends once: its ledger knows ids whose messages have long finished."""

from django_delayq.brokers.base import Header, NewMessage, SettleAction
from django_delayq.brokers.redis.broker import RedisBroker
from django_delayq.brokers.redis.client import Client
from django_delayq.brokers.redis.enqueue import enqueue_once
from django_delayq.brokers.redis.shards import CallCells, Keys
from tests.brokers.rig import Rig
from tests.redis.test_lost_replies import ask
from tests.servers import Server

HOUR_MS = 3_600_000


def put(rig: Rig, *ids: str, job: str = "job", key: str = "k") -> int:
    assert isinstance(rig.broker, RedisBroker)
    puts = [NewMessage(id, Header("q", key), b"1", at_ms=0) for id in ids]
    return rig.broker.queue.begin_enqueue_once(puts, job, HOUR_MS)()


def test_a_job_run_again_sends_nothing_of_what_waits_runs_or_has_finished(rig: Rig) -> None:
    assert put(rig, "finished", "buried") == 2
    finished, buried = rig.claim()
    assert rig.settle(finished, SettleAction.FINISH)
    assert rig.settle(buried, SettleAction.BURY)
    assert put(rig, "running") == 1
    rig.claim_one()
    assert put(rig, "waiting") == 1
    assert put(rig, "finished", "buried", "running", "waiting", "new") == 1
    assert sorted(message.id for message in rig.claim()) == ["new", "waiting"]
    assert rig.total("sent") == 5


def test_what_another_job_has_finished_is_sent_again(rig: Rig) -> None:
    put(rig, "a", job="november")
    rig.settle(rig.claim_one(), SettleAction.FINISH)
    assert put(rig, "a", job="december") == 1


def test_of_two_with_one_id_in_a_call_the_first_is_sent(rig: Rig) -> None:
    assert put(rig, "a", "a") == 1
    assert rig.total("sent") == 1


def test_what_waits_under_another_key_is_left_as_it_is(rig: Rig) -> None:
    rig.send("a", key="other")
    assert put(rig, "a") == 0
    assert rig.claim() == []
    assert rig.claim_one("other").id == "a"


def test_a_call_whose_reply_was_lost_is_answered_as_the_first_time(rig: Rig, links: Client) -> None:
    puts = [NewMessage("a", Header("q", "k"), b"1")]
    calls = next(enqueue_once(Keys("delayq"), CallCells(), puts, "job", HOUR_MS))
    assert links.run(ask(calls)) == links.run(ask(calls)) == [[1]]
    assert rig.total("sent") == 1


def test_a_ledger_is_kept_for_its_time_after_the_last_put(rig: Rig, redis_server: Server) -> None:
    put(rig, "a")
    with redis_server.client() as client:
        assert HOUR_MS - 60_000 < client.pttl(Keys("delayq").job("job")) <= HOUR_MS
