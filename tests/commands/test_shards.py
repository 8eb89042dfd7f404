"""`delayq shards`."""

from collections.abc import Callable

import pytest
from django.core.management.base import CommandError
from pytest_django import Settings

from django_delayq.brokers import get_broker
from django_delayq.brokers.base import Alarm, Header, Put
from django_delayq.brokers.redis import RedisBroker
from tests.commands.support import delayq, delayq_json
from tests.redis_users import location_of
from tests.servers import Server

Deploy = Callable[..., None]


@pytest.fixture
def deploy(settings: Settings, redis_server: Server) -> Deploy:
    """Settings of all processes."""

    def deployed(**options: int) -> None:
        alias = {"LOCATION": redis_server.url, "STORE": None, "OPTIONS": options | {"unknown_keys": "allow"}}
        settings.DELAYQ = {"default": alias}

    return deployed


def test_a_change_is_switched_watched_and_over(deploy: Deploy) -> None:
    deploy(shards=4)
    get_broker().put([Put(f"{n}", Header("q", "k"), b"1", 60_000) for n in range(10)])
    assert delayq("shards") == "4 shards, and no change of that\n"

    deploy(shards=3, old_shards=4)
    with pytest.raises(CommandError, match="run this with --switch"):
        delayq("shards")
    assert "switched\nleft by 4: " in delayq("shards", "--switch")
    with pytest.raises(CommandError, match="what is left by 4 has not ended"):
        delayq("shards")

    with pytest.raises(CommandError, match="has not ended"):
        delayq("shards", "--end")

    get_broker().cancel([f"{n}" for n in range(10)])
    seen = {
        "alias": "default",
        "shards": 3,
        "old_shards": 4,
        "switched": True,
        "drained": True,
        "ended": False,
        "left": {"messages": 0, "buried": 0, "alarms": 0},
    }
    assert delayq_json("shards") == seen
    assert "drained: run this with --end\n" in delayq("shards")
    assert "ended: take old_shards out" in delayq("shards", "--end")
    assert delayq_json("shards") == seen | {"ended": True}
    deploy(shards=3)
    assert delayq("shards") == "3 shards, and no change of that\n"


def test_who_may_only_look_sees_how_far_it_is_and_changes_nothing(
    deploy: Deploy, settings: Settings, redis_server: Server
) -> None:
    deploy(shards=3, old_shards=4)
    broker, alias = get_broker(), settings.DELAYQ["default"]
    assert isinstance(broker, RedisBroker)
    broker.put([Put(f"{n}", Header("q", "k"), b"1", 60_000) for n in range(10)])
    broker.put_alarms([Alarm("q", "k", f"{n}", 60_000) for n in range(10)])
    broker.switch_shards()
    settings.DELAYQ = {"default": alias | {"LOCATION": location_of(redis_server, "dashboard")}}
    with pytest.raises(CommandError, match="what is left by 4 has not ended"):
        delayq("shards")
    broker.cancel([f"{n}" for n in range(10)])
    for step in ("--switch", "--end"):
        with pytest.raises(CommandError, match=r"use the user that docs/how-to/deploy\.md lists .* the worker's"):
            delayq("shards", step)
    settings.DELAYQ = {"default": alias | {"LOCATION": location_of(redis_server, "worker")}}
    assert "ended: take old_shards out" in delayq("shards", "--end")


@pytest.mark.parametrize("step", ["--switch", "--end"])
def test_without_an_old_number_there_is_nothing_to_switch_or_end(deploy: Deploy, step: str) -> None:
    deploy(shards=3)
    with pytest.raises(CommandError, match="old_shards") as refused:
        delayq("shards", step)
    assert refused.value.returncode == 2


def test_who_is_not_on_redis_has_no_shards(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    with pytest.raises(CommandError, match="has no shards"):
        delayq("shards")
