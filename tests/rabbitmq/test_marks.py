"""The register, which has the mark of a store, is emptied, held by a stranger or forged: the tables are enough."""

import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from amqp import Message
from amqp.exceptions import NotFound
from pytest_django import Settings

from django_delayq import send_delay_message
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import ClaimRequest, Pause
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable
from django_delayq.models import StoreIdentity
from django_delayq.store import DatabaseBackend
from django_delayq.worker.events import UnstartedEvents
from django_delayq.worker.logs import OutageLog
from django_delayq.worker.maintenance import Lanes, Maintenance, Pauses, new_info
from django_delayq.worker.worker import ask_report
from tests.rabbitmq.conftest import delayq_on
from tests.rabbitmq.support import NAMES, channel_of
from tests.servers import RabbitMQServer
from tests.store.support import LEASE_MS, site_on
from tests.worker.processes import Site

FORGED = "default 0123456789abcdef"
DEGRADED, BACK = "Degraded: the broker has been away", "No longer degraded"


@pytest.fixture
def delayq(settings: Settings, rabbitmq_server: RabbitMQServer, database: str) -> Iterator[dict[str, Any]]:
    """The settings of a site whose workers don't wait for long. The register is made again for the next test."""
    delayq = {**delayq_on(rabbitmq_server, database), "STORE": {"DEGRADED_AFTER": "1s"}}
    settings.DELAYQ = {"default": delayq}
    yield delayq
    _delete_register(rabbitmq_server)


@pytest.fixture
def site(delayq: dict[str, Any], rabbitmq_server: RabbitMQServer, database_env: dict[str, str]) -> Iterator[Site]:
    with site_on(delayq, database_env, rabbitmq_server) as site:
        yield site


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The register is looked for twice, not for two seconds."""
    monkeypatch.setattr("django_delayq.brokers.rabbitmq.shared_state.monotonic", itertools.count(step=2).__next__)


def _delete_register(server: RabbitMQServer) -> None:
    with channel_of(server) as channel, suppress(NotFound):
        channel.queue_delete(NAMES.register)


def _purge_register(server: RabbitMQServer) -> None:
    """Empty it, also if a worker holds it just now: it puts it back."""
    with channel_of(server) as channel:
        while not channel.queue_purge(NAMES.register):
            pass


def _publish_register(server: RabbitMQServer, state: dict[str, Any]) -> None:
    with channel_of(server) as channel:
        message = Message(json.dumps(state), delivery_mode=2)
        channel.basic_publish_confirm(message, NAMES.direct, NAMES.register)


def _forge_owner(server: RabbitMQServer) -> dict[str, Any]:
    """Forge it, and return the state as it was."""
    with channel_of(server) as channel:
        while (message := channel.basic_get(NAMES.register, no_ack=True)) is None:
            pass
    state: dict[str, Any] = json.loads(message.body)
    _publish_register(server, {**state, "owner": FORGED})
    return state


def _again(delayq: dict[str, Any], settings: Settings) -> DatabaseBackend:
    """The backend of a process that starts now."""
    settings.DELAYQ = {"default": delayq}
    found = get_backend()
    assert isinstance(found, DatabaseBackend)
    return found


def _run(site: Site, id: str) -> None:
    site.send(id)
    assert site.line.next().id == id


def test_a_running_worker_goes_on_from_the_tables_while_the_register_is_empty(
    site: Site, rabbitmq_server: RabbitMQServer
) -> None:
    worker = site.worker()
    _run(site, "before")
    _purge_register(rabbitmq_server)
    worker.until_says(DEGRADED)
    _run(site, "purged")
    assert BACK not in worker.text
    _publish_register(rabbitmq_server, {})
    worker.until_says(BACK)
    _run(site, "after")
    assert worker.stop() == 0
    assert "queue 'delayq.register' is empty" in worker.text


@pytest.mark.usefixtures("impatient")
def test_a_worker_starts_from_the_tables_while_the_register_is_empty_and_asks_no_alarms(
    delayq: dict[str, Any], settings: Settings, rabbitmq_server: RabbitMQServer
) -> None:
    assert ask_report(_again(delayq, settings)).warnings == []
    _purge_register(rabbitmq_server)
    backend = _again(delayq | {"STORE": {"DEGRADED_AFTER": "100ms"}}, settings)
    with pytest.raises(BrokerUnavailable, match="is empty"):
        backend.report()
    report = ask_report(backend)
    assert report.is_away
    assert report.problems == []
    assert "purged, then delete it" in report.warnings[0]
    assert backend.degraded.is_alone
    send_delay_message("k", 1, id="a")
    wants = [ClaimRequest("default", "k", 10)]
    assert [message.id for message in backend.queue.claim(wants, lease_ms=LEASE_MS, worker="w").messages] == ["a"]
    with pytest.raises(BrokerUnavailable, match="is empty"):
        backend.queue.keep_window(lease_ms=LEASE_MS)
    assert backend.degraded.is_alone
    _delete_register(rabbitmq_server)
    with suppress(BrokerUnavailable):  # it has to find out
        backend.queue.keep_window(lease_ms=LEASE_MS)
    backend.queue.keep_window(lease_ms=LEASE_MS)
    assert not backend.degraded.away


@pytest.mark.usefixtures("impatient")
def test_a_worker_hears_of_a_pause_though_its_heartbeat_finds_the_register_empty(
    delayq: dict[str, Any], settings: Settings, rabbitmq_server: RabbitMQServer, caplog: pytest.LogCaptureFixture
) -> None:
    backend = _again(delayq, settings)
    backend.report()
    pauses, lanes = Pauses(backend), Lanes(backend, ["default"])
    info = new_info("w", ["default"], ["k"], [], [])
    upkeep = Maintenance(backend, info, list, pauses, lanes, UnstartedEvents("default", "w", {}), OutageLog())
    upkeep.do_due()
    _purge_register(rabbitmq_server)
    backend.mark._fresh_until = 0  # as in a process that has not read the mark lately, so that it notifies nobody
    backend.presence.pause(Pause("default", None, "nobody is told of it"))
    send_delay_message("k", 1, queue="default", priority=5)
    upkeep._heartbeat_at = upkeep.due_at = 0
    assert upkeep.do_due()
    assert [pause.reason for pause in pauses.known] == ["nobody is told of it"]
    assert lanes.known == {"default^5"}
    assert "queue 'delayq.register' is empty" in caplog.text


def test_a_forged_owner_stops_no_worker_of_a_store_that_has_worked_there(
    site: Site, rabbitmq_server: RabbitMQServer
) -> None:
    first = site.worker()
    _run(site, "before")
    assert first.stop() == 0
    right = _forge_owner(rabbitmq_server)
    second = site.worker()
    _run(site, "forged")
    second.until_says("Trying again until it works")
    _publish_register(rabbitmq_server, right)
    second.until_says(BACK)
    _run(site, "after")
    assert second.stop() == 0
    (error,) = [line for line in second.text.splitlines() if " ERROR " in line]
    assert FORGED in error
    assert "delete the queue delayq.register in RabbitMQ at " in error


def test_a_forged_owner_stops_a_store_that_has_never_worked_there(
    delayq: dict[str, Any], settings: Settings, rabbitmq_server: RabbitMQServer, database: str
) -> None:
    _again(delayq, settings).open()  # makes the register
    _forge_owner(rabbitmq_server)
    with pytest.raises(BrokerRefused, match=f"the alarms are those of store '{FORGED}'"):
        _again(delayq, settings).report()
    assert StoreIdentity.objects.using(database).count() == 1
