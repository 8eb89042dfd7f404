"""What the commands show of RabbitMQ, and what they say that it can't tell."""

import pytest
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend, ClaimRequest, Header, NewMessage, SettleAction
from tests.brokers.rig import claim_some, settlement
from tests.commands.support import delayq
from tests.rabbitmq.conftest import delayq_on
from tests.servers import RabbitMQServer, rabbitmq_version


@pytest.fixture
def broker(settings: Settings, rabbitmq_server: RabbitMQServer, database: str) -> Backend:
    """The broker of the alias, on a node that the commands use too."""
    settings.DELAYQ = {"default": delayq_on(rabbitmq_server, database)}
    return get_backend()


def bury(broker: Backend) -> None:
    """Bury what is ready."""
    claimed = claim_some(broker, [ClaimRequest("q", "k", 10)])
    broker.queue.apply([settlement(each, SettleAction.BURY, error="no good") for each in claimed])


def test_what_is_buried_is_listed_newest_first_whoever_looked_before(broker: Backend) -> None:
    for page in range(5):
        broker.queue.enqueue([NewMessage(f"{page}-{n}", Header("q", "k"), b"1") for n in range(20)])
        while len(broker.queue.failed(1_000)) < 20 * (page + 1):
            bury(broker)
    pages = [info.id.partition("-")[0] for info in broker.queue.failed(1_000)]
    assert pages == sorted(pages, reverse=True)


def test_an_audit_of_the_tables_says_that_it_is_of_them_alone(broker: Backend) -> None:
    broker.queue.enqueue([NewMessage("a", Header("q", "k"), b"1")])
    text = delayq("audit", "--repair")
    assert "ready 1" in text
    assert "note: this broker can't be asked for its alarms" in text


def test_what_is_buried_is_listed_rescued_and_purged(broker: Backend) -> None:
    broker.queue.enqueue([NewMessage("a", Header("q", "k"), b"1"), NewMessage("b", Header("q", "k"), b"1")])
    while len(broker.queue.failed(10)) < 2:
        bury(broker)
    assert "no good" in delayq("errors")
    assert broker.queue.rescue(["a"]) == [True]
    assert broker.queue.purge_failed(["b"]) == [True]
    assert broker.queue.failed(10) == []


def test_the_explanation_of_a_row_says_that_its_alarm_can_t_be_looked_up(broker: Backend) -> None:
    broker.queue.enqueue([NewMessage("a", Header("q", "k"), b"1", delay_ms=60_000)])
    text = delayq("explain", "a")
    assert "a: pending, parked" in text  # so its workers were asked for
    assert "alarm: not known, RabbitMQ can't be asked for it\n" in text


def test_status_names_the_server_and_counts_the_rows(broker: Backend) -> None:
    broker.queue.enqueue([NewMessage("a", Header("q", "k"), b"1", delay_ms=60_000)])
    text = delayq("status")
    assert f"RabbitMQ {rabbitmq_version()}" in text
    assert "pending 1, ready 0, running 0" in text
