"""The commands tell of queues and priorities, and not of the lanes in which messages wait."""

import pytest
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend
from tests.commands.support import delayq, delayq_json, send


@pytest.fixture
def broker(clocked_broker: Backend) -> Backend:
    """One broker, with messages of three priorities in `mail` and one elsewhere: lanes are queues to each broker."""
    for delay_ms, lane in enumerate(("mail^-5", "mail", "mail^10", "text^10")):
        send(clocked_broker, lane.replace("^", " "), queue=lane, delay_ms=60_000 - delay_ms)
    return clocked_broker


def test_peek_shows_each_priority_of_a_queue_in_due_order(broker: Backend) -> None:
    seen = [(each["id"], each["queue"], each["priority"]) for each in delayq_json("peek", "mail")]
    assert seen == [("mail 10", "mail", 10), ("mail", "mail", 0), ("mail -5", "mail", -5)]
    assert [each["id"] for each in delayq_json("peek", "mail", "-n1")] == ["mail 10"]
    assert [each["id"] for each in delayq_json("peek", "mail^-5")] == ["mail -5"]


def test_explain_and_status_tell_the_priority(broker: Backend) -> None:
    shown = delayq("explain", "mail 10")
    assert "for: key 'order.close' in queue 'mail', priority 10\n" in shown
    assert "asks for key 'order.close' in queue 'mail':" in shown
    assert "in queue 'mail'\n" in delayq("explain", "mail")
    waiting = {(each["queue"], each["priority"]) for each in delayq_json("status")["waiting"]}
    assert waiting == {("mail", -5), ("mail", 0), ("mail", 10), ("text", 10)}
    assert "mail, priority 10  order.close" in delayq("status")


def test_a_purge_of_a_queue_takes_each_priority(broker: Backend) -> None:
    assert delayq("purge", "--queue", "mail^10", "--no-input") == "purged 1\n"
    assert delayq("purge", "--queue", "mail", "--no-input") == "purged 2\n"
    assert [each.queue for each in broker.queue.counts().waiting] == ["text^10"]


def test_list_tells_the_priority(sqlite_database: str, settings: Settings) -> None:
    settings.DELAYQ = {
        "default": {"BROKER": "django_delayq.brokers.database.DatabaseBroker", "DATABASE": sqlite_database}
    }
    send(get_backend(), "a", queue="mail^10", tag="t")
    (seen,) = delayq_json("list", "--tag", "t")
    assert (seen["queue"], seen["priority"]) == ("mail", 10)
