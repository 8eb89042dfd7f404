"""What the commands and the admin say of messages that a newer version wrote: what they know, and no more."""

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from django_delayq import get_delay_message
from django_delayq.brokers import get_broker
from django_delayq.brokers.base import Broker, SettleAction, Want
from django_delayq.brokers.redis import RedisBroker
from django_delayq.brokers.redis.scan import Place
from django_delayq.message import State
from tests.brokers.rig import LEASE_MS, settlement
from tests.commands.support import delayq, delayq_json, send
from tests.redis.later_format import as_format_2
from tests.servers import Server

LEFT = "A newer version of django-delayq wrote it: it is left for workers of that version."


@pytest.fixture
def newer(settings: Settings, redis_server: Server) -> Broker:
    """A broker on Redis with a message in each state, of a later format each."""
    settings.DELAYQ = {"default": {"LOCATION": redis_server.url, "STORE": None, "OPTIONS": {"unknown_keys": "allow"}}}
    broker = get_broker()
    send(broker, "buried", "running")
    claimed = broker.claim([Want("default", "order.close", 2)], lease_ms=LEASE_MS, worker="w").messages
    buried = next(one for one in claimed if one.id == "buried")
    assert broker.settle([settlement(buried, SettleAction.BURY, error="its own", detail="Traceback")]) == [True]
    send(broker, "ready")
    send(broker, "pending", delay_ms=60_000)
    with redis_server.client() as client:
        as_format_2(client, *client.hkeys("{delayq:0}:msg"))
        for id in client.hkeys("{delayq:0}:state"):
            client.hset("{delayq:0}:state", id, "whatever\x1fa later\x1fversion\x1fkeeps")
    return broker


@pytest.mark.parametrize("id", ["pending", "ready", "running", "buried"])
def test_explain_says_that_it_is_of_a_newer_version_and_who_runs_it(newer: Broker, id: str) -> None:
    told = delayq("explain", id)
    state = "error" if id == "buried" else id
    assert told.startswith(f"{id}: {state}, of a newer version")
    assert "for: key 'order.close' in queue 'default'\n" in told
    assert "data: not known here: a newer version wrote it\n" in told
    assert (f"next: {LEFT}\n" in told) == (id != "buried")
    for unknown in ("failures", "last error", "Traceback", "whatever", "\ufffd"):
        assert unknown not in told
    shape = delayq_json("explain", id)
    assert (shape["newer"], shape["data"], shape["max_attempts"]) == (True, None, None)


def test_lists_figures_and_looks_by_id_have_them_without_what_is_not_known(newer: Broker) -> None:
    assert delayq("peek", "default").count("not known here: a newer version wrote it") == 2
    (line,) = (line for line in delayq("errors").splitlines() if "buried" in line)
    assert re.split("  +", line)[-2:] == ["-", "not known here: a newer version wrote it"]
    states = delayq_json("status")["states"]
    assert {state: states[state] for state in ("pending", "ready", "running", "error")} == dict.fromkeys(
        ("pending", "ready", "running", "error"), 1
    )
    (warning,) = delayq_json("status")["server"]["warnings"]
    assert warning.startswith("Messages of a newer version of django-delayq wait here (2 among the next): ")
    assert isinstance(newer, RedisBroker)
    waiting, _ = newer.scan(0, "default:order.close", Place(0), 2**53, 10)
    assert [(one.id, one.body, one.failures) for one in waiting] == [("ready", b"", 0), ("pending", b"", 0)]
    found = get_delay_message("ready")
    assert found is not None
    assert (found.state, found.failures, found.error) == (State.READY, 0, "")


@pytest.mark.django_db
def test_the_dashboard_lists_them_with_what_is_known(newer: Broker) -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    page = client.get("/admin/delayq/").content.decode()
    assert page.count(LEFT) >= 1
    assert "its own" not in page
