"""Real workers on RabbitMQ, which holds the alarms of rows."""

import pytest

from django_delayq.brokers.base import Header, NewMessage
from tests.servers import RabbitMQServer
from tests.worker.processes import Site, kill_and_take_over


def hear(site: Site, count: int) -> list[str]:
    """The ids of the next messages that ran."""
    return [site.line.next().id for _ in range(count)]


def test_messages_run_at_once_and_later(site: Site) -> None:
    worker = site.worker()
    site.send("now")
    assert hear(site, 1) == ["now"]
    header = Header("default", "run")
    site.broker.queue.enqueue(
        [NewMessage("soon", header, b'""', delay_ms=1_500), NewMessage("far", header, b'""', delay_ms=3_600_000)]
    )
    assert hear(site, 1) == ["soon"]
    assert worker.stop() == 0
    assert site.line.none_waits()


@pytest.mark.parametrize("lease", ["2s", "600s"])
def test_another_worker_takes_over_at_once_what_a_killed_one_ran(site: Site) -> None:
    kill_and_take_over(site)


def test_drain_runs_what_is_due(site: Site) -> None:
    site.send(*(f"{n}" for n in range(20)))
    worker = site.worker("--drain")
    assert worker.wait() == 0
    assert "Drained: 20 finished" in worker.text


def test_a_stop_gives_back_what_was_not_started(site: Site) -> None:
    ids = {f"{n}" for n in range(30)}
    site.send(*sorted(ids), key="hold")
    first = site.worker("--threads", "2", "--shutdown-timeout", "0")
    started = {site.line.next().id, site.line.next().id}
    first.stop()
    other = site.worker("--threads", "30")
    calls = [site.line.next() for _ in ids]
    assert {call.id for call in calls} == ids >= started
    for call in calls:
        assert call.attempt == 1
        call.release()
    hear(site, 30)
    assert other.stop() == 0


def test_cut_connections_lose_nothing(site: Site, rabbitmq_server: RabbitMQServer) -> None:
    worker = site.worker()
    site.send("first")
    hear(site, 1)
    rabbitmq_server.cut()
    ids = {f"{n}" for n in range(50)}
    for id in sorted(ids):
        site.send(id)
    while ids:  # what ran when it was cut may run again: its end could not be told
        ids.discard(site.line.next().id)
    assert worker.stop() == 0


def test_what_was_held_for_later_when_its_worker_died_is_not_early_and_not_lost(site: Site) -> None:
    site.broker.queue.enqueue([NewMessage("later", Header("default", "run"), b'""', delay_ms=900)])
    killed = site.worker()
    killed.until_says("Connections at most")
    killed.kill()
    other = site.worker()
    assert hear(site, 1) == ["later"]
    assert other.stop() == 0


def test_what_kills_its_process_thrice_is_buried_and_nothing_else(site: Site) -> None:
    worker = site.worker("--processes", "1")
    site.send("bad", key="die")
    site.send("good", key="run")
    assert sorted(hear(site, 4)) == ["bad", "bad", "bad", "good"]
    worker.until_says("failed for good")
    assert worker.stop() == 0
    assert [(info.id, info.crashes) for info in site.broker.queue.failed(10)] == [("bad", 3)]
